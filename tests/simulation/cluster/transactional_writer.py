"""A transactional producer of a simulated cluster, with the habits of stock clients under faults.

Owns what it sends, sends again and gives up, and what it may conclude from a response. Uses the
product's connections and codecs, and keeps its own books: a mistake in the product's producer
cannot hide one in the server.

An *instance* is one process with the id. It ends when it is fenced, when it gives up, or when it
is drawn to crash; the next one asks for the id again. Some instances sleep through their time-out
and go on then, also beside their successor. After an abort with something in doubt the producer
raises its epoch (KIP-360), as the Java client does, and so it does where the response to a commit
was lost: a request that comes late may otherwise end the next transaction (the hole that part 1 of
KIP-890 leaves). What was sent before an epoch was raised may be sent once more, much later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from tests.simulation.cluster.clients import ANSWER_MS, ClusterTarget
from tests.simulation.cluster.transactional import (
    OF_GROUP,
    OF_ID,
    PARTITIONS,
    TIMEOUTS_MS,
    TOPIC,
    Transactional,
    group_of,
)
from tests.simulation.transaction_history import Sent, Transaction, Verdict
from tests.support.transactional_logs import transactional
from tidelog.client.connecting.connection import ClientConnection
from tidelog.client.errors import ClientError
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, Producer, build_batch

PATIENCE_S = 9.0
"""How long an instance retries a request before it gives up."""

LATE_S = 4.0
"""A request that comes late comes within this time."""

WALL_MS = 1_767_225_600_000
ADD_PARTITIONS_VERSION = 3
"""The newest for clients."""

REFUSED = frozenset(
    {
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.INVALID_TXN_STATE,
    }
)
"""Errors of EndTxn that say that this request did not end the transaction."""


PASSING = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED})
"""Beside an error that is to be retried."""


class InstanceEnded(Exception):
    """The instance is fenced, has given up or has crashed: the id is asked for again."""


class MustAbort(Exception):
    """The open transaction cannot be committed."""


class TransactionalWriter:
    """A transactional id and its instances, one after another."""

    def __init__(self, setting: Transactional, name: str) -> None:
        self.setting = setting
        self.name = name
        self.rng = setting.random(name)
        self.done = asyncio.Event()
        self.is_finishing = False
        self.tasks: set[asyncio.Task[None]] = set()
        """Instances that go on beside their successor, and requests that come late."""

    def finish(self) -> None:
        """Begin no transaction; ``done`` is set when all have an end."""
        self.is_finishing = True

    async def run(self) -> None:
        """Write until ``finish``."""
        while not self.is_finishing:
            instance = Instance(self)
            try:
                await instance.initialize()
                while not self.is_finishing:
                    await instance.transaction()
                    await self.setting.pause(self.rng.uniform(0, 0.3))
            except InstanceEnded:
                await self.setting.pause(self.rng.uniform(0.02, 0.5))
            finally:
                instance.close()
        await asyncio.gather(*self.tasks)
        self.done.set()

    def start(self, work: Any) -> None:
        """Let something go on beside the present instance."""
        self.tasks.add(asyncio.ensure_future(work))


class Instance:
    """One process with a transactional id."""

    def __init__(self, writer: TransactionalWriter) -> None:
        self.writer = writer
        self.setting = writer.setting
        self.history = writer.setting.history
        self.rng = writer.rng
        self.name = writer.name
        self.timeout_ms = self.rng.choice(TIMEOUTS_MS)
        self.producer_id = self.epoch = -1
        self.sequences: dict[int, int] = {}
        self.added: set[int] = set()
        """The partitions of the present transaction."""
        self.in_doubt = False
        """Whether a request of this epoch has no response: it may arrive at any later time."""
        self.former: list[tuple[str | ClusterTarget, Any, int | None]] = []
        """What was sent in the present transaction, and where to."""
        self._connections: dict[str, ClientConnection] = {}

    def close(self) -> None:
        """End its connections; what was sent may arrive all the same."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # --- requests --------------------------------------------------------------------------------

    async def _connect(self, to: str | ClusterTarget) -> ClientConnection:
        name = to if isinstance(to, str) else to.name
        known = self._connections.get(name)
        if known is None or known.closed:
            if not isinstance(to, str):
                known = await to.connect()
            elif to == "group":
                known = await self.setting.coordinator(OF_GROUP, group_of(self.name))
            else:
                known = await self.setting.coordinator(OF_ID, self.name)
            self._connections[name] = known
        return known

    def _drop(self, to: str | ClusterTarget) -> None:
        connection = self._connections.pop(to if isinstance(to, str) else to.name, None)
        if connection is not None:
            connection.close()

    async def _ask(
        self,
        to: str | ClusterTarget,
        request: Any,
        codes: Callable[[Any], Iterable[int]],
        version: int | None = None,
        on_doubt: Callable[[], None] = lambda: None,
    ) -> tuple[ErrorCode, Any]:
        """Send a request until its response is not to be retried. Raises InstanceEnded."""
        until = self.setting.now + PATIENCE_S
        self.former.append((to, request, version))
        while True:
            was_sent = False
            try:
                connection = await self._connect(to)
                was_sent = True
                answer = await connection.send(request, version, timeout_ms=ANSWER_MS)
            except (ClientError, OSError):
                self._drop(to)
                if was_sent:
                    self.in_doubt = True
                    on_doubt()
            else:
                errors = {ErrorCode(code) for code in codes(answer)} - {ErrorCode.NONE}
                self._count(request, errors)
                if not errors:
                    return ErrorCode.NONE, answer
                final = sorted(
                    each for each in errors if not each.retriable and each not in PASSING
                )
                if final:
                    return final[0], answer
                if ErrorCode.CONCURRENT_TRANSACTIONS not in errors:
                    self._drop(to)
                on_doubt()
            if self.setting.now > until:
                self.setting.count("instances gave up")
                raise InstanceEnded
            await self.setting.pause(self.rng.uniform(0.02, 0.4))

    def _count(self, request: Any, errors: set[ErrorCode]) -> None:
        name = type(request).__name__.removesuffix("Request")
        for error in errors:
            self.setting.count(f"{name} {error.name}")

    async def initialize(self, *, claims: bool = False) -> None:
        """Ask for the id; with ``claims`` as its owner, for the next epoch."""
        request = messages.InitProducerIdRequest(
            transactional_id=self.name,
            transaction_timeout_ms=self.timeout_ms,
            producer_id=self.producer_id if claims else -1,
            producer_epoch=self.epoch if claims else -1,
        )
        error, answer = await self._ask("id", request, lambda found: [found.error_code])
        if error:
            raise InstanceEnded
        self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
        self.sequences.clear()
        self.in_doubt = False

    # --- a transaction ---------------------------------------------------------------------------

    async def transaction(self) -> None:
        """Run one transaction to its end, or to that of the instance."""
        rng, setting = self.rng, self.setting
        made = self.history.begin(self.name)
        self.former = []
        fate = rng.choices(("end", "crash", "oversleep", "beside"), (90, 4, 3, 3))[0]
        commits = rng.random() < 0.75
        goes_on = False
        try:
            await self._write(made, oversleeps=fate == "oversleep")
            if fate == "crash":
                setting.count("instances crashed")
                raise InstanceEnded
            if fate == "beside":
                setting.count("instances beside another")
                goes_on = True
                self.writer.start(self._end_late(made, commits))
                raise InstanceEnded
        except MustAbort:
            commits = False
        except InstanceEnded:
            if not goes_on:
                self._conclude(made, Verdict.ABORTED)
            raise
        if not commits and rng.random() < 0.6:
            await self._let_a_batch_be_late(made)
        await self._end(made, commits)
        if self.in_doubt:
            await self._raise_epoch()

    async def _let_a_batch_be_late(self, made: Transaction) -> None:
        """Have a batch arrive about when its transaction is aborted, or much later."""
        rng = self.rng
        fresh = [index for index in range(PARTITIONS) if index not in self.added]
        index = rng.choice(fresh or range(PARTITIONS))
        try:
            await self._add([index])
        except MustAbort:
            return
        request, _ = self._batch(made, index)
        after_s = rng.choice((rng.uniform(0, 0.05), rng.uniform(0, LATE_S)))
        self.writer.start(self._send_late(self.setting.places[index], request, None, after_s))
        self.in_doubt = True
        await self.setting.pause(rng.uniform(0, 0.1))

    async def _end_late(self, made: Transaction, commits: bool) -> None:
        """Wake after a long sleep, perhaps beside a successor, and end what was begun."""
        late = Instance(self.writer)
        late.producer_id, late.epoch = self.producer_id, self.epoch
        late.sequences, late.added = self.sequences, self.added
        await self.setting.pause(self.rng.uniform(0, 1.5 * self.timeout_ms / 1000))
        try:
            await late._write_more(made)
        except MustAbort:
            commits = False
        try:
            await late._end(made, commits)
        except InstanceEnded:
            pass
        finally:
            late.close()

    async def _write_more(self, made: Transaction) -> None:
        """Send to a partition of the transaction once more, or not."""
        if self.rng.random() < 0.5:
            await self._produce(made, self.rng.choice(sorted(self.added)))

    async def _write(self, made: Transaction, *, oversleeps: bool) -> None:
        rng = self.rng
        added = self.added = set()
        for part in range(2 if oversleeps else rng.randint(1, 2)):
            if oversleeps and part:
                self.setting.count("transactions overslept")
                await self.setting.pause(self.timeout_ms / 1000 + rng.uniform(-1, 2))
                await self._write_more(made)
            wanted = rng.sample(range(PARTITIONS), rng.randint(1, PARTITIONS))
            await self._add([index for index in wanted if index not in added])
            added.update(wanted)
            ended = await asyncio.gather(
                *(self._produce(made, index) for index in wanted), return_exceptions=True
            )
            failed = [each for each in ended if each is not None]
            if failed:
                raise next((each for each in failed if not isinstance(each, MustAbort)), failed[0])
            await self.setting.pause(rng.choice((0.0, 0.0, rng.uniform(0, 0.6))))
        if rng.random() < 0.5:
            await self._commit_offset(made)

    async def _add(self, indexes: list[int]) -> None:
        if not indexes:
            return
        topic = messages.AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(
            name=TOPIC, partitions=indexes
        )
        request = messages.AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.name,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[topic],
        )

        def codes(answer: Any) -> list[int]:
            topics = answer.results_by_topic_v3_and_below
            parts = (part for topic in topics for part in topic.results_by_partition)
            return [part.error_code for part in parts]

        error, _ = await self._ask("id", request, codes, ADD_PARTITIONS_VERSION)
        self._take(error)

    def _take(self, error: ErrorCode) -> None:
        if error in (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            raise InstanceEnded
        if error:
            raise MustAbort

    async def _produce(self, made: Transaction, index: int) -> None:
        """Send one to three batches, one after another in flight, until all are acknowledged."""
        batches = [self._batch(made, index) for _ in range(self.rng.choice((1, 1, 2, 3)))]
        where = self.setting.places[index]
        until = self.setting.now + PATIENCE_S
        while batches:
            try:
                connection = await self._connect(where)
                sent = [(each, connection.submit(each[0], None, ANSWER_MS)) for each in batches]
            except (ClientError, OSError):
                self._drop(where)
            else:
                for each, answer in sent:
                    if not await self._is_acknowledged(where, each, answer):
                        break
                    batches.remove(each)
            if batches:
                if self.setting.now > until:
                    self.in_doubt = True
                    raise MustAbort
                await self.setting.pause(self.rng.uniform(0.02, 0.3))

    def _batch(self, made: Transaction, index: int) -> tuple[Any, list[Sent]]:
        where, rng = self.setting.places[index], self.rng
        records, written = [], []
        for _ in range(rng.randint(1, 3)):
            value = f"{self.name}/{made.number}/{len(made.sent)}/".encode()
            value += rng.randbytes(rng.choice((0, 10, 300))).hex().encode()
            sent = Sent(where.name, value)
            made.sent.append(sent)
            written.append(sent)
            records.append(NewRecord(WALL_MS, None, value))
        sequence = self.sequences.get(index, 0)
        self.sequences[index] = sequence + len(records)
        content = transactional(
            build_batch(records, producer=Producer(self.producer_id, self.epoch, sequence))
        )
        data = messages.ProduceRequest.PartitionProduceData(index=index, records=content)
        topic = messages.ProduceRequest.TopicProduceData(name=TOPIC, partition_data=[data])
        request = messages.ProduceRequest(
            transactional_id=self.name, acks=-1, timeout_ms=ANSWER_MS, topic_data=[topic]
        )
        self.former.append((where, request, None))
        return request, written

    async def _is_acknowledged(
        self, where: ClusterTarget, batch: tuple[Any, list[Sent]], answer: asyncio.Future[Any]
    ) -> bool:
        """Return whether it is, False if it is to be sent again with those after it."""
        request, written = batch
        try:
            found = (await answer).responses[0].partition_responses[0]
        except (ClientError, OSError):
            self._drop(where)
            self.in_doubt = True
            return False
        error = ErrorCode(found.error_code)
        if error is ErrorCode.NONE:
            for place, sent in enumerate(written):
                sent.offset = found.base_offset + place
            return True
        self._count(request, {error})
        self._drop(where)
        self.in_doubt = True
        if error.retriable:
            return False
        raise MustAbort

    async def _commit_offset(self, made: Transaction) -> None:
        named = self.name, self.producer_id, self.epoch
        adds = messages.AddOffsetsToTxnRequest(*named, group_of(self.name))
        error, _ = await self._ask("id", adds, lambda found: [found.error_code])
        self._take(error)
        part = messages.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=made.number, committed_metadata=""
        )
        topic = messages.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic(TOPIC, [part])
        commits = messages.TxnOffsetCommitRequest(
            transactional_id=self.name,
            group_id=group_of(self.name),
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[topic],
        )
        made.has_offsets = True
        error, _ = await self._ask(
            "group",
            commits,
            lambda found: [part.error_code for topic in found.topics for part in topic.partitions],
        )
        self._take(error)

    # --- its end ---------------------------------------------------------------------------------

    def _conclude(self, made: Transaction, verdict: Verdict) -> None:
        made.verdict = verdict
        self.setting.count(f"transactions {verdict.value}")

    async def _end(self, made: Transaction, commits: bool) -> None:
        doubts: list[bool] = []
        if commits:
            made.commit_sent_at = self.history.tick()
        request = messages.EndTxnRequest(self.name, self.producer_id, self.epoch, commits)
        try:
            error, _ = await self._ask(
                "id", request, lambda found: [found.error_code], None, lambda: doubts.append(True)
            )
        except InstanceEnded:
            self._conclude(made, Verdict.UNKNOWN if commits else Verdict.ABORTED)
            raise
        if not commits or (error in REFUSED and not doubts):
            self._conclude(made, Verdict.ABORTED)
        else:
            self._conclude(made, Verdict.UNKNOWN if error else Verdict.COMMITTED)
        if error:
            raise InstanceEnded

    async def _raise_epoch(self) -> None:
        before = self.former
        await self.initialize(claims=True)
        if before and self.rng.random() < 0.6:
            self.writer.start(
                self._send_late(*self.rng.choice(before), self.rng.uniform(0, LATE_S))
            )

    async def _send_late(
        self, to: str | ClusterTarget, request: Any, version: int | None, after_s: float
    ) -> None:
        """Send what belongs to a transaction that is over by then; the answer is of no interest."""
        late = Instance(self.writer)
        await self.setting.pause(after_s)
        self.setting.count(f"late {type(request).__name__.removesuffix('Request')}")
        try:
            connection = await late._connect(to)
            await connection.send(request, version, timeout_ms=ANSWER_MS)
        except (ClientError, OSError):
            pass
        finally:
            late.close()
