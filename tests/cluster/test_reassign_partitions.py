"""`tidelog reassign-partitions` on four real brokers: every action, and a broker that is dead.

One cluster for all tests; each leaves all brokers running and no move.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.support.cluster import TidelogCluster
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import run_tidelog
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.long(60),
    pytest.mark.kill,
    pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's processes"),
]

RECORDS, SIZE = 2_000, 1_000

DIRS = ("one", "two")
"""The log directories of each broker."""

Replicas = list[list[int]]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogCluster]:
    folder = tmp_path_factory.mktemp("moves")
    config = {"broker.session.timeout.ms": 3000}
    made = TidelogCluster(folder, brokers=4, config=config)
    for node in made.brokers.values():
        node.configure({"log.dirs": ",".join(str(node.data / each) for each in DIRS)})
    with made as started:
        # A dead broker is known as long as it is in an assignment: broker 4 has all of u.
        for topic, assignment in (("t", "1:2,2:3,3:1"), ("u", "4:1")):
            done = run_tidelog(
                *("topics", "--create", "--topic", topic, "--replica-assignment", assignment),
                *("--bootstrap-server", started.bootstrap),
            )
            assert done.returncode == 0, done
        producer = confluent_kafka.Producer({"bootstrap.servers": started.bootstrap, "acks": "all"})
        for number in range(RECORDS):
            producer.produce("t", b"v" * SIZE, partition=number % 3)
            producer.poll(0)
        assert producer.flush(DEADLINE_S) == 0
        yield started


class Tool:
    """The command against one cluster, with plan files in a folder."""

    def __init__(self, cluster: TidelogCluster, folder: Path) -> None:
        self.cluster = cluster
        self.folder = folder

    def run(self, *words: str, status: int = 0) -> tuple[str, str]:
        """Run the command; return its output and its standard error."""
        done = run_tidelog(
            "reassign-partitions", *words, "--bootstrap-server", self.cluster.bootstrap
        )
        assert done.returncode == status, done
        return done.stdout, done.stderr

    def json(self, *words: str) -> Any:
        return json.loads(self.run(*words, "--json")[0])

    def plan(self, replicas: Mapping[int, Sequence[int]], topic: str = "t") -> tuple[str, str]:
        """Return the option that names a plan for some partitions."""
        rows = [
            {"topic": topic, "partition": index, "replicas": list(some)}
            for index, some in replicas.items()
        ]
        file = self.folder / f"plan-{len(list(self.folder.iterdir()))}.json"
        file.write_text(json.dumps({"version": 1, "partitions": rows}))
        return ("--reassignment-json-file", str(file))

    def replicas(self) -> Replicas:
        done = run_tidelog(
            *("topics", "--describe", "--topic", "t", "--json"),
            *("--bootstrap-server", self.cluster.bootstrap),
        )
        (topic,) = json.loads(done.stdout)
        return [item["replicas"] for item in topic["partitions"]]

    def throttle(self) -> str | None:
        """Return the throttle of moves that all brokers have, or None."""
        done = run_tidelog(
            *("configs", "--describe", "--broker-defaults", "--json"),
            *("--bootstrap-server", self.cluster.bootstrap),
        )
        assert done.returncode == 0, done
        named = re.search(r'"reassignment.throttled.rate"[^}]*?"value": "(\d+)"', done.stdout)
        return None if named is None else named[1]

    def configs(self, *words: str) -> None:
        """Change a configuration, as another command left it."""
        done = run_tidelog(
            *("configs", "--alter", "--bootstrap-server", self.cluster.bootstrap), *words
        )
        assert done.returncode == 0, done

    def until_moved(self, *words: str) -> None:
        wait_until(
            lambda: self.json("--verify", *words)["completed"], DEADLINE_S, "the plan is done", 0.2
        )


@pytest.fixture
def tool(cluster: TidelogCluster, tmp_path: Path) -> Tool:
    return Tool(cluster, tmp_path)


def test_a_plan_is_proposed_executed_verified_and_rolled_back(tool: Tool, tmp_path: Path) -> None:
    before = tool.replicas()
    topics = tmp_path / "topics.json"
    topics.write_text('{"topics": [{"topic": "t"}], "version": 1}')
    generate = ("--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "3,4")
    said = tool.run(*generate)[0].splitlines()
    assert said[0] == "Current partition replica assignment"
    assert [row["replicas"] for row in json.loads(said[1])["partitions"]] == before
    assert said[3] == "Proposed partition reassignment configuration"
    assert json.loads(said[4]) == tool.json(*generate)["proposed"]
    proposal = tmp_path / "proposal.json"
    proposal.write_text(said[4])
    proposed = [row["replicas"] for row in json.loads(said[4])["partitions"]]
    assert all(set(some) == {3, 4} for some in proposed)

    option = ("--reassignment-json-file", str(proposal))
    dry = tool.json("--dry-run", *option)
    assert dry["has_room"] and dry["unknown_brokers"] == []
    assert dry["copied_bytes"] > 4 * RECORDS / 3 * SIZE
    assert {entry["broker"] for entry in dry["log_dirs"]} == {3, 4}
    assert tool.replicas() == before, "a dry run changes nothing"
    assert "to copy" in tool.run("--execute", "--dry-run", *option)[0]

    said = tool.run("--execute", *option)[0].splitlines()
    assert said[0] == "Current partition replica assignment"
    rollback = tmp_path / "rollback.json"
    rollback.write_text(said[2])
    assert [row["replicas"] for row in json.loads(said[2])["partitions"]] == before
    assert said[-1] == "Successfully started partition reassignments for t-0,t-1,t-2"
    tool.until_moved(*option)
    assert tool.run("--verify", *option)[0].splitlines() == [
        "Status of partition reassignment:",
        *(f"Reassignment of partition t-{index} is completed." for index in range(3)),
    ]
    assert tool.replicas() == proposed
    assert tool.run("--list")[0] == "{}\n"
    # A plan that is done is executed again, with the same result: it sets no throttle for others.
    said, hint = tool.run("--execute", "--throttle", "7", *option)
    assert "The throttle" not in said
    assert "--throttle was not set" in hint
    assert tool.throttle() is None
    # A throttle that another command left is named by each later one, and ends with the moves:
    # ours, and those of Kafka's tool.
    tool.configs("--broker-defaults", "--add-config", "reassignment.throttled.rate=50000000")
    tool.configs("--broker", "1", "--add-config", "leader.replication.throttled.rate=60000000")
    tool.configs("--topic", "t", "--add-config", "leader.replication.throttled.replicas=[0:1,1:1]")
    for action in (("--execute",), ("--dry-run",), ("--verify", "--preserve-throttles")):
        hint = tool.run(*action, *option)[1]
        assert "moves are limited to 50,000,000 bytes per second" in hint, action
        assert "60,000,000 bytes per second (leader.replication.throttled.rate of broker 1)" in hint
    assert not tool.json("--verify", "--preserve-throttles", *option)["throttle_removed"]
    assert tool.throttle() == "50000000"
    said = tool.run("--verify", *option)[0]
    assert "The throttle of moves was removed, as no move remains:" in said
    for name in ("reassignment.throttled.", "leader.replication.throttled."):
        assert f"{name}rate" in said
    assert "leader.replication.throttled.replicas" in said
    assert tool.throttle() is None
    said, hint = tool.run("--verify", *option)
    assert "throttle" not in (said + hint).lower()
    assert tool.replicas() == proposed

    back = ("--reassignment-json-file", str(rollback))
    assert "but replica set is" in tool.run("--verify", *back)[0]
    tool.run("--execute", *back)
    tool.until_moved(*back)
    assert tool.replicas() == before


def test_moves_to_a_dead_broker_wait_and_can_be_stopped_or_reversed(
    tool: Tool, cluster: TidelogCluster
) -> None:
    before = tool.replicas()
    option = tool.plan({0: (4, 2), 1: (4, 3)})
    cluster.brokers[4].kill()

    def is_dead() -> bool:
        _, notes = tool.run("--dry-run", *option)
        return "brokers 4 are not alive" in notes

    wait_until(is_dead, DEADLINE_S, "broker 4 is known to be dead", 0.2)
    _, notes = tool.run("--execute", *option)
    assert "moves to them wait until they start" in notes
    listed = json.loads(tool.run("--list")[0])
    assert [row["replicas"] for row in listed["partitions"]] == [[4, 2], [4, 3]]
    assert "t-0 is still in progress" in tool.run("--verify", *option)[0]

    # The same plan again is no other move; a move of another partition is.
    tool.run("--execute", *option)
    other = tool.plan({2: (3, 2)})
    _, error = tool.run("--execute", *other, status=1)
    assert "other partitions are being reassigned, or to other targets: t-0, t-1" in error
    tool.run("--execute", "--additional", *other)
    tool.until_moved(*other)
    assert len(json.loads(tool.run("--list")[0])["partitions"]) == 2

    # Back to the replicas before: none of the targets has joined, so both end at once.
    said = tool.run("--revert", *option)[0]
    assert "Save this to use as the --reassignment-json-file option during rollback" in said
    assert "Successfully started to move back: t-0" in said
    wait_until(lambda: tool.run("--list")[0] == "{}\n", DEADLINE_S, "they are back", 0.2)
    assert tool.replicas()[:2] == before[:2]

    tool.run("--execute", *option)
    some = tool.plan({0: (9, 9 + 1), 2: (1, 2)})
    assert tool.run("--cancel", *some)[0] == (
        "Successfully cancelled partition reassignments for: t-0\n"
    )
    assert tool.run("--cancel", *some)[0] == (
        "None of the specified partition reassignments are active.\n"
    )
    assert tool.json("--cancel-all") == {
        "cancelled": [{"topic": "t", "partition": 1}],
        "refused": [],
        "throttle_removed": False,
    }
    assert tool.run("--cancel-all")[0] == "There are no active partition reassignments.\n"
    assert tool.run("--revert")[0] == "There are no active partition reassignments.\n"
    assert tool.replicas()[:2] == before[:2]
    cluster.brokers[4].start()


def test_a_cancelled_move_that_left_a_replica_is_moved_back(
    tool: Tool, cluster: TidelogCluster
) -> None:
    """API 46 does not list it: the controller keeps the replicas before the move on record."""
    before = tool.replicas()
    assert before[0] == [1, 2]
    cluster.brokers[4].kill()
    option = tool.plan({0: (4, 3)})
    tool.run("--execute", "--throttle", "1000000", *option)
    wait_until(lambda: tool.replicas()[0] == [1, 2, 3], DEADLINE_S, "3 has joined", 0.2)
    kept = tool.run("--cancel", "--preserve-throttles", *option)[0]
    assert "throttle" not in kept
    assert tool.run("--list")[0] == "{}\n"
    describe = ("topics", "--describe", "--topic", "t", "--bootstrap-server")
    shown = run_tidelog(*describe, cluster.bootstrap).stdout.splitlines()
    assert shown[1].split()[-3:] == ["TargetReplicas", "OriginalReplicas", "Copied"]
    cells = shown[2].split()
    assert (cells[2], "1,2" in cells[3:]) == ("1,2,3", True)
    under = run_tidelog(*describe, cluster.bootstrap, "--under-replicated-partitions", "--json")
    assert json.loads(under.stdout) == []

    # The rollback that an execution prints leads to the replicas before, too.
    started = tool.json("--execute", *option)
    assert [row["replicas"] for row in started["rollback"]["partitions"]] == [[1, 2]]
    assert started["started"] == [{"topic": "t", "partition": 0}]
    assert tool.json("--cancel", *option) == {
        "cancelled": [{"topic": "t", "partition": 0}],
        "refused": [],
        "throttle_removed": True,
    }
    reverted = tool.json("--revert", *option)
    assert [row["replicas"] for row in reverted["plan"]["partitions"]] == [[1, 2]]
    assert (reverted["started"], reverted["refused"]) == ([{"topic": "t", "partition": 0}], [])
    wait_until(lambda: tool.replicas()[0] == [1, 2], DEADLINE_S, "it is back", 0.2)
    assert tool.run("--revert")[0] == "There are no active partition reassignments.\n"
    assert tool.replicas() == before
    cluster.brokers[4].start()


def test_a_watch_says_what_a_copy_waits_for_and_ends_with_the_moves(
    tool: Tool, cluster: TidelogCluster
) -> None:
    option = tool.plan({0: (4, 1)})
    cluster.brokers[4].kill()
    tool.run("--execute", *option)
    lines: list[str] = []
    thread = threading.Thread(
        target=lambda: lines.append(tool.run("--watch", "--json", *option)[0]), daemon=True
    )
    thread.start()

    def waits() -> bool:
        text = run_tidelog(*("doctor", "--json", "--bootstrap-server", cluster.bootstrap)).stdout
        return "brokers_dead" in text

    wait_until(waits, DEADLINE_S, "broker 4 is dead", 0.2)
    cluster.brokers[4].start()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    samples = [json.loads(line) for line in lines[0].splitlines()]
    assert samples[-1] == {"moves": 0, "copies": []}
    assert {copy["target"] for sample in samples for copy in sample["copies"]} == {4}
    tool.until_moved(*option)
    assert tool.run("--watch")[0] == "No partition is being reassigned.\n"
    back = tool.plan({0: (1, 2)})
    tool.run("--execute", *back)
    tool.until_moved(*back)


def test_a_plan_names_log_directories(tool: Tool, cluster: TidelogCluster) -> None:
    """A replica moves to the other directory of its broker, a new one goes where the plan says."""
    before = tool.replicas()
    stays, leaves = before[2]
    new = 4

    def path(broker: int, name: str) -> str:
        return str(cluster.brokers[broker].data / name)

    def plan(replicas: Sequence[int], log_dirs: Sequence[str]) -> tuple[str, str]:
        row = {"topic": "t", "partition": 2, "replicas": replicas, "log_dirs": log_dirs}
        file = tool.folder / f"dirs-{len(list(tool.folder.iterdir()))}.json"
        file.write_text(json.dumps({"partitions": [row]}))
        return ("--reassignment-json-file", str(file))

    there = plan([stays, leaves], [path(stays, "one"), "any"])
    is_in_one = tool.json("--verify", *there)["completed"]
    former, other = DIRS if is_in_one else DIRS[::-1]
    option = plan([stays, new], [path(stays, other), path(new, "two")])
    said = tool.run("--verify", *option)[0]
    assert f"is not being moved from log dir {path(stays, former)} to {path(stays, other)}" in said
    dry = tool.json("--dry-run", *option)
    assert dry["copied_bytes"] > 2 * RECORDS / 3 * SIZE, "both are copied"

    said = tool.run("--execute", *option)[0]
    rollback = json.loads(said.splitlines()[2])["partitions"][0]
    assert rollback["replicas"] == [stays, leaves]
    assert rollback["log_dirs"] == [path(stays, former), "any"]
    assert said.splitlines()[-1] == (
        "Successfully started log directory moves for: "
        + ",".join(f"t-2-{broker}" for broker in sorted((stays, new)))
    )
    tool.until_moved(*option)
    assert f"Reassignment of replica t-2-{stays} completed" in tool.run("--verify", *option)[0]
    for broker, name in ((stays, other), (new, "two")):
        assert (cluster.brokers[broker].data / name / "t-2").is_dir()
    assert tool.replicas()[2] == [stays, new]

    back = plan([stays, leaves], [path(stays, former), "any"])
    cordon = ("configs", "--alter", "--broker", str(stays), "--bootstrap-server", cluster.bootstrap)
    done = run_tidelog(*cordon, "--add-config", f"cordoned.log.dirs={path(stays, former)}")
    assert done.returncode == 0, done
    _, error = tool.run("--execute", *back, status=1)
    assert f"{path(stays, former)} of broker {stays}, which is cordoned" in error
    assert run_tidelog(*cordon, "--delete-config", "cordoned.log.dirs").returncode == 0
    _, error = tool.run("--execute", *plan([stays, leaves], ["/x", "any"]), status=1)
    assert f"names the log directory /x of broker {stays}, which it does not have" in error
    assert tool.json("--execute", *back)["log_dirs"] == [
        {"topic": "t", "partition": 2, "broker": stays, "error": None}
    ]
    tool.until_moved(*back)
    assert tool.replicas() == before


@pytest.mark.parametrize(
    ("replicas", "topic", "said"),
    [
        ({0: (1, 2)}, "nothing", "topics that do not exist: nothing"),
        ({8: (1, 2)}, "t", "partitions that do not exist: t-8"),
        ({0: (1, 77)}, "t", "neither alive nor in any assignment: 77"),
        ({0: (1, 2, 3, 4, 5)}, "t", "t-0 would have 5 replicas, and there are 4 brokers"),
    ],
)
def test_a_plan_that_names_what_is_not_there_starts_nothing(
    tool: Tool, replicas: dict[int, tuple[int, ...]], topic: str, said: str
) -> None:
    option = tool.plan({**replicas, 1: (4, 3)}, topic)
    for action in ("--execute", "--dry-run"):
        out, error = tool.run(action, *option, status=1)
        assert out == "" and said in error and len(error.splitlines()) == 1
    assert tool.run("--list")[0] == "{}\n"
