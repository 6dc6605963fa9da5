"""Each API of broker and controller with one request, and two servers that demand a secret."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from tests.support.lone_broker import Peer
from tests.support.lone_controller import LoneController
from tests.support.proofs import secret_in, write_secret
from tidelog.broker import handlers
from tidelog.broker.process import BrokerProcess
from tidelog.controller.handlers import HANDLERS
from tidelog.metadata.memory import MemoryStore
from tidelog.model.api_keys import ApiKey
from tidelog.model.configs.server import ServerConfigs, from_mapping
from tidelog.model.errors import ErrorCode
from tidelog.network import api_versions
from tidelog.network.router import Router
from tidelog.protocol import codec, messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.seams import Seams

REFUSED = int(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
ROUTERS = {
    "broker": Router([api_versions.HANDLER, *handlers.HANDLERS]),
    "controller": Router([api_versions.HANDLER, *HANDLERS]),
}


class World:
    """A broker and a controller with a secret, in this process, each on its own listener."""

    def __init__(self, folder: Path, config: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.store = MemoryStore()
        path = write_secret(folder / "secrets")
        self.proof = secret_in(path)
        texts = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
            "log.dirs": str(folder / "logs"),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "auto.create.topics.enable": "false",
            **(config or {}),
        }
        configs = from_mapping(texts)
        assert isinstance(configs, ServerConfigs), configs
        seams = Seams()
        secret = self.secret = ClusterSecret(seams.disk, str(path), seams.clock, seams.random)
        self.controller = LoneController(configs, seams, self.store, secret)
        self.broker = BrokerProcess(configs, seams, secret=secret)

    async def start(self) -> None:
        await self.controller.start()
        self.broker._controllers = [("127.0.0.1", self.controller.listener_port)]
        await self.broker.start()
        peer = await Peer.connect(self.port("broker"))
        request = messages.CreateTopicsRequest
        topic = request.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
        answer = await peer.ask(request(topics=[topic], timeout_ms=20_000), 7)
        assert answer.topics[0].error_code == 0

    async def stop(self) -> None:
        await self.broker.stop()
        await self.controller.stop()

    def port(self, role: str) -> int:
        if role == "broker":
            return self.broker.ports["PLAINTEXT"]
        return self.controller.listener_port

    @property
    def key(self) -> UUID:
        """The key of the present control channel."""
        return self.broker.broker.session.channel_key

    def opening(self, key: UUID, **changes: Any) -> messages.OpenControlChannelRequest:
        cluster = self.controller.cluster
        fields = {
            "controller_id": 1,
            "controller_epoch": cluster.controller_epoch,
            "broker_epoch": self.broker.broker.session.broker_epoch,
            "channel_number": 1000,
            "store_revision": cluster.revision,
            "channel_key": key,
        }
        return messages.OpenControlChannelRequest(**{**fields, **changes})

    def state(self) -> Any:
        """What no refused request may change: names and seen epochs on disk, the store, the ISR."""
        logs = self.folder / "logs"
        channel = self.broker.broker.channel.present
        assert channel is not None
        return (
            sorted(str(path.relative_to(logs)) for path in logs.rglob("*") if path.is_dir()),
            (logs / "controller-seen").read_bytes(),
            {path: (node.data, node.version) for path, node in self.store.tree.nodes.items()},
            [(p.key, p.isr, p.leader_epoch) for p in self.broker.broker.partitions.all()],
            (channel.controller_epoch, channel.number, channel.connection),
            self.broker.broker.channel.seen_epochs,
        )


@asynccontextmanager
async def world_in(folder: Path, config: Mapping[str, str] | None = None) -> AsyncIterator[World]:
    """Start a world; ``config`` overrides lines of its file."""
    world = World(folder, config)
    try:
        await world.start()
        yield world
    finally:
        await world.stop()


def request_of(key: ApiKey) -> Any:
    """The smallest request of an API that is answered."""
    request = messages.classes_of(codec.api_of(key).request)[""]()
    if key is ApiKey.PRODUCE:
        request.acks = 1
    if key is ApiKey.INIT_PRODUCER_ID:
        request.transactional_id = None
    return request


def codes_in(answer: Any) -> Iterator[int]:
    """Every error code of an answer, however deep."""
    if isinstance(answer, msgspec.Struct):
        for name in answer.__struct_fields__:
            value = getattr(answer, name)
            if name == "error_code":
                yield int(value)
            else:
                yield from codes_in(value)
    elif isinstance(answer, list):
        for each in answer:
            yield from codes_in(each)


def asking(key: ApiKey, replica_id: int | None, topic_id: UUID | None = None) -> Any:
    """A request for partition 0 of the topic t."""
    if key is ApiKey.FETCH:
        fetch = messages.FetchRequest
        part: Any = fetch.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)
        topic = fetch.FetchTopic("t", topic_id or NO_UUID, [part])
        request: Any = fetch(max_bytes=1000, topics=[topic], session_epoch=-1)
        request.replica_state = fetch.ReplicaState(-2 if replica_id is None else replica_id)
    elif key is ApiKey.LIST_OFFSETS:
        offsets = messages.ListOffsetsRequest
        part = offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)
        request = offsets(topics=[offsets.ListOffsetsTopic("t", [part])])
    else:
        epochs = messages.OffsetForLeaderEpochRequest
        part = epochs.OffsetForLeaderPartition(partition=0, leader_epoch=0)
        request = epochs(topics=[epochs.OffsetForLeaderTopic("t", [part])])
    request.replica_id = -2 if replica_id is None else replica_id
    return request
