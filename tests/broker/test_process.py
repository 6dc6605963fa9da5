"""A broker with a controller in one process: how it starts, what stops it, what it leaves."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.lone_broker import Peer, until
from tests.support.lone_controller import LoneController
from tests.support.processes import DEADLINE_S
from tests.support.standing_clock import silence, stand_still
from tidelog.broker import process
from tidelog.broker.partitions import log_directories
from tidelog.broker.process import BrokerProcess, StartFailed
from tidelog.controller.decisions.decision import Decision, Put
from tidelog.metadata import layout
from tidelog.metadata.memory import MemoryStore
from tidelog.metadata.records import WentBack
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.server import ServerConfigs, from_mapping
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch
from tidelog.runtime.descriptors import Descriptors
from tidelog.runtime.disk import RealDisk, RealFile
from tidelog.runtime.seams import Seams
from tidelog.storage.directory.log_directory import LastStop
from tidelog.storage.segments.scan import CHUNK_BYTES


def configs_for(folder: Path, **changes: object) -> ServerConfigs:
    texts = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
        "log.dirs": str(folder),
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "2",
    } | {name.replace("_", "."): str(value) for name, value in changes.items()}
    configs = from_mapping(texts)
    assert isinstance(configs, ServerConfigs), configs
    return configs


@asynccontextmanager
async def controller_for(
    configs: ServerConfigs, store: MemoryStore
) -> AsyncIterator[LoneController]:
    controller = LoneController(configs, Seams(), store)
    await controller.start()
    try:
        yield controller
    finally:
        await controller.stop()


def broker_of(configs: ServerConfigs, controller: LoneController) -> BrokerProcess:
    return BrokerProcess(configs, Seams(), [("127.0.0.1", controller.listener_port)])


@asynccontextmanager
async def at_work(folder: Path) -> AsyncIterator[tuple[BrokerProcess, LoneController]]:
    """A broker with its default settings, and its controller."""
    configs = configs_for(folder)
    async with controller_for(configs, MemoryStore()) as controller:
        broker = broker_of(configs, controller)
        await broker.start()
        try:
            yield broker, controller
        finally:
            await broker.stop()


async def create(peer: Peer, name: str) -> None:
    request = messages.CreateTopicsRequest
    topic = request.CreatableTopic(name=name, num_partitions=1, replication_factor=1)
    answer = await peer.ask(request(topics=[topic], timeout_ms=10_000), 7)
    assert answer.topics[0].error_code == 0, answer


async def produce(peer: Peer, topic: str, value: bytes) -> Any:
    request = messages.ProduceRequest
    records = build_batch([NewRecord(-1, None, value)])
    part = request.PartitionProduceData(index=0, records=records)
    data = request.TopicProduceData(name=topic, partition_data=[part])
    answer = await peer.ask(request(acks=-1, timeout_ms=60_000, topic_data=[data]), 9)
    return answer.responses[0].partition_responses[0]


def test_a_clean_stop_leaves_its_marker_and_all_data(tmp_path: Path) -> None:
    async def main() -> None:
        configs, store = configs_for(tmp_path), MemoryStore()
        async with controller_for(configs, store) as controller:
            broker = broker_of(configs, controller)
            await broker.start()
            peer = await Peer.connect(broker.ports["PLAINTEXT"])
            await create(peer, "t")
            assert (await produce(peer, "t", b"a")).base_offset == 0
            await broker.stop()
            await broker.stop()
            again = broker_of(configs, controller)
            await again.start()
            (directory,) = again.broker.directories
            assert directory.last_stop is LastStop.CLEAN
            await until(lambda: again.broker.partitions.get("t", 0).is_leader)
            peer = await Peer.connect(again.ports["PLAINTEXT"])
            assert (await produce(peer, "t", b"b")).base_offset == 1
            await again.stop()

    asyncio.run(main())


def test_the_defaults_of_a_new_topic_are_those_of_the_broker_that_was_asked(tmp_path: Path) -> None:
    """`configs --describe --broker` shows them, also where the controllers' files lack them."""

    async def main() -> None:
        request = messages.CreateTopicsRequest
        assigned = [request.CreatableReplicaAssignment(0, [1])]
        configs = configs_for(tmp_path, num_partitions=3, default_replication_factor=2)
        async with controller_for(configs_for(tmp_path), MemoryStore()) as controller:
            broker = broker_of(configs, controller)
            await broker.start()
            peer = await Peer.connect(broker.ports["PLAINTEXT"])
            asked = [
                request.CreatableTopic("a", -1, 1),
                request.CreatableTopic("b", 1, -1),
                request.CreatableTopic("c", -1, -1, assigned),
            ]
            answer = await peer.ask(request(topics=asked, timeout_ms=10_000), 7)
            found = {x.name: (x.error_code, x.num_partitions) for x in answer.topics}
            # There is one broker: two replicas are too many.
            too_many = ErrorCode.INVALID_REPLICATION_FACTOR
            assert found == {"a": (0, 3), "b": (too_many, -1), "c": (0, 1)}
            automatic = messages.MetadataRequest
            named = automatic(topics=[automatic.MetadataRequestTopic(name="d")])
            answer = await peer.ask(named, 8)
            assert [x.error_code for x in answer.topics] == [too_many]
            await broker.stop()

    asyncio.run(main())


