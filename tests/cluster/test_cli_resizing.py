"""What the commands say of topics that grow and shrink: dry runs, waits, gates, lag (KIP-253)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest

from tests.support.aware_members import AwareMember
from tests.support.clients import create_topic
from tests.support.cluster import TidelogCluster
from tests.support.command_runs import Said, said_by
from tests.support.processes import DEADLINE_S, SIGCONT, SIGSTOP, wait_until
from tests.support.server import run_tidelog
from tests.support.target import TARGET
from tidelog.client.admin.resizes import describe_resizes
from tidelog.client.cluster import Cluster

pytestmark = [
    pytest.mark.long(60),
    pytest.mark.skipif(TARGET != "tidelog", reason="growing and shrinking is tidelog's"),
]

Tide = Callable[..., Said]
RECORDS = 40


@pytest.fixture
def tide(bootstrap: str, capfd: pytest.CaptureFixture[str]) -> Tide:
    return lambda *arguments: said_by(bootstrap, capfd, *arguments)


def write(bootstrap: str, topic: str, count: int = RECORDS) -> None:
    """Write records with keys by the product's own producer, which knows resizes."""
    lines = "".join(f"k{number}:v\n" for number in range(count))
    parsed = ("--property", "parse.key=true", "--property", "key.separator=:")
    done = run_tidelog(
        "produce", "--bootstrap-server", bootstrap, "--topic", topic, *parsed, stdin=lines
    )
    assert done.returncode == 0, done.stderr


def write_unaware(bootstrap: str, topic: str, partition: int) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, b"of a writer without a count", partition=partition)
    assert producer.flush(DEADLINE_S) == 0


