"""The configurations of the workers of one machine, each derived from one file.

Owns the derivation: ids, ports, log directories, roles and racks. Worker 0 is the process that the
file describes, so that its data stay where they are; the others are brokers beside it. It reads no
file, and starts nothing: see ``cli.workers``.

| configuration | worker K of N |
|---|---|
| ``node.id`` | that of the file, plus K |
| ``listeners``, ``advertised.listeners`` | ports plus K; the controller's are worker 0's alone |
| ``log.dirs`` | as they are for worker 0; ``DIR/worker.K`` for the others |
| ``process.roles``, ``metadata.store`` | as they are for worker 0; broker for the others |
| ``controller.quorum.bootstrap.servers`` | as it is, or worker 0's listener of the controller |
| ``broker.rack`` | the machine, ``RACK/MACHINE`` if the file names a rack (``model.racks``) |
| ``metrics_port`` | any free one of the loopback address: the supervisor serves that of the file |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations

from tidelog.model.configs.addresses import Listener, joined
from tidelog.model.configs.cordoned import ALL, CORDONED_LOG_DIRS
from tidelog.model.configs.file_names import BOOTSTRAP
from tidelog.model.configs.server import ServerConfigs, from_mapping
from tidelog.model.configs.types import MAX_INT32, InvalidConfig
from tidelog.model.racks import SEPARATOR, within

LOOPBACK = "127.0.0.1"
NAMELESS = ("", "localhost", "localhost.localdomain")
"""Names that more than one machine has."""

HIGHEST_PORT = 65535

_DIRECTORY = "worker."
"""How the name of a worker's folder in a log directory begins; its index follows. No partition has
such a name, so worker 0 keeps it beside its partitions."""


def worker_of(name: str) -> int | None:
    """Return the index of the worker whose folder in a log directory has this name, or None."""
    index = name.removeprefix(_DIRECTORY)
    if index == name or not (index.isascii() and index.isdigit()):
        return None
    return int(index)


def of_workers(
    texts: Mapping[str, str], workers: int, host_name: str
) -> tuple[ServerConfigs, ...] | tuple[InvalidConfig, ...]:
    """Return the configuration of each worker, or every refusal.

    ``host_name`` is this machine's name: its rack, unless the file's has a machine already.
    """
    whole = from_mapping(texts)
    if not isinstance(whole, ServerConfigs):
        return whole
    if refusals := (*_refusals(whole, workers, host_name),):
        return refusals
    made = []
    for index in range(workers):
        one = from_mapping(_texts(whole, index, host_name))
        if not isinstance(one, ServerConfigs):
            return one
        made.append(one)
    return tuple(made)


def _refusals(whole: ServerConfigs, workers: int, host_name: str) -> Iterator[InvalidConfig]:
    if not whole.is_broker:
        sentence = "process.roles is controller: --workers starts brokers; leave it out."
        yield InvalidConfig("process.roles", sentence)
        return
    last = whole.node_id + workers - 1
    if last > MAX_INT32:
        yield InvalidConfig("node.id", f"node.id: worker {workers - 1} would have {last}.")
    yield from _refused_ports(whole, workers)
    if workers > 1 and _needs_own_controller(whole) and not whole.controller_listeners[0].port:
        yield InvalidConfig(
            "listeners",
            f"listeners: give {whole.controller_listeners[0].name} a port: the other workers must "
            "know it.",
        )
    rack = whole.broker_rack
    if rack is not None and "" in rack.split(SEPARATOR):
        yield InvalidConfig("broker.rack", f"broker.rack: {rack} is not RACK or RACK/MACHINE.")
    elif (rack is None or SEPARATOR not in rack) and _is_nameless(host_name):
        yield InvalidConfig(
            "broker.rack",
            f"broker.rack: this machine is called {host_name or 'nothing'}, as others are, too: "
            "say RACK/MACHINE.",
        )


def _is_nameless(host_name: str) -> bool:
    return host_name in NAMELESS or SEPARATOR in host_name


def _refused_ports(whole: ServerConfigs, workers: int) -> Iterator[InvalidConfig]:
    """Yield a refusal for each two ranges of ports that overlap, and for each that is too high."""
    ranges = [
        ("listeners", one.name, one.port, one.port + workers - 1)
        for one in whole.broker_listeners
        if one.port
    ]
    fixed = [("listeners", one.name, one.port) for one in whole.controller_listeners if one.port]
    if whole.metrics_address is not None and whole.metrics_address[1]:
        fixed.append(("metrics_port", "metrics_port", whole.metrics_address[1]))
    for _, name, first, last in ranges:
        if last > HIGHEST_PORT:
            yield InvalidConfig(
                "listeners",
                f"listeners: {name} takes one port for each worker, {first} to {last}: the highest "
                f"is {HIGHEST_PORT}.",
            )
    for public in whole.advertised_listeners:
        end = public.port + workers - 1
        if public.port and end > HIGHEST_PORT and "advertised.listeners" in whole.texts:
            yield InvalidConfig(
                "advertised.listeners",
                f"advertised.listeners: {public.name} takes one port for each worker, "
                f"{public.port} to {end}: the highest is {HIGHEST_PORT}.",
            )
    every = [*ranges, *((config, name, port, port) for config, name, port in fixed)]
    for (_, one, first, last), (config, other, other_first, other_last) in combinations(every, 2):
        if first <= other_last and other_first <= last:
            yield InvalidConfig(
                config,
                f"{config}: {one} takes the ports {first} to {last}, one for each worker, and "
                f"{other} {_said(other_first, other_last)}: move {other} out of their way.",
            )


def _said(first: int, last: int) -> str:
    return str(first) if first == last else f"{first} to {last}"


def _needs_own_controller(whole: ServerConfigs) -> bool:
    return whole.is_controller and not whole.controller_quorum_bootstrap_servers


def _texts(whole: ServerConfigs, index: int, host_name: str) -> dict[str, str]:
    texts = dict(whole.texts)
    texts.pop("broker.id", None)
    texts["node.id"] = str(whole.node_id + index)
    texts["broker.rack"] = _rack(whole.broker_rack, host_name)
    texts["metrics_port"] = f"{LOOPBACK}:0"
    if index:
        texts["process.roles"] = "broker"
        texts.pop("metadata.store", None)
        texts.pop("log.dir", None)
        texts["log.dirs"] = ",".join(_directory(path, index) for path in whole.log_dirs)
        if CORDONED_LOG_DIRS in texts:
            closed = (x if x == ALL else _directory(x, index) for x in whole.cordoned_log_dirs)
            texts[CORDONED_LOG_DIRS] = ",".join(closed)
        texts["listeners"] = ",".join(str(_moved(x, index)) for x in whole.broker_listeners)
        if "advertised.listeners" in texts:
            moved = (_moved(x, index) for x in whole.advertised_listeners)
            texts["advertised.listeners"] = ",".join(map(str, moved))
        if _needs_own_controller(whole):
            own = whole.controller_listeners[0]
            texts[BOOTSTRAP] = joined(own.near_host, own.port)
    return texts


def _directory(path: str, index: int) -> str:
    return f"{path.rstrip('/')}/{_DIRECTORY}{index}"


def _rack(rack: str | None, host_name: str) -> str:
    return rack if rack is not None and SEPARATOR in rack else within(rack, host_name)


def _moved(listener: Listener, index: int) -> Listener:
    port = listener.port + index if listener.port else 0
    return Listener(listener.name, listener.host, port)
