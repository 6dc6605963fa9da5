"""The configuration of a process: ``server.properties`` text to typed, checked values.

Owns the rules between configurations (listeners, roles, times of a broker's session). Not the
syntax: see `properties`; not names, types and defaults: see `broker`. It reads no file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from tidelog.model.configs import tls
from tidelog.model.configs.addresses import (
    LOOPBACKS,
    Listener,
    is_shared,
    joined,
    split_address,
)
from tidelog.model.configs.broker import (
    BROKER,
    ControllerRows,
    GroupsRows,
    ListenersRows,
    NetworkRows,
    NodeRows,
    ShareGroupsRows,
    TopicsRows,
    TransactionsRows,
)
from tidelog.model.configs.broker_log import CleanerRows, LogsRows
from tidelog.model.configs.broker_replication import RACK_AWARE_SELECTOR, ReplicationRows
from tidelog.model.configs.cordoned import CORDONED_LOG_DIRS, unknown_entries
from tidelog.model.configs.file_names import BOOTSTRAP, VOTERS, refused_names
from tidelog.model.configs.properties import parse_properties
from tidelog.model.configs.resolve import BrokerLayers, resolve_topic
from tidelog.model.configs.types import InvalidConfig, Value, parse
from tidelog.model.levels import Level, level_of

EVERY_INTERFACE = tuple(LOOPBACKS)
"""Hosts that a listener may have, and no client can connect to."""

PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
"""Kafka's security protocols; a listener with one of these names has it. The
index of each is its number in requests."""

SPOKEN = ("PLAINTEXT", tls.SSL)
"""Those that we speak."""

NO_SASL = "this version has no SASL, and would serve what the file protects"

HEARTBEATS_IN_SILENCE = 3
"""Missing heartbeats after which a silence is suspicious."""

SILENCE, SESSION = "broker.silence.suspect.ms", "broker.session.timeout.ms"
HEARTBEAT = "broker.heartbeat.interval.ms"
INTER_BROKER_PROTOCOL = "security.inter.broker.protocol"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfigs(
    NodeRows,
    ListenersRows,
    tls.TlsRows,
    NetworkRows,
    TopicsRows,
    LogsRows,
    CleanerRows,
    GroupsRows,
    ReplicationRows,
    ControllerRows,
    TransactionsRows,
    ShareGroupsRows,
):
    """One process's configuration, typed. Each field is the configuration of that name with dots;
    times in ms and sizes in bytes unless the name says another unit.

    ``texts`` is the content of the file, name to text (the static layer of DescribeConfigs).
    ``controller_quorum_bootstrap_servers`` is empty when a process with both roles does not set it:
    then its own controller is meant. An advertised port of 0 means the port really bound, and an
    advertised host of "" this machine's name, which the process looks up.
    """

    texts: Mapping[str, str]

    @property
    def level(self) -> Level:
        """The level of the requests that this process sends to controllers and brokers."""
        return level_of(self.inter_broker_protocol_version)

    @property
    def reads_from_closest(self) -> bool:
        """Whether consumers are sent to a replica of their rack (KIP-392)."""
        return self.replica_selector_class == RACK_AWARE_SELECTOR

    @property
    def is_broker(self) -> bool:
        """Whether this process hosts replicas."""
        return "broker" in self.process_roles

    @property
    def is_controller(self) -> bool:
        """Whether this process can own the metadata."""
        return "controller" in self.process_roles

    @property
    def broker_listeners(self) -> tuple[Listener, ...]:
        """The listeners for clients and brokers."""
        return tuple(x for x in self.listeners if x.name not in self.controller_listener_names)

    @property
    def controller_listeners(self) -> tuple[Listener, ...]:
        """The listeners for brokers that talk to the controller."""
        return tuple(x for x in self.listeners if x.name in self.controller_listener_names)

    @property
    def tls_listeners(self) -> frozenset[str]:
        """The names of the listeners with TLS: those of this process, and the controllers'."""
        own = {one.name for one in self.listeners if one.security_protocol == tls.SSL}
        elsewhere = tls.listeners_with_tls(self.texts)
        return frozenset(
            own | {x for x in self.controller_listener_names if x.lower() in elsewhere}
        )


def load(text: str) -> ServerConfigs | tuple[InvalidConfig, ...]:
    """Parse and check the text of a ``server.properties`` file."""
    return from_mapping(parse_properties(text))


