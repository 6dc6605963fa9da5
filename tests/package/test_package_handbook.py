"""Every command line of `docs/operating`, run from an installed wheel as an operator would.

The pages are the only place of the lines. A line that no step here takes fails the test, as do the
words of a step that are in no page. Addresses and folders of the pages get real values; no other
part of a line changes, except what a step adds at its end.
"""

from __future__ import annotations

import json
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import zookeeper
from tests.support.handbook import (
    COMMAND,
    LANGUAGES,
    Block,
    CommandLines,
    block_with,
    blocks,
    filled,
)
from tests.support.installed import BIN, ROOT, environment, lend
from tests.support.processes import DEADLINE_S, free_ports, wait_until
from tests.support.zookeeper import ZooKeeper

NOT_RUN = {
    "make setup": "it makes the environment that this test runs in, from an index",
    **dict.fromkeys(
        (
            "tidelog topics --bootstrap-server … --decommission 3",
            "tidelog topics --bootstrap-server … --decommission 3 --execute",
        ),
        "the cluster of this test has as many brokers as replicas: tests/cluster/test_rebalance.py "
        "has more",
    ),
    "tidelog configs --bootstrap-server … --alter --broker 3 --add-config "
    "cordoned.log.dirs=/disk2": "the brokers of this test have one log directory each: "
    "tests/component/broker/test_bad_disks.py has two",
    **dict.fromkeys(
        (
            "useradd --system -d /var/lib/tidelog -s /usr/sbin/nologin tidelog",
            "install -d -o root -g tidelog -m 0750 /etc/tidelog",
            "install -o root -g tidelog -m 0640 server.properties /etc/tidelog/server.properties",
            "chown tidelog: /etc/tidelog/secret",
        ),
        "it needs root, and a user that would stay on the machine",
    ),
    **dict.fromkeys(
        (
            "tidelog transactions list --bootstrap-server … --duration-filter 60000",
            "tidelog transactions describe --bootstrap-server … --transactional-id copier-7",
            "tidelog transactions find-hanging --bootstrap-server … --topic orders",
            "tidelog transactions abort --bootstrap-server … --topic orders --partition 3 "
            "--start-offset 4711",
            "tidelog transactions force-terminate --bootstrap-server … --transactional-id copier-7",
        ),
        "they need transactions that are open: tests/cluster/test_cli_transactions.py runs them",
    ),
    "tidelog server --workers 4 /etc/tidelog/server.properties": "four brokers beside this "
    "cluster are much for two cores: tests/cluster/test_workers.py runs two",
    **dict.fromkeys(
        (
            "autoload -Uz compinit && compinit",
            'eval "$(_TIDELOG_COMPLETE=zsh_source tidelog)"',
        ),
        "CI's machine has no zsh",
    ),
}
"""Why a line is not run."""

RECORDING = ROOT / "tests" / "fixtures" / "autoscaling" / "rates.jsonl"

