"""A broker in this process that takes markers, and requests for them, without a coordinator."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.support.group_broker import GroupBroker
from tests.support.isolation import COMMITTED
from tests.support.lone_broker import Peer
from tests.support.storage_logs import NOW_MS, batch
from tests.support.transactional_logs import batches_from, transactional
from tidelog.broker.handlers import txn_offset_commit, write_txn_markers
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, Router
from tidelog.protocol import messages
from tidelog.records.batch import Rejected
from tidelog.records.builder import Producer
from tidelog.records.control_records import EndMarker

ID, EPOCH, COORDINATOR = 7, 2, 5
"""Of the producer and of its coordinator, unless a test names others."""

_Request = messages.WriteTxnMarkersRequest


class MarkerBroker(GroupBroker):
    """Serves WriteTxnMarkers and TxnOffsetCommit; transactions are offered."""

    def router(self, extra: Iterable[Handler] = ()) -> Router:
        return super().router([write_txn_markers.HANDLER, txn_offset_commit.HANDLER, *extra])

    async def start(self) -> None:
        await super().start()
        self.broker.offered_transactions = True


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
