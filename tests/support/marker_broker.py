"""A broker in this process that takes markers, and requests for them, without a coordinator."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tests.support.group_broker import GroupBroker
from tests.support.isolation import COMMITTED
from tests.support.lone_broker import Peer, until
from tests.support.storage_logs import NOW_MS, batch
from tests.support.transactional_logs import batches_from, transactional
from tidelog.broker.handlers import txn_offset_commit, write_txn_markers
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.broker.partitions.verifier import ENABLED
from tidelog.broker.transactions.marker_sender import MarkerSender
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.network.router import Handler, Router
from tidelog.protocol import messages
from tidelog.records.batch import Rejected
from tidelog.records.builder import Producer
from tidelog.records.control_records import EndMarker
from tidelog.transactions.decision import SendMarkers
from tidelog.transactions.state import IdAndEpoch

ID, EPOCH, COORDINATOR = 7, 2, 5
"""Of the producer and of its coordinator, unless a test names others."""

_Request = messages.WriteTxnMarkersRequest

SENDER = "broker-2-markers"
"""The client id of another broker's sender: its markers are those of a coordinator."""


class MarkerBroker(GroupBroker):
    """Serves WriteTxnMarkers and TxnOffsetCommit; transactions are offered, and no coordinator is
    asked whether they are open, unless ``config`` says so."""

    def __init__(self, folder: Path, config: Mapping[str, object] | None = None) -> None:
        super().__init__(folder, {ENABLED: "false", **(config or {})})

    def router(self, extra: Iterable[Handler] = ()) -> Router:
        return super().router([write_txn_markers.HANDLER, txn_offset_commit.HANDLER, *extra])

    async def start(self) -> None:
        await super().start()
        self.broker.cluster_level.take("1.6")


def marker(
    *places: tuple[str, int],
    committed: bool = True,
    producer_id: int = ID,
    epoch: int = EPOCH,
    coordinator: int = COORDINATOR,
) -> Any:
    """One marker of a request, for these partitions in their order."""
    topics: list[Any] = []
    for topic, index in places:
        if not topics or topics[-1].name != topic:
            topics.append(_Request.WritableTxnMarkerTopic(topic, []))
        topics[-1].partition_indexes.append(index)
    return _Request.WritableTxnMarker(producer_id, epoch, committed, topics, coordinator)


def request(*asked: Any) -> messages.WriteTxnMarkersRequest:
    return _Request(markers=list(asked))


def errors_of(response: messages.WriteTxnMarkersResponse) -> list[ErrorCode]:
    """The errors of all partitions of a response, in its order."""
    return [
        ErrorCode(part.error_code)
        for each in response.markers
        for topic in each.topics
        for part in topic.partitions
    ]


async def sender_to(broker: GroupBroker) -> Peer:
    """Connect to a broker as another broker's sender of markers."""
    peer = await Peer.connect(broker.port)
    peer.client_id = SENDER
    return peer


async def write(peer: Peer, *asked: Any) -> list[ErrorCode]:
    """Send markers in one request; return the errors of its partitions."""
    return errors_of(await peer.ask(request(*asked), 1))


def begin(
    hosted: HostedPartition, producer_id: int = ID, epoch: int = EPOCH, sequence: int = 0
) -> int:
    """Append a record of a transaction as its leader; return its offset."""
    made = transactional(batch(1, producer=Producer(producer_id, epoch, sequence)))
    got = hosted.append(made, NOW_MS, from_client=False)
    assert not isinstance(got, Rejected), got
    return got.first_offset


def markers_of(hosted: HostedPartition) -> list[tuple[int, int, EndMarker]]:
    """Producer id, epoch and content of each marker of a log."""
    return [
        (header.producer_id, header.producer_epoch, ended)
        for header, ended in batches_from(hosted.log)
        if ended is not None
    ]


async def read_committed(peer: Peer, topic: str, index: int = 0) -> tuple[int, list[int]]:
    """The last stable offset, and first offsets of the transactions that a reader is to drop."""
    asked = messages.FetchRequest
    part = asked.FetchPartition(index, -1, 0, -1, -1, 2**20)
    fetch = asked(
        max_wait_ms=0,
        isolation_level=COMMITTED,
        topics=[asked.FetchTopic(topic, partitions=[part])],
    )
    (answer,) = (await peer.ask(fetch, 11)).responses[0].partitions
    assert answer.error_code == ErrorCode.NONE
    dropped = [one.first_offset for one in answer.aborted_transactions or ()]
    return answer.last_stable_offset, dropped


