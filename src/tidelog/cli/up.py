"""The ``tidelog up`` command: a development cluster.

Owns the child processes as a whole: their files under the data folder, their ports,
``cluster.json``, the ready line; all of them stop with this process. Not one child's start and
stop: see ``up_child``. Not which processes there are: see ``up_files``.

Controllers start first and stop last, so that they move the leaderships of a stopping broker. When
a child dies the others keep running as long as one broker runs: leaders serve without a controller.
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

from tidelog.cli.cluster_secret import FILE_NAME, make_secret
from tidelog.cli.connecting import key_values
from tidelog.cli.output import note, say
from tidelog.cli.refusal import Failed, WrongUsage, print_error
from tidelog.cli.restarts import Restarts
from tidelog.cli.up_child import Child
from tidelog.cli.up_files import Address, ClusterPlan, invalid_configs, why_not_config
from tidelog.cli.up_held import why_held, why_not_folder
from tidelog.model.configs.types import StoreAddress
from tidelog.runtime.cluster_secret import SecretRefused
from tidelog.runtime.disk import RealDisk, holder, keep_from_others, said_of_holder
from tidelog.runtime.tasks import call_off

SAY_AWAITED_AFTER_S, SAY_AWAITED_EVERY_S = 5.0, 30.0
"""When a slow start first names the children it waits for, and how often it repeats that."""

SAY_STOPPING_AFTER_S = 2.0
"""When a slow stop does so: a person has pressed Ctrl-C and waits."""

BY_HAND_CHECK_S = 1.0
"""How often a dead child's lock file is checked for a process that was started by hand."""

HIGHEST_PORT = 65535

MOST_BROKERS = 128
"""Of one cluster on one machine: a thousand took all of its time until they were killed."""


