"""A broker with a controller in one process: how it starts, what stops it, what it leaves."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.support.lone_broker import Peer, until
from tests.support.processes import DEADLINE_S

from tidelog.broker import process
from tidelog.broker.process import BrokerProcess, StartFailed
from tidelog.controller.decisions.cluster import Decision, Put
from tidelog.controller.process import Controller
from tidelog.metadata import layout
from tidelog.metadata.memory import MemoryStore
from tidelog.metadata.records import WentBack
from tidelog.model.errors import ErrorCode
from tidelog.model.server_configs import ServerConfigs, from_mapping
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch
from tidelog.runtime.descriptors import Descriptors
from tidelog.runtime.disk import RealDisk
from tidelog.runtime.seams import Seams
from tidelog.storage.directory import LastLife


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
async def controller_for(configs: ServerConfigs, store: MemoryStore) -> AsyncIterator[Controller]:
    controller = Controller(configs, Seams(), store)
    await controller.start()
    try:
        yield controller
    finally:
        await controller.stop()


def broker_of(configs: ServerConfigs, controller: Controller) -> BrokerProcess:
    return BrokerProcess(configs, Seams(), [("127.0.0.1", controller.listener_port)])


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
    answer = await peer.ask(request(acks=-1, timeout_ms=5000, topic_data=[data]), 9)
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
            assert directory.last_life is LastLife.CLEAN
            await until(lambda: again.broker.partitions.get("t", 0).is_leader)
            peer = await Peer.connect(again.ports["PLAINTEXT"])
            assert (await produce(peer, "t", b"b")).base_offset == 1
            await again.stop()

    asyncio.run(main())


def test_topic_configurations_reach_the_log_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        configs, store = configs_for(tmp_path), MemoryStore()
        async with controller_for(configs, store) as controller:
            broker = broker_of(configs, controller)
            await broker.start()
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
            await broker.stop()

    asyncio.run(main())


def test_limits_of_connections_change_while_it_runs(tmp_path: Path) -> None:
    async def main() -> None:
        configs, store = configs_for(tmp_path), MemoryStore()
        async with controller_for(configs, store) as controller:
            broker = broker_of(configs, controller)
            await broker.start()
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
                there = len(broker.broker.server.connections)
                peer = await Peer.connect(broker.ports["PLAINTEXT"])
                try:
                    await peer.ask(messages.MetadataRequest(), 8)
                except ConnectionError:
                    return False
                finally:
                    peer.writer.close()
                    await until(lambda: len(broker.broker.server.connections) == there)
                return True

            assert await is_served()
            # All that there are: the controller's and the admin's.
            there = len(broker.broker.server.connections)
            for name in ("max.connections", "max.connections.per.ip"):
                await alter("", name, there)
                assert not await is_served()
                await alter("1", name, there + 1)
                assert await is_served(), "its own goes before that of all brokers"
                await alter("1", name, None)
                assert not await is_served()
                await alter("", name, None)
                assert await is_served()
            few = process.limits_of(configs, Descriptors(10, 10), broker.broker.topic_configs)
            assert few.max_connections == 10, "as many as there are descriptors for"
            await broker.stop()

    asyncio.run(main())


def test_a_second_server_on_the_same_directory_is_one_line(tmp_path: Path) -> None:
    async def main() -> None:
        configs, store = configs_for(tmp_path), MemoryStore()
        async with controller_for(configs, store) as controller:
            broker = broker_of(configs, controller)
            await broker.start()
            with pytest.raises(StartFailed, match="in use by another server") as refused:
                await broker_of(configs, controller).start()
            assert "\n" not in str(refused.value)
            await broker.stop()

    asyncio.run(main())


def test_a_replica_in_two_log_directories_is_one_line(tmp_path: Path) -> None:
    """One disk was away, the replica was made anew on the other, and the first one came back."""

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
            with pytest.raises(StartFailed, match=r"t-0 lies in .* move the older") as refused:
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


def test_a_store_that_has_gone_back_refuses_changes_at_once_and_says_why(tmp_path: Path) -> None:
    why = "The metadata store has gone back in time: see `tidelog doctor restored`."

    async def main() -> None:
        configs, store = configs_for(tmp_path), MemoryStore()
        async with controller_for(configs, store) as controller:
            broker = broker_of(configs, controller)
            await broker.start()
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
            await broker.stop()

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
    """A disk that takes its time to list a directory, once it is told to."""

    def __init__(self) -> None:
        self.listing = threading.Event()
        self.gate = threading.Event()

    def list(self, path: str) -> list[str]:
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
            assert third.broker.directories[0].last_life is LastLife.CRASHED
            await third.stop()

    asyncio.run(main())