async def follower_fetches(
    peer: Peer, topic: str, offset: int, *, epoch: int, index: int = 0
) -> None:
    """Fetch as broker 2, which has everything below an offset."""
    asked = messages.FetchRequest
    part = asked.FetchPartition(index, epoch, offset, -1, 0, 2**20)
    fetch = asked(
        replica_id=2,
        max_wait_ms=0,
        topics=[asked.FetchTopic(topic, partitions=[part])],
        replica_broker_epoch=20,
    )
    (answer,) = (await peer.ask(fetch, 12)).responses[0].partitions
    assert answer.error_code == ErrorCode.NONE


class MarkerBrokers:
    """Brokers 1 to 3 in this process; broker 1 sends, with the metadata that a test sets."""

    def __init__(self, folder: Path) -> None:
        self.all = {
            node_id: MarkerBroker(folder / f"{node_id}", {"node.id": node_id})
            for node_id in (1, 2, 3)
        }
        self.ports: dict[int, int] = {}
        """Where broker 1 believes the others to be."""
        self._leaders: dict[str, tuple[int, int]] = {}
        self.written: list[str] = []
        """The transactions that are durable."""

    async def __aenter__(self) -> MarkerBrokers:
        for node_id, each in self.all.items():
            await each.start()
            self.ports[node_id] = each.port
        return self

    async def __aexit__(self, *_: object) -> None:
        for each in self.all.values():
            await each.stop()

    @property
    def sender(self) -> MarkerSender:
        return self.all[1].broker.markers.sender

    def lead(self, topic: str, node_id: int, epoch: int = 0, **more: Any) -> HostedPartition:
        """Let a broker lead a topic of one partition; others do not know of it."""
        one = {"leader": node_id, "isr": (node_id,), "replicas": (node_id,), **more}
        return self.all[node_id].lead(topic, epoch=epoch, **one)

    def know(self, **leaders: tuple[int, int]) -> None:
        """Let broker 1 know the leaders of topics, with their epochs, and where all brokers are."""
        self._leaders.update(leaders)
        update = messages.UpdateMetadataRequest
        states = [
            update.UpdateMetadataTopicState(
                topic_name=topic,
                topic_id=uuid.uuid5(uuid.NAMESPACE_OID, topic),
                partition_states=[
                    update.UpdateMetadataPartitionState(
                        partition_index=0, leader=leader, leader_epoch=epoch, isr=[leader]
                    )
                ],
            )
            for topic, (leader, epoch) in self._leaders.items()
        ]
        brokers = [
            update.UpdateMetadataBroker(
                id=node_id,
                endpoints=[
                    update.UpdateMetadataEndpoint(port=port, host="127.0.0.1", listener="PLAINTEXT")
                ],
            )
            for node_id, port in self.ports.items()
        ]
        request = update(controller_id=1, topic_states=states, live_brokers=brokers)
        self.all[1].broker.metadata.apply(request, complete=False)

    def forget(self, topic: str) -> None:
        """Let broker 1 know nothing of a topic, as one that has just started."""
        del self._leaders[topic]
        request = messages.UpdateMetadataRequest(controller_id=1, live_brokers=[])
        self.all[1].broker.metadata.apply(request, complete=True)
        self.know()

    def end(
        self, name: str, *topics: str, producer_id: int = ID, state_partition: int = 0, **more: Any
    ) -> None:
        """Send the markers of a transaction to partition 0 of these topics."""
        asked = SendMarkers(
            name,
            IdAndEpoch(producer_id, EPOCH),
            more.get("committed", True),
            tuple(TopicPartition(topic, 0) for topic in topics),
        )
        self.sender.send(state_partition, COORDINATOR, asked, lambda: self.written.append(name))

    async def until_written(self, *names: str) -> None:
        """Wait for transactions to be durable; each is so once."""
        await until(lambda: set(names) <= set(self.written))
        assert len(self.written) == len(set(self.written))

    def requests(self, node_id: int) -> int:
        """How many WriteTxnMarkers a broker has got."""
        return self.all[node_id].server.router.tallies[ApiKey.WRITE_TXN_MARKERS].requests
