"""The supervisor of the workers of one machine: ``tidelog server --workers N FILE``.

Owns the set of workers: their order at a start and a stop, the restart of one that died, the
restart of all one after another, and the address with the sums of their metrics. Not what differs
between them: see ``model.configs.workers``; not one process: see ``up_child``.

| event | consequence |
|---|---|
| the start | worker 0 first while its log directories are new, otherwise all at once |
| a worker dies | it is started again after a pause that doubles while it dies soon (``restarts``) |
| it dies, or does not start, for the same reason several times, and no other may run | exit 1 |
| SIGHUP | each worker is stopped and started again, when all replicas are in sync; |
| | none while the file is refused |
| SIGHUP from a terminal, SIGTERM, SIGINT | all stop, the one with the controller last |

The ready line comes when all workers serve:
``ready workers=2 nodes=1,2 bootstrap=127.0.0.1:9092,127.0.0.1:9093 metrics=127.0.0.1:9100``.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tidelog.cli.cluster_secret import own_secret
from tidelog.cli.refusal import Failed
from tidelog.cli.restarts import Restarts
from tidelog.cli.server_arguments import CHECK, OVERRIDE, WORKER, WORKERS
from tidelog.cli.up_child import Child
from tidelog.cli.up_files import Address, ClusterProcess
from tidelog.cli.worker_checks import (
    ACCEPTED,
    only_supervisor,
    why_not_listening,
    workers_of,
)
from tidelog.model.configs.addresses import joined
from tidelog.model.configs.server import ServerConfigs
from tidelog.model.racks import SEPARATOR
from tidelog.observe.endpoint import Endpoint, PortInUse
from tidelog.observe.summed import SummedPages
from tidelog.runtime.cluster_secret import SecretRefused
from tidelog.runtime.disk import RealDisk
from tidelog.runtime.tasks import call_off
from tidelog.storage.names import META_PROPERTIES

logger = logging.getLogger(__name__)

STOP_S = 120.0
"""How long a worker may take to stop: it syncs all its logs."""

STEADY_S = 60.0
"""A worker that dies sooner after its start has died soon: the next pause is longer."""

BACK_S = 600.0
"""How long a restart one after another waits for a worker, and for all replicas to be in sync."""

FILE_S = 60.0
"""How long the check of a file may take before a restart."""

MOST_SAID = 4_000
"""The most characters of its refusals in the log line."""

CHECK_S = 0.5
"""The pause between two checks of that."""

DIED_SOON = "it died soon after its start"


def supervise(whole: ServerConfigs, options: Namespace) -> None:
    """Run the workers until a signal stops them. Raises Failed."""
    with only_supervisor(whole.log_dirs, RealDisk()):
        if (why := why_not_listening(whole, options.workers)) is not None:
            raise Failed(why)
        try:
            # The workers find it: two of them would create two.
            own_secret(whole)
        except SecretRefused as error:
            raise Failed(str(error)) from error
        rack, _, machine = (workers_of(whole, 1)[0].broker_rack or "").rpartition(SEPARATOR)
        logger.info(
            "%(workers)s workers on the machine %(machine)s, rack %(rack)s",
            {"workers": options.workers, "machine": machine, "rack": rack or machine},
        )
        asyncio.run(Supervisor(whole, options).run())


class _Files:
    """How each worker is started: from the operator's file, which it reads itself."""

    def __init__(self, whole: ServerConfigs, options: Namespace) -> None:
        self._first = whole.node_id
        self._options = options

    def file_of(self, _member: ClusterProcess) -> Path:
        """Return the operator's file."""
        return Path(self._options.file)

    def log_of(self, _member: ClusterProcess) -> None:
        """Return None: all workers write to the standard error of this process."""

    def lock_of(self, _member: ClusterProcess) -> None:
        """Return None: this process starts them all."""

    def write_file(
        self, member: ClusterProcess, controllers: Sequence[Address], controller_port: int
    ) -> None:
        """Write nothing."""

    def arguments(self, member: ClusterProcess) -> list[str]:
        """Return which worker it is, and the overrides."""
        index = member.node_id - self._first
        words = [WORKERS, str(self._options.workers), WORKER, str(index)]
        return words + [x for pair in self._options.override for x in (OVERRIDE, pair)]


