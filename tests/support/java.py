"""Java for the tests and the benchmark: the locked jars, and running Kafka's own tools.

Owns `.tools/` in the repository's root. Does not know what a broker is: see `kafka.py`.

The jars are those of `java.lock` and nothing else: Maven copies them, each one is held against its
SHA-256 before any use. `python -m tests.support.java lock` writes the lock file again.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import functools
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from xml.sax.saxutils import escape

from tests.support.processes import DEADLINE_S, Program

ROOT = Path(__file__).resolve().parents[2]
LOCK_FILE = Path(__file__).with_name("java.lock")
TOOLS_DIR = ROOT / ".tools" / "java"
RUNNER_SOURCE = Path(__file__).with_name("ToolRunner.java")
DEPENDENCY_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.1"
DOWNLOAD_DEADLINE_S = 540

# What each set is resolved from. Connect brings half of all jars and no tool that we run.
SET_ROOTS = {
    "kafka": (
        "org.apache.kafka:kafka_2.13:4.3.0",
        "org.apache.kafka:kafka-tools:4.3.0",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
    "clients-3.9": (
        "org.apache.kafka:kafka-clients:3.9.1",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
    "spark-kafka": (
        "org.apache.spark:spark-sql-kafka-0-10_2.13:4.0.0",
        "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
        "org.apache.kafka:kafka-clients:3.9.0",
        "org.apache.commons:commons-pool2:2.12.0",
    ),
    "streams": (
        "org.apache.kafka:kafka-streams:4.3.0",
        "org.apache.kafka:kafka-clients:4.3.0",
        "org.slf4j:slf4j-api:1.7.36",
        "org.slf4j:slf4j-simple:1.7.36",
    ),
}
# Sets that name all their jars: Spark itself brings what these depend on, and a store in memory
# needs no RocksDB, which is larger than all others together.
WITHOUT_DEPENDENCIES = ("spark-kafka", "streams")
EXCLUDED = ("org.apache.kafka:connect-runtime", "org.apache.kafka:connect-json")

# For what is over before the optimizing compiler has paid for itself; its code is proven elsewhere.
START_FAST = (
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Xshare:auto",
    "-XX:+UnlockDiagnosticVMOptions",
    "-XX:-BytecodeVerificationRemote",
)

# Start fast and stay small: a tool lives for a second, and two cores carry the broker too.
TOOL_FLAGS = (
    *START_FAST,
    "-Xss512k",
    "-Xmx256m",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)

# The tools by the names of Kafka's shell scripts.
TOOLS = {
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-consumer-perf-test": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-log-compaction-tester": "org.apache.kafka.tools.LogCompactionTester",
    "kafka-dump-log": "org.apache.kafka.tools.DumpLogSegments",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-server": "kafka.Kafka",
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-transactional-message-copier": "org.apache.kafka.tools.TransactionalMessageCopier",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
}


class JavaUnavailable(RuntimeError):
    """Java or Maven is missing, or the jars cannot be had: one line that says which."""


@dataclass(frozen=True)
class Jar:
    """One line of the lock file."""

    set_name: str
    group: str
    artifact: str
    version: str
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.artifact}-{self.version}.jar"


@dataclass(frozen=True)
class ToolResult:
    """The result of a tool: its exit status and both streams."""

    tool: str
    args: tuple[str, ...]
    status: int
    out: str
    err: str

    def check(self) -> ToolResult:
        """Return itself; raise AssertionError with both streams unless the status is 0."""
        if self.status != 0:
            raise AssertionError(f"{self}")
        return self

    def __str__(self) -> str:
        return (
            f"{self.tool} {' '.join(self.args)}\n-> exit {self.status}\n"
            f"--- stdout\n{self.out}\n--- stderr\n{self.err}"
        )


@functools.cache
def missing() -> str | None:
    """Why Java tests cannot run here, in one line; None where Java and Maven both are."""
    java = shutil.which("java")
    if java is None:
        return "Java 17 or newer is not installed: install a JDK (Debian: openjdk-17-jdk-headless)"
    said = subprocess.run(
        [java, "-version"], capture_output=True, text=True, timeout=DEADLINE_S
    ).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found.group(1)) < 17:
        return f"Java 17 or newer is needed, found: {said.splitlines()[0] if said else java}"
    if shutil.which("mvn") is None:
        return "Maven is not installed: install it (Debian: maven)"
    return None


def read_lock() -> list[Jar]:
    """The lock file's lines: `SET GROUP:ARTIFACT:VERSION SHA256`."""
    jars = []
    for line in LOCK_FILE.read_text().splitlines():
        if line and not line.startswith("#"):
            set_name, coordinate, sha256 = line.split()
            group, artifact, version = coordinate.split(":")
            jars.append(Jar(set_name, group, artifact, version, sha256))
    return jars


