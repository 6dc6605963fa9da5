"""Each file of a data folder and each node of its store deleted, one at a time, before a start:
what the operator reads.

What is missing is not new until something proves it (promise 20). The folder is that of one node
with both roles, its SQLite store, one topic of three segments, stopped cleanly.
"""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import Peer
from tests.support.processes import DEADLINE_S
from tidelog.broker.process import BrokerProcess, StartFailed
from tidelog.cli import preflight
from tidelog.cli.refusal import Failed
from tidelog.controller.process import ControllerProcess
from tidelog.controller.requests import why_no_full
from tidelog.metadata.store import StoreRefused
from tidelog.model.configs.server import ServerConfigs, from_mapping
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch
from tidelog.runtime.seams import Seams

pytestmark = pytest.mark.long(20)

WHOLE = "0 to 5"
RECORD = b"x" * 400_000

SAME = [
    # Made again from what the logs say, or at the next checkpoint.
    "data/.kafka_cleanshutdown",
    "data/.lock",
    "data/cleaner-offset-checkpoint",
    "data/controller-seen",
    "data/log-start-offset-checkpoint",
    "data/recovery-point-offset-checkpoint",
    "data/replication-offset-checkpoint",
    "data/t-0/00000000000000000000.index",
    "data/t-0/00000000000000000000.timeindex",
    "data/t-0/00000000000000000002.index",
    "data/t-0/00000000000000000002.snapshot",
    "data/t-0/00000000000000000002.timeindex",
    "data/t-0/00000000000000000004.index",
    "data/t-0/00000000000000000004.snapshot",
    "data/t-0/00000000000000000004.timeindex",
    "data/t-0/00000000000000000005.snapshot",
    "data/t-0/leader-epoch-checkpoint",
    "data/t-0/tidelog.leader-epochs.crc32c",
    "data/tidelog.first-fence-offsets",
    "data/tidelog.life",
    "data/tidelog.unaware-writers",
    "metadata.sqlite.lock",
    "metadata.sqlite.reserve",
]

SAID: dict[str, tuple[str, list[str], str]] = {
    **{file: (WHOLE, [], "") for file in SAME},
    # The records themselves: the replica is out of service, and keeps what it has.
    "data/t-0/00000000000000000000.log": (
        "56",
        ["offline_damaged"],
        "is the first segment, and the log begins at offset 0: one before it is missing",
    ),
    "data/t-0/00000000000000000002.log": ("56", ["offline_damaged"], "one between them is missing"),
    "data/t-0/00000000000000000004.log": ("56", ["offline_damaged"], "below its recovery point 5"),
    # It may be of a former topic of that name: it does not serve, and is not removed.
    "data/t-0/partition.metadata": ("0 to 0", ["unclean"], "kept until you remove it: it has no"),
    "data/meta.properties": ("refused", [], "has replicas and no meta.properties: check"),
    "metadata.sqlite": ("waits", [], "tidelog doctor restored"),
}
"""By file: the offsets that are served, or an error code; the doctor's problems; a line."""


NODES_SAID: dict[str, tuple[str, list[str], str]] = {
    # A partition that does not know its leader epoch and its ISR has no leader.
    "/brokers/topics/t/partitions/0/state": ("6 to 6", ["node_damaged"], "the partition's node is"),
    "/brokers/topics/t": ("waits", [], "it is missing, but /tidelog/topics/t is there"),
    "/tidelog/revision": ("waits", [], "has gone back in time"),
    "/controller_epoch": ("refused", [], "it is missing, but it gave /brokers/topics/t/partitions"),
    "/partition_epoch": ("refused", [], "it is missing, but it gave /brokers/topics/t/partitions"),
    "/tidelog/broker_epoch": ("refused", [], "it is missing, but it gave /brokers/ids/1 the epoch"),
    # The replica has it on its disk.
    "/brokers/topics/t/partitions/0": (WHOLE, [], "t-0 has its partition epoch 1 again"),
    # Made again: from the topic's node, the registration, `meta.properties`.
    **dict.fromkeys(["/tidelog/topics/t", "/brokers/ids/1", "/cluster/id"], (WHOLE, [], "")),
    "/tidelog/transactions": (WHOLE, [], ""),
}
"""The same by node of the store: all that have content."""