def test_a_stop_closes_the_connections_to_other_brokers(tmp_path: Path) -> None:
    """Broker 1 asks itself, as any other."""

    async def main() -> None:
        async with at_work(tmp_path) as (broker, _):
            others = broker.broker.other_brokers
            request = messages.ListOffsetsRequest(replica_id=-1, topics=[])
            await until(lambda: 1 in broker.broker.metadata.brokers)
            assert len(await others.ask(1, "test", ApiKey.LIST_OFFSETS, 7, [request])) == 1
            kept = others._others[1]._connection
            assert kept is not None and not kept.closed
            await broker.stop()
            assert kept.closed and not others._others
            assert not await others.ask(1, "test", ApiKey.LIST_OFFSETS, 7, [request])

    asyncio.run(main())


def test_topic_configurations_reach_the_log_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with at_work(tmp_path) as (broker, _):
            peer = await Peer.connect(broker.ports["PLAINTEXT"])
            await create(peer, "t")
            request = messages.IncrementalAlterConfigsRequest
            change = request.AlterableConfig(
                name="max.message.bytes", config_operation=0, value="200"
            )
            resource = request.AlterConfigsResource(
                resource_type=2, resource_name="t", configs=[change]
            )
            answer = await peer.ask(request(resources=[resource]), 1)
            assert answer.responses[0].error_code == 0, answer
            hosted = broker.broker.partitions.get("t", 0)
            assert hosted is not None
            await until(lambda: hosted.log.configs.max_message_bytes == 200)
            assert (await produce(peer, "t", b"x" * 300)).error_code == 10

    asyncio.run(main())


def test_limits_of_connections_change_while_it_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with at_work(tmp_path) as (broker, _):
            admin = await Peer.connect(broker.ports["PLAINTEXT"])
            request = messages.IncrementalAlterConfigsRequest

            async def alter(broker_name: str, name: str, value: object) -> None:
                operation = 1 if value is None else 0
                text = None if value is None else str(value)
                change = request.AlterableConfig(name, operation, text)
                resource = request.AlterConfigsResource(4, broker_name, [change])
                answer = await admin.ask(request([resource]), 1)
                assert answer.responses[0].error_code == 0, answer

            async def is_served() -> bool:
                there = len(broker.server.connections)
                peer = await Peer.connect(broker.ports["PLAINTEXT"])
                try:
                    await peer.ask(messages.MetadataRequest(), 8)
                except ConnectionError:
                    return False
                finally:
                    peer.writer.close()
                    await until(lambda: len(broker.server.connections) == there)
                return True

            assert await is_served()
            # All that there are: the controller's and the admin's.
            there = len(broker.server.connections)
            for name in ("max.connections", "max.connections.per.ip"):
                await alter("", name, there)
                assert not await is_served()
                await alter("1", name, there + 1)
                assert await is_served(), "its own goes before that of all brokers"
                await alter("1", name, None)
                assert not await is_served()
                await alter("", name, None)
                assert await is_served()
            few = process.limits_of(
                configs_for(tmp_path), Descriptors(10, 10), broker.broker.topic_configs
            )
            assert few.max_connections == 10, "as many as there are descriptors for"

    asyncio.run(main())


def test_a_second_server_on_the_same_directory_is_one_line(tmp_path: Path) -> None:
    async def main() -> None:
        async with at_work(tmp_path) as (_, controller):
            with pytest.raises(StartFailed, match="in use by another server") as refused:
                await broker_of(configs_for(tmp_path), controller).start()
            assert "\n" not in str(refused.value)

    asyncio.run(main())


