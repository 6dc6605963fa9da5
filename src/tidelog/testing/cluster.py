"""``tidelog.testing.Cluster``: real brokers on free ports in a temporary folder.

Owns the interface for a test process: it blocks, and needs no event loop and no thread. Not the
brokers' processes: one host process starts, kills and ends them for each cluster, see ``host``.

Each call is one line of JSON on the host's standard input, and its response one line on the host's
standard output. The host ends all brokers by their ids when its input ends, so no broker outlives
the test process, however that ends.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESPONSE_TIMEOUT_S = 120.0
"""Limit of one call: above those of a broker's start (60 s) and of an administrative request."""

STOP_TIMEOUT_S = 30.0
"""Limit of the host's end; it kills its brokers, which takes no time."""

HOST_LOG = "cluster.log"
"""The host's own messages, beside the logs of its brokers (``node-N.log``)."""

SHORT_WAITS = {"retired.check.interval.ms": "1000", "retired.purge.delay.ms": "3000"}
"""What a cluster of tests has in place of 30 s and two minutes: a test that shrinks a topic, and
lets it grow again, would wait for so long. No longer than that may a producer be without a response
to what it wrote to a partition that retires."""


class ClusterError(Exception):
    """A call on a cluster failed; the text is one line that says why."""


class Cluster:
    """A cluster of real tidelog processes for tests: ``with Cluster(brokers=3) as cluster: ...``.

    Node ids count from 1. Node 1 is also the controller: while it is down, the other brokers serve,
    but no leader is elected and no topic changes. ``config`` has server configurations for all
    nodes, by Kafka's names. It overrides ``SHORT_WAITS``; all else is as with ``tidelog up``. The
    data is in a new folder below ``parent_folder`` (default: the system's folder of temporary
    files) and is removed at the end; after an exception in the ``with`` block, or with
    ``keep_logs``, the logs stay.

    Methods block until they are done, raise ClusterError with one line, and may be called from any
    thread, one after another.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        config: Mapping[str, str] | None = None,
        parent_folder: str | os.PathLike[str] | None = None,
        tls: bool = False,
    ) -> None:
        """``tls``: with certificates made at the start; clients need ``client_config``."""
        if brokers < 1:
            raise ValueError(f"a cluster has at least one broker, not {brokers}")
        self.keep_logs = False
        """Whether the logs stay after the end; set it when a test has failed."""
        self._brokers = brokers
        given = {name: str(value) for name, value in (config or {}).items()}
        self._config = {**SHORT_WAITS, **given}
        self._parent_folder = parent_folder
        self._tls = tls
        self._client_config: dict[str, str] = {}
        self._folder: Path | None = None
        self._host: subprocess.Popen[bytes] | None = None
        self._unread = b""
        self._addresses: dict[int, str] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Cluster:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.keep_logs = self.keep_logs or kind is not None
        self.stop()

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, ``127.0.0.1:PORT,...``; they stay until the end."""
        if not self._addresses:
            raise ClusterError("the cluster does not run: call start(), or use `with`")
        return ",".join(self._addresses.values())

    @property
    def client_config(self) -> dict[str, str]:
        """What a client needs beside the addresses, by Kafka's names: nothing without TLS.

        With it the keys and the trusted authority are PEM files below ``folder``.
        """
        return dict(self._client_config)

    @property
    def nodes(self) -> list[int]:
        """The node ids, those of killed nodes included."""
        return list(range(1, self._brokers + 1))

    @property
    def folder(self) -> Path:
        """The folder of the cluster: ``node-N.log`` is the log of node N."""
        if self._folder is None:
            raise ClusterError("the cluster has not been started")
        return self._folder

    def start(self) -> None:
        """Start all brokers; return when each of them serves."""
        if self._host is not None:
            raise ClusterError("the cluster runs already")
        parent = None if self._parent_folder is None else os.fspath(self._parent_folder)
        self._folder = Path(tempfile.mkdtemp(prefix="tidelog-", dir=parent))
        try:
            config = {**self._config_of_tls(self._folder), **self._config}
            self._start_host(self._folder)
            self._addresses = {
                int(node): address
                for node, address in self._call(
                    "start", brokers=self._brokers, config=config
                ).items()
            }
        except BaseException:
            self.keep_logs = True
            self.stop()
            raise

    def stop(self) -> None:
        """Kill all brokers and remove the folder, except for the logs with ``keep_logs``.

        Does nothing when the cluster does not run.
        """
        host, self._host = self._host, None
        self._addresses = {}
        if host is None or self._folder is None:
            return
        assert host.stdin is not None and host.stdout is not None
        try:
            host.stdin.write(_line({"do": "stop", "keep_logs": self.keep_logs}))
            host.stdin.close()
        except BrokenPipeError:
            # It has ended: its brokers have, too, since their standard input has ended.
            self.keep_logs = True
        try:
            host.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.keep_logs = True
            host.kill()
            host.wait()
        host.stdout.close()
        self._unread = b""
        if self.keep_logs:
            print(f"tidelog: the logs of the cluster are in {self._folder}", file=sys.stderr)

    def kill(self, node: int) -> None:
        """Kill a node (SIGKILL), also a paused one; return when its process is gone."""
        self._call("kill", node=node)

    def pause(self, node: int) -> None:
        """Stop the process of a node (SIGSTOP): its connections stay open and do not respond."""
        self._call("pause", node=node)

    def resume(self, node: int) -> None:
        """Let a paused node run again (SIGCONT)."""
        self._call("resume", node=node)

    def restart(self, node: int) -> None:
        """Start a node on its data and its port; a running one is stopped cleanly before.

        Returns when the node serves.
        """
        self._call("restart", node=node)

    def pids(self) -> dict[int, int | None]:
        """The process id of each node; None for a node that does not run."""
        return {int(node): pid for node, pid in self._call("pids").items()}

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        *,
        replication_factor: int | None = None,
        config: Mapping[str, str] | None = None,
    ) -> None:
        """Create a topic; return when its partitions have leaders.

        The default replication factor is 3, or the number of brokers if that is smaller.
        """
        self._call(
            "create_topic",
            name=name,
            partitions=partitions,
            replication_factor=-1 if replication_factor is None else replication_factor,
            config={key: str(value) for key, value in (config or {}).items()},
        )

    def resize(self, topic: str, partitions: int, *, force: bool = False) -> None:
        """Grow or shrink a topic to so many partitions (KIP-253); return when all brokers show it.

        A shrink is refused while producers that send no counts (stock clients) write to the topic,
        unless it is forced.
        """
        self._call("resize", topic=topic, partitions=partitions, force=force)

    def _config_of_tls(self, folder: Path) -> dict[str, str]:
        if not self._tls:
            return {}
        from tidelog.testing import certificates

        made = certificates.make_certificates(folder)
        self._client_config = certificates.configs_of_clients(made)
        return certificates.configs_of_nodes(made)

    def _start_host(self, folder: Path) -> None:
        with (folder / HOST_LOG).open("ab") as log:
            self._host = subprocess.Popen(
                # -P: a module of the working folder must not take the place of one of Python's.
                [sys.executable, "-P", "-m", "tidelog.testing.host", str(folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                # Ctrl-C reaches only the test process, which then ends the cluster.
                start_new_session=True,
            )

    def _call(self, what: str, **arguments: Any) -> Any:
        """Send a request to the host and return its result. Raises ClusterError."""
        with self._lock:
            host = self._host
            if host is None:
                raise ClusterError("the cluster does not run: call start(), or use `with`")
            assert host.stdin is not None
            try:
                host.stdin.write(_line({"do": what, **arguments}))
            except BrokenPipeError:
                raise self._host_is_gone() from None
            response = json.loads(self._read_line(host))
        if "error" in response:
            raise ClusterError(response["error"])
        return response["result"]

    def _read_line(self, host: subprocess.Popen[bytes]) -> bytes:
        assert host.stdout is not None
        end = time.monotonic() + RESPONSE_TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            selector.register(host.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise ClusterError(
                        f"no response within {RESPONSE_TIMEOUT_S:.0f} s; see {self.folder}"
                    )
                piece = os.read(host.stdout.fileno(), 65_536)
                if not piece:
                    raise self._host_is_gone()
                self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line

    def _host_is_gone(self) -> ClusterError:
        return ClusterError(
            f"the process that runs the cluster has ended; see {self.folder / HOST_LOG}"
        )


def _line(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request).encode() + b"\n"