def from_mapping(texts: Mapping[str, str]) -> ServerConfigs | tuple[InvalidConfig, ...]:
    """Check a process's configurations; return them typed, or every refusal there is."""
    refusals = list(refused_names(texts))
    values: dict[str, Value] = {}
    for name, definition in BROKER.items():
        value = parse(definition, texts.get(name, definition.default))
        if isinstance(value, InvalidConfig):
            refusals.append(value)
        else:
            values[name] = value
    if len(values) < len(BROKER):
        return tuple(refusals)
    refusals.extend(resolve_topic({}, BrokerLayers(static=texts)).problems)
    # Also when names are refused: the refusals of a file come all at once.
    special = _Special(values, texts)
    made = special.fields()
    refusals.extend(special.refusals)
    if refusals:
        return tuple(refusals)
    typed = {row.field: row.typed(values[name]) for name, row in BROKER.items()}
    return ServerConfigs(texts=dict(texts), **(typed | made))


class _Special:
    # The fields that need more than their own text. Each method appends to `refusals` the values
    # that it cannot accept, and then returns a harmless value.

    def __init__(self, values: Mapping[str, Value], texts: Mapping[str, str]) -> None:
        self._values: Mapping[str, Any] = values
        self._texts = texts
        self.refusals: list[InvalidConfig] = []
        self._protocols = self._protocol_map()

    def fields(self) -> dict[str, Any]:
        values = self._values
        roles = frozenset(values["process.roles"])
        log_dirs = values["log.dirs"] or (values["log.dir"],)
        controllers = values["controller.listener.names"]
        for entry in unknown_entries(values[CORDONED_LOG_DIRS], log_dirs):
            sentence = f"{CORDONED_LOG_DIRS}: {entry} is not among the log directories."
            self._refuse(CORDONED_LOG_DIRS, sentence)
        listeners = self._listeners(roles)
        metrics = self._metrics()
        self._refuse_shared_ports(listeners, metrics)
        inter_broker = self._inter_broker_name(listeners, controllers)
        return {
            "node_id": self._node_id(),
            "process_roles": roles,
            "log_dirs": log_dirs,
            "metadata_store": values["metadata.store"] or f"sqlite:{log_dirs[0]}/metadata.sqlite",
            "metrics_address": metrics,
            "listeners": listeners,
            "advertised_listeners": self._advertised(listeners),
            "inter_broker_listener_name": inter_broker,
            "security_inter_broker_protocol": self._protocol_of(inter_broker),
            "controller_listener_names": controllers,
            "controller_quorum_bootstrap_servers": self._bootstrap(roles),
            "broker_silence_suspect_ms": self._silence_suspect_ms(),
        }

    def _refuse(self, name: str, sentence: str) -> None:
        self.refusals.append(InvalidConfig(name, sentence))

    def _node_id(self) -> int:
        node, broker = self._values["node.id"], self._values["broker.id"]
        if node is None and broker is None:
            self._refuse("node.id", "node.id is missing: every node needs a number of its own.")
        elif node is not None and broker is not None and node != broker:
            self._refuse("node.id", f"node.id is {node}, but broker.id is {broker}.")
        return int(node if node is not None else broker or 0)

    def _listeners(self, roles: frozenset[str]) -> tuple[Listener, ...]:
        if not roles:
            self._refuse("process.roles", "process.roles is empty: say broker, controller or both.")
        controllers = self._values["controller.listener.names"]
        given = self._values["listeners"]
        if given is None:
            first = ("PLAINTEXT://:9092",) if "broker" in roles else ()
            given = first + ((f"{controllers[0]}://:9093",) if "controller" in roles else ())
        found = self._parse_listeners("listeners", given)
        names = [entry.name for entry in found]
        if "controller" in roles and not set(names) & set(controllers):
            wanted = " or ".join(controllers)
            why = "" if "process.roles" in self._texts else " as process.roles is not set"
            self._refuse(
                "listeners",
                f"listeners has no {wanted}, but this process is a controller{why}: add "
                f"{controllers[0]}://HOST:PORT to it, or say process.roles=broker.",
            )
        if "broker" in roles and not set(names) - set(controllers):
            self._refuse("listeners", "listeners has none for brokers and clients.")
        self._refuse_unspoken("listeners", names)
        # A broker speaks to controllers whose listener is in their files alone.
        elsewhere = [name for name in controllers if name not in names]
        self._refuse_unspoken("controller.listener.names", elsewhere)
        self._refuse_without_keys(names, elsewhere)
        return found

    def _refuse_without_keys(self, own: list[str], elsewhere: list[str]) -> None:
        refused: dict[str, list[str]] = {}
        for name in (*own, *elsewhere):
            if self._protocol_of(name) != tls.SSL:
                continue
            found = tls.of_listener(self._texts, name)
            why = found if isinstance(found, str) else None
            if not isinstance(found, str) and name in own:
                why = tls.why_no_server(found)
            if why is not None:
                refused.setdefault(why, []).append(name)
        for why, names in refused.items():
            self._refuse("listeners", f"listeners: {', '.join(names)} (SSL): {why}")

    def _refuse_shared_ports(
        self, listeners: tuple[Listener, ...], metrics: tuple[str, int] | None
    ) -> None:
        # The second of them would find the port in use, "by another process".
        for one, other in combinations(listeners, 2):
            if one.port and one.port == other.port and is_shared(one.host, other.host):
                sentence = (
                    f"listeners: {one} and {other} cannot have the same port: give each one of its "
                    "own."
                )
                self._refuse("listeners", sentence)
        host, port = metrics or ("", 0)
        for one in listeners:
            if port and one.port == port and is_shared(one.host, host or "0.0.0.0"):
                sentence = (
                    f"metrics_port: {joined(host, port)} and the listener {one} cannot have the "
                    "same port: give each one of its own."
                )
                self._refuse("metrics_port", sentence)

    def _protocol_of(self, listener: str) -> str:
        # As in Kafka: a controller's listener that is in no map is none of TLS or SASL.
        controllers = self._values["controller.listener.names"]
        implied = "PLAINTEXT" if listener in controllers else ""
        return self._protocols.get(listener, listener if listener in PROTOCOLS else implied)

    def _refuse_unspoken(self, config: str, listeners: list[str]) -> None:
        unspoken = []
        for name in listeners:
            protocol = self._protocol_of(name)
            if protocol not in PROTOCOLS:
                self._refuse(
                    config,
                    f"{config}: {name} has none of Kafka's security protocols: say "
                    f"{name}:PLAINTEXT in listener.security.protocol.map.",
                )
            elif protocol not in SPOKEN:
                unspoken.append(f"{name} ({protocol})")
        if unspoken:
            self._refuse(
                config,
                f"{config}: {NO_SASL}: {', '.join(unspoken)}. Remove these listeners, or give them "
                "SSL with ssl.client.auth=required in listener.security.protocol.map.",
            )

    def _parse_listeners(self, config: str, texts: tuple[str, ...]) -> tuple[Listener, ...]:
        found: list[Listener] = []
        for text in texts:
            name, separator, address = text.partition("://")
            where = split_address(address)
            if not (name and separator) or where is None:
                self._refuse(
                    config,
                    f"{config}: {text or 'an empty entry'} is not of the form NAME://HOST:PORT.",
                )
                continue
            if any(entry.name == name for entry in found):
                self._refuse(config, f"{config}: the name {name} is there twice.")
            found.append(Listener(name, where[0], where[1], self._protocol_of(name)))
        return tuple(found)

    def _protocol_map(self) -> dict[str, str]:
        name = "listener.security.protocol.map"
        found: dict[str, str] = {"CONTROLLER": "PLAINTEXT"}
        for entry in self._values[name]:
            listener, colon, protocol = entry.partition(":")
            if not colon:
                self._refuse(name, f"{name}: {entry} is not of the form NAME:PROTOCOL.")
            found[listener] = protocol
        return found

    def _advertised(self, listeners: tuple[Listener, ...]) -> tuple[Listener, ...]:
        controllers = self._values["controller.listener.names"]
        own = [entry for entry in listeners if entry.name not in controllers]
        given = self._values["advertised.listeners"]
        if given is None:
            return tuple(replace(x, host="" if x.host in EVERY_INTERFACE else x.host) for x in own)
        found = self._parse_listeners("advertised.listeners", given)
        for entry in found:
            if entry.host and entry.host in EVERY_INTERFACE:
                self._refuse(
                    "advertised.listeners",
                    f"advertised.listeners: no client can connect to {entry}: name an address or a "
                    "host by which clients reach this machine.",
                )
        names = {entry.name for entry in listeners}
        for entry in found:
            if entry.name not in names:
                self._refuse(
                    "advertised.listeners",
                    f"advertised.listeners: {entry.name} is not among the listeners.",
                )
        # Kafka's own files advertise the controller, too (KIP-853); here brokers learn where
        # it is by controller.quorum.bootstrap.servers alone.
        found = tuple(entry for entry in found if entry.name not in controllers)
        if own and not found:
            sentence = "advertised.listeners has none for brokers and clients."
            self._refuse("advertised.listeners", sentence)
        return found

    def _inter_broker_name(
        self, listeners: tuple[Listener, ...], controllers: tuple[str, ...]
    ) -> str:
        own = [entry.name for entry in listeners if entry.name not in controllers]
        name: str | None = self._values["inter.broker.listener.name"]
        protocol = self._texts.get(INTER_BROKER_PROTOCOL, "").strip()
        if protocol:
            return self._by_protocol(own, name, protocol)
        if name is None:
            return "PLAINTEXT" if "PLAINTEXT" in own or not own else own[0]
        if name not in own and "broker" in self._values["process.roles"]:
            self._refuse(
                "inter.broker.listener.name",
                f"inter.broker.listener.name: {name} is not among the broker's listeners.",
            )
        return name

    def _by_protocol(self, own: list[str], name: str | None, protocol: str) -> str:
        """Return the listener between brokers where the file has its security protocol."""
        if protocol not in SPOKEN:
            sentence = (
                f"{INTER_BROKER_PROTOCOL} is refused: {protocol} is none of {' and '.join(SPOKEN)}"
            )
            self._refuse(INTER_BROKER_PROTOCOL, f"{sentence}; {NO_SASL}.")
            return name or PROTOCOLS[0]
        has_it = [each for each in own if self._protocol_of(each) == protocol]
        if name in has_it:
            return str(name)
        if name is not None:
            sentence = f"{INTER_BROKER_PROTOCOL} is {protocol}, and {name} is no such listener"
            self._refuse(INTER_BROKER_PROTOCOL, f"{sentence}: say one of them alone.")
        elif own and not has_it:
            sentence = f"{INTER_BROKER_PROTOCOL}: no listener of this broker has {protocol}."
            self._refuse(INTER_BROKER_PROTOCOL, sentence)
        # As in Kafka the one with the protocol's name; here also one with another name.
        return protocol if protocol in has_it or not has_it else has_it[0]

    def _bootstrap(self, roles: frozenset[str]) -> tuple[tuple[str, int], ...]:
        name = BOOTSTRAP
        found = []
        for text in self._values[name]:
            where = split_address(text)
            if where is None or not where[0]:
                hint = ": leave out the id" if "@" in text else ""
                self._refuse(name, f"{name}: {text} is not of the form HOST:PORT{hint}.")
                continue
            found.append(where)
        is_told = self._texts.get(VOTERS, "").strip()
        if not self._values[name] and "controller" not in roles and not is_told:
            self._refuse(name, f"{name} is missing: a broker alone must know its controllers.")
        store = self._values["metadata.store"] or "sqlite:"
        if "controller" in roles and len(found) > 1 and store.startswith("sqlite:"):
            self._refuse(
                name,
                f"{name} names {len(found)} controllers, but a SQLite store serves one: several "
                "need metadata.store=zookeeper://HOST:PORT.",
            )
        return tuple(found)

    def _silence_suspect_ms(self) -> int:
        found = silence_suspect_ms(self._values, "broker.silence.suspect.ms" in self._texts)
        if isinstance(found, InvalidConfig):
            self.refusals.append(found)
            return 0
        return found

    def _metrics(self) -> tuple[str, int] | None:
        text = self._values["metrics_port"]
        if not text:
            return None
        where = split_address(text if ":" in text else f"127.0.0.1:{text}")
        if where is None:
            self._refuse("metrics_port", f"metrics_port: {text} is not PORT or HOST:PORT.")
        return where


def silence_suspect_ms(values: Mapping[str, Any], is_set: bool) -> int | InvalidConfig:
    """Return after how long a silence a broker is suspected, in ms, or why these times are refused.

    A default follows the other two: half of a short session, three intervals of slow heartbeats;
    where that leaves no room it is the whole session timeout, and the broker expires first.
    """
    session_ms: int = values[SESSION]
    heartbeat_ms: int = values[HEARTBEAT]
    silence_ms: int = values[SILENCE]
    if session_ms <= heartbeat_ms:
        return InvalidConfig(
            SESSION,
            f"{SESSION} is {session_ms}: it must be above {HEARTBEAT} ({heartbeat_ms}), or every "
            "broker expires between two heartbeats.",
        )
    least_ms = HEARTBEATS_IN_SILENCE * heartbeat_ms
    if not is_set:
        return min(session_ms, max(least_ms, min(silence_ms, session_ms // 2)))
    if not least_ms <= silence_ms < session_ms:
        return InvalidConfig(
            SILENCE,
            f"{SILENCE} is {silence_ms}: it must be at least {least_ms} (three times {HEARTBEAT}) "
            f"and below {session_ms} ({SESSION}).",
        )
    return silence_ms