def test_a_replica_in_two_log_directories_is_one_line(tmp_path: Path) -> None:
    """One disk was away, the replica was created on the other, and the first one came back."""

    async def main() -> None:
        first, second = tmp_path / "a", tmp_path / "b"
        configs = configs_for(tmp_path, **{"log.dirs": f"{first},{second}"})
        async with controller_for(configs, MemoryStore()) as controller:
            broker = broker_of(configs, controller)
            await broker.start()
            peer = await Peer.connect(broker.ports["PLAINTEXT"])
            await create(peer, "t")
            assert (await produce(peer, "t", b"newest")).error_code == 0
            await broker.stop()
            place, other = first / "t-0", second / "t-0"
            if not place.exists():
                place, other = other, place
            shutil.copytree(place, other)
            with pytest.raises(StartFailed, match=r"t-0 is in .* move the older") as refused:
                await broker_of(configs, controller).start()
            assert "\n" not in str(refused.value)
            assert str(first) in str(refused.value) and str(second) in str(refused.value)
            shutil.rmtree(other)
            again = broker_of(configs, controller)
            await again.start()
            hosted = again.broker.partitions.get("t", 0)
            assert hosted is not None and hosted.end_offset == 1
            await again.stop()

    asyncio.run(main())


@pytest.mark.parametrize("former", ["a", "b"])
def test_of_two_topics_of_one_name_the_one_that_the_controller_knows_is_served(
    tmp_path: Path, former: str
) -> None:
    """One disk was away while its topic was deleted and created again, and came back: no start."""

    async def main() -> None:
        places = [tmp_path / "a", tmp_path / "b"]
        configs = configs_for(tmp_path, **{"log.dirs": ",".join(map(str, places))})
        async with controller_for(configs, MemoryStore()) as controller:
            broker = broker_of(configs, controller)
            await broker.start()
            peer = await Peer.connect(broker.ports["PLAINTEXT"])
            await create(peer, "t")
            for value in (b"old", b"older"):
                assert (await produce(peer, "t", value)).error_code == 0
            await broker.stop()
            (kept,) = (each / "t-0" for each in places if (each / "t-0").exists())
            kept.rename(tmp_path / "kept")

            # The broker does not know of it: its deletion is confirmed at once.
            broker = broker_of(configs, controller)
            await broker.start()
            peer = await Peer.connect(broker.ports["PLAINTEXT"])
            deletion = messages.DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000)
            assert (await peer.ask(deletion, 5)).responses[0].error_code == 0
            await until(lambda: "t" not in controller.cluster.topics)
            await create(peer, "t")
            assert (await produce(peer, "t", b"new")).error_code == 0
            await broker.stop()
            (living,) = (each / "t-0" for each in places if (each / "t-0").exists())
            other = tmp_path / ("b" if former == "a" else "a") / "t-0"
            living.rename(other)
            (tmp_path / "kept").rename(tmp_path / former / "t-0")

            for life in range(2):
                broker = broker_of(configs, controller)
                await broker.start()
                partitions = broker.broker.partitions
                await until(lambda found=partitions: found.get("t", 0).is_leader)
                hosted = partitions.get("t", 0)
                assert (hosted.end_offset, hosted.log.path) == (1 + life, str(other))
                assert not (tmp_path / former / "t-0").exists()
                (aside,) = (tmp_path / former).glob("t-0.*-stray")
                assert list(aside.glob("*.log")), "it is not removed at once"
                peer = await Peer.connect(broker.ports["PLAINTEXT"])
                assert (await produce(peer, "t", b"more")).base_offset == 1 + life
                await broker.stop()

    asyncio.run(main())


def put_away(place: Path) -> Callable[[], None]:
    """Have a log directory not be one; return what brings it back."""
    kept = place.with_name(f"{place.name}.kept")
    place.rename(kept)
    place.write_text("no directory\n")

    def back() -> None:
        place.unlink()
        kept.rename(place)

    return back


def spoil_a_log(place: Path) -> Callable[[], None]:
    """Have a file of a log not be readable; return what makes it so again."""
    index = next(place.glob("t?-0/*.index"))
    content = index.read_bytes()
    index.unlink()
    index.mkdir()

    def back() -> None:
        index.rmdir()
        index.write_bytes(content)

    return back