def read_all(bootstrap: str, topic: str, group: str) -> int:
    """Read a topic to its end as a stock member, commit, and leave; return the records."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    count, ended = 0, set[int]()
    partitions = len(consumer.list_topics(topic, DEADLINE_S).topics[topic].partitions)
    while len(ended) < partitions:
        message = consumer.poll(DEADLINE_S)
        assert message is not None, ended
        if message.error() is None:
            count += 1
        else:
            assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF
            partition = message.partition()
            assert partition is not None
            ended.add(partition)
    if count:
        consumer.commit(asynchronous=False)
    consumer.close()
    return count


def described(tide: Tide, group: str) -> Any:
    if group not in tide("groups", "--list").good().splitlines():
        return {"offsets": [], "gated": [], "members_without_gates": {}}
    (shown,) = tide("groups", "--describe", "--group", group, "--json").json()
    return shown


def lags(tide: Tide, group: str) -> dict[int, int]:
    return {row["partition"]: row["lag"] for row in described(tide, group)["offsets"]}


def test_a_group_that_has_read_all_has_no_lag_after_resizes(
    tide: Tide, bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name, 2)
    write(bootstrap, topic_name)
    assert read_all(bootstrap, topic_name, topic_name) == RECORDS
    for count in ("4", "2"):
        tide("topics", "--alter", "--topic", topic_name, "--partitions", count, "--force").good()
    found = lags(tide, topic_name)
    assert found and set(found.values()) == {0}, "a fence and a seal are nothing to read"
    write(bootstrap, topic_name, 7)
    assert sum(lags(tide, topic_name).values()) == 7


def test_a_dry_run_says_what_would_move_and_what_would_wait(
    tide: Tide, bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name, 2)
    write(bootstrap, topic_name)
    dry = ("topics", "--alter", "--topic", topic_name, "--dry-run", "--partitions")
    done, late = f"{topic_name}-done", f"{topic_name}-late"
    read_all(bootstrap, topic_name, done)
    commit(bootstrap, late, topic_name, {0: 1})
    (found,) = tide(*dry, "4", "--json").json()
    assert (found["from_count"], found["to_count"], found["refused"]) == (2, 4, None)
    assert found["keys_that_move"] == 0.5
    moves = [(x["from_partition"], x["to_partition"], x["share_of_keys"]) for x in found["moves"]]
    assert moves == [(0, 2, 0.25), (1, 3, 0.25)]
    assert all(x["bytes"] > 0 for x in found["moves"])
    assert found["bytes_of_these_keys"] == sum(x["bytes"] for x in found["moves"])
    assert {done, late} <= set(found["groups"])
    waits = {x["group"]: x for x in found["waits"] if x["waits_for"] == 0}
    assert done not in waits
    assert (waits[late]["partition"], waits[late]["position"]) == (2, 1)
    assert waits[late]["lag"] == waits[late]["log_end_offset"] - 1
    text = tide(*dry, "4").good()
    assert f"Topic {topic_name} would grow from 2 to 4 partitions." in text
    assert "Keys that move: 50 % of all" in text and "estimated: the log of each parent" in text
    assert [late, "2", "0", "1"] in [line.split()[:4] for line in text.splitlines()]
    assert "No writer without a partition count was seen." in text
    assert text.endswith("Nothing was changed.\n")
    (shown,) = tide("topics", "--describe", "--topic", topic_name, "--json").json()
    assert (shown["partition_count"], shown["resize_epoch"]) == (2, 0)
    # A shrink: the whole log of what retires.
    tide("topics", "--alter", "--topic", topic_name, "--partitions", "4").good()
    (found,) = tide(*dry, "3", "--json").json()
    assert [(x["from_partition"], x["to_partition"]) for x in found["moves"]] == [(3, 1)]
    assert found["moves"][0]["share_of_source"] == 1
    text = tide(*dry, "3").good()
    assert found["retired_purge"] == "retention"
    assert "The topic can grow again as soon as" in text, "a fence is no record"
    write_unaware(bootstrap, topic_name, 3)
    assert "retention.ms keeps the newest until" in tide(*dry, "3").out
    assert "would shrink from 4 to 3" in text and "the logs of the partitions that retire" in text


def commit(bootstrap: str, group: str, topic: str, offsets: dict[int, int]) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    at = [confluent_kafka.TopicPartition(topic, *each) for each in offsets.items()]
    consumer.commit(offsets=at, asynchronous=False)
    consumer.close()


def test_a_dry_run_gives_the_refusals_of_the_controller(
    tide: Tide, bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name, 2)
    tide("topics", "--alter", "--topic", topic_name, "--partitions", "4").good()
    alter = ("topics", "--alter", "--topic", topic_name, "--partitions")
    for count, words in (
        ("1", ("created with 2 partitions", "INVALID_PARTITIONS")),
        ("4", ("has 4 partitions already", "INVALID_PARTITIONS")),
        ("60000", ("at most 50000",)),
    ):
        real, tried = tide(*alter, count), tide(*alter, count, "--dry-run")
        for said in (real, tried):
            said.failed(*words)
        assert real.err.splitlines()[-1] == tried.err.splitlines()[-1]
    internal = ("topics", "--alter", "--topic", "__consumer_offsets", "--partitions", "60")
    read_all(bootstrap, topic_name, topic_name)
    tide(*internal, "--dry-run").failed("keeps its partition count")
    write_unaware(bootstrap, topic_name, 3)
    wait_until(
        lambda: "wrote to it" in tide(*alter, "3", "--dry-run").err, DEADLINE_S, "it is known"
    )
    tried = tide(*alter, "3", "--dry-run")
    tried.failed("POLICY_VIOLATION", "--force")
    assert f"Topic {topic_name} keeps its 4 partitions: 3 are refused." in tried.out
    assert "Writers without a partition count, last seen by: broker 1" in tried.out
    assert "Their client ids: rdkafka." in tried.out
    tried = tide(*alter, "3", "--dry-run", "--json")
    assert '"code": "POLICY_VIOLATION"' in tried.out and tried.status == 1
    # --force passes this refusal alone.
    (found,) = tide(*alter, "3", "--dry-run", "--force", "--json").json()
    assert found["refused"] is None and found["writers_without_count"][0]["broker"] == 1
    # Without need it changes nothing, and the command says so.
    needless = tide(*alter, "8", "--dry-run", "--force")
    assert needless.status == 0 and "--force has no effect" in needless.err
    assert "--force has no effect" not in tide(*alter, "3", "--force").err
    for wrong in (["--wait", "--dry-run"], ["--dry-run", "--partitions"]):
        assert tide(*alter, "3", *wrong).status == 2
    for option in ("--dry-run", "--wait"):
        assert tide("topics", "--describe", option).status == 2


def test_a_group_with_a_stock_member_waits_for_nothing(
    tide: Tide, bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name, 2)
    write(bootstrap, topic_name)
    dry = ("topics", "--alter", "--topic", topic_name, "--dry-run", "--partitions", "4")
    with stock_member(bootstrap, topic_name, topic_name):
        wait_until(lambda: lags(tide, topic_name).get(0) is not None, DEADLINE_S, "it committed")
        (found,) = tide(*dry, "--json").json()
        assert topic_name in found["groups_without_gates"]
        assert topic_name not in [each["group"] for each in found["waits"]]
        assert f"members know no resizes: {topic_name}" in tide(*dry).good()


class stock_member:  # noqa: N801
    """A librdkafka member that polls, in a thread."""

    def __init__(self, bootstrap: str, group: str, topic: str) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 100,
                "partition.assignment.strategy": "range",
            }
        )
        self._consumer.subscribe([topic])
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)

    def _poll(self) -> None:
        while not self._ended.is_set():
            self._consumer.poll(0.1)
        self._consumer.close()

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join(DEADLINE_S)


def waiting(tide: Tide, group: str) -> dict[int, Any]:
    """What each partition of the only topic of a group waits for."""
    return {each["partition"]: each["waits_for"] for each in described(tide, group)["gated"] or ()}


def grown(tide: Tide, bootstrap: str, topic: str) -> None:
    """A topic that has grown from 2 to 4, with records on both sides of the fences."""
    create_topic(bootstrap, topic, 2)
    write(bootstrap, topic)
    tide("topics", "--alter", "--topic", topic, "--partitions", "4").good()
    write(bootstrap, topic)


def test_what_waits_is_shown_by_both_commands(tide: Tide, bootstrap: str, topic_name: str) -> None:
    grown(tide, bootstrap, topic_name)
    group = topic_name
    with AwareMember(bootstrap, group, topic_name) as member:

        def stalled() -> dict[int, Any]:
            found = waiting(tide, group)
            return found if found and all(x["position"] == 0 for (x,) in found.values()) else {}

        wait_until(stalled, DEADLINE_S, lambda: f"{described(tide, group)} {member.last_error}")
        child, (need,) = next(iter(stalled().items()))
        assert (need["partition"], need["is_commit"], need["is_gated"]) == (child - 2, False, False)
        assert need["upto"] > 0 and need["still_ms"] >= 0 and need["silent_ms"] < 30_000
        line = f"partition {child} waits for partition {need['partition']}: at 0 of "
        line += f"{need['upto']}, member {need['member']}"
        assert f"{topic_name}: {line}, last progress" in (
            tide("groups", "--describe", "--group", group).good()
        )
        table = tide("topics", "--describe", "--topic", topic_name).good()
        assert f"Group {group}: {line}, last progress" in table
        (shown,) = tide("topics", "--describe", "--topic", topic_name, "--json").json()
        assert child in {each["partition"] for each in shown["groups"][group]["gated"]}
        member.go_on()
        wait_until(lambda: waiting(tide, group) == {}, DEADLINE_S, "all gates are open")
        wait_until(
            lambda: set(lags(tide, group).values()) == {0}, DEADLINE_S, "it has committed all"
        )
        (shown,) = tide("topics", "--describe", "--topic", topic_name, "--json").json()
        assert group not in shown["groups"]


def test_a_member_that_is_silent_is_said_to_be(tide: Tide, bootstrap: str, topic_name: str) -> None:
    grown(tide, bootstrap, topic_name)
    group = topic_name
    with AwareMember(bootstrap, group, topic_name, session_ms=30_000) as member:
        wait_until(
            lambda: waiting(tide, group),
            DEADLINE_S,
            lambda: f"a child waits: {described(tide, group)} {member.last_error}",
        )
        member.freeze()
        wait_until(
            lambda: "crashed or stopped" in str(waiting(tide, group)),
            DEADLINE_S,
            "it has missed its heartbeats",
            0.5,
        )
        assert "crashed or stopped, it is removed after 30 s" in (
            tide("groups", "--describe", "--group", group).good()
        )


def test_a_mixed_group_is_said_to_be(tide: Tide, bootstrap: str, topic_name: str) -> None:
    grown(tide, bootstrap, topic_name)
    group = topic_name

    def owners() -> set[str]:
        return {row["consumer_id"] for row in described(tide, group)["offsets"]} - {None}

    with stock_member(bootstrap, group, topic_name), AwareMember(bootstrap, group, topic_name) as m:
        m.go_on()
        wait_until(lambda: len(owners()) == 2, DEADLINE_S, "both own partitions")
        (unaware,) = described(tide, group)["members_without_gates"][topic_name]
        assert unaware in owners()
        said = f"{unaware} in this group know no resizes and wait for nothing"
        assert said in tide("groups", "--describe", "--group", group).good()
        assert (
            f"Group {group}: {said}" in tide("topics", "--describe", "--topic", topic_name).good()
        )


def is_resizing(bootstrap: str, topic: str) -> bool:
    async def main() -> bool:
        async with Cluster(bootstrap) as client:
            found = await describe_resizes(client, [topic])
            state = None if found is None else found[topic]
            return state is not None and state.plan is not None

    return asyncio.run(main())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[TidelogCluster]:
    config = {
        "min.insync.replicas": 3,
        "resize.timeout.ms": 5_000,
        "broker.session.timeout.ms": 60_000,
        "replica.lag.time.max.ms": 60_000,
    }
    with TidelogCluster(tmp_path, config=config) as started:
        yield started


def test_wait_shows_the_progress_and_how_it_ended(
    cluster: TidelogCluster, capfd: pytest.CaptureFixture[str]
) -> None:
    """A follower that stands still lets no fence commit: longer than a request waits."""
    cluster.create_topic("t", 2, 3)
    stopped = next(iter(cluster.brokers.keys() - {cluster.leader("t", x) for x in range(2)}))
    bootstrap = next(x.bootstrap for i, x in cluster.brokers.items() if i != stopped)

    def alter(*arguments: str) -> Said:
        return said_by(
            bootstrap, capfd, "topics", "--alter", "--topic", "t", "--partitions", *arguments
        )

    assert alter("4", "--wait").good() == "Topic t now has 4 partitions.\n"
    node = cluster.brokers[stopped]

    def strike() -> None:
        wait_until(lambda: is_resizing(bootstrap, "t"), DEADLINE_S, "it has begun")
        cluster.controller.kill()
        node.program.send(SIGCONT)
        cluster.controller.start()

    node.program.send(SIGSTOP)
    try:
        # A controller that dies takes the request with it, and not the resize.
        with ThreadPoolExecutor(1) as aside:
            struck = aside.submit(strike)
            assert alter("8", "--wait").good() == "Topic t now has 8 partitions.\n"
            struck.result(DEADLINE_S)
        wait_until(lambda: alter("9", "--dry-run").status == 0, DEADLINE_S, "all are in sync again")
        node.program.send(SIGSTOP)
        ended = alter("9", "--wait")
        *progress, error = ended.err.splitlines()
        assert ended.status == 1
        begin = f"t grows from 8 to 9 partitions: broker {stopped} did not respond"
        assert any(line.startswith(begin) and "(undone at " in line for line in progress)
        assert error.startswith(
            "error: topic 't': The resize of the topic t to 9 partitions was undone"
        )
    finally:
        node.program.send(SIGCONT)
