"""ISR changes of the partitions led here, proposed to the controller with AlterIsr (KIP-497).

Owns when a change is proposed and what its outcome does. Not which replicas are in sync: see
``replication.isr``; not the meaning of a response: see ``replication.isr_change``. The controller
decides. One request is under way at a time, with the changes of up to ``MOST_AT_ONCE`` partitions.
A partition has at most one change in flight, kept only in its ``leadership``. The same request
reports that the data-loss handling of a partition is finished (KIP-704, see ``data_loss``), without
a change of the ISR: a refused member must not delay it.

| outcome | what follows |
|---|---|
| a state of the partition | the leader adopts it and checks the partition again |
| refused: one new member, or none | no further proposal of it for ``REFUSED_MS`` |
| refused: several new members | a proposal of one at a time: a dead one must not keep others out |
| unknown | the same change again after a pause, until its outcome is known |

Until the outcome is known the high watermark counts the larger ISR. A LeaderAndIsr of a newer ISR
version or leader epoch, or the end of the leadership, settles a change, whatever a later response
says.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

from tidelog.broker.control_plane.session import ControllerSession, ask_once
from tidelog.client.errors import error_code
from tidelog.model.errors import ErrorCode
from tidelog.model.levels import Level
from tidelog.model.topics import TopicPartition
from tidelog.observe.gathered_lines import GatheredLines
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.replication.command_rules import CommandRefusal
from tidelog.replication.isr import UNKNOWN, Follower, lagging, may_join
from tidelog.replication.isr_change import (
    RETRY_MAX_MS,
    RETRY_MS,
    Answered,
    IsrChange,
    Settled,
    outcome,
)
from tidelog.runtime.backoff import steady
from tidelog.runtime.tasks import call_off

if TYPE_CHECKING:
    from tidelog.broker.partitions.partition import HostedPartition
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.model.configs.server import ServerConfigs
    from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)

REFUSED_MS = 500
"""How long a refused member is not proposed again."""

SHORTEST_CHECK_MS = 50

MOST_AT_ONCE = 125
"""Partitions of one request. Proposing a change and applying its outcome takes about 20 us with its
log line, all of them in one turn of the loop; the controller decides them in one turn, too."""


class HandledDebts(Protocol):
    """The data-loss debts of partitions led here: ``data_loss.debts``."""

    def is_handled(self, partition: HostedPartition, /) -> bool:
        """Whether the handling is finished and not yet confirmed by the controller."""

    def confirmed(self, partition: HostedPartition, /) -> None:
        """Drop a partition whose flag and debt the controller has cleared."""


class IsrChanges:
    """The proposals of one broker. Created once, started once."""

    def __init__(
        self,
        configs: ServerConfigs,
        clock: Clock,
        session: ControllerSession,
        partitions: Partitions,
        debts: HandledDebts,
    ) -> None:
        self._node_id = configs.node_id
        self._level = configs.level
        self._lag_ms = configs.replica_lag_time_max_ms
        self._clock = clock
        self._session = session
        self._partitions = partitions
        self._debts = debts
        self._said = GatheredLines(logger)
        self._todo: dict[HostedPartition, None] = {}
        """Partitions to check; one with a change in flight stays until its outcome is known."""
        self._refused_until: dict[tuple[HostedPartition, int], int] = {}
        self._one_by_one: dict[HostedPartition, int] = {}
        """Partitions where several new members were refused, and until when one at a time goes."""
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the tasks."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._propose(), name="isr-changes"),
            loop.create_task(self._check_regularly(), name="isr-laggards"),
        ]

    async def stop(self) -> None:
        """Stop; the outcome of a change in flight stays unknown here."""
        await call_off(self._tasks)

    def began(self, partition: HostedPartition) -> None:
        """A new leader epoch begins: the in-sync followers count as caught up now."""
        now_ms = self._clock.monotonic_ms()
        self._one_by_one.pop(partition, None)
        leadership = partition.leadership
        assert leadership is not None, "called when a leadership begins"
        for member in partition.state.isr:
            if member != self._node_id:
                leadership.followers[member] = Follower(caught_up_ms=now_ms)
        if not set(partition.state.isr).issubset(partition.state.hosts):
            # The completion of a move: the watermark must not wait for a replica that is removed.
            self._want(partition)

    def fetched(self, partition: HostedPartition, node_id: int) -> None:
        """Check after each fetch of a follower whether it may join the ISR now."""
        leadership = partition.leadership
        if leadership is None or leadership.change is not None or node_id in partition.state.isr:
            return
        follower = leadership.followers.get(node_id)
        if follower is None or not self._may_join(partition, follower):
            return
        if not self._was_refused(partition, node_id, self._clock.monotonic_ms()):
            self._want(partition)

    def handled(self, partition: HostedPartition) -> None:
        """Report to the controller that the data-loss handling of a partition is finished."""
        self._want(partition)

    @staticmethod
    def _may_join(partition: HostedPartition, follower: Follower) -> bool:
        return may_join(follower, partition.log.high_watermark, partition.epoch_start)

    def _was_refused(self, partition: HostedPartition, node_id: int, now_ms: int) -> bool:
        """Return whether a member was refused within the last ``REFUSED_MS``."""
        return now_ms < self._refused_until.get((partition, node_id), now_ms)

    async def _check_regularly(self) -> None:
        """Check all partitions twice per ``replica.lag.time.max.ms``. O(partitions here)."""
        while True:
            await asyncio.sleep(max(SHORTEST_CHECK_MS, self._lag_ms // 2) / 1000)
            try:
                await self._check_all()
            except Exception:
                # A bug must not let dead followers hold the watermark for ever.
                logger.exception("the followers could not be checked")

    async def _check_all(self) -> None:
        """Check all partitions; changes found are proposed at once."""
        await self._partitions.for_each(self._check, self._clock)
        now_ms = self._clock.monotonic_ms()
        for key in [key for key, until_ms in self._refused_until.items() if until_ms <= now_ms]:
            del self._refused_until[key]
        for one in [one for one, until_ms in self._one_by_one.items() if until_ms <= now_ms]:
            del self._one_by_one[one]

    def _check(self, partition: HostedPartition) -> None:
        if self._needs_check(partition, self._clock.monotonic_ms()):
            self._want(partition)

    def _needs_check(self, partition: HostedPartition, now_ms: int) -> bool:
        leadership = partition.leadership
        if leadership is None:
            return False
        shared = len(partition.state.isr) > 1
        return leadership.change is not None or (shared and bool(self._lagging(partition, now_ms)))

    def _lagging(self, partition: HostedPartition, now_ms: int) -> set[int]:
        """Return the members that leave the ISR now: they lag, or host the partition no longer."""
        return lagging(
            partition.state.isr,
            partition.state.hosts,
            self._node_id,
            partition.followers,
            partition.log.end_offset,
            now_ms,
            self._lag_ms,
        )

    # -- proposing

    async def _propose(self) -> None:
        backoff = steady(RETRY_MS, RETRY_MAX_MS)
        failures = 0
        while True:
            await self._until_due()
            try:
                changes = self._due_changes()
                is_answered = not changes or await self._ask(changes)
            except Exception:
                logger.exception("the ISR could not be changed")
                is_answered = False
            if is_answered:
                failures = 0
            else:
                await asyncio.sleep(backoff.pause_s(failures))
                failures += 1

    async def _until_due(self) -> None:
        """Wait until there is a partition to check or a request to repeat. O(changes in flight)."""
        now_ms = self._clock.monotonic_ms()
        due_ms: int | None = None
        for partition in self._todo:
            change = _change_of(partition)
            # A partition without a change in flight is due now.
            change_ms = 0 if change is None else change.due_ms
            due_ms = change_ms if due_ms is None else min(due_ms, change_ms)
            if due_ms <= now_ms:
                break
        wait_ms = None if due_ms is None else due_ms - now_ms
        if wait_ms is None or wait_ms > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wait_ms is None else wait_ms / 1000):
                    await self._wake.wait()
        self._wake.clear()

    def _due_changes(self) -> dict[HostedPartition, IsrChange]:
        """Return the changes to send now: those in flight, and new ones. O(partitions to check).

        At most ``MOST_AT_ONCE``: the others follow after the response to these.
        """
        now_ms = self._clock.monotonic_ms()
        due: dict[HostedPartition, IsrChange] = {}
        for partition in list(self._todo):
            leadership = partition.leadership
            if leadership is not None and leadership.change is None:
                # The watermark counts the proposed members from here on, before the request leaves:
                # the controller may commit it, and its response be lost (KIP-497).
                leadership.change = self._wanted_change(partition, now_ms)
            if leadership is None or leadership.change is None:
                del self._todo[partition]
            elif leadership.change.due_ms <= now_ms:
                due[partition] = leadership.change
                if len(due) == MOST_AT_ONCE:
                    break
        self._said.say()
        return due

    def _wanted_change(self, partition: HostedPartition, now_ms: int) -> IsrChange | None:
        """Return the change that a partition needs now, from its present state."""
        state, followers = partition.state, partition.followers
        gone = self._lagging(partition, now_ms)
        isr = [member for member in state.isr if member not in gone]
        if not gone and self._debts.is_handled(partition):
            # No member is new, so no broker epoch has to be checked: an old one changes nothing.
            epochs = (UNKNOWN,) * len(isr)
            return IsrChange(state.leader_epoch, state.isr_version, state.isr, epochs, True)
        if not gone:
            # A shrink goes alone: a new member that is refused must not delay it.
            isr += self._new_members(partition, now_ms)
        if len(isr) == len(state.isr):
            return None
        self._said.add(partition.key, f"proposing the ISR {isr} instead of {list(state.isr)}")
        epochs = self._broker_epochs(isr, followers)
        return IsrChange(state.leader_epoch, state.isr_version, tuple(isr), epochs)

    def _new_members(self, partition: HostedPartition, now_ms: int) -> list[int]:
        """Return the replicas that may join now: only one if several were refused. O(replicas)."""
        state, followers = partition.state, partition.followers
        new = [
            member
            for member in state.hosts
            if member not in state.isr
            and member in followers
            and now_ms - followers[member].fetched_ms <= self._lag_ms
            and self._may_join(partition, followers[member])
            and not self._was_refused(partition, member, now_ms)
        ]
        if len(new) > 1 and now_ms < self._one_by_one.get(partition, now_ms):
            # A dead replica looks in sync for a while: the one that fetched last goes first.
            return [max(new, key=lambda member: followers[member].fetched_ms)]
        return new

    def _broker_epochs(self, isr: list[int], followers: Mapping[int, Follower]) -> tuple[int, ...]:
        own = self._session.broker_epoch
        return tuple(
            own
            if member == self._node_id
            else followers[member].broker_epoch
            if member in followers
            else UNKNOWN
            for member in isr
        )

    async def _ask(self, changes: Mapping[HostedPartition, IsrChange]) -> bool:
        """Send one AlterIsr and apply its response; False when there was none."""
        session = self._session
        request = _request(self._node_id, session.broker_epoch, self._level, changes)
        answer = await ask_once(session, request, "AlterIsr")
        if answer is None:
            return False
        by_key = {partition.key: partition for partition in changes}
        for topic in answer.topics:
            for part in topic.partitions:
                partition = by_key.pop(TopicPartition(topic.topic_name, part.partition_index), None)
                if partition is not None:
                    self._take_in(partition, changes[partition], part)
        for partition in by_key.values():
            self._left_open(partition, changes[partition], "nothing")
        self._said.say()
        return True

    def _take_in(self, partition: HostedPartition, change: IsrChange, part: Any) -> None:
        """Apply the outcome for one partition, unless something newer has settled the change."""
        if _change_of(partition) is not change:
            return
        error, state = error_code(part.error_code), partition.state
        answer = Answered(
            error, part.leader_id, part.leader_epoch, tuple(part.isr), part.isr_version
        )
        settled = outcome(change, self._node_id, state.isr, answer)
        if settled is None:
            self._left_open(partition, change, error.name)
            return
        new = [member for member in change.isr if member not in state.isr]
        if isinstance(settled, Settled):
            self._settle(partition, settled)
            if change.unclean_handled and error is ErrorCode.NONE:
                partition.settle_debt()
                self._debts.confirmed(partition)
        else:
            assert isinstance(settled, CommandRefusal)
            self._said.add(partition.key, f"the ISR {list(change.isr)} was refused: {error.name}")
            self._todo.pop(partition, None)
            self._note_refusal(partition, new)
            # A refusal is certain: the watermark no longer waits for the members that were
            # proposed.
            partition.take_isr(state.isr, state.isr_version)
        self._report_handled_again(partition)

    def _settle(self, partition: HostedPartition, settled: Settled) -> None:
        is_newer = settled.isr_version > partition.state.isr_version
        partition.take_isr(settled.isr, settled.isr_version)
        if is_newer:
            # It stays to be checked: other followers may have caught up or lagged meanwhile.
            self._said.add(partition.key, f"the ISR is {list(settled.isr)}")
        else:
            self._todo.pop(partition, None)

    def _left_open(self, partition: HostedPartition, change: IsrChange, what: str) -> None:
        """Keep a change of unknown outcome in flight and send it again later."""
        change.left_open(self._clock.monotonic_ms())
        if not change.tries & (change.tries - 1):
            # The 1st, 2nd, 4th … time: a lasting error must not fill the log.
            self._said.add(partition.key, f"AlterIsr got {what} ({change.tries})", logging.WARNING)

    def _note_refusal(self, partition: HostedPartition, new: list[int]) -> None:
        """Pause the proposals of a refused member.

        Several new members are proposed one at a time: the response does not name the refused one.
        """
        now_ms = self._clock.monotonic_ms()
        if len(new) > 1:
            self._one_by_one[partition] = now_ms + self._lag_ms
        else:
            for member in new or partition.state.hosts:
                self._refused_until[partition, member] = now_ms + REFUSED_MS
        if new and partition in self._one_by_one:
            self._want(partition)

    def _want(self, partition: HostedPartition) -> None:
        self._todo[partition] = None
        self._wake.set()

    def _report_handled_again(self, partition: HostedPartition) -> None:
        """After another outcome, report a finished data-loss handling again, with a pause."""
        if self._debts.is_handled(partition):
            loop = asyncio.get_running_loop()
            loop.call_later(REFUSED_MS / 1000, self.handled, partition)


def _change_of(partition: HostedPartition) -> IsrChange | None:
    """Return the partition's change in flight."""
    return None if partition.leadership is None else partition.leadership.change


def _request(
    node_id: int,
    broker_epoch: int,
    level: Level,
    changes: Mapping[HostedPartition, IsrChange],
) -> messages.AlterIsrRequest:
    request = messages.AlterIsrRequest
    topics: dict[tuple[str, UUID], Any] = {}
    for partition, change in changes.items():
        key = (partition.topic, partition.topic_id if level.topic_ids else NO_UUID)
        topic = topics.get(key)
        if topic is None:
            topic = topics[key] = request.TopicData(key[0], [], topic_id=key[1])
        topic.partitions.append(
            request.PartitionData(
                partition_index=partition.partition,
                leader_epoch=change.leader_epoch,
                new_isr=list(change.isr),
                isr_version=change.isr_version,
                broker_epochs=list(change.broker_epochs),
                unclean_handled=change.unclean_handled,
            )
        )
    return request(broker_id=node_id, broker_epoch=broker_epoch, topics=list(topics.values()))