OFFLINE = {"PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
"""pip installs the wheel alone; what it depends on is lent."""

QUICK_JAVA = {"JAVA_TOOL_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}
SPARK_S = 240


def test_what_is_for_a_shell_is_said_to_be() -> None:
    """A command of a page cannot hide in a block that is not run."""
    for block in blocks():
        assert block.language in LANGUAGES, block.place
        if block.language != "sh":
            assert [line for line in block.lines() if COMMAND.match(line)] == [], block.place


def test_a_line_that_no_step_runs_is_named() -> None:
    lines = CommandLines([Block("page.md:7", "sh", "tidelog up\ntidelog up \\\n   --data x\n")])
    assert lines.take("tidelog up") == "tidelog up"
    assert lines.left() == ["page.md:7: tidelog up --data x"]
    with pytest.raises(AssertionError, match="no line"):
        lines.take("tidelog down")


def test_what_is_not_run_is_in_a_page() -> None:
    with pytest.raises(KeyError):
        CommandLines(blocks(), {**NOT_RUN, "tidelog fly": ""})
    assert CommandLines(blocks(), NOT_RUN).left()


class Operator:
    """A person with a shell, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.lines = CommandLines(blocks(), NOT_RUN)
        self.bin = folder / "opt" / "tidelog" / "bin"
        self.values = {
            "/opt/tidelog": str(folder / "opt" / "tidelog"),
            "--out-dir dist": f"--out-dir {folder / 'dist'}",
            "dist/tidelog": str(folder / "dist" / "tidelog"),
            ".venv/bin/": f"{BIN}/",
            "/data/lake": str(folder / "lake"),
            "--lake …": f"--lake {folder / 'submitted'}",
            "--master …": "--master local[1]",
        }
        python = str(self.bin / "python")
        self._environment = environment(
            self.bin, BIN, PYSPARK_PYTHON=python, SPARK_LOCAL_IP="127.0.0.1", **OFFLINE,
            **QUICK_JAVA,
        )  # fmt: skip

    def reaches(self, bootstrap: str) -> None:
        """From now on the brokers of the pages are these."""
        self.values["--bootstrap-server …"] = f"--bootstrap-server {bootstrap}"
        self.values["localhost:9092"] = bootstrap

    def run(
        self, *words: str, then: str = "", cwd: Path | None = None, deadline_s: float = DEADLINE_S
    ) -> str:
        """Run the line that has these words to its end, with status 0; return what it printed."""
        return self.run_line(self.lines.take(*words), then, cwd, deadline_s)

    def run_line(self, line: str, then: str, cwd: Path | None, deadline_s: float) -> str:
        """Run a line of a page that was taken."""
        script = f"set -o pipefail\n{filled(line, self.values)}\n{then}"
        done = subprocess.run(
            ["bash", "-ec", script], capture_output=True, text=True, timeout=deadline_s,
            cwd=cwd or self.folder, env=self._environment,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @contextmanager
    def running(
        self, *words: str, more: str = "", end: int = signal.SIGTERM, ends: str = ""
    ) -> Iterator[Running]:
        """Begin the line that has these words; at the end of the block it ends with status 0."""
        line = filled(self.lines.take(*words), self.values)
        out, said = (self.folder / f"{name}-{abs(hash(line))}" for name in ("out", "said"))
        with out.open("wb") as stdout, said.open("wb") as stderr:
            process = subprocess.Popen(
                ["bash", "-ec", f"exec {line} {more}"], stdin=subprocess.DEVNULL, stdout=stdout,
                stderr=stderr, cwd=self.folder, env=self._environment,
            )  # fmt: skip
        running = Running(line, process, out, said)
        try:
            yield running
            process.send_signal(end)
            assert process.wait(DEADLINE_S) == 0, f"{line}\n{running.said()}"
            assert ends in running.said(), f"{line}\n{running.said()}"
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(DEADLINE_S)


class Running:
    """A line that runs until it is stopped."""

    def __init__(self, line: str, process: subprocess.Popen[bytes], out: Path, said: Path) -> None:
        self.line = line
        self._process = process
        self._out = out
        self._said = said

    def output(self) -> str:
        """What it has printed for scripts."""
        return self._out.read_text(errors="replace")

    def said(self) -> str:
        """What it has said to people."""
        return self._said.read_text(errors="replace")

    def until(self, condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
        """Wait for a condition while the line runs."""
        wait_until(
            lambda: condition() or self._process.poll() is not None, deadline_s,
            lambda: f"{self.line}\n{self.output()}\n{self.said()}",
        )  # fmt: skip
        assert self._process.poll() is None, f"{self.line}\n{self.output()}\n{self.said()}"

    def until_printed(self, line: str) -> None:
        """Wait for the first whole line, which is this one."""
        self.until(lambda: "\n" in self.output())
        assert self.output().splitlines()[0] == line


@pytest.mark.spark
@pytest.mark.long(45)
def test_every_command_line_of_the_handbook_runs(tmp_path: Path) -> None:
    zookeeper.needed()
    operator = Operator(tmp_path)
    install(operator)
    make_a_secret(operator)
    one_broker(operator)
    one_process_from_a_file(operator)
    with ZooKeeper(tmp_path / "zookeeper") as outside:
        operator.values["127.0.0.1:2181"] = outside.address
        with operator.running("tidelog up --brokers 3", more="--port 0") as up:
            up.until(lambda: "ready " in up.output())
            operator.reaches(up.output().split("bootstrap=")[1].split()[0])
            topics_and_configurations(operator)
            records_and_groups(operator)
            resizes(operator)
            elections_and_the_doctor(operator)
            moves(operator)
            closed_brokers(operator)
            pipeline(operator)
            deleted_records(operator)
    assert operator.lines.left() == [], "lines of the pages that nothing here has run"


def install(operator: Operator) -> None:
    """deploy.md and pipeline.md: the wheel, an environment, the wheel in it."""
    operator.run(".venv/bin/uv build --wheel", cwd=ROOT)
    operator.run("python3 -m venv")
    operator.run("/opt/tidelog/bin/pip install")
    lend(operator.bin / "python")
    operator.run("pip install", "[spark]")
    operator.run("bash_source", then="complete -p tidelog | grep -q _tidelog_completion")


def make_a_secret(operator: Operator) -> None:
    """security.md, deploy.md: only its user can read it, and a server takes it (below)."""
    operator.values["/etc/tidelog"] = str(operator.folder)
    for name in ("cluster.secret", "/etc/tidelog/secret"):
        operator.run("openssl rand", f"> {name})")
        secret = operator.folder / Path(name).name
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600


def one_broker(operator: Operator) -> None:
    """start.md: a development cluster; commands.md: a copy of its store."""
    (port,) = free_ports(1)
    promised = block_with("text", "ready bootstrap=").strip()
    with operator.running("tidelog up", more=f"--port {port}") as up:
        up.until_printed(promised.replace("9092", str(port)))
        written = json.loads((operator.folder / "data" / "cluster.json").read_text())
        shown = json.loads(block_with("json", '"bootstrap"'))
        assert shape(written) == shape(shown)
        operator.run("tidelog doctor backup")
        assert (operator.folder / "metadata.backup").stat().st_size > 0
        address = f"127.0.0.1:{port}"
        operator.reaches(address)
        said = operator.run("tidelog doctor restored")
        assert said == "The metadata store has not gone back in time.\n"
    (operator.folder / "data").rename(operator.folder / "data-of-one")


def shape(value: Any) -> Any:
    """The names in a JSON document, without what stands for them."""
    if isinstance(value, dict):
        return {name: shape(each) for name, each in value.items()}
    return [shape(each) for each in value] if isinstance(value, list) else type(value)


def one_process_from_a_file(operator: Operator) -> None:
    """start.md: the least that a file needs, with the secret that was made."""
    port, controller_port = map(str, free_ports(2))
    logs = operator.folder / "logs"
    real = {"127.0.0.1:9092": f"127.0.0.1:{port}", "127.0.0.1:9093": f"127.0.0.1:{controller_port}",
            "/var/lib/tidelog": str(logs)}  # fmt: skip
    least = block_with("properties", "process.roles=broker,controller", "offsets.topic")
    secret = f"cluster.secret.file={operator.folder / 'cluster.secret'}\n"
    (operator.folder / "server.properties").write_text(filled(least, real) + secret)
    with operator.running("tidelog server") as server:
        server.until_printed(filled(block_with("text", "ready node=1"), real).strip())
        assert "tidelog 0.1.0 starts: node 1" in server.said()
        assert "listening on PLAINTEXT://127.0.0.1:" in server.said()


def topics_and_configurations(operator: Operator) -> None:
    """commands.md: each change shows in what is described after it."""
    assert operator.run("--create", "flights") == "Created topic flights.\n"
    described = operator.run("topics", "--describe --topic flights")
    assert "PartitionCount: 8  ReplicationFactor: 3  Configs: retention.ms=86400000" in described
    assert operator.run("--partitions 16") == "Topic flights now has 16 partitions.\n"
    changed = "Completed updating config for topic flights.\n"
    assert operator.run("--add-config 'cleanup.policy", "flights") == changed
    assert operator.run("--delete-config", "flights") == changed
    autoscaling(operator, changed)
    values = operator.run("configs", "--broker 1 --all")
    assert "All configs for broker 1:" in values and "DEFAULT_CONFIG" in values


def autoscaling(operator: Operator, changed: str) -> None:
    """autoscale.md: the dry run of the controller, and a replay of what it printed."""
    assert operator.run("partitions.auto=true") == changed
    line = "tidelog autoscale --bootstrap-server … --dry-run --topic flights"
    assert "flights" in operator.run(line)
    printed = operator.run("tidelog autoscale", "--json | tee -a rates.json")
    assert (operator.folder / "rates.json").read_text() == printed
    # What these brokers report has no load; a recording of one stands in.
    shutil.copy(RECORDING, operator.folder / "rates.json")
    assert "2 -> 4" in operator.run("--replay rates.json")
    assert operator.run("partitions.auto=false") == changed


def records_and_groups(operator: Operator) -> None:
    """commands.md: a record is read by everybody, and by a group that began where it was sent."""
    operator.run("echo", "tidelog produce")
    read = operator.run("consume", "--from-beginning")
    assert read.startswith("Partition:") and read.endswith("\tN14228\tEWR-IAH\n")
    reset = operator.run("groups", "--reset-offsets")
    assert reset.splitlines()[0].split() == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]
    assert len(reset.splitlines()) == 1 + 16
    ends = "Processed a total of 1 messages"
    with operator.running("consume", "--group g", end=signal.SIGINT, ends=ends) as group:
        group.until(lambda: "\n" in group.output())
        record = json.loads(group.output())
    assert (record["topic"], record["key"], record["value"]) == ("flights", "N14228", "EWR-IAH")
    assert ["g", "Empty"] in [
        line.split() for line in operator.run("--state Empty,Dead").splitlines()
    ]
    committed = operator.run("groups", "--describe --group g").splitlines()
    place = [str(record["partition"]), str(record["offset"] + 1)]
    assert any(line.split()[:4] == ["g", "flights", *place] for line in committed), committed
    audited = operator.run("tidelog audit", "--topic flights").splitlines()
    assert audited[-1] == "RIGHT: 1 record in 16 partitions: keys where murmur2 puts them"


def resizes(operator: Operator) -> None:
    """resize.md and waiting.md: a dry run, a growth, and what nothing waits for."""
    assert operator.run("--create", "orders") == "Created topic orders.\n"
    tried = operator.run("--partitions 8 --dry-run")
    page = block_with("text", "What would wait").splitlines()
    assert tried.splitlines()[0] == page[0]
    assert tried.splitlines()[1].split(":")[1].startswith(" 50 % of all. Their records now")
    assert tried.splitlines()[2].split() == page[2].split()
    assert tried.splitlines()[-1] == page[-1]
    assert operator.run("--partitions 8 --wait") == "Topic orders now has 8 partitions.\n"
    described = operator.run("topics", "--describe --topic orders")
    assert "PartitionCount: 8" in described and "waits for" not in described
    audited = json.loads(operator.run("tidelog audit", "--topic orders"))
    assert (audited["verdict"], audited["resize_epoch"]) == ("RIGHT", 1)


def elections_and_the_doctor(operator: Operator) -> None:
    """commands.md and recover.md, on a cluster that is well.

    What an unclean election loses: `tests/cluster/test_unclean_elections.py`.
    """
    assert operator.run("--election-type preferred") == "No partition needs an election.\n"
    assert operator.run("--election-type unclean") == "flights-3: no election needed.\n"
    assert operator.run("doctor unclean") == "No unclean election is on record.\n"
    assert operator.run("doctor replicas").splitlines()[-1].endswith(": 0 differ")
    page = operator.run("tidelog doctor --bootstrap-server")
    assert "all lead, all in sync" in page and "bad" not in page


def moves(operator: Operator) -> None:
    """move.md: a proposal is looked at, executed and watched to its end."""
    (operator.folder / "topics.json").write_text('{"topics": [{"topic": "flights"}]}')
    proposed = operator.run("reassign-partitions", "--generate").splitlines()[4]
    (operator.folder / "plan.json").write_text(proposed)
    assert "to copy" in operator.run("reassign-partitions", "--dry-run")
    started = "Successfully started partition reassignments for flights-0,flights-1,"
    assert started in operator.run("reassign-partitions", "--execute")
    operator.run("reassign-partitions", "--watch")
    done = operator.run("reassign-partitions", "--verify").splitlines()
    assert done[1:] == [
        f"Reassignment of partition flights-{index} is completed." for index in range(16)
    ]
    more_replicas(operator)
    operator.run("--rebalance --execute")
    assert operator.run("topics", "--rebalance") == "The cluster is balanced: nothing to move.\n"


def more_replicas(operator: Operator) -> None:
    """move.md: the script's plan adds broker 1 where it has no replica, and nowhere else."""
    script = operator.folder / "more.py"
    script.write_text(block_with("python", "json.load(sys.stdin)"))
    described = operator.run_line(
        "tidelog topics --bootstrap-server … --describe --json", "", None, DEADLINE_S
    )
    topics = [each for each in json.loads(described) if each["topic"] == "flights"]
    for topic in topics:
        for partition in topic["partitions"][3:]:
            partition["replicas"] = [2, 3]
    (operator.folder / "described.json").write_text(json.dumps(topics))
    plan = operator.run_line(f"python3 {script} < described.json", "", None, DEADLINE_S)
    assert json.loads(plan)["partitions"] == [
        {"topic": "flights", "partition": index, "replicas": [2, 3, 1]} for index in range(3, 16)
    ]


def closed_brokers(operator: Operator) -> None:
    """move.md: a broker is closed to new replicas, and opened again."""
    changed = "Completed updating config for broker 3.\n"
    assert operator.run("--add-config", "cordoned.log.dirs=*") == changed
    assert operator.run("--delete-config", "cordoned.log.dirs") == changed
    assert operator.run("--decommission", "--undo") == "Broker 3 is open to new replicas.\n"


def pipeline(operator: Operator) -> None:
    """pipeline.md: an archive that is stopped, its audit, and a second archive by spark-submit."""
    archived = operator.folder / "lake"
    with operator.running("pipeline archive", "/data/lake") as job:
        job.until(lambda: list(archived.glob("flights/id=*/p=*/*.parquet")), SPARK_S)
    text = operator.run("pipeline audit", deadline_s=SPARK_S)
    assert text.splitlines()[-1].startswith("RIGHT: 1 record")
    names = {each.name for each in (operator.folder / "out").iterdir()}
    assert names == {"report.txt", "report.json", "report.html"}
    operator.run("spark-submit", deadline_s=SPARK_S)
    assert list((operator.folder / "submitted").glob("flights/id=*/p=*/*.parquet"))


def deleted_records(operator: Operator) -> None:
    """commands.md: the one record of `flights` is deleted, by its partition or by the file."""
    elements = [{"topic": "flights", "partition": index, "offset": -1} for index in range(16)]
    text = json.dumps({"partitions": elements, "version": 1})
    (operator.folder / "offsets.json").write_text(text)
    operator.run("delete-records", "--partition 3")
    lines = operator.run("delete-records", "offsets.json").splitlines()
    low_watermarks = sorted(int(line.split()[-1]) for line in lines[1:])
    assert low_watermarks == [1] * 15 + [2], "each has the record of its growth, one has ours too"