@click.command("up")
@click.option("--brokers", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--controllers", type=click.IntRange(min=1), default=1, show_default=True)
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("data"),
    show_default=True,
    help="Data folder of the cluster; a later start with the same folder has the same data.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=9092, show_default=True)
@click.option("--store", default="sqlite", show_default=True, help="sqlite or zookeeper://…")
@click.option("--config", multiple=True, metavar="NAME=VALUE", help="A server configuration.")
@click.option(
    "--workers",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Brokers of each machine; then --brokers is the number of machines.",
)
@click.option("--restart", is_flag=True, help="Restart a process that has died.")
def command(
    brokers: int,
    controllers: int,
    data: Path,
    port: int,
    store: str,
    config: tuple[str, ...],
    workers: int,
    restart: bool,
) -> None:
    """Run a development cluster until Ctrl-C or SIGTERM."""
    if brokers * workers > MOST_BROKERS:
        raise WrongUsage(
            f"--brokers {brokers} --workers {workers}: one machine runs at most {MOST_BROKERS} "
            "brokers; run `tidelog server` on more machines"
        )
    if port + brokers * workers - 1 > HIGHEST_PORT:
        sentence = f"--port {port}: {brokers * workers} brokers need ports above {HIGHEST_PORT}"
        raise WrongUsage(sentence)
    check_store(store, controllers)
    configs = key_values(config, "--config")
    if (why_not := why_not_config(configs, workers)) is not None:
        raise WrongUsage(why_not)
    folder = data.absolute()
    plan = ClusterPlan(folder, brokers, controllers, port, store, configs, workers)
    if wrong := invalid_configs(plan):
        for line in wrong[:-1]:
            print_error(line)
        raise WrongUsage(wrong[-1])
    keep_from_others()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(f"the data folder {data} cannot be created: {error.strerror}") from None
    if (why_not := why_not_folder(folder, RealDisk())) is not None:
        raise Failed(why_not)
    try:
        held = RealDisk().lock(str(folder / "up.lock"))
    except OSError as error:
        raise Failed(f"{folder / 'up.lock'} cannot be locked: {error.strerror}") from None
    if held is None:
        process, way_out = said_of_holder(holder(RealDisk(), str(folder / "up.lock")))
        raise Failed(f"another `tidelog up` uses {data}{process}: {way_out}, or use another --data")
    try:
        if (why_not := why_held(plan, RealDisk())) is not None:
            raise Failed(why_not)
        make_secret(str(folder))
        asyncio.run(_Up(plan, restart=restart).run())
    except SecretRefused as error:
        raise Failed(str(error)) from None
    finally:
        held.close()


def check_store(store: str, controllers: int) -> None:
    """Raise WrongUsage for an unknown store, or one that does not allow so many controllers."""
    if store == "sqlite":
        if controllers > 1:
            raise WrongUsage(
                f"--controllers {controllers} need a store for several controllers: add "
                "--store zookeeper://HOST:PORT/CHROOT, or use one controller"
            )
        return
    why_not = StoreAddress().why_not(store)
    if not store.startswith("zookeeper:") or why_not is not None:
        raise WrongUsage(f"--store {store!r}: use sqlite, or zookeeper://HOST:PORT,.../CHROOT")


def cluster_json(children: Sequence[Child]) -> dict[str, Any]:
    """Return the content of ``cluster.json`` (docs/operating/start.md).

    A dead child keeps its address; its ``pid`` is null, or that of a process started by hand in its
    place.
    """
    brokers, controllers = [], []
    for child in children:
        ready = child.ready
        if ready is None:
            continue
        node_id, pid = child.member.node_id, child.pid or child.pid_by_hand
        if ready.broker is not None:
            host, port = ready.broker
            # Only while the child runs: a restart gets another port.
            metrics = ready.metrics[1] if ready.metrics and child.pid is not None else None
            brokers.append(
                {"id": node_id, "host": host, "port": port, "pid": pid, "metrics_port": metrics}
            )
        if ready.controller is not None:
            controllers.append({"id": node_id, "port": ready.controller[1], "pid": pid})
    return {
        "bootstrap": ",".join(f"{broker['host']}:{broker['port']}" for broker in brokers),
        "brokers": brokers,
        "controllers": controllers,
    }


class _Up:
    """The running cluster."""

    def __init__(self, plan: ClusterPlan, *, restart: bool) -> None:
        self._restart = restart
        self._store = plan.store
        self._cluster_file = plan.folder / "cluster.json"
        self._secret_file = plan.folder / FILE_NAME
        self._stop = asyncio.Event()
        self._children = [Child(plan, member) for member in plan.members()]
        self._controllers = [child for child in self._children if child.member.is_controller]
        self._brokers = [child for child in self._children if not child.member.is_controller]
        self._failed: asyncio.Future[str]
        self._served = False
        self._is_new = not any(plan.folder.glob("broker-*"))
        """Whether no broker of this cluster ran before: all of them are in this folder."""

    async def run(self) -> None:
        """Start all, wait for a signal or for the end of the last broker, stop. Raises Failed."""
        loop = asyncio.get_running_loop()
        self._failed = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            # When it is ignored, the process was started by nohup to outlive its terminal.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._stop.set)
        # The file of an earlier run names ports that other processes may have now.
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
            await call_off([*watches, stopping])
            saying = asyncio.ensure_future(self._report_slow_stop())
            # Controllers last: they move the leaderships of the brokers.
            for group in (self._brokers, self._controllers):
                await asyncio.gather(*(child.end() for child in group))
            saying.cancel()
            if self._served:
                # No process runs any longer: scripts must see that.
                self._rewrite_cluster_json()
        if self._failed.done():
            raise Failed(self._failed.result())
        if not self._served:
            complaints = filter(None, (child.complaint() for child in self._children))
            raise Failed("; ".join(["stopped before the cluster was ready", *complaints]))

    async def _start_all(self, stopping: asyncio.Task[bool]) -> bool:
        """Start all children; False when a signal came before they were ready."""
        for group in (self._controllers, self._brokers):
            controllers = self._where_controllers_are()
            starts = [
                asyncio.ensure_future(child.start(controllers, is_new=self._is_new))
                for child in group
            ]
            saying = asyncio.ensure_future(self._report_slow_start(group))
            for start in starts:
                await asyncio.wait([start, stopping], return_when=asyncio.FIRST_COMPLETED)
                if not start.done():
                    break
            saying.cancel()
            if stopping.done():
                for start in starts:
                    start.cancel()
            try:
                # Raises the error of a failed start.
                await asyncio.gather(*starts, return_exceptions=stopping.done())
            except Failed as failed:
                # A broker fails to start when the controller still waits for its store.
                others = [child.complaint() for child in self._controllers if child not in group]
                raise Failed("; ".join([str(failed), *filter(None, others)])) from None
            if stopping.done():
                return False
        return await self._until_all_serve(stopping)

    async def _report_slow_stop(self) -> None:
        """Name the children that have not stopped after a while."""
        wait_s = SAY_STOPPING_AFTER_S
        while True:
            await asyncio.sleep(wait_s)
            wait_s = SAY_AWAITED_EVERY_S
            awaited = [child for child in self._children if child.pid is not None]
            names = ", ".join(f"{child.member} (pid {child.pid})" for child in awaited)
            if awaited:
                note(f"waiting until {names} {'has' if len(awaited) == 1 else 'have'} stopped")

    async def _report_slow_start(self, group: Sequence[Child]) -> None:
        """Name the children that are not ready after a while, with the last error of their logs."""
        wait_s = SAY_AWAITED_AFTER_S
        while True:
            await asyncio.sleep(wait_s)
            wait_s = SAY_AWAITED_EVERY_S
            awaited = [child for child in group if child.ready is None]
            names = ", ".join(str(child.member) for child in awaited)
            lines = [child.complaint() for child in {*awaited, *self._controllers}]
            if self._store != "sqlite" and all(x.member.is_controller for x in awaited):
                # A controller logs an error only after its first connection attempt has failed.
                names += f", whose store is {self._store}"
            logs = ", ".join(str(child.log) for child in awaited)
            note(f"waiting for {names}; {'; '.join(sorted(filter(None, lines))) or f'see {logs}'}")

    async def _until_all_serve(self, stopping: asyncio.Task[bool]) -> bool:
        """Wait for children without metadata; False when a signal came first.

        All children run by now: an operator needs all of them to repair the store.
        """
        unserved = [x for x in self._children if x.ready is not None and not x.ready.serves]
        if unserved:
            note(
                f"{', '.join(str(x.member) for x in unserved)}: started, but the controller "
                "sends no metadata; to see why and what to do, run "
                f"`tidelog doctor --bootstrap-server {_address(unserved[0])}`; for `tidelog doctor "
                f"restored` add --cluster-secret-file {shlex.quote(str(self._secret_file))}"
            )
        waiting = asyncio.gather(*(child.until_it_serves() for child in self._children))
        ends: list[asyncio.Future[Any]] = [waiting, stopping]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            await call_off([waiting])
            return False
        # Raises the error of a child that ended.
        waiting.result()
        return True

    def _where_controllers_are(self) -> list[Address]:
        places = [child.ready.controller for child in self._controllers if child.ready is not None]
        return [address for address in places if address is not None]

    async def _watch(self, child: Child) -> None:
        """Report the child's death; restart it with ``--restart``."""
        while True:
            ended = await child.death()
            if not self._restart and not self._a_broker_runs():
                self._fail(ended)
                return
            self._rewrite_cluster_json()
            if not self._restart:
                with contextlib.suppress(OSError):
                    # With the port that clients know; on failure the file of the last start stays.
                    child.write_file(self._where_controllers_are())
                how = f"tidelog server {shlex.quote(str(child.file))}"
                note(f"{ended}; the other processes keep running; to restart it: {how}")
                await self._watch_for_manual_start(child)
                return
            note(f"{ended.partition(';')[0]}; restarting it")
            restarts = Restarts()
            while not await self._start_again(child, restarts):
                if restarts.is_hopeless and not self._a_broker_runs():
                    self._fail(f"{child.member} could not be started: {child.reason}")
                    return
            self._rewrite_cluster_json()
            note(f"{child.member} is back, pid {child.pid}, {_where(child)}")
            sys.stdout.flush()

    async def _start_again(self, child: Child, restarts: Restarts) -> bool:
        """Start a child after its pause; return whether it runs."""
        await asyncio.sleep(restarts.pause_s)
        try:
            await child.start(self._where_controllers_are())
        except (Failed, OSError) as error:
            restarts.failed(child.reason)
            note(
                f"{child.member} could not be started: {error}; "
                f"the next try is in {restarts.pause_s:.0f} s"
            )
            await child.end()
            return False
        return True

    async def _watch_for_manual_start(self, child: Child) -> None:
        """Update ``cluster.json`` when a user starts a dead child by hand, and when that ends.

        Runs until cancelled.
        """
        pid_seen = None
        while True:
            await asyncio.sleep(BY_HAND_CHECK_S)
            if child.pid_by_hand != pid_seen:
                pid_seen = child.pid_by_hand
                self._rewrite_cluster_json()

    def _a_broker_runs(self) -> bool:
        return any(child.pid is not None for child in self._children if child.member.is_broker)

    def _fail(self, why: str) -> None:
        if not self._failed.done():
            self._failed.set_result(why)

    def _rewrite_cluster_json(self) -> None:
        """Update the file; a full disk must not end the watch of the child."""
        try:
            self._write_cluster_json()
        except OSError as error:
            note(f"{self._cluster_file} is out of date: {error}")

    def _write_cluster_json(self) -> None:
        # Replaced atomically: a script never reads half a file.
        temporary = self._cluster_file.with_suffix(".json.tmp")
        temporary.write_text(json.dumps(cluster_json(self._children), indent=2) + "\n")
        os.replace(temporary, self._cluster_file)


def _where(child: Child) -> str:
    assert child.ready is not None
    return f"{'bootstrap' if child.ready.broker else 'at'} {_address(child)}"


def _address(child: Child) -> str:
    assert child.ready is not None
    place = child.ready.broker or child.ready.controller
    assert place is not None
    return f"{place[0]}:{place[1]}"
