"""The log of transactions and Apache Kafka: its tool reads our records, we read its coordinator's.

Not a server of ours: no broker has a transaction coordinator yet.
"""

from __future__ import annotations

import json
import random
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import IsolationLevel, TopicPartition
from confluent_kafka import Producer as StockProducer
from confluent_kafka.admin import OffsetSpec

from tests.support.clients import admin
from tests.support.drawn_seed import drawn_seed
from tests.support.drawn_transactions import drawn_transaction
from tests.support.java import ToolRunner
from tests.support.kafka import KafkaNode
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.storage_logs import NOW_MS, PARTITION, new_log, reopen
from tidelog.records.batch import walk
from tidelog.records.builder import NewRecord, build_batch
from tidelog.records.control_records import EndMarker, marker_batch, marker_in
from tidelog.records.reader import read_all
from tidelog.storage.log.aborted import decode_aborted
from tidelog.storage.log.aborted_reading import aborted_between
from tidelog.storage.log.recovery import Ending
from tidelog.storage.log.results import Appended
from tidelog.storage.log.stable import last_stable_offset
from tidelog.transactions.records import TransactionRecord, decode, encode
from tidelog.transactions.settings import TransactionSettings
from tidelog.transactions.state import TransactionState
from tidelog.transactions.table import TransactionTable

pytestmark = [pytest.mark.java, pytest.mark.long(40)]


@pytest.fixture(scope="module")
def tools() -> Iterator[ToolRunner]:
    runner = ToolRunner()
    yield runner
    runner.close()


def test_kafkas_tool_reads_our_records_and_markers(tools: ToolRunner, tmp_path: Path) -> None:
    rng = random.Random(drawn_seed())
    written = [TransactionRecord(f"id-{number}", drawn_transaction(rng)) for number in range(50)]
    written.append(TransactionRecord("id-0", None))
    log = new_log(tmp_path)
    for record in written:
        made = build_batch([NewRecord(NOW_MS, *encode(record))])
        assert isinstance(log.append_as_leader(made, 0, NOW_MS), Appended)
    ends = [(EndMarker(True, 7), "COMMIT"), (EndMarker(False, 9), "ABORT")]
    for marker, _ in ends:
        made = marker_batch(
            marker, producer_id=5, producer_epoch=2, leader_epoch=0, timestamp_ms=NOW_MS
        )
        got = log.append_as_leader(made, 0, NOW_MS, from_client=False)
        assert isinstance(got, Appended), got
    log.close()
    files = ",".join(str(path) for path in sorted(Path(log.path).glob("*.log")))
    said = tools.run("kafka-dump-log", "--transaction-log-decoder", "--files", files).check().out
    lines = [line for line in said.splitlines() if "payload:" in line]
    assert len(lines) == len(written), said[:3_000]
    for line, record in zip(lines, written, strict=True):
        key, payload = re.search(r"key: (.*?) payload: (.*)$", line).groups()  # type: ignore[union-attr]
        assert json.loads(key)["data"] == {"transactionalId": record.transactional_id}
        if record.value is None:
            assert payload in ("null", "<DELETE>"), line
            continue
        value, shown = record.value, json.loads(payload)
        assert shown["version"] in (1, "1")
        data = shown["data"]
        assert data["producerId"] == value.producer_id
        assert data["producerEpoch"] == value.producer_epoch
        assert data["transactionTimeoutMs"] == value.timeout_ms
        assert data["transactionStatus"] == value.state
        found = {
            (topic["topic"], number)
            for topic in data["transactionPartitions"] or ()
            for number in topic["partitionIds"]
        }
        assert found == {tuple(each) for each in value.partitions}
        assert (data["transactionPartitions"] is None) == (value.state is TransactionState.EMPTY)
        assert data.get("previousProducerId", -1) == value.previous_producer_id
        assert data.get("nextProducerId", -1) == value.next_producer_id
        assert data.get("nextProducerEpoch", -1) == value.next_producer_epoch
    markers = re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", said)
    assert markers == [(name, str(marker.coordinator_epoch)) for marker, name in ends], said


def producer_of(bootstrap: str, transactional_id: str) -> StockProducer:
    made = StockProducer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "linger.ms": 0}
    )
    made.init_transactions(60)
    return made


def write(made: StockProducer, topic: str) -> None:
    made.begin_transaction()
    made.produce(topic, b"value")
    made.flush(60)


def until_stable(bootstrap: str, topic: str, offset: int) -> None:
    """Wait until the last stable offset of a topic's one partition is ``offset``.

    Kafka's coordinator answers EndTxn before the marker is written: what another producer writes
    meanwhile gets the offset before the marker.
    """
    client = admin(bootstrap)
    asked = TopicPartition(topic, 0)

    def stable() -> int:
        found = client.list_offsets(
            {asked: OffsetSpec.latest()},
            isolation_level=IsolationLevel.READ_COMMITTED,
            request_timeout=DEADLINE_S,
        )
        return int(found[asked].result(DEADLINE_S).offset)

    wait_until(
        lambda: stable() == offset, DEADLINE_S, f"all before offset {offset} of {topic} is stable"
    )