@pytest.mark.parametrize("spoil", [put_away, spoil_a_log])
@pytest.mark.parametrize("away", [0, 1])
def test_a_broker_goes_on_with_its_other_log_directories(
    tmp_path: Path, away: int, spoil: Callable[[Path], Callable[[], None]]
) -> None:
    """S15: an error of one of them ended the start. Nothing of it is created again meanwhile."""

    async def main() -> None:
        places = [tmp_path / "a", tmp_path / "b"]
        configs = configs_for(tmp_path, **{"log.dirs": ",".join(map(str, places))})
        topics = [f"t{number}" for number in range(4)]
        async with controller_for(configs, MemoryStore()) as controller:
            clock = stand_still(controller)

            async def died(first_is_away: bool) -> None:
                # With another first directory it is another's node: it must be dead to come again.
                if first_is_away:
                    await silence(controller, clock, 7_000, 250)
                    assert not controller.cluster.brokers

            broker = broker_of(configs, controller)
            await broker.start()
            peer = await Peer.connect(broker.ports["PLAINTEXT"])
            for topic in topics:
                await create(peer, topic)
                assert (await produce(peer, topic, topic.encode())).error_code == 0
            seen = broker.broker.channel.seen_epochs
            await broker.stop()
            of = {
                topic: next(each for each in places if (each / f"{topic}-0").exists())
                for topic in topics
            }
            gone = [topic for topic in topics if of[topic] == places[away]]
            assert 0 < len(gone) < len(topics)

            back = spoil(places[away])
            await died(away == 0)
            broker = broker_of(configs, controller)
            await broker.start()
            assert broker.broker.channel.seen_epochs.controller_epoch >= seen.controller_epoch
            for topic in topics:
                hosted = broker.broker.partitions.get(topic, 0)
                assert (hosted is None) == (topic in gone), topic
            peer = await Peer.connect(broker.ports["PLAINTEXT"])
            for topic in topics:
                if topic not in gone:
                    assert (await produce(peer, topic, b"more")).error_code == 0
            # The emptiest directory gets a new replica, and the one that is away has none.
            await create(peer, "fresh")
            assert (await produce(peer, "fresh", b"new")).error_code == 0
            assert (places[1 - away] / "fresh-0").exists()
            await broker.stop()
            assert not [x for x in gone if (places[1 - away] / f"{x}-0").exists()]

            back()
            await died(away == 0)
            broker = broker_of(configs, controller)
            await broker.start()
            for topic in topics:
                hosted = broker.broker.partitions.get(topic, 0)
                assert hosted is not None
                assert hosted.end_offset == (1 if topic in gone else 2), topic
            await broker.stop()

    asyncio.run(main())


def test_a_broker_without_any_log_directory_does_not_start(tmp_path: Path) -> None:
    async def main() -> None:
        for name in "ab":
            (tmp_path / name).write_text("no directory\n")
        configs = configs_for(tmp_path, **{"log.dirs": f"{tmp_path}/a,{tmp_path}/b"})
        async with controller_for(configs, MemoryStore()) as controller:
            with pytest.raises(StartFailed, match=r"/a cannot be used: .*/b cannot be used") as no:
                await broker_of(configs, controller).start()
            assert "\n" not in str(no.value)

    asyncio.run(main())


def test_a_broker_whose_only_log_directory_cannot_be_read_does_not_start(tmp_path: Path) -> None:
    async def main() -> None:
        configs = configs_for(tmp_path, **{"log.dirs": str(tmp_path / "a")})
        async with controller_for(configs, MemoryStore()) as controller:
            broker = broker_of(configs, controller)
            await broker.start()
            peer = await Peer.connect(broker.ports["PLAINTEXT"])
            await create(peer, "t0")
            assert (await produce(peer, "t0", b"a")).error_code == 0
            await broker.stop()
            back = spoil_a_log(tmp_path / "a")
            refused = broker_of(configs, controller)
            with pytest.raises(StartFailed, match="/a cannot be read: "):
                await refused.start()
            await refused.stop()
            back()
            broker = broker_of(configs, controller)
            await broker.start()
            assert broker.broker.partitions.get("t0", 0) is not None
            await broker.stop()

    asyncio.run(main())


