"""The ``tidelog server`` command: one process with the roles that its properties file names.

Owns start and stop of the process: configuration, logs, the order of the roles (the controller
starts first and stops last; the two talk over loopback), signals, the metrics address, the ready
line. Imports neither click nor rich: a server starts in a fraction of a second and stays small.

Ready line on standard output, once the process serves:
``ready node=1 roles=broker,controller PLAINTEXT=127.0.0.1:9092 CONTROLLER=127.0.0.1:9093``, with
``metrics=HOST:PORT`` when there is such an address. When the controller has registered a broker but
sends it no metadata (the store has gone back in time, or a node of it is damaged), the broker
prints the line early, with ``waiting`` as the first word. Logs go to standard error.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidelog.cli.refusal import WRONG_USAGE, Failed, WrongUsage, print_error, print_last_words
from tidelog.cli.server_arguments import parse
from tidelog.model.configs.addresses import joined
from tidelog.model.configs.file_names import without_effect
from tidelog.model.configs.properties import parse_properties
from tidelog.model.configs.server import ServerConfigs, from_mapping
from tidelog.model.configs.tls import SSL
from tidelog.model.configs.types import InvalidConfig
from tidelog.runtime import descriptors
from tidelog.runtime import loop as runtime_loop
from tidelog.runtime.disk import RealDisk, keep_from_others
from tidelog.runtime.loop_watch import LoopWatch
from tidelog.runtime.seams import Seams
from tidelog.runtime.tls_files import NO_TLS
from tidelog.version import __version__

if TYPE_CHECKING:
    from argparse import Namespace

    from prometheus_client.registry import Collector

    from tidelog.broker.process import BrokerProcess
    from tidelog.controller.process import ControllerProcess
    from tidelog.observe.endpoint import Endpoint
    from tidelog.observe.process_figures import ProcessFigures
    from tidelog.runtime.cluster_secret import ClusterSecret

logger = logging.getLogger(__name__)


THREADS = 8
"""Threads for fsync and long CRCs; they release the GIL, so more than cores are useful."""


def main(arguments: list[str]) -> int:
    """Run a server until a signal stops it; return the exit status."""
    options = parse(arguments)
    is_supervised = options.worker is not None and options.until_stdin_closes
    try:
        configs = _configs(options)
        if not isinstance(configs, ServerConfigs):
            for refused in configs:
                print_error(f"{options.file}: {refused.sentence}")
            if is_supervised:
                print_last_words(f"{options.file}: {configs[-1].sentence}")
            # As wrong usage: a service manager need not start it again.
            return WRONG_USAGE
        if options.check:
            from tidelog.cli import worker_checks

            worker_checks.check_file(configs, options.workers, RealDisk())
            print(f"{worker_checks.ACCEPTED}{configs.node_id}")
            return 0
        # Imported here: a wrong file is refused without waiting for this import.
        from tidelog.observe import logs

        supervises = options.workers is not None and options.worker is None
        worker = configs.node_id if options.worker is not None else None
        logs.configure(line_format=configs.logging_format, worker=worker)
        keep_from_others()
        if supervises:
            from tidelog.cli.workers import supervise

            supervise(configs, options)
            return 0
        process = _Process(configs, options.until_stdin_closes, is_new=options.new_cluster)
        runtime_loop.run(process.run())
    except Failed as error:
        if is_supervised:
            print_last_words(str(error))
        return error.show()
    except Exception as error:
        if is_supervised:
            print_last_words(f"{type(error).__name__}: {error}")
        raise
    return 0


def _configs(options: Namespace) -> ServerConfigs | tuple[InvalidConfig, ...]:
    """As ``_accepted``; a file that needs a cluster secret and names none is refused, too."""
    configs = _accepted(options)
    if not isinstance(configs, ServerConfigs):
        return configs
    from tidelog.cli.cluster_secret import refused_by_file

    refused = refused_by_file(configs)
    return configs if refused is None else (refused,)


def _accepted(options: Namespace) -> ServerConfigs | tuple[InvalidConfig, ...]:
    """Return the configuration of this process: that of the file, or of one of its workers; for
    the supervisor of the workers that of the file. Raises Failed."""
    texts = _texts(options.file, options.override)
    if options.workers is None:
        return from_mapping(texts)
    from tidelog.model.configs.workers import of_workers

    made = of_workers(texts, options.workers, socket.gethostname())
    whole = from_mapping(texts)
    refusals = tuple(one for one in made if isinstance(one, InvalidConfig))
    if refusals or options.worker is None or options.check or not isinstance(whole, ServerConfigs):
        return refusals or whole
    from tidelog.cli.cluster_secret import with_secret
    from tidelog.runtime.cluster_secret import SecretRefused

    try:
        return with_secret(made[options.worker], whole)
    except SecretRefused as error:
        raise Failed(str(error)) from error


def _texts(path: str, overrides: list[str]) -> dict[str, str]:
    """Return the configurations of the file, overridden by the arguments. Raises Failed."""
    try:
        with open(path, encoding="utf-8") as file:
            texts = parse_properties(file.read())
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        # Not as wrong usage: the file may be mounted later, and a service manager tries again.
        raise Failed(f"{path} cannot be read: {why}") from None
    for pair in overrides:
        name, equals, value = pair.partition("=")
        if not equals:
            raise WrongUsage(f"--override takes NAME=VALUE, not {pair!r}")
        texts[name.strip()] = value
    return texts


class _Process:
    """The parts of one process and their order."""

    def __init__(self, configs: ServerConfigs, until_stdin_closes: bool, *, is_new: bool) -> None:
        self._configs = configs
        self._is_new = is_new
        self._until_stdin_closes = until_stdin_closes
        self._secret: ClusterSecret | None = None
        self._tls = NO_TLS
        self._controller: ControllerProcess | None = None
        self._broker: BrokerProcess | None = None
        self._starting: BrokerProcess | None = None
        """The broker while it starts."""
        self._endpoint: Endpoint | None = None
        self._watch = LoopWatch()
        self._signals: list[signal.Signals] = []
        self._began = False
        """Whether anything was started that a stop has to undo."""
        self._figures: ProcessFigures | None = None
        self._collectors: list[Collector] = []
        """Of the metrics: those of a role come when it has started."""
        self._waits_for: str | None = "the checks before the start"
        """What the start waits for, for ``/health``; None once all roles serve."""

    async def run(self) -> None:
        """Start, print the ready line, wait for a signal, stop. Raises Failed."""
        loop = asyncio.get_running_loop()
        stop = asyncio.Event()
        self._signals = [signal.SIGTERM, signal.SIGINT]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            # When it is ignored, the process was started by nohup to outlive its terminal.
            self._signals.append(signal.SIGHUP)
        for number in self._signals:
            loop.add_signal_handler(number, self._signal_received, number, stop)
        if self._until_stdin_closes:
            loop.add_reader(sys.stdin.fileno(), self._stdin_came, stop)
        threads = ThreadPoolExecutor(THREADS, "tidelog")
        processes = runtime_loop.helper_processes()
        seams = Seams(
            threads=threads,
            processes=processes,
            recovery_helpers=runtime_loop.recovery_helpers,
        )
        try:
            starting = loop.create_task(self._start(seams))
            stopping = loop.create_task(stop.wait())
            await asyncio.wait([starting, stopping], return_when=asyncio.FIRST_COMPLETED)
            if not starting.done():
                # A signal came during the start: cancelling it undoes the part that is done.
                starting.cancel()
                await asyncio.wait([starting])
            elif starting.exception() is None:
                self._log_listeners()
                self._waits_for = None
                print(self._line("ready", self._broker), flush=True)
                runtime_loop.tame_collector()
                await stopping
            stopping.cancel()
            if not starting.cancelled() and starting.exception() is not None:
                starting.result()
        finally:
            # A stop waits for the disk on the loop: no client is left that this could hold up.
            self._watch.stop()
            await self._stop()
            processes.shutdown(cancel_futures=True)
            threads.shutdown()

    def _signal_received(self, number: int, stop: asyncio.Event) -> None:
        logger.info("stopping: %(signal)s", {"signal": signal.Signals(number).name})
        stop.set()
        loop = asyncio.get_running_loop()
        for other in self._signals:
            # A second signal ends the process at once.
            loop.remove_signal_handler(other)

    def _stdin_came(self, stop: asyncio.Event) -> None:
        if not os.read(sys.stdin.fileno(), 4096):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            logger.info("stopping: the standard input has ended")
            stop.set()

    async def _start(self, seams: Seams) -> None:
        from tidelog.cli import preflight
        from tidelog.cli.cluster_secret import secret_for
        from tidelog.runtime.cluster_secret import SecretRefused
        from tidelog.runtime.tls_files import TlsRefused, tls_of

        loop = asyncio.get_running_loop()
        belongs_to = await loop.run_in_executor(
            seams.threads, preflight.check, self._configs, seams.disk
        )
        self._configs, name = await preflight.with_host_name(self._configs)
        self._say_start(name)
        configs = self._configs
        if configs.metrics_address is not None:
            # First: health is served during the whole start, however long it takes.
            self._start_endpoint(configs.metrics_address)
        self._waits_for = "its roles to start"
        self._import_roles()
        # Only after the imports: they block the loop, and no client is connected yet.
        self._watch.start()
        try:
            self._secret = secret_for(configs, seams)
            if configs.tls_listeners or configs.security_inter_broker_protocol == SSL:
                self._tls = await loop.run_in_executor(seams.threads, tls_of, configs)
        except (SecretRefused, TlsRefused) as error:
            raise Failed(str(error)) from error
        if configs.is_controller:
            await self._start_controller(seams, belongs_to)
        if configs.is_broker:
            await self._start_broker(seams, belongs_to)

    def _import_roles(self) -> None:
        """Import the modules of each role before any role runs.

        Imports block the loop: a running controller must not stall while its broker is imported.
        """
        # asyncio imports it to resolve the first host name.
        import encodings.idna  # noqa: F401

        watched = self._configs.metrics_address is not None
        if self._configs.is_controller:
            import tidelog.controller.process

            if watched:
                import tidelog.controller.metrics
        if self._configs.is_broker:
            import tidelog.broker.process

            if watched:
                import tidelog.broker.metrics  # noqa: F401

    def _say_start(self, host_name: str | None) -> None:
        configs = self._configs
        self._began = True
        logger.info(
            "tidelog %(version)s starts: node %(node)s, %(roles)s, level %(level)s",
            {
                "version": __version__,
                "node": configs.node_id,
                "roles": configs.process_roles,
                "level": configs.level.name,
                "python": sys.version.split()[0],
                "pid": os.getpid(),
                "log_dirs": configs.log_dirs if configs.is_broker else (),
                "store": configs.metadata_store if configs.is_controller else None,
            },
        )
        if idle := without_effect(configs.texts):
            logger.warning(
                # In one place of the line: the list may be long.
                "these configurations of the file have no effect",
                {"names": "; ".join(idle)},
            )
        if host_name is not None:
            logger.info(
                "a listener is bound to every interface: clients will connect to %(host)s; set "
                "advertised.listeners to advertise another address",
                {"host": host_name},
            )

    def _log_listeners(self) -> None:
        """Log the listeners of this process, and the addresses that clients receive."""
        configs = self._configs
        bound = {one.name: one.port for one in configs.listeners}
        if self._controller is not None:
            bound[configs.controller_listeners[0].name] = self._controller.listener_port
        if self._broker is not None:
            bound |= self._broker.ports
        advertised = {one.name: one for one in configs.advertised_listeners}
        served = configs.broker_listeners if configs.is_broker else ()
        for one in (*served, *(configs.controller_listeners if configs.is_controller else ())):
            sentence, fields = "listening on %(listener)s", {}
            fields["listener"] = str(replace(one, port=bound[one.name]))
            if (public := advertised.get(one.name)) is not None:
                sentence += ", advertised to clients as %(advertised)s"
                fields["advertised"] = str(replace(public, port=public.port or bound[one.name]))
            logger.info(sentence, fields)

    async def _start_controller(self, seams: Seams, belongs_to: str | None) -> None:
        from tidelog.controller.process import ControllerProcess
        from tidelog.metadata.store import StoreRefused, StoreUnavailable
        from tidelog.network.server import ListenError

        controller = ControllerProcess(
            self._configs,
            seams,
            secret=self._secret,
            belongs_to=belongs_to,
            is_new=self._is_new,
            tls=self._tls,
        )
        self._waits_for = f"its metadata store {self._configs.metadata_store}"
        try:
            await controller.start()
        except (StoreRefused, StoreUnavailable, ListenError, OSError) as error:
            raise Failed(str(error)) from error
        self._controller = controller
        if self._endpoint is not None:
            from tidelog.controller.metrics import ControllerCollector

            self._collectors.append(ControllerCollector(controller))

    async def _start_broker(self, seams: Seams, belongs_to: str | None) -> None:
        from tidelog.broker.process import BrokerProcess, StartFailed

        controllers = list(self._configs.controller_quorum_bootstrap_servers)
        if not controllers and self._controller is not None:
            near_host = self._configs.controller_listeners[0].near_host
            controllers = [(near_host, self._controller.listener_port)]
        files = descriptors.share(descriptors.raise_limit())
        ends = self._secret, belongs_to, self._tls
        broker = BrokerProcess(self._configs, seams, controllers, files, *ends)
        broker.when_not_notified = lambda: self._say_waiting(broker)
        self._starting = broker
        try:
            await broker.start()
        except StartFailed as error:
            raise Failed(str(error)) from error
        finally:
            self._starting = None
        self._take(broker)

    def _take(self, broker: BrokerProcess) -> None:
        """Show the broker to monitoring, from now on."""
        if self._broker is not None:
            return
        self._broker = broker
        if self._endpoint is not None:
            from tidelog.broker.metrics import BrokerCollector

            self._collectors.append(BrokerCollector(broker.broker, broker.server))

    def _say_waiting(self, broker: BrokerProcess) -> None:
        """Print the ready line of a broker that waits for metadata; monitoring sees it already."""
        self._take(broker)
        print(self._line("waiting", broker), flush=True)

    def _start_endpoint(self, address: tuple[str, int]) -> None:
        from tidelog.observe.endpoint import Endpoint, PortInUse

        try:
            self._endpoint = Endpoint(*address, self._collector(), self._health)
        except PortInUse as error:
            raise Failed(str(error)) from error

    def _collector(self) -> Any:
        from prometheus_client.registry import Collector

        from tidelog.observe.loop_stalls import LoopStallCollector
        from tidelog.observe.process_figures import ProcessFigures

        self._figures = ProcessFigures()
        self._collectors += [LoopStallCollector(self._watch.stalls), self._figures]
        collectors = self._collectors

        class All(Collector):
            """The metrics of each role of this process that has started."""

            def collect(self) -> list[Any]:
                return [metric for part in tuple(collectors) for metric in part.collect()]

        return All()

    def _health(self) -> dict[str, Any]:
        waits_for = self._waits_for
        if waits_for is not None and self._starting is not None:
            waits_for = self._starting.waits_for
        state: dict[str, Any] = {"healthy": True, "node_id": self._configs.node_id}
        if self._broker is not None:
            from tidelog.broker.metrics import health

            state.update(health(self._broker.broker))
        if self._controller is not None:
            from tidelog.controller.metrics import store_trouble

            state["controller_active"] = self._controller.controller.active
            state["store"] = trouble = store_trouble(self._controller)
            state["healthy"] = state["healthy"] and trouble is None
        state["healthy"] = state["healthy"] and waits_for is None
        # A response proves that the process lives; a restart must depend on nothing else.
        return {**state, "live": True, "ready": state["healthy"], "waits_for": waits_for}

    def _line(self, first_word: str, broker: BrokerProcess | None) -> str:
        configs = self._configs
        words = [first_word, f"node={configs.node_id}"]
        words.append(f"roles={','.join(sorted(configs.process_roles))}")
        if broker is not None:
            hosts = {one.name: one.host for one in configs.advertised_listeners}
            for name, port in broker.ports.items():
                words.append(f"{name}={joined(hosts.get(name, '127.0.0.1'), port)}")
        if self._controller is not None:
            first = configs.controller_listeners[0]
            host = first.host or "127.0.0.1"
            words.append(f"{first.name}={joined(host, self._controller.listener_port)}")
        if self._endpoint is not None and configs.metrics_address is not None:
            words.append(f"metrics={joined(configs.metrics_address[0], self._endpoint.port)}")
        return " ".join(words)

    async def _stop(self) -> None:
        """Stop what has started, the broker first: its controller then moves its leaderships."""
        if self._broker is not None:
            await self._broker.stop()
        if self._controller is not None:
            await self._controller.stop()
        # Last: metrics stay readable during the stop, and the stop does not wait for their readers.
        if self._endpoint is not None:
            self._endpoint.close()
        if self._figures is not None:
            self._figures.close()
        if self._began:
            logger.info("stopped")