def test_our_log_reads_what_kafkas_log_has_open(tmp_path: Path) -> None:
    with KafkaNode(tmp_path / "kafka", {"num.partitions": 1}) as node:
        ends = producer_of(node.bootstrap, "ends")
        for end in (ends.commit_transaction, ends.abort_transaction):
            write(ends, PARTITION.topic)
            end(60)
        until_stable(node.bootstrap, PARTITION.topic, 4)
        stays_open = producer_of(node.bootstrap, "open")
        write(stays_open, PARTITION.topic)
        write_plainly(node.bootstrap, PARTITION.topic)
        folder = node.log_folder() / str(PARTITION)
    (aborted,) = decode_aborted((folder / f"{0:020}.txnindex").read_bytes(), 0, 6)
    assert aborted[1:] == (2, 3, 4), aborted
    snapshots = sorted(folder.glob("*.snapshot"))
    # Two records with their markers, then the open one, then a plain record.
    for number, with_snapshot in enumerate((True, False)):
        ours = tmp_path / f"ours-{number}"
        new_log(ours).close()
        shutil.rmtree(ours / str(PARTITION))
        shutil.copytree(folder, ours / str(PARTITION))
        if not with_snapshot:
            for snapshot in snapshots:
                (ours / str(PARTITION) / snapshot.name).unlink()
        log = reopen(ours, ending=Ending(0, 6, 0))
        assert aborted_between(log, 0, 6).transactions == [aborted]
        assert (log.damaged, log.end_offset) == (None, 6)
        assert last_stable_offset(log) == 4
        assert sorted(each.open_since for each in log.producers.entries.values())[-2:] == [-1, 4]


def write_plainly(bootstrap: str, topic: str) -> None:
    plain = StockProducer({"bootstrap.servers": bootstrap})
    plain.produce(topic, b"value")
    assert plain.flush(60) == 0


def files_of(node: KafkaNode, topic: str) -> Iterator[bytes]:
    for path in sorted(node.log_folder().glob(f"{topic}-*/*.log")):
        yield path.read_bytes()


def test_we_read_what_kafkas_coordinator_wrote(tools: ToolRunner, tmp_path: Path) -> None:
    config = {"transaction.state.log.num.partitions": 2, "num.partitions": 1}
    with KafkaNode(tmp_path / "kafka", config) as node:
        both = producer_of(node.bootstrap, "both")
        for end in (both.commit_transaction, both.abort_transaction, both.commit_transaction):
            write(both, "data")
            end(60)
        until_stable(node.bootstrap, "data", 6)
        stays_open = producer_of(node.bootstrap, "open")
        write(stays_open, "data")
        for _ in range(2):
            unused = producer_of(node.bootstrap, "unused")
        listed = tools.run(
            "kafka-transactions", "--bootstrap-server", node.bootstrap, "list"
        ).check()
        shown = {
            words[0]: (int(words[2]), words[3])
            for line in listed.out.splitlines()[1:]
            if len(words := line.split()) == 4
        }
        logs = list(files_of(node, "__transaction_state"))
        data = list(files_of(node, "data"))
        del both, stays_open, unused

    states: dict[str, list[TransactionState]] = defaultdict(list)
    table = TransactionTable(TransactionSettings())
    for content in logs:
        for record in read_all(content):
            assert record.key is not None
            found = decode(record.key, record.value)
            assert isinstance(found, TransactionRecord), found
            assert found.value is not None
            states[found.transactional_id].append(found.value.state)
            table.replay(record.key, record.value, 0)
    assert sorted(states) == ["both", "open", "unused"]
    loaded = {}
    for name in table:
        entry = table.get(name)
        assert entry is not None and entry.known is not None
        now = entry.known.transaction
        loaded[name] = (now.producer_id, now.state.spoken)
        if name == "open":
            assert [str(at) for at in now.partitions] == ["data-0"]
            assert now.timeout_ms == 60_000
    # What we read is what Kafka's own coordinator said of itself.
    assert loaded == shown, listed.out
    committed, aborted = TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT
    ended = [state for state in states["both"] if state in (committed, aborted)]
    assert ended == [committed, aborted, committed]
    assert states["open"][-1] is TransactionState.ONGOING
    assert set(states["unused"]) == {TransactionState.EMPTY}

    markers = [
        marker.committed
        for content in data
        for position, header in walk(memoryview(content))
        if (marker := marker_in(header, content[position : position + header.size])) is not None
    ]
    assert markers == [True, False, True]
