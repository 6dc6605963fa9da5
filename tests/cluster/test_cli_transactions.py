"""`tidelog transactions` on one real broker at level 1.6, and Kafka's own tool beside it (KIP-664).

Leaders verify nothing here: so a batch that no coordinator knows hangs.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import confluent_kafka
import pytest

from tests.support.clients import create_topic
from tests.support.command_runs import Said, said_by
from tests.support.java import ToolRunner
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.produce_fetch import produce
from tests.support.server import TidelogNode
from tests.support.storage_logs import batch
from tests.support.target import TARGET
from tests.support.transactional_logs import transactional
from tidelog.cli import doctor
from tidelog.client.cluster import Cluster
from tidelog.model.topics import TopicPartition
from tidelog.records.builder import Producer

pytestmark = pytest.mark.skipif(TARGET != "tidelog", reason="its own cluster of tidelog's process")

WIDTHS = (80, 120, 200)
LONG_ID = "settlements-of-europe-west.copier-7"
LOST_ID = 77_777


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TidelogNode]:
    config = {
        "transaction.state.log.num.partitions": 2,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
        "transaction.partition.verification.enable": "false",
    }
    with TidelogNode(tmp_path_factory.mktemp("transactions"), config) as started:
        yield started


def begun(node: TidelogNode, topic: str, name: str = LONG_ID) -> Any:
    """A producer with an open transaction of one record in partition 0."""
    made = confluent_kafka.Producer(
        {"bootstrap.servers": node.bootstrap, "transactional.id": name, "log_level": 0}
    )
    made.init_transactions(DEADLINE_S)
    made.begin_transaction()
    made.produce(topic, b"x", partition=0)
    assert made.flush(DEADLINE_S) == 0
    return made


def hang(node: TidelogNode, topic: str, producer_id: int = LOST_ID) -> None:
    """Open a transaction in partition 0 of which no coordinator knows."""

    async def main() -> None:
        made = transactional(batch(1, producer=Producer(producer_id, 3, 0)))
        request = produce(made, topic, transactional_id="unknown")
        async with asyncio.timeout(DEADLINE_S), Cluster(node.bootstrap) as cluster:
            leader = (await cluster.leader(TopicPartition(topic, 0))).leader
            answer = await cluster.send(leader, request)
        assert answer.responses[0].partition_responses[0].error_code == 0

    asyncio.run(main())


def at_widths(
    node: TidelogNode, capfd: pytest.CaptureFixture[str], texts: list[str], *words: str
) -> None:
    """Assert that a table has these texts whole in terminals of three widths."""
    for width in WIDTHS:
        with pytest.MonkeyPatch.context() as terminal:
            terminal.setattr("sys.stdout.isatty", lambda: True, raising=False)
            terminal.setenv("COLUMNS", str(width))
            said = said_by(node.bootstrap, capfd, "transactions", *words).good()
        shown = click.unstyle(said)
        assert all(text in shown for text in texts), (width, shown)
        assert max(map(len, shown.splitlines())) <= width, (width, shown)


def test_a_transaction_is_listed_described_and_terminated(
    node: TidelogNode, capfd: pytest.CaptureFixture[str], topic_name: str
) -> None:
    def said(*words: str) -> Said:
        return said_by(node.bootstrap, capfd, "transactions", *words)

    create_topic(node.bootstrap, topic_name, partitions=1)
    made = begun(node, topic_name)
    (row,) = said("list", "--json", "--transactional-id-pattern", "settlements.*").json()
    assert (row["transactional_id"], row["coordinator"]) == (LONG_ID, 1)
    assert row["state"] == "Ongoing"
    assert said("list", "--json", "--transactional-id-pattern", "settle").json() == []
    assert said("list", "--json", "--duration-filter", "3600000").json() == []
    described = said("describe", "--transactional-id", LONG_ID, "--json").json()
    assert described["partitions"] == [{"topic": topic_name, "partition": 0}]
    assert described["producer_id"] == row["producer_id"]
    assert described["duration_ms"] >= 0 and described["state"] == "Ongoing"
    place = ("--topic", topic_name, "--partition", "0")
    (producer,) = said("describe-producers", *place, "--json").json()
    assert producer["producer_id"] == row["producer_id"] and producer["start_offset"] == 0
    assert said("describe-producers", *place, "--broker-id", "1", "--json").json() == [producer]
    at_widths(node, capfd, [LONG_ID, "Ongoing"], "list")
    at_widths(node, capfd, ["Ongoing"], "describe", "--transactional-id", LONG_ID)
    at_widths(node, capfd, [str(row["producer_id"])], "describe-producers", *place)
    # Its coordinator has it: so it does not hang, however long it is open.
    hanging = ("find-hanging", "--topic", topic_name, "--max-transaction-timeout", "0")
    assert said(*hanging, "--json").json() == []
    ended = said("force-terminate", "--transactional-id", LONG_ID, "--json").json()
    assert ended["former_state"] == "Ongoing"
    assert ended["fenced_below_epoch"] > described["producer_epoch"]
    (producer,) = said("describe-producers", *place, "--json").json()
    assert producer["start_offset"] is None and producer["coordinator_epoch"] is not None
    with pytest.raises(confluent_kafka.KafkaException) as refused:
        made.commit_transaction(DEADLINE_S)
    assert refused.value.args[0].fatal() or refused.value.args[0].txn_requires_abort()


def test_the_doctor_names_what_holds_readers_back(
    node: TidelogNode,
    capfd: pytest.CaptureFixture[str],
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def named() -> list[Any]:
        shown = said_by(node.bootstrap, capfd, "doctor", "--json").json()
        return [
            one
            for one in shown["findings"]
            if one["kind"] == "transaction_open" and topic_name in one["what"]
        ]

    create_topic(node.bootstrap, topic_name, partitions=1)
    begun(node, topic_name, topic_name)
    assert named() == []
    monkeypatch.setattr(doctor, "LONG_OPEN_MS", 1)
    wait_until(lambda: bool(named()), DEADLINE_S, "the transaction is named")
    (one,) = named()
    assert one["partitions"] == [f"{topic_name}-0"]
    ended = ("transactions", "force-terminate", "--transactional-id", topic_name)
    said_by(node.bootstrap, capfd, *ended).good()
    wait_until(lambda: not named(), DEADLINE_S, "nothing is named")


def test_what_no_coordinator_knows_hangs(
    node: TidelogNode, capfd: pytest.CaptureFixture[str], topic_name: str
) -> None:
    create_topic(node.bootstrap, topic_name, partitions=2)
    begun(node, topic_name, "open")
    hang(node, topic_name)
    words = ("find-hanging", "--max-transaction-timeout", "0")
    for more in ([], ["--topic", topic_name], ["--broker-id", "1"]):
        rows = said_by(node.bootstrap, capfd, "transactions", *words, *more, "--json").json()
        (row,) = [each for each in rows if each["topic"] == topic_name]
        shown = [row[each] for each in ("partition", "producer_id", "producer_epoch")]
        assert [*shown, row["start_offset"]] == [0, LOST_ID, 3, 1]
    at_widths(node, capfd, [topic_name, str(LOST_ID)], *words, "--topic", topic_name)
    # Its record is a minute old at most.
    young = ("transactions", "find-hanging", "--topic", topic_name)
    assert said_by(node.bootstrap, capfd, *young).good() == "No transaction hangs.\n"


def test_an_abort_goes_to_the_coordinator_that_has_the_transaction(
    node: TidelogNode, capfd: pytest.CaptureFixture[str], topic_name: str
) -> None:
    """A marker alone would leave its other partitions open, and its producer would commit them."""
    create_topic(node.bootstrap, topic_name, partitions=2)
    made = begun(node, topic_name, topic_name)
    made.produce(topic_name, b"y", partition=1)
    assert made.flush(DEADLINE_S) == 0
    place = ("--topic", topic_name, "--partition", "0")
    words = ("transactions", "abort", *place, "--start-offset", "0", "--json")
    said = said_by(node.bootstrap, capfd, *words).json()
    assert (said["aborted_by"], said["transactional_id"]) == ("coordinator", topic_name)
    for index in ("0", "1"):

        def is_over(index: str = index) -> bool:
            described = ("describe-producers", *place[:3], index, "--json")
            rows = said_by(node.bootstrap, capfd, "transactions", *described).json()
            return all(row["start_offset"] is None for row in rows)

        wait_until(is_over, DEADLINE_S, f"nothing is open in {topic_name}-{index}")
    with pytest.raises(confluent_kafka.KafkaException):
        made.commit_transaction(DEADLINE_S)


def test_what_no_coordinator_knows_is_aborted_by_the_leader(
    node: TidelogNode, capfd: pytest.CaptureFixture[str], topic_name: str
) -> None:
    def said(*words: str) -> Said:
        return said_by(node.bootstrap, capfd, "transactions", *words)

    create_topic(node.bootstrap, topic_name, partitions=1)
    place = ("--topic", topic_name, "--partition", "0")
    named = ("--producer-id", str(LOST_ID), "--coordinator-epoch", "0", "--producer-epoch")
    hang(node, topic_name)
    said("abort", *place, "--start-offset", "1").failed("no transaction begins at offset 1")
    said("abort", *place, *named, "2").failed("epoch 2, has nothing open")
    said("abort", *place, "--start-offset", "0").failed("--cluster-secret-file")
    proof = ("--cluster-secret-file", str(node.data / "cluster.secret"))
    ended = said("abort", *place, "--start-offset", "0", *proof).good()
    assert ended == (
        f"{topic_name}-0: the transaction from offset 0 (producer {LOST_ID}, epoch 3) was aborted "
        "in this partition.\n"
    )
    (row,) = said("describe-producers", *place, "--json").json()
    assert row["start_offset"] is None
    said("abort", *place, "--start-offset", "0").failed("no transaction begins at offset 0")
    hang(node, topic_name, LOST_ID + 1)
    by_id = ("--producer-id", str(LOST_ID + 1), *named[2:], "3", *proof, "--json")
    assert said("abort", *place, *by_id).json()["aborted_by"] == "leader"
    hanging = ("find-hanging", *place, "--max-transaction-timeout", "0", "--json")
    assert said(*hanging).json() == []


def test_what_is_not_there_is_one_line(
    node: TidelogNode, capfd: pytest.CaptureFixture[str], topic_name: str
) -> None:
    def said(*words: str) -> Said:
        return said_by(node.bootstrap, capfd, "transactions", *words)

    for action in ("describe", "force-terminate"):
        said(action, "--transactional-id", "no-such").failed(
            "'no-such'", "TRANSACTIONAL_ID_NOT_FOUND", "`tidelog transactions list`"
        )
    # To ask for an id is not to make it.
    assert said("list", "--json", "--transactional-id-pattern", "no-such").json() == []
    create_topic(node.bootstrap, topic_name, partitions=1)
    place = ("--topic", topic_name, "--partition", "7")
    said("describe-producers", *place).failed(f"{topic_name}-7")
    said("find-hanging", *place).failed(f"{topic_name}-7", "UNKNOWN_TOPIC_OR_PARTITION")
    said("find-hanging", "--broker-id", "9").failed("broker 9 is not alive")
    missing = ("describe-producers", "--topic", topic_name, "--partition", "0", "--broker-id", "9")
    said(*missing).failed("broker 9")


def test_kafkas_tool_says_the_same(
    node: TidelogNode, tools: ToolRunner, capfd: pytest.CaptureFixture[str], topic_name: str
) -> None:
    create_topic(node.bootstrap, topic_name, partitions=1)
    begun(node, topic_name, topic_name)

    def rows(name: str, *words: str) -> tuple[list[str], list[str]]:
        """The row that has a name, ours and theirs, under the same columns."""
        theirs = tools.run("kafka-transactions", "--bootstrap-server", node.bootstrap, *words)
        ours = said_by(node.bootstrap, capfd, "transactions", *words).good()
        both = [[line.split() for line in said.splitlines()] for said in (ours, theirs.out)]
        assert both[0][0] == both[1][0] and len(both[0]) == len(both[1]), (both, theirs)
        mine, other = ([row for row in each[1:] if name in row] for each in both)
        assert len(mine) == len(other) == 1, both
        return mine[0], other[0]

    mine, other = rows(topic_name, "list")
    assert mine == other
    place = ("--topic", topic_name, "--partition", "0")
    mine, other = rows(mine[2], "describe-producers", *place)
    # Java has "None" and -1 where nothing is known.
    assert mine[:2] == other[:2] and mine[3:] == other[3:]
    mine, other = rows(topic_name, "describe", "--transactional-id", topic_name)
    assert mine[:7] == other[:7] and mine[8:] == other[8:] == [f"{topic_name}-0"]


def test_below_the_level_the_server_says_that_there_are_none(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with TidelogNode(tmp_path / "node", {"inter.broker.protocol.version": "1.5"}) as node:
        assert (
            json.loads(said_by(node.bootstrap, capfd, "transactions", "list", "--json").out) == []
        )
        for action in ("describe", "force-terminate"):
            words = ("transactions", action, "--transactional-id", "x")
            said_by(node.bootstrap, capfd, *words).failed(
                "transactions come with inter.broker.protocol.version 1.6"
            )