def configs_of(folder: Path) -> ServerConfigs:
    made = from_mapping(
        {
            "node.id": "1",
            "process.roles": "broker,controller",
            "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "log.dirs": str(folder / "data"),
            "metadata.store": f"sqlite:{folder / 'metadata.sqlite'}",
            "log.segment.bytes": "1048576",
        }
    )
    assert isinstance(made, ServerConfigs), made
    return made


async def at_work(folder: Path, work: Callable[[Peer], Awaitable[Any]]) -> Any:
    """A start as `tidelog server` makes it, and a clean stop; "waits" without metadata."""
    seams, configs = Seams(), configs_of(folder)
    belongs_to = preflight.check(configs, seams.disk)
    controller = ControllerProcess(configs, seams, belongs_to=belongs_to, is_new=True)
    await controller.start()
    try:
        at = [("127.0.0.1", controller.listener_port)]
        broker = BrokerProcess(configs, seams, at, belongs_to=belongs_to)
        starting = asyncio.ensure_future(broker.start())
        while not starting.done():
            await asyncio.wait({starting}, timeout=0.01)
            cluster = controller.controller.cluster
            why = why_no_full(cluster) if cluster.brokers else None
            if why is not None:
                starting.cancel()
                await asyncio.wait({starting})
                logging.getLogger().warning("%s", why)
                return "waits", []
        try:
            starting.result()
            return await work(await Peer.connect(broker.ports["PLAINTEXT"]))
        finally:
            await broker.stop()
    finally:
        await controller.stop()


async def fill(peer: Peer) -> None:
    """Make the topic, and write one record to each batch of it: two fit into a segment."""
    create = messages.CreateTopicsRequest
    topic = create.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    answer = await peer.ask(create(topics=[topic], timeout_ms=10_000), 7)
    assert answer.topics[0].error_code == 0, answer
    produce = messages.ProduceRequest
    for _ in range(5):
        part = produce.PartitionProduceData(0, build_batch([NewRecord(-1, None, RECORD)]))
        data = produce.TopicProduceData(name="t", partition_data=[part])
        answer = await peer.ask(produce(acks=-1, timeout_ms=60_000, topic_data=[data]), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0, answer


async def grow(peer: Peer) -> list[int]:
    """Fill the topic and let it have a second partition; return the ends of both."""
    await fill(peer)
    create = messages.CreatePartitionsRequest
    topic = create.CreatePartitionsTopic(name="t", count=2, assignments=None)
    answer = await peer.ask(create(topics=[topic], timeout_ms=10_000), 3)
    assert answer.results[0].error_code == 0, answer
    async with asyncio.timeout(DEADLINE_S):
        while min(ends := await ends_of_both(peer)) <= 0:
            pass
    return ends


async def ends_of_both(peer: Peer) -> list[int]:
    request = messages.ListOffsetsRequest
    parts = [request.ListOffsetsPartition(partition_index=x, timestamp=-1) for x in (0, 1)]
    asked = request(topics=[request.ListOffsetsTopic(name="t", partitions=parts)])
    (topic,) = (await peer.ask(asked, 5)).topics
    return [answer.offset for answer in topic.partitions]


async def look(peer: Peer) -> tuple[str, list[str]]:
    """What is served of the topic, and the doctor's problems."""
    request = messages.ListOffsetsRequest
    found: list[str] = []
    for time in (-2, -1):
        part = request.ListOffsetsPartition(partition_index=0, timestamp=time)
        asked = request(topics=[request.ListOffsetsTopic(name="t", partitions=[part])])
        (topic,) = (await peer.ask(asked, 5)).topics
        (answer,) = topic.partitions
        found.append(str(answer.error_code or answer.offset))
    answer = await peer.ask(messages.DescribeConditionRequest(), 0)
    kinds = [each["kind"] for each in json.loads(answer.condition)["problems"]]
    return found[0] if found[0] == "56" else " to ".join(found), kinds


def start_without(folder: Path, file: str) -> tuple[str, list[str]]:
    (folder / file).unlink()
    return started(folder)


def start_without_node(folder: Path, path: str) -> tuple[str, list[str]]:
    with closing(sqlite3.connect(folder / "metadata.sqlite")) as store, store:
        assert store.execute("DELETE FROM nodes WHERE path = ?", (path,)).rowcount == 1
    return started(folder)


def started(folder: Path) -> tuple[str, list[str]]:
    try:
        served: tuple[str, list[str]] = asyncio.run(at_work(folder, look))
    except (Failed, StartFailed, StoreRefused) as refused:
        logging.getLogger().warning("%s", refused)
        return "refused", []
    return served


def test_each_missing_file_is_named_or_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = tmp_path / "whole"
    asyncio.run(at_work(whole, fill))
    files = {str(path.relative_to(whole)) for path in whole.rglob("*") if path.is_file()}
    assert files == SAID.keys()
    check(whole, caplog, SAID, start_without)


def test_each_missing_node_is_named_or_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A partition's node had made all its replicas those of a former incarnation, to be deleted."""
    whole = tmp_path / "whole"
    asyncio.run(at_work(whole, fill))
    with closing(sqlite3.connect(whole / "metadata.sqlite")) as store:
        nodes = store.execute("SELECT path FROM nodes WHERE data != x''").fetchall()
    assert {path for (path,) in nodes} == NODES_SAID.keys()
    check(whole, caplog, NODES_SAID, start_without_node)


def test_fences_that_are_missing_on_every_replica_are_written_no_second_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A leader without its file had taken its partition for one that was never resized."""
    folder = tmp_path / "folder"
    ends = asyncio.run(at_work(folder, grow))
    files = sorted((folder / "data").glob("t-*/fence-checkpoint"))
    assert len(files) == 2
    kept = [file.read_bytes() for file in files]
    for file in files:
        file.unlink()
    assert asyncio.run(at_work(folder, ends_of_both)) == ends
    assert caplog.text.count("fence-checkpoint: the file is missing: taken from the log") == 2
    assert [file.read_bytes() for file in files] == kept


@pytest.mark.parametrize("by_hand", [False, True])
def test_the_folder_above_a_log_directory_is_refused_and_nothing_in_it_changes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, by_hand: bool
) -> None:
    """A cluster's ``broker-1`` was taken for partition 1 of a topic "broker", and removed."""
    folder = tmp_path / "folder"
    asyncio.run(at_work(folder, fill))
    made = folder / "data"
    made.rename(folder / "moved")
    made.mkdir()
    (folder / "moved").rename(made / "broker-1")
    if by_hand:
        # The error's advice had been to write it.
        shutil.copy(made / "broker-1" / "meta.properties", made)
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    assert started(folder) == ("refused", [])
    assert f"set log.dirs={made}/broker-1" in caplog.text
    (made / ".lock").unlink()
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("file", "said"), [(None, "removed in"), ("notes.txt", "kept until you")])
def test_an_empty_replica_of_unknown_origin_is_kept_if_its_folder_has_anything_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, file: str | None, said: str
) -> None:
    """Without records it seemed to have nothing."""
    folder = tmp_path / "folder"
    asyncio.run(at_work(folder, fill))
    shutil.rmtree(folder / "data" / "t-0")
    for path in (folder / "data").glob("*-checkpoint"):
        path.unlink()
    (folder / "data" / "t-0").mkdir()
    if file is not None:
        (folder / "data" / "t-0" / file).touch()
    started(folder)
    assert f"t-0: quarantined, {said}" in caplog.text
    assert len(list((folder / "data").glob("t-0.*-stray"))) == 1