class _Worker:
    """One worker: its process, its restarts, and whether it serves."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.restarts = Restarts()
        self.serves = asyncio.Event()
        self.is_stopped = False
        """Whether it was stopped to be started again."""

    @property
    def may_serve(self) -> bool:
        """Whether it serves, or has a process that has not failed again and again."""
        is_hopeless = self.restarts.is_hopeless and not self.serves.is_set()
        return self.child.pid is not None and not is_hopeless

    @property
    def place(self) -> Address | str:
        """Where it has its metrics, or what it waits for until it has them."""
        if self.child.pid is None:
            return "its process"
        ready = self.child.ready if self.child.is_started else None
        return ready.metrics if ready is not None and ready.metrics is not None else "its start"


class Supervisor:
    """The running workers."""

    def __init__(self, whole: ServerConfigs, options: Namespace) -> None:
        self._whole = whole
        self._options = options
        files = _Files(whole, options)
        self._workers = [
            _Worker(
                Child(
                    files,
                    ClusterProcess(
                        whole.node_id + index, is_controller=whole.is_controller and index == 0
                    ),
                    start_s=None,
                    stop_s=STOP_S,
                )
            )
            for index in range(options.workers)
        ]
        self._pages = SummedPages(self._addresses)
        self._endpoint: Endpoint | None = None
        self._first_tried = asyncio.Event()
        """Whether the other workers may start: their directories are within those of worker 0."""
        self._stop, self._restart = asyncio.Event(), asyncio.Event()
        if all(os.path.exists(f"{path}/{META_PROPERTIES}") for path in whole.log_dirs):
            self._first_tried.set()
        self._failed: asyncio.Future[str]

    async def run(self) -> None:
        """Start all, restart what dies, wait for a signal, stop. Raises Failed."""
        self._take_signals()
        self._serve_pages()
        loop = asyncio.get_running_loop()
        self._failed = loop.create_future()
        tasks: list[asyncio.Task[Any]] = [
            *(loop.create_task(self._keep(worker)) for worker in self._workers),
            loop.create_task(self._say_ready()),
            loop.create_task(self._restart_when_asked()),
        ]
        stopping = loop.create_task(self._stop.wait())
        try:
            ends: set[asyncio.Future[Any]] = {stopping, self._failed, *tasks[:-2]}
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for task in done.intersection(tasks):
                # It ends by an error alone.
                task.result()
        finally:
            await call_off([*tasks, stopping])
            # The controller last: it moves the leaderships of the others.
            await asyncio.gather(*(worker.child.end() for worker in self._workers[1:]))
            await self._workers[0].child.end()
            if self._endpoint is not None:
                self._endpoint.close()
        if self._failed.done():
            raise Failed(self._failed.result())

    def _take_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            # A terminal sends it when it is closed; a service manager for a reload.
            asked = self._stop if sys.stdin is not None and sys.stdin.isatty() else self._restart
            loop.add_signal_handler(signal.SIGHUP, asked.set)
        if self._options.until_stdin_closes:
            loop.add_reader(sys.stdin.fileno(), self._stdin_came)

    def _stdin_came(self) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self._stop.set()

    def _serve_pages(self) -> None:
        address = self._whole.metrics_address
        if address is None:
            return
        try:
            self._endpoint = Endpoint(*address, self._pages, self._pages.health)
        except PortInUse as error:
            raise Failed(str(error)) from error

    def _addresses(self) -> Mapping[int, Address | str]:
        """Return where each worker has its metrics, or what it waits for without that place.

        Called by threads of the endpoint.
        """
        return {worker.child.member.node_id: worker.place for worker in self._workers}

    async def _say_ready(self) -> None:
        for worker in self._workers:
            await worker.serves.wait()
        children = [worker.child for worker in self._workers]
        places = [child.ready.broker for child in children if child.ready is not None]
        words = [
            f"ready workers={len(children)}",
            f"nodes={','.join(str(child.member.node_id) for child in children)}",
            f"bootstrap={','.join(joined(*place) for place in places if place)}",
        ]
        if self._endpoint is not None and self._whole.metrics_address is not None:
            host, _ = self._whole.metrics_address
            words.append(f"metrics={joined(host, self._endpoint.port)}")
        print(" ".join(words), flush=True)

    async def _keep(self, worker: _Worker) -> None:
        """Keep one worker running. Ends only when it is cancelled."""
        child, restarts = worker.child, worker.restarts
        node = child.member.node_id
        is_new = self._options.new_cluster
        if worker is not self._workers[0]:
            await self._first_tried.wait()
        while True:
            try:
                await child.start((), is_new=is_new)
                self._first_tried.set()
                await child.until_it_serves()
            except (Failed, OSError) as error:
                await child.end()
                restarts.failed(child.reason)
                await self._pause(worker, f"{child.member} could not be started: {error}")
                continue
            finally:
                self._first_tried.set()
            is_new = worker.is_stopped = False
            worker.serves.set()
            logger.info("broker %(worker)s serves", {"worker": node, "pid": child.pid})
            began = asyncio.get_running_loop().time()
            ended = await child.death()
            worker.serves.clear()
            if worker.is_stopped:
                continue
            if asyncio.get_running_loop().time() - began >= STEADY_S:
                restarts.succeeded()
            else:
                restarts.failed(DIED_SOON)
            await self._pause(worker, ended)

    async def _pause(self, worker: _Worker, why: str) -> None:
        """Wait before the next start; end the supervisor when none would help."""
        if worker.restarts.is_hopeless and not any(x.may_serve for x in self._workers):
            if not self._failed.done():
                self._failed.set_result(f"{why}; no worker runs")
            return
        logger.error(
            "%(why)s; the next start is in %(pause_s).0f s",
            {
                "worker": worker.child.member.node_id,
                "why": why,
                "pause_s": worker.restarts.pause_s,
            },
        )
        await asyncio.sleep(worker.restarts.pause_s)

    async def _restart_when_asked(self) -> None:
        while True:
            await self._restart.wait()
            self._restart.clear()
            try:
                await self._restart_all()
            except Exception:
                # The workers run on, and the next SIGHUP counts.
                logger.exception("the restart one after another has failed; send SIGHUP again")

    async def _restart_all(self) -> None:
        if (why := await self._why_refused()) is not None:
            logger.error(
                "no worker is restarted, as %(file)s is refused: %(why)s; mend it, then send "
                "SIGHUP again",
                {"file": self._options.file, "why": why},
            )
            return
        logger.info("restarting the workers one after another")
        for worker in self._workers:
            try:
                async with asyncio.timeout(BACK_S):
                    await self._until_in_sync()
                    worker.is_stopped = True
                    worker.serves.clear()
                    await worker.child.end()
                    await worker.serves.wait()
            except TimeoutError:
                logger.error(
                    "the restart one after another ends at broker %(worker)s: after "
                    "%(waited_s)s s it does not serve, or replicas are not in sync; see "
                    "`tidelog doctor`, then send SIGHUP again",
                    {"worker": worker.child.member.node_id, "waited_s": BACK_S},
                )
                return
        logger.info("all workers were restarted")

    async def _why_refused(self) -> str | None:
        """Return why the code of now refuses the file of now; None if a worker can start with it.

        Another process checks it: this one has the code of its own start.
        """
        pairs = [x for pair in self._options.override for x in (OVERRIDE, pair)]
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-P", "-m", "tidelog.cli.main", "server", self._options.file, CHECK),
            *(WORKERS, str(self._options.workers), *pairs),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(FILE_S):
                accepted, errors = await process.communicate()
        except TimeoutError:
            return f"its check takes more than {FILE_S:.0f} s"
        finally:
            if process.returncode is None:
                process.kill()
        if process.returncode:
            return _sentences(errors.decode(errors="replace"), f"{self._options.file}: ")
        node = accepted.decode(errors="replace").strip().removeprefix(ACCEPTED)
        if node != str(self._whole.node_id):
            return (
                f"node.id is {node}, and the workers run with the ids from "
                f"{self._whole.node_id}: for another id stop and start the supervisor"
            )
        return None

    async def _until_in_sync(self) -> None:
        """Wait until no partition that a worker leads lacks a replica in sync."""
        loop = asyncio.get_running_loop()
        while True:
            if await loop.run_in_executor(None, self._pages.under_replicated) == 0:
                return
            await asyncio.sleep(CHECK_S)


def _sentences(errors: str, file: str) -> str:
    """Return the refusals of a check in one line, without the name of the file; of a process that
    crashed its last line."""
    lines = [line for line in errors.splitlines() if line.strip()]
    refusals = [
        x.removeprefix("error: ").removeprefix(file) for x in lines if x.startswith("error: ")
    ]
    return "; ".join(refusals or lines[-1:] or ["its check failed"])[:MOST_SAID]
