"""A broker in this process without a controller: partitions are led by a word of the test."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.processes import DEADLINE_S
from tests.support.storage_logs import QuickDisk
from tidelog.broker.assembly import Given, assemble
from tidelog.broker.handlers import (
    delete_records,
    describe_fences,
    describe_topic_partitions,
    fetch,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    produce,
)
from tidelog.broker.metadata.configurations import ConfigCache, EntityType
from tidelog.broker.partitions.partition import HostedPartition, LeaderAndIsrState
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.server import ServerConfigs, from_mapping
from tidelog.model.work import finish
from tidelog.network import api_versions
from tidelog.network.limits import Limits
from tidelog.network.router import Handler, Router, Scope
from tidelog.network.server import Server
from tidelog.protocol import codec, messages
from tidelog.runtime.loop import new_event_loop, run
from tidelog.runtime.seams import Seams
from tidelog.storage.directory.log_directory import LogDirectory, open_directory

CLUSTER = "lone-cluster-lone-clus"


class _SessionOfTest:
    """Passes everything on to the session that a test sets at any time, also when it has begun."""

    present: Any = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self.present, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "present":
            object.__setattr__(self, name, value)
        else:
            setattr(self.present, name, value)


class LoneBroker:
    """Start it inside a running loop; ``lead`` makes it lead a partition."""

    level: str | None = "1.5"
    """The level that its controller has sent before the test begins; None: no controller has."""

    def __init__(
        self, folder: Path, config: Mapping[str, object] | None = None, seams: Seams | None = None
    ) -> None:
        texts = {
            "process.roles": "broker",
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "controller.quorum.bootstrap.servers": "127.0.0.1:1",
            "auto.create.topics.enable": "false",
            "log.dirs": str(folder),
        } | {name: str(value) for name, value in (config or {}).items()}
        configs = from_mapping(texts)
        assert isinstance(configs, ServerConfigs), configs
        self.configs = configs
        # No test cuts its power, so none needs to wait for its syncs.
        self.seams = seams or Seams(disk=QuickDisk())
        self.port = 0
        self._next_producer_id = 1000
        self._session = _SessionOfTest()

    @property
    def session(self) -> Any:
        """The broker's session with its controller, as the test has set it."""
        return self._session.present

    @session.setter
    def session(self, session: Any) -> None:
        self._session.present = session

    async def start(self) -> None:
        """Open the directory, load the logs, listen."""
        directories = []
        topic_configs = ConfigCache(1, self.configs.texts)
        for path in self.configs.log_dirs:
            directory = open_directory(
                self.seams, path, cluster_id=CLUSTER, node_id=1, boot_id="boot"
            )
            assert isinstance(directory, LogDirectory), directory
            directory.resources.checks_records = self.configs.log_batch_check == "full"
            directory.load(topic_configs.at_start)
            directories.append(directory)
        session: Any = self._session
        self.broker = assemble(
            Given(
                configs=self.configs,
                seams=self.seams,
                cluster_id=CLUSTER,
                directories=directories,
                topic_configs=topic_configs,
                session=session,
            )
        )
        if self.level is not None:
            self.broker.cluster_level.take(self.level)
        self.server = Server(self.router(), self.broker, Limits())
        self.port = await self.server.listen("PLAINTEXT", "127.0.0.1", 0)
        self.bootstrap = f"127.0.0.1:{self.port}"

    def router(self, extra: Iterable[Handler] = ()) -> Router:
        """The handlers of what leaders answer, and producer ids from nowhere."""
        modules = (
            produce,
            fetch,
            list_offsets,
            metadata,
            offset_for_leader_epoch,
            describe_fences,
            describe_topic_partitions,
            delete_records,
        )
        served = [api_versions.HANDLER, *(each.HANDLER for each in modules), *extra]
        if all(each.api_key is not ApiKey.INIT_PRODUCER_ID for each in served):
            served.append(Handler(ApiKey.INIT_PRODUCER_ID, Scope.CLIENT, self._init_producer_id))
        return Router(served, lambda: self.broker.cluster_level.offers_transactions)

    def _init_producer_id(self, *_: object) -> Any:
        self._next_producer_id += 1
        return messages.InitProducerIdResponse(
            error_code=0, producer_id=self._next_producer_id, producer_epoch=0
        )

    def lead(
        self,
        topic: str,
        partitions: int = 1,
        configs: Mapping[str, str] | None = None,
        *,
        epoch: int = 0,
        isr: tuple[int, ...] = (1,),
        replicas: tuple[int, ...] = (1,),
        targets: tuple[int, ...] = (),
        leader: int = 1,
        isr_version: int = 0,
    ) -> HostedPartition:
        """Lead (or follow) partitions 0..n-1 of a topic; return the first."""
        broker = self.broker
        if configs is not None:
            finish(broker.topic_configs.apply([(EntityType.TOPIC, topic, configs)], complete=False))
        topic_id = uuid.uuid5(uuid.NAMESPACE_OID, topic)
        state = LeaderAndIsrState(
            topic_id=topic_id,
            partition_epoch=0,
            leader=leader,
            leader_epoch=epoch,
            isr=isr,
            isr_version=isr_version,
            replicas=replicas,
            targets=targets,
        )
        for index in range(partitions):
            broker.partitions.apply(broker.partitions.create(topic, index, state), state)
        self._tell_metadata(topic, topic_id, partitions, state)
        hosted = broker.partitions.get(topic, 0)
        assert hosted is not None
        return hosted

    def _tell_metadata(
        self, topic: str, topic_id: uuid.UUID, partitions: int, state: LeaderAndIsrState
    ) -> None:
        request = messages.UpdateMetadataRequest
        states = [
            request.UpdateMetadataPartitionState(
                partition_index=index,
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                isr=list(state.isr),
                isr_version=state.isr_version,
                replicas=list(state.replicas),
            )
            for index in range(partitions)
        ]
        end = request.UpdateMetadataEndpoint(port=self.port, host="127.0.0.1", listener="PLAINTEXT")
        update = request(
            controller_id=1,
            topic_states=[
                request.UpdateMetadataTopicState(
                    topic_name=topic, topic_id=topic_id, partition_states=states
                )
            ],
            live_brokers=[request.UpdateMetadataBroker(id=1, endpoints=[end])],
        )
        self.broker.metadata.apply(update, complete=False)

    async def stop(self) -> None:
        """Stop serving and leave the logs as a clean stop does."""
        await self.broker.markers.sender.close()
        await self.broker.inspected_appends.stop()
        self.broker.partitions.close()
        await self.broker.future_replicas.close()
        await self.server.stop(grace_s=0.5)
        self.broker.other_brokers.close()
        await self.broker.maintenance.stop()
        await self.broker.log_work.settled()
        await self.broker.commit.settled()
        for directory in self.broker.directories:
            directory.close()