def check(
    whole: Path,
    caplog: pytest.LogCaptureFixture,
    expected: Mapping[str, tuple[str, list[str], str]],
    start: Callable[[Path, str], tuple[str, list[str]]],
) -> None:
    """Start a copy of the folder without each of these, and compare what it does and says."""
    wrong = []
    tried = whole.with_name("tried")
    for what, (served, problems, line) in expected.items():
        shutil.rmtree(tried, ignore_errors=True)
        shutil.copytree(whole, tried)
        caplog.clear()
        found = start(tried, what)
        said = "\n".join(x.getMessage() for x in caplog.records if x.levelno >= logging.WARNING)
        if found != (served, problems) or line not in said:
            wrong.append(f"{what}: {found}, expected {served} {problems} {line!r}; it said: {said}")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("file", ["data/t-0/00000000000000000000.log"])
def test_a_missing_first_segment_stays_known_over_starts_until_it_is_back(
    tmp_path: Path, file: str
) -> None:
    folder = tmp_path / "folder"
    asyncio.run(at_work(folder, fill))
    kept = (folder / file).read_bytes()
    assert start_without(folder, file) == ("56", ["offline_damaged"])
    assert asyncio.run(at_work(folder, look)) == ("56", ["offline_damaged"])
    (folder / file).write_bytes(kept)
    assert asyncio.run(at_work(folder, look)) == (WHOLE, [])
