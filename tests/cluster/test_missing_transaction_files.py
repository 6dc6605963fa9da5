"""Each file that transactions brought to a data folder deleted, one at a time, before a start: what
a reader of committed transactions gets (promise 20).

The folder is of one node, as stock clients filled it: transactions that were aborted and committed
in three segments, and one that is open. Other files: `tests/broker/test_missing_files.py`.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from tests.support.clients import create_topic
from tests.support.lone_broker import Peer
from tests.support.processes import DEADLINE_S
from tests.support.server import TidelogNode
from tests.support.target import TARGET
from tidelog.broker.process import BrokerProcess
from tidelog.cli import preflight
from tidelog.controller.process import ControllerProcess
from tidelog.model.configs.server import ServerConfigs, from_mapping
from tidelog.protocol import messages
from tidelog.runtime.seams import Seams

pytestmark = [
    pytest.mark.long(30),
    pytest.mark.skipif(TARGET != "tidelog", reason="the files are tidelog's"),
]

CONFIG = {
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "log.segment.bytes": "1048576",
}
LARGE = b"x" * 400_000
KINDS = ("*.txnindex", "*.txnindex.crc32c", "*.snapshot")
"""What transactions brought, or what has open ones since."""


class Committed(NamedTuple):
    """What a reader of committed transactions gets, and what is open."""

    ends: tuple[int, int]
    """The last stable offset by ListOffsets, and the high watermark."""

    aborted: list[tuple[int, int]]
    """Producer id and first offset of the aborted transactions of all reads."""

    open_since: list[tuple[int, int]]
    """Producer id and first offset of the open transactions."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("files") / "whole"
    store = {"metadata.store": f"sqlite:{folder / 'metadata.sqlite'}"}
    node = TidelogNode(folder, {**CONFIG, **store})
    with node:
        create_topic(node.bootstrap, "t")
        producer, left_open = (
            Producer(
                {
                    "bootstrap.servers": node.bootstrap,
                    "transactional.id": name,
                    "transaction.timeout.ms": 900_000,  # no start aborts the open one
                    "linger.ms": 0,
                    "log_level": 0,
                }
            )
            for name in ("ended", "open")
        )
        producer.init_transactions(DEADLINE_S)
        for commits in (False, True, False, True, False):
            producer.begin_transaction()
            producer.produce("t", LARGE, partition=0)
            assert producer.flush(DEADLINE_S) == 0
            if commits:
                producer.commit_transaction(DEADLINE_S)
            else:
                producer.abort_transaction(DEADLINE_S)
        left_open.init_transactions(DEADLINE_S)
        left_open.begin_transaction()
        left_open.produce("t", b"open", partition=0)
        assert left_open.flush(DEADLINE_S) == 0
        assert node.stop() == 0
    del producer, left_open
    yield folder


def configs_of(folder: Path) -> ServerConfigs:
    made = from_mapping(
        {
            **CONFIG,
            "node.id": "1",
            "process.roles": "broker,controller",
            "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "log.dirs": str(folder / "data"),
            "metadata.store": f"sqlite:{folder / 'metadata.sqlite'}",
        }
    )
    assert isinstance(made, ServerConfigs), made
    return made


async def read(folder: Path) -> Committed:
    """Start a server on the folder, read, and stop it."""
    configs, seams = configs_of(folder), Seams()
    belongs_to = preflight.check(configs, seams.disk)
    controller = ControllerProcess(configs, seams, belongs_to=belongs_to, is_new=False)
    await controller.start()
    try:
        at = [("127.0.0.1", controller.listener_port)]
        broker = BrokerProcess(configs, seams, at, belongs_to=belongs_to)
        await asyncio.wait_for(broker.start(), DEADLINE_S)
        try:
            return await committed(await Peer.connect(broker.ports["PLAINTEXT"]))
        finally:
            await broker.stop()
    finally:
        await controller.stop()


async def committed(peer: Peer) -> Committed:
    lists, describes, fetch = (
        messages.ListOffsetsRequest,
        messages.DescribeProducersRequest,
        messages.FetchRequest,
    )
    ends = []
    for isolation_level in (1, 0):
        part = lists.ListOffsetsPartition(partition_index=0, timestamp=-1)
        topic: Any = lists.ListOffsetsTopic(name="t", partitions=[part])
        asked: Any = lists(replica_id=-1, isolation_level=isolation_level, topics=[topic])
        (topic,) = (await peer.ask(asked, 5)).topics
        assert topic.partitions[0].error_code == 0, topic
        ends.append(topic.partitions[0].offset)
    asked = describes(topics=[describes.TopicRequest(name="t", partition_indexes=[0])])
    (topic,) = (await peer.ask(asked, 0)).topics
    states = topic.partitions[0].active_producers
    aborted: set[tuple[int, int]] = set()
    for offset in range(ends[0]):
        place: Any = fetch.FetchPartition(
            partition=0, current_leader_epoch=-1, fetch_offset=offset, partition_max_bytes=1
        )
        asked = fetch(
            replica_id=-1,
            max_bytes=1,
            isolation_level=1,
            topics=[fetch.FetchTopic(topic="t", partitions=[place])],
        )
        (topic,) = (await peer.ask(asked, 11)).responses
        for one in topic.partitions[0].aborted_transactions or ():
            aborted.add((one.producer_id, one.first_offset))
    return Committed(
        (ends[0], ends[1]),
        sorted(aborted),
        [
            (x.producer_id, x.current_txn_start_offset)
            for x in states
            if x.current_txn_start_offset >= 0
        ],
    )


def files_of(folder: Path) -> list[Path]:
    data = folder / "data"
    kinds = {path for kind in KINDS for path in data.rglob(kind)}
    state = {path for path in data.rglob("__transaction_state-0/*") if path.suffix != ".log"}
    return sorted(kinds | state - set(data.rglob("partition.metadata")))


def test_readers_of_committed_transactions_get_the_same_without_any_of_these_files(
    whole: Path, tmp_path: Path
) -> None:
    tried = tmp_path / "tried"
    shutil.copytree(whole, tried)
    expected = asyncio.run(read(tried))
    (ended, first), *_ = expected.aborted
    assert expected.aborted == [(ended, first), (ended, first + 4), (ended, first + 8)]
    assert [since for _, since in expected.open_since] == [expected.ends[0]]
    assert expected.ends[0] < expected.ends[1]
    files = files_of(whole)
    assert len([path for path in files if path.suffix == ".txnindex"]) == 3
    wrong = []
    for path in files:
        shutil.rmtree(tried)
        shutil.copytree(whole, tried)
        (tried / path.relative_to(whole)).unlink()
        got = asyncio.run(read(tried))
        if got != expected:
            wrong.append(f"{path.relative_to(whole)}: {got}, expected {expected}")
    assert not wrong, "\n".join(wrong)