@functools.cache
def class_path(set_name: str = "kafka") -> str:
    """The class path of a locked set, downloaded on first use and verified on every one.

    Raises JavaUnavailable where Java or Maven is missing or a jar is not what the lock says.
    """
    reason = missing()
    if reason is not None:
        raise JavaUnavailable(reason)
    jars = [jar for jar in read_lock() if jar.set_name == set_name]
    digest = hashlib.sha256("".join(jar.sha256 for jar in jars).encode()).hexdigest()[:12]
    folder = TOOLS_DIR / f"{set_name}-{digest}"
    with _exclusive(TOOLS_DIR):
        if not folder.is_dir():
            _download(jars, folder)
    for jar in jars:
        if _sha256(folder / jar.file_name) != jar.sha256:
            raise JavaUnavailable(f"{folder / jar.file_name} differs from java.lock: remove it")
    return os.pathsep.join(str(folder / jar.file_name) for jar in jars)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextlib.contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _download(jars: list[Jar], folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        got = Path(scratch, "jars")
        got.mkdir()
        _copy_dependencies(
            [f"{jar.group}:{jar.artifact}:{jar.version}" for jar in jars], got, ("*:*",)
        )
        for jar in jars:
            path = got / jar.file_name
            if not path.exists():
                raise JavaUnavailable(f"Maven did not bring {jar.file_name}")
            if _sha256(path) != jar.sha256:
                raise JavaUnavailable(f"{jar.file_name} from Maven is not the one in java.lock")
        got.rename(folder)


def _copy_dependencies(
    coordinates: list[str], folder: Path, exclusions: tuple[str, ...], *extra: str
) -> None:
    dropped = "".join(
        f"<exclusion><groupId>{group}</groupId><artifactId>{artifact}</artifactId></exclusion>"
        for group, artifact in (item.split(":") for item in exclusions)
    )
    wanted = "".join(
        f"<dependency><groupId>{escape(group)}</groupId><artifactId>{escape(artifact)}</artifactId>"
        f"<version>{escape(version)}</version><exclusions>{dropped}</exclusions></dependency>"
        for group, artifact, version in (item.split(":") for item in coordinates)
    )
    pom = folder.parent / "pom.xml"
    pom.write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>tidelog</groupId>"
        "<artifactId>tools</artifactId><version>1</version><packaging>pom</packaging>"
        f"<dependencies>{wanted}</dependencies></project>"
    )
    goal = f"{DEPENDENCY_PLUGIN}:copy-dependencies"
    command = ["mvn", "-q", "-B", "-f", str(pom), goal, "-DincludeScope=runtime"]
    command += [f"-DoutputDirectory={folder}", *extra]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_DEADLINE_S)
    if done.returncode != 0:
        said = [line for line in done.stdout.splitlines() if "ERROR" in line]
        raise JavaUnavailable(f"Maven cannot bring the jars: {said[0] if said else done.stderr}")


def java_command(
    tool: str, *args: str, flags: tuple[str, ...] = TOOL_FLAGS, set_name: str = "kafka"
) -> list[str]:
    """The command line of a tool (a script's name from `TOOLS`, or a class) in its own JVM."""
    java = shutil.which("java") or "java"
    return [java, *flags, "-cp", class_path(set_name), TOOLS.get(tool, tool), *args]


