"""``tidelog up``: a development cluster with one command.

Owns the processes it starts: their files under the data folder, their ports, ``cluster.json``, the
ready line, and that all of them end with it. A child's own start and end is ``up_child``'s.

Which processes there are stands in ``up_files``: controllers start first and stop last, so that
they move what a broker leads when it stops. When a child dies the others go on, as long as a
broker lives: leaders serve on while there is no controller.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tidelog.cli.cluster_secret import make_secret
from tidelog.cli.connecting import key_values
from tidelog.cli.failures import Failed, WrongUsage
from tidelog.cli.output import note, say
from tidelog.cli.up_child import Child
from tidelog.cli.up_files import Address, ClusterPlan, why_not_config
from tidelog.model.configs.types import StoreAddress
from tidelog.runtime.cluster_secret import SecretRefused
from tidelog.runtime.disk import RealDisk, holder, keep_from_others

RESTART_AFTER_S = 1.0
"""How long a child that died is left alone before ``--restart`` starts it: no tight loop."""

SAY_AWAITED_AFTER_S, SAY_AWAITED_EVERY_S = 5.0, 30.0
"""After so long a start says for whom it waits, and then so often."""

BY_HAND_LOOK_S = 1.0
"""How often it is looked whether somebody has started a child that is down."""

HIGHEST_PORT = 65535


@click.command("up")
@click.option("--brokers", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--controllers", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Where everything is kept; started again on it, the cluster has the same data.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=9092, show_default=True)
@click.option("--store", default="sqlite", show_default=True, help="sqlite or zookeeper://…")
@click.option("--config", multiple=True, metavar="NAME=VALUE", help="A server configuration.")
@click.option("--restart", is_flag=True, help="Start a child again that has died.")
def command(
    brokers: int,
    controllers: int,
    data: Path,
    port: int,
    store: str,
    config: tuple[str, ...],
    restart: bool,
) -> None:
    """Run a development cluster until Ctrl-C or SIGTERM."""
    if port + brokers - 1 > HIGHEST_PORT:
        raise WrongUsage(f"--port {port}: there are no {brokers} ports from there on")
    check_store(store, controllers)
    configs = key_values(config, "--config")
    if (why_not := why_not_config(configs)) is not None:
        raise WrongUsage(why_not)
    keep_from_others()
    folder = data.absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f"{data} cannot be made a data folder: {error.strerror}") from None
    try:
        held = RealDisk().lock(str(folder / "up.lock"))
    except OSError as error:
        raise Failed(f"{folder / 'up.lock'} cannot be locked: {error.strerror}") from None
    if held is None:
        who = holder(RealDisk(), str(folder / "up.lock"))
        raise Failed(f"another `tidelog up` runs on {data}{who}: stop it, or take another --data")
    try:
        make_secret(str(folder))
        plan = ClusterPlan(folder, brokers, controllers, port, store, configs)
        asyncio.run(_Up(plan, restart=restart).run())
    except SecretRefused as error:
        raise Failed(str(error)) from None
    finally:
        held.close()


def check_store(store: str, controllers: int) -> None:
    """Raise WrongUsage for a store that is none, or that does not take so many controllers."""
    if store == "sqlite":
        if controllers > 1:
            raise WrongUsage(
                f"--controllers {controllers} need a store that takes several: add "
                "--store zookeeper://HOST:PORT/CHROOT, or take one controller"
            )
        return
    why_not = StoreAddress().why_not(store)
    if not store.startswith("zookeeper:") or why_not is not None:
        raise WrongUsage(f"--store {store!r}: take sqlite, or zookeeper://HOST:PORT,.../CHROOT")


def cluster_json(children: Sequence[Child]) -> dict[str, Any]:
    """Return what ``cluster.json`` holds (docs/operating/start.md).

    A child that is down keeps its address; its ``pid`` is null, or that of a process which was
    started in its place by hand.
    """
    brokers, controllers = [], []
    for child in children:
        ready = child.ready
        if ready is None:
            continue
        node_id, pid = child.member.node_id, child.pid or child.pid_by_hand
        if ready.broker is not None:
            host, port = ready.broker
            # Of the child alone: its next life gets another one.
            metrics = ready.metrics[1] if ready.metrics and child.pid is not None else None
            brokers.append(
                {"id": node_id, "host": host, "port": port, "pid": pid, "metrics_port": metrics}
            )
        if ready.controller is not None:
            controllers.append({"id": node_id, "port": ready.controller[1], "pid": pid})
    return {
        "bootstrap": ",".join(f"{each['host']}:{each['port']}" for each in brokers),
        "brokers": brokers,
        "controllers": controllers,
    }


class _Up:
    """The running cluster."""

    def __init__(self, plan: ClusterPlan, *, restart: bool) -> None:
        self._restart = restart
        self._store = plan.store
        self._cluster_file = plan.folder / "cluster.json"
        self._stop = asyncio.Event()
        self._children = [Child(plan, member) for member in plan.members()]
        self._controllers = [child for child in self._children if child.member.is_controller]
        self._brokers = [child for child in self._children if not child.member.is_controller]
        self._failed: asyncio.Future[str]
        self._served = False

    async def run(self) -> None:
        """Start all, wait for a signal or for the death of the last broker, stop. Raises Failed."""
        loop = asyncio.get_running_loop()
        self._failed = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # One that ignores it was started to outlive its terminal (nohup).
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._stop.set)
        # A file of a former run would send scripts to ports that are another's now.
        self._cluster_file.unlink(missing_ok=True)
        watches: list[asyncio.Task[None]] = []
        stopping = loop.create_task(self._stop.wait())
        try:
            if await self._start_all(stopping):
                self._served = True
                self._write_cluster_json()
                say(f"ready bootstrap={cluster_json(self._children)['bootstrap']}")
                sys.stdout.flush()
                watches = [loop.create_task(self._watch(child)) for child in self._children]
                ends: set[asyncio.Future[Any]] = {stopping, self._failed}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for watch in [*watches, stopping]:
                watch.cancel()
            await asyncio.gather(*watches, stopping, return_exceptions=True)
            # Controllers last: they move what the brokers lead.
            for group in (self._brokers, self._controllers):
                await asyncio.gather(*(child.end() for child in group))
            if self._served:
                # No process of it is left for a script to ask.
                self._rewrite_cluster_json()
        if self._failed.done():
            raise Failed(self._failed.result())
        if not self._served:
            said = filter(None, (child.complaint() for child in self._children))
            raise Failed("; ".join(["stopped before the cluster served", *said]))

    async def _start_all(self, stopping: asyncio.Task[bool]) -> bool:
        """Start all children; False when a signal came before they were ready."""
        for group in (self._controllers, self._brokers):
            where = self._where_controllers_are()
            starts = [asyncio.ensure_future(child.start(where)) for child in group]
            saying = asyncio.ensure_future(self._say_who_is_awaited(group))
            for start in starts:
                await asyncio.wait([start, stopping], return_when=asyncio.FIRST_COMPLETED)
                if not start.done():
                    break
            saying.cancel()
            if stopping.done():
                for start in starts:
                    start.cancel()
            try:
                # Raises what a start that failed has raised.
                await asyncio.gather(*starts, return_exceptions=stopping.done())
            except Failed as failed:
                # A broker waits in vain for a controller that waits for its store.
                said = [child.complaint() for child in self._controllers if child not in group]
                raise Failed("; ".join([str(failed), *filter(None, said)])) from None
            if stopping.done():
                return False
        return await self._until_all_serve(stopping)

    async def _say_who_is_awaited(self, group: Sequence[Child]) -> None:
        """Say of a start that takes long who is not ready, and what its log complains of."""
        wait_s = SAY_AWAITED_AFTER_S
        while True:
            await asyncio.sleep(wait_s)
            wait_s = SAY_AWAITED_EVERY_S
            awaited = [child for child in group if child.ready is None]
            names = ", ".join(str(child.member) for child in awaited)
            said = [child.complaint() for child in {*awaited, *self._controllers}]
            if self._store != "sqlite" and all(x.member.is_controller for x in awaited):
                # It complains only when a first try to reach it has come to nothing.
                names += f", whose store is {self._store}"
            where = ", ".join(str(child.log) for child in awaited)
            note(f"waiting for {names}; {'; '.join(sorted(filter(None, said))) or f'see {where}'}")

    async def _until_all_serve(self, stopping: asyncio.Task[bool]) -> bool:
        """Wait for those that the controller tells nothing; False when a signal came before.

        All run by now: what keeps the controller silent is settled with all of them.
        """
        untold = [x for x in self._children if x.ready is not None and not x.ready.serves]
        if untold:
            note(
                f"{', '.join(str(x.member) for x in untold)}: started, and told nothing of the "
                f"cluster by the controller; see why and what to do with "
                f"`tidelog doctor --bootstrap-server {_address(untold[0])}`"
            )
        waiting = asyncio.gather(*(child.until_it_serves() for child in self._children))
        ends: list[asyncio.Future[Any]] = [waiting, stopping]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            return False
        # Raises what a child that ended has raised.
        waiting.result()
        return True

    def _where_controllers_are(self) -> list[Address]:
        found = [child.ready.controller for child in self._controllers if child.ready is not None]
        return [address for address in found if address is not None]

    async def _watch(self, child: Child) -> None:
        """Report the child's death; start it again when that is wanted."""
        while True:
            ended = await child.death()
            if not self._restart and not self._a_broker_lives():
                self._fail(ended)
                return
            self._rewrite_cluster_json()
            if not self._restart:
                with contextlib.suppress(OSError):
                    # With the port where clients know it; else with that of its last start.
                    child.write_file(self._where_controllers_are())
                how = f"tidelog server {shlex.quote(str(child.file))}"
                note(f"{ended}; the others go on; to start it again: {how}")
                await self._watch_for_one_by_hand(child)
                return
            note(f"{ended.partition(';')[0]}; starting it again")
            await asyncio.sleep(RESTART_AFTER_S)
            try:
                await child.start(self._where_controllers_are())
            except (Failed, OSError) as error:
                note(f"{child.member} could not be started: {error}")
                await child.end()
                if child.member.is_broker and not self._a_broker_lives():
                    self._fail(str(error))
                    return
                continue
            self._rewrite_cluster_json()
            note(f"{child.member} is back, pid {child.pid}, {_where(child)}")
            sys.stdout.flush()

    async def _watch_for_one_by_hand(self, child: Child) -> None:
        """Keep ``cluster.json`` true when somebody starts a child that is down, and when it ends;
        until cancelled."""
        known = None
        while True:
            await asyncio.sleep(BY_HAND_LOOK_S)
            if child.pid_by_hand != known:
                known = child.pid_by_hand
                self._rewrite_cluster_json()

    def _a_broker_lives(self) -> bool:
        return any(child.pid is not None for child in self._children if child.member.is_broker)

    def _fail(self, why: str) -> None:
        if not self._failed.done():
            self._failed.set_result(why)

    def _rewrite_cluster_json(self) -> None:
        """Tell of a change; a full disk must not end the watch over the child."""
        try:
            self._write_cluster_json()
        except OSError as error:
            note(f"{self._cluster_file} is out of date: {error}")

    def _write_cluster_json(self) -> None:
        # Replaced as a whole: a script never reads half of it.
        temporary = self._cluster_file.with_suffix(".json.tmp")
        temporary.write_text(json.dumps(cluster_json(self._children), indent=2) + "\n")
        os.replace(temporary, self._cluster_file)


def _where(child: Child) -> str:
    assert child.ready is not None
    return f"{'bootstrap' if child.ready.broker else 'at'} {_address(child)}"


def _address(child: Child) -> str:
    assert child.ready is not None
    at = child.ready.broker or child.ready.controller
    assert at is not None
    return f"{at[0]}:{at[1]}"
