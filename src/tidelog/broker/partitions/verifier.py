"""Questions of leaders to coordinators of transactions: AddPartitionsToTxn v4, to verify only.

Owns which broker is asked, and the batching: each coordinator has one request in flight, and what
arrives meanwhile goes into the next one, many transactions together. Not what an answer means: see
`verification`. Not the connections: see `other_brokers`; those of the questions carry nothing else,
so that no marker or look-up holds a batch up.

An answer goes only to the question that was sent with it: one that was sent before may come from
before the end of an earlier transaction.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from tidelog.broker.partitions.verification import Claim, Verification, verification_of
from tidelog.groups.placement import partition_for
from tidelog.model.api_keys import ApiKey
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TRANSACTIONS_TOPIC, TopicPartition
from tidelog.protocol import messages
from tidelog.runtime.tasks import call_off

if TYPE_CHECKING:
    from tidelog.broker.metadata.cache import MetadataCache
    from tidelog.broker.metadata.configurations import ConfigCache
    from tidelog.broker.metadata.other_brokers import OtherBrokers

logger = logging.getLogger(__name__)

ENABLED = "transaction.partition.verification.enable"
VERSION = 4
PURPOSE = "the verification of transactions"

QUESTION_MS = 5_000
"""Limit of one request, if ``request.timeout.ms`` is not less. The answer is in the coordinator's
memory; a frozen one holds up what waits for it no longer, and clients send their batches again."""

MOST_PARTITIONS = 2_000
"""Partitions in one request; the others are in the next one."""

MOST_BYTES = 1024 * 1024
"""Bytes of transactional ids and topic names in one request, which may have more by one partition:
ids may have 32 KiB each."""

_Request = messages.AddPartitionsToTxnRequest
_Questions = dict[TopicPartition, "asyncio.Future[Verification]"]


class _Coordinator:
    """The questions to one broker that are not sent yet, the oldest first."""

    __slots__ = ("waiting",)

    def __init__(self) -> None:
        self.waiting: dict[Claim, _Questions] = {}

    def take(self) -> dict[Claim, _Questions]:
        """Return the questions of the next request: of each transactional id one transaction, for
        the response names nothing else of it."""
        taken: dict[Claim, _Questions] = {}
        ids: set[str] = set()
        partitions = size = 0
        for claim, questions in list(self.waiting.items()):
            if claim.transactional_id in ids:
                continue
            of_claim: _Questions = {}
            while questions and partitions < MOST_PARTITIONS and size < MOST_BYTES:
                key = next(iter(questions))
                outcome = questions.pop(key)
                if not outcome.done():  # its batch has waited for too long otherwise
                    of_claim[key] = outcome
                    partitions += 1
                    size += len(key.topic)
            if not questions:
                del self.waiting[claim]
            if of_claim:
                taken[claim] = of_claim
                ids.add(claim.transactional_id)
                size += len(claim.transactional_id)
        return taken


class Verifier:
    """The questions of one broker. Used on the event loop only."""

    def __init__(self, metadata: MetadataCache, others: OtherBrokers, configs: ConfigCache) -> None:
        """``others``: with connections for these questions alone."""
        self.others = others
        self._metadata = metadata
        self._configs = configs
        self._coordinators: dict[int, _Coordinator] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.requests = 0
        """How many were sent."""

    @property
    def is_enabled(self) -> bool:
        """Whether batches are verified now."""
        return bool(self._configs.number(ENABLED, 1))

    async def verification(
        self, claim: Claim, key: TopicPartition, coordinator_epoch: int, deadline: float
    ) -> Verification:
        """Return whether a partition is in an open transaction, as its coordinator says before
        ``deadline`` in the time of the loop. A coordinator of an older epoch than
        ``coordinator_epoch``, that of the producer's last marker, is deposed and not asked."""
        loop = asyncio.get_running_loop()
        broker = self._coordinator_of(claim.transactional_id, coordinator_epoch)
        if broker < 0 or loop.time() >= deadline:
            return Verification.UNANSWERED
        coordinator = self._coordinators.get(broker)
        is_new = coordinator is None
        if coordinator is None:
            coordinator = self._coordinators[broker] = _Coordinator()
        outcome: asyncio.Future[Verification] = loop.create_future()
        coordinator.waiting.setdefault(claim, {})[key] = outcome
        if is_new:
            task = loop.create_task(self._ask(broker, coordinator), name="verifications")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            async with asyncio.timeout_at(deadline):
                return await outcome
        except TimeoutError:
            return Verification.UNANSWERED

    async def stop(self) -> None:
        """Stop; questions without an answer have none."""
        await call_off(self._tasks)
        self.others.close()

    def _coordinator_of(self, transactional_id: str, not_before: int) -> int:
        """Return the broker that coordinates an id; -1 while none is known of such an epoch."""
        topic = self._metadata.topic(TRANSACTIONS_TOPIC)
        count = 0 if topic is None else topic.undeleted_partition_count
        if topic is not None and count <= 0:
            count = len(topic.partitions)
        if not count:
            return -1
        number = partition_for(transactional_id, count)
        partition = self._metadata.partition(TRANSACTIONS_TOPIC, number)
        if partition is None or partition.leader_epoch < not_before:
            return -1
        return partition.leader

    async def _ask(self, broker: int, coordinator: _Coordinator) -> None:
        """Send what waits, one request at a time, until nothing does."""
        sent: dict[Claim, _Questions] = {}
        try:
            while coordinator.waiting:
                sent = coordinator.take()
                if not sent:
                    continue
                self.requests += 1
                answers = await self.others.ask(
                    broker, PURPOSE, ApiKey.ADD_PARTITIONS_TO_TXN, VERSION, [request_of(sent)]
                )
                _resolve(sent, answers[0] if answers else None)
        except Exception:
            logger.exception("broker %d could not be asked for %s", broker, PURPOSE)
        finally:
            del self._coordinators[broker]
            for questions in (*sent.values(), *coordinator.waiting.values()):
                _give_up(questions)


def request_of(sent: dict[Claim, _Questions]) -> Any:
    """Return the request with these questions."""
    transactions = []
    for claim, questions in sent.items():
        topics: dict[str, Any] = {}
        for topic, partition in questions:
            if topic not in topics:
                topics[topic] = _Request.AddPartitionsToTxnTopic(name=topic, partitions=[])
            topics[topic].partitions.append(partition)
        transactions.append(
            _Request.AddPartitionsToTxnTransaction(
                transactional_id=claim.transactional_id,
                producer_id=claim.producer_id,
                producer_epoch=claim.producer_epoch,
                verify_only=True,
                topics=list(topics.values()),
            )
        )
    return _Request(transactions=transactions)


def _resolve(sent: dict[Claim, _Questions], response: Any) -> None:
    """Answer the questions of a request; those that the response leaves out have no answer."""
    by_id = {claim.transactional_id: questions for claim, questions in sent.items()}
    if response is not None and response.error_code == ErrorCode.NONE:
        for result in response.results_by_transaction:
            questions = by_id.get(result.transactional_id, {})
            for topic in result.topic_results:
                for part in topic.results_by_partition:
                    key = TopicPartition(topic.name, part.partition_index)
                    outcome = questions.get(key)
                    if outcome is not None and not outcome.done():
                        outcome.set_result(verification_of(part.error_code))
    for questions in sent.values():
        _give_up(questions)


def _give_up(questions: _Questions) -> None:
    for outcome in questions.values():
        if not outcome.done():
            outcome.set_result(Verification.UNANSWERED)