def run_java(
    tool: str,
    *args: str,
    stdin: str = "",
    deadline_s: float = DEADLINE_S,
    flags: tuple[str, ...] = TOOL_FLAGS,
    set_name: str = "kafka",
) -> ToolResult:
    """Run one tool in a JVM of its own. For many runs in a row take `ToolRunner`."""
    command = java_command(tool, *args, flags=flags, set_name=set_name)
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=deadline_s)
    return ToolResult(tool, args, done.returncode, done.stdout, done.stderr)


def start_java(tool: str, *args: str, log: Path, set_name: str = "kafka") -> Program:
    """Start a tool that runs on (a producer in mid-stream); both streams go to `log`."""
    return Program(java_command(tool, *args, set_name=set_name), log)


class ToolRunner:
    """Many tools, one after another, in one JVM: a warm run costs 0.1 s instead of 1.5 s.

    `run` has the contract of `run_java`. A tool that passes its deadline is ended with its JVM, and
    the next run starts a new one. Where no Java compiler is installed each tool gets its own JVM.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._classes: Path | None = None
        self._stderr: IO[bytes] | None = None

    def run(
        self, tool: str, *args: str, stdin: str = "", deadline_s: float = DEADLINE_S
    ) -> ToolResult:
        """Run a tool to its end; raises TimeoutError after `deadline_s`."""
        if shutil.which("javac") is None:
            return run_java(tool, *args, stdin=stdin, deadline_s=deadline_s)
        process = self._start()
        assert process.stdin is not None and process.stdout is not None
        fields = (TOOLS.get(tool, tool), stdin, *args)
        line = " ".join(base64.b64encode(f.encode()).decode() or "=" for f in fields)
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()
        watchdog = threading.Timer(deadline_s, process.kill)
        watchdog.start()
        try:
            answer = process.stdout.readline().split()
        finally:
            watchdog.cancel()
        if len(answer) != 3:
            self.close()
            said = f"{tool} {' '.join(args)} ended its JVM or took over {deadline_s} s"
            raise TimeoutError(said)
        out, err = (base64.b64decode(f).decode(errors="replace") for f in answer[1:])
        return ToolResult(tool, args, int(answer[0]), out, err)

    def _start(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            if self._classes is None:
                self._classes = Path(tempfile.mkdtemp(prefix="tidelog-runner-"))
                compiler = ["javac", "-nowarn", "-cp", class_path(), "-d", str(self._classes)]
                subprocess.run([*compiler, str(RUNNER_SOURCE)], check=True, timeout=DEADLINE_S)
            java = shutil.which("java") or "java"
            path = f"{self._classes}{os.pathsep}{class_path()}"
            self._stderr = (self._classes / "stderr").open("ab")
            self._process = subprocess.Popen(
                [java, *TOOL_FLAGS, "-cp", path, "ToolRunner"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
            )
        return self._process

    def close(self) -> None:
        """End the JVM."""
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(timeout=DEADLINE_S)
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
            self._process.stdout.close()
            self._process = None
        if self._stderr is not None:
            self._stderr.close()
            self._stderr = None
        if self._classes is not None:
            shutil.rmtree(self._classes)
            self._classes = None


def write_lock() -> None:
    """Resolve `SET_ROOTS` with their dependencies and write the lock file."""
    lines = [
        "# The Java of the tests and the benchmark: set, group:artifact:version, SHA-256 of the",
        "# jar. Written by `python -m tests.support.java lock`.",
    ]
    for set_name, roots in SET_ROOTS.items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch, "jars")
            folder.mkdir()
            excluded = ("*:*",) if set_name in WITHOUT_DEPENDENCIES else EXCLUDED
            _copy_dependencies(list(roots), folder, excluded, "-Dmdep.useRepositoryLayout=true")
            for path in sorted(folder.rglob("*.jar")):
                *group, artifact, version, _ = path.relative_to(folder).parts
                lines.append(f"{set_name} {'.'.join(group)}:{artifact}:{version} {_sha256(path)}")
    LOCK_FILE.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["lock"]:
        write_lock()
    else:
        sys.exit("usage: python -m tests.support.java lock")