def know_brokers(lone: LoneBroker, *alive: int) -> None:
    """Send a broker the set of live brokers."""
    request = messages.UpdateMetadataRequest
    end = request.UpdateMetadataEndpoint(port=lone.port, host="127.0.0.1", listener="PLAINTEXT")
    brokers = [request.UpdateMetadataBroker(id=node_id, endpoints=[end]) for node_id in alive]
    lone.broker.metadata.apply(request(controller_id=1, live_brokers=brokers), complete=False)


class ThreadedBroker:
    """A ``LoneBroker`` on a loop in a thread of its own, for blocking clients."""

    def __init__(self, folder: Path, config: Mapping[str, object] | None = None) -> None:
        self.lone = LoneBroker(folder, config)
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def run(self, work: Callable[[LoneBroker], Any]) -> Any:
        """Call ``work`` on the broker's loop and return its result."""

        async def call() -> Any:
            result = work(self.lone)
            return await result if asyncio.iscoroutine(result) else result

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(DEADLINE_S)

    def __enter__(self) -> LoneBroker:
        self._thread.start()
        self.run(lambda lone: lone.start())
        return self.lone

    def __exit__(self, *_: object) -> None:
        with suppress(TimeoutError):
            self.run(lambda lone: lone.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


class Peer:
    """A client that speaks messages over one connection, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self.writer = writer
        self._sent = 0
        self.client_id: str | None = "peer"
        self._asked: dict[int, tuple[int, int]] = {}

    @classmethod
    async def connect(cls, port: int, own_host: str | None = None) -> Peer:
        """Connect to a server on this machine, from any address or from ``own_host``."""
        own = None if own_host is None else (own_host, 0)
        stream = asyncio.open_connection("127.0.0.1", port, limit=2**27, local_addr=own)
        return cls(*await stream)

    def send(self, request: Any, version: int) -> int:
        """Send a request; return its correlation id."""
        name = type(request).__qualname__.removesuffix("Request")
        key = next(key for key in ApiKey if key.name.replace("_", "") == name.upper())
        self._sent += 1
        self._asked[self._sent] = (int(key), version)
        self.writer.write(
            b"".join(codec.encode_request(key, version, self._sent, self.client_id, request))
        )
        return self._sent

    def asked(self, correlation_id: int, api_key: int, version: int) -> None:
        """Expect an answer to bytes that the test wrote itself."""
        self._asked[correlation_id] = (int(api_key), version)

    async def receive(self) -> Any:
        """Return the next answer; ConnectionError when the server closes instead."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                size = int.from_bytes(await self._reader.readexactly(4), "big")
                frame = memoryview(await self._reader.readexactly(size))
            except asyncio.IncompleteReadError as error:
                raise ConnectionError("the server closed the connection") from error
        key, version = self._asked.pop(int.from_bytes(frame[:4], "big"))
        return codec.decode_response(key, version, frame)[1]

    async def ask(self, request: Any, version: int) -> Any:
        """Send and wait for the answer."""
        self.send(request, version)
        return await self.receive()


async def until(condition: Callable[[], object], deadline_s: float = DEADLINE_S) -> None:
    """Wait for a condition on this loop; TimeoutError after the deadline."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 - any condition, not an event of ours
            await asyncio.sleep(0.002)


def with_broker(folder: Path, story: Callable[[LoneBroker, Peer], Awaitable[None]]) -> None:
    """Run ``story`` with a broker of its own and one client."""

    async def main() -> None:
        lone = LoneBroker(folder)
        await lone.start()
        peer = await Peer.connect(lone.port)
        try:
            await story(lone, peer)
        finally:
            peer.writer.close()
            await lone.stop()

    run(main())