def test_a_store_that_has_gone_back_refuses_changes_at_once_and_says_why(tmp_path: Path) -> None:
    why = "The metadata store has gone back in time: see `tidelog doctor restored`."

    async def main() -> None:
        async with at_work(tmp_path) as (broker, controller):
            peer = await Peer.connect(broker.ports["PLAINTEXT"])
            await create(peer, "t")
            await controller.perform(
                lambda _: Decision(None, (Put(layout.WENT_BACK, WentBack(why)),))
            )
            create_topic = messages.CreateTopicsRequest
            delete = messages.DeleteTopicsRequest
            grow = messages.CreatePartitionsRequest
            new = create_topic.CreatableTopic(name="u", num_partitions=1, replication_factor=1)
            # Longer than ``Peer`` waits: no answer may be a time-out.
            for request, version in (
                (create_topic(topics=[new], timeout_ms=60_000), 7),
                (delete(topic_names=["t"], timeout_ms=60_000), 5),
                (grow(topics=[grow.CreatePartitionsTopic("t", 2)], timeout_ms=60_000), 3),
            ):
                answer = await peer.ask(request, version)
                parts = ("topics", "responses", "results")
                (one,) = next(getattr(answer, x) for x in parts if hasattr(answer, x))
                assert (one.error_code, one.error_message) == (ErrorCode.POLICY_VIOLATION, why)
            assert list(controller.cluster.topics) == ["t"]
            assert len(controller.cluster.topics["t"].partitions) == 1

    asyncio.run(main())


def test_a_port_in_use_is_one_line_and_leaves_the_directory_free(tmp_path: Path) -> None:
    async def main() -> None:
        with socket.socket() as holder:
            holder.bind(("127.0.0.1", 0))
            holder.listen()
            port = holder.getsockname()[1]
            listeners = f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:0"
            configs, store = configs_for(tmp_path, listeners=listeners), MemoryStore()
            async with controller_for(configs, store) as controller:
                with pytest.raises(StartFailed, match=f"{port}: the port is in use"):
                    await broker_of(configs, controller).start()
                free = broker_of(configs_for(tmp_path), controller)
                await free.start()
                await free.stop()

    asyncio.run(main())


def test_a_directory_of_another_cluster_is_one_line(tmp_path: Path) -> None:
    async def main() -> None:
        configs = configs_for(tmp_path)
        async with controller_for(configs, MemoryStore()) as controller:
            broker = broker_of(configs, controller)
            await broker.start()
            await broker.stop()
        async with controller_for(configs, MemoryStore()) as controller:
            with pytest.raises(StartFailed, match="belongs to cluster"):
                await broker_of(configs, controller).start()

    asyncio.run(main())


def test_without_a_controller_the_start_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "FIND_CONTROLLER_MS", 50)

    async def main() -> None:
        broker = BrokerProcess(configs_for(tmp_path), Seams(), [("127.0.0.1", 1)])
        with pytest.raises(StartFailed, match=r"127\.0\.0\.1:1"):
            await broker.start()

    asyncio.run(main())


class GatedDisk(RealDisk):
    """A disk on which the loading, in a thread, waits for ``gate`` before it lists a directory."""

    def __init__(self) -> None:
        self.listing = threading.Event()
        self.gate = threading.Event()

    def list(self, path: str) -> list[str]:
        if threading.current_thread() is not threading.main_thread():
            self.listing.set()
            assert self.gate.wait(DEADLINE_S)
        return super().list(path)


def test_a_start_that_is_called_off_while_it_loads_closes_nothing_early(tmp_path: Path) -> None:
    async def main() -> None:
        configs, store = configs_for(tmp_path), MemoryStore()
        async with controller_for(configs, store) as controller:
            first = broker_of(configs, controller)
            await first.start()
            peer = await Peer.connect(first.ports["PLAINTEXT"])
            await create(peer, "t")
            await produce(peer, "t", b"a")
            await first.stop()
            (tmp_path / ".kafka_cleanshutdown").unlink()
            before = (tmp_path / "replication-offset-checkpoint").read_text()
            assert "t 0 1" in before
            with ThreadPoolExecutor(1) as threads:
                disk = GatedDisk()
                seams = Seams(disk=disk, threads=threads)
                second = BrokerProcess(configs, seams, [("127.0.0.1", controller.listener_port)])
                starting = asyncio.create_task(second.start())
                await until(disk.listing.is_set)
                starting.cancel()
                await asyncio.sleep(0)
                disk.gate.set()
                with pytest.raises(asyncio.CancelledError):
                    await starting
            assert (tmp_path / "replication-offset-checkpoint").read_text() == before
            assert not (tmp_path / ".kafka_cleanshutdown").exists()
            third = broker_of(configs, controller)
            await third.start()
            assert third.broker.directories[0].last_stop is LastStop.CRASHED
            await third.stop()

    asyncio.run(main())


class GatedFile(RealFile):
    """A log file that is read one chunk each time that its disk lets it."""

    disk: GatedLogs

    def read_at(self, position: int, size: int) -> bytes:
        if size >= CHUNK_BYTES:
            self.disk.reading.set()
            assert self.disk.gate.acquire(timeout=DEADLINE_S)
        return super().read_at(position, size)


class GatedLogs(RealDisk):
    """A disk whose log files are read in chunks, each of which waits for ``gate``."""

    def __init__(self) -> None:
        self.reading = threading.Event()
        self.gate = threading.Semaphore(0)

    def open(self, path: str, *, create: bool = False, read_only: bool = False) -> RealFile:
        plain = super().open(path, create=create, read_only=read_only)
        if not path.endswith(".log"):
            return plain
        file = GatedFile(plain.path, plain._fd)
        file.disk = self
        return file


def test_a_long_recovery_says_how_far_it_is_and_can_be_called_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S8. It had said nothing, and a signal waited until the log that it was at was checked."""
    monkeypatch.setattr(log_directories, "SAY_LOADING_AFTER_S", 0.05)
    monkeypatch.setattr(log_directories, "SAY_LOADING_EVERY_S", 0.05)
    caplog.set_level("INFO", "tidelog.broker.partitions.log_directories")

    def said() -> list[str]:
        return [text for text in caplog.messages if "logs are open" in text]

    async def main() -> None:
        configs, store = configs_for(tmp_path), MemoryStore()
        async with controller_for(configs, store) as controller:
            first = broker_of(configs, controller)
            await first.start()
            peer = await Peer.connect(first.ports["PLAINTEXT"])
            await create(peer, "t")
            for _ in range(10):
                assert (await produce(peer, "t", bytes(CHUNK_BYTES // 2))).error_code == 0
            await first.stop()
            (tmp_path / ".kafka_cleanshutdown").unlink()
            (tmp_path / "recovery-point-offset-checkpoint").unlink()
            with ThreadPoolExecutor(1) as threads:
                disk = GatedLogs()
                seams = Seams(disk=disk, threads=threads)
                second = BrokerProcess(configs, seams, [("127.0.0.1", controller.listener_port)])
                starting = asyncio.create_task(second.start())
                await until(disk.reading.is_set)
                disk.gate.release(2)
                await until(lambda: any(f" {2 * CHUNK_BYTES} bytes checked" in x for x in said()))
                assert said()[-1].startswith(f"{tmp_path}: ") and "now t-0" in said()[-1]
                starting.cancel()
                await asyncio.sleep(0)
                # One chunk more, which was under way: five are left.
                disk.gate.release()
                with pytest.raises(asyncio.CancelledError):
                    await starting
            third = broker_of(configs, controller)
            await third.start()
            (directory,) = third.broker.directories
            assert directory.logs[TopicPartition("t", 0)].end_offset == 10
            await third.stop()

    asyncio.run(main())


def test_log_directories_are_loaded_side_by_side(tmp_path: Path) -> None:
    """S8. Each has a disk of its own, and one of them read while the others waited."""

    class Both(RealDisk):
        def __init__(self) -> None:
            self.meeting = threading.Barrier(2)

        def list(self, path: str) -> list[str]:
            # Before it loads them, the start looks on its own thread whether they are new.
            loads = threading.current_thread() is not threading.main_thread()
            if loads and path in (str(tmp_path / "a"), str(tmp_path / "b")):
                self.meeting.wait(DEADLINE_S)
            return super().list(path)

    async def main() -> None:
        dirs = f"{tmp_path / 'a'},{tmp_path / 'b'}"
        configs, store = configs_for(tmp_path, log_dirs=dirs), MemoryStore()
        async with controller_for(configs, store) as controller:
            with ThreadPoolExecutor(4) as threads:
                seams = Seams(disk=Both(), threads=threads)
                broker = BrokerProcess(configs, seams, [("127.0.0.1", controller.listener_port)])
                await broker.start()
                assert len(broker.broker.directories) == 2
                await broker.stop()

    asyncio.run(main())
