"""A leader's changes of the ISR: proposed to the controller in the background, by AlterIsr.

Owns when a change is proposed and what its answer means; who is in sync is ``replication.isr``'s,
the decision is the controller's. All partitions that want a change go in one request; one request
is under way at a time, and a partition has one change in flight. That a data-loss handling is
finished (``data_loss``) goes the same way, in the field that clears the flag (KIP-704), with the
ISR as it is: a member that is refused must not hold it up.

| answer for a partition | what follows |
|---|---|
| NONE, INVALID_UPDATE_VERSION with this leader epoch | the state in the answer holds |
| INELIGIBLE_REPLICA, INVALID_REQUEST: one new member, or none | it is not tried for a while |
| the same: several new members | at once again, one by one: a dead one must not keep others out |
| FENCED_LEADER_EPOCH, another life of the topic | the proposal counts until LeaderAndIsr comes |
| any other, or none: connection lost, NOT_CONTROLLER | the same again, after a pause |

Until the outcome is known the high watermark counts the larger ISR. A LeaderAndIsr of a newer ISR
version or leader epoch settles a change, whatever its answer says later.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.broker.session import ask_once
from tidelog.client.errors import error_code
from tidelog.model.errors import ErrorCode
from tidelog.model.levels import Level
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.replication.isr import UNKNOWN, Follower, lagging, may_join

if TYPE_CHECKING:
    from tidelog.broker.broker import Broker
    from tidelog.broker.partition import HostedPartition

logger = logging.getLogger(__name__)

RETRY_MS = 50
"""First pause after a request without an answer; it doubles up to ``RETRY_MAX_MS``."""

RETRY_MAX_MS = 1_000
REFUSED_MS = 500
"""How long a member that was refused is not proposed again."""

SHORTEST_LOOK_MS = 50

_HOLDS = (ErrorCode.NONE, ErrorCode.INVALID_UPDATE_VERSION)
_DEPOSED = (
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.INCONSISTENT_TOPIC_ID,
)
_REFUSED = (ErrorCode.INELIGIBLE_REPLICA, ErrorCode.INVALID_REQUEST)


@dataclass(frozen=True, slots=True)
class Proposal:
    """One change in flight: what it stands on, and the members by their lives."""

    leader_epoch: int
    isr_version: int
    isr: tuple[int, ...]
    broker_epochs: tuple[int, ...]
    unclean_handled: bool = False


class IsrChanges:
    """The proposals of one broker. Made once, started once."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lag_ms = broker.configs.replica_lag_time_max_ms
        self._wanted: dict[HostedPartition, None] = {}
        self._open: dict[HostedPartition, Proposal] = {}
        self._refused_until: dict[tuple[HostedPartition, int], int] = {}
        self._one_by_one: dict[HostedPartition, int] = {}
        """Where several new members were refused, and until when one at a time is proposed."""
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Begin to propose."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._propose(), name="isr-changes"),
            loop.create_task(self._look_for_laggards(), name="isr-laggards"),
        ]

    async def stop(self) -> None:
        """End; what is in flight stays undecided here."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def began(self, partition: HostedPartition) -> None:
        """A partition is led in a new epoch: its in-sync followers have time to come."""
        now_ms = self._broker.clock.monotonic_ms()
        self._one_by_one.pop(partition, None)
        for member in partition.state.isr:
            if member != self._broker.node_id:
                partition.followers[member] = Follower(caught_up_ms=now_ms)

    def fetched(self, partition: HostedPartition, node_id: int) -> None:
        """A follower's fetch was counted: it may join the ISR now. Called for every fetch."""
        if node_id in partition.state.isr or partition.proposed_isr is not None:
            return
        follower = partition.followers.get(node_id)
        if follower is None or not self._may_join(partition, follower):
            return
        if not self._was_refused(partition, node_id, self._broker.clock.monotonic_ms()):
            self._want(partition)

    def handled(self, partition: HostedPartition) -> None:
        """The data-loss handling of a partition is finished: the controller should know."""
        self._want(partition)

    @staticmethod
    def _may_join(partition: HostedPartition, follower: Follower) -> bool:
        return may_join(follower, partition.log.high_watermark, partition.epoch_start)

    def _was_refused(self, partition: HostedPartition, node_id: int, now_ms: int) -> bool:
        """Return whether a member was refused a moment ago."""
        return now_ms < self._refused_until.get((partition, node_id), now_ms)

    async def _look_for_laggards(self) -> None:
        """Twice in the time that a follower may lag. Grows with the partitions led here."""
        while True:
            await asyncio.sleep(max(SHORTEST_LOOK_MS, self._lag_ms // 2) / 1000)
            try:
                self._look()
            except Exception:
                # A bug must not let dead followers hold the watermark for ever.
                logger.exception("the followers could not be looked at")

    def _look(self) -> None:
        now_ms = self._broker.clock.monotonic_ms()
        for partition in self._broker.partitions.all():
            shared = partition.is_leader and len(partition.state.isr) > 1
            if shared and self._lagging(partition, now_ms):
                self._wanted[partition] = None
        for key in [key for key, until_ms in self._refused_until.items() if until_ms <= now_ms]:
            del self._refused_until[key]
        for each in [each for each, until_ms in self._one_by_one.items() if until_ms <= now_ms]:
            del self._one_by_one[each]
        if self._wanted:
            self._wake.set()

    def _lagging(self, partition: HostedPartition, now_ms: int) -> set[int]:
        return lagging(
            partition.state.isr,
            self._broker.node_id,
            partition.followers,
            partition.log.end_offset,
            now_ms,
            self._lag_ms,
        )

    # -- proposing

    async def _propose(self) -> None:
        pause_ms = RETRY_MS
        while True:
            if not self._open:
                await self._wake.wait()
            self._wake.clear()
            try:
                self._take_up_wanted()
                self._drop_settled()
                is_settled = not self._open or await self._ask(dict(self._open))
            except Exception:
                logger.exception("the ISR could not be changed")
                is_settled = False
            if is_settled:
                pause_ms = RETRY_MS
            else:
                await asyncio.sleep(pause_ms / 1000)
                pause_ms = min(pause_ms * 2, RETRY_MAX_MS)

    def _take_up_wanted(self) -> None:
        while self._wanted:
            partition, _ = self._wanted.popitem()
            proposal = self._proposal(partition)
            if proposal is not None:
                partition.proposed_isr = proposal.isr
                self._open[partition] = proposal

    def _proposal(self, partition: HostedPartition) -> Proposal | None:
        """Return the change that a partition needs now, from its present state."""
        if not partition.is_leader or partition.proposed_isr is not None:
            return None
        now_ms = self._broker.clock.monotonic_ms()
        state, followers = partition.state, partition.followers
        gone = self._lagging(partition, now_ms)
        isr = [member for member in state.isr if member not in gone]
        if not gone and self._broker.data_loss.is_handled(partition):
            # No member is new, so none is vouched for: a life of it that ended changes nothing.
            lives = (UNKNOWN,) * len(isr)
            return Proposal(state.leader_epoch, state.isr_version, state.isr, lives, True)
        if not gone:
            # Who leaves goes first: a new member that is refused must not hold it up.
            isr += self._new_members(partition, now_ms)
        if len(isr) == len(state.isr):
            return None
        logger.info("%s: proposing the ISR %s instead of %s", partition.key, isr, state.isr)
        return Proposal(
            state.leader_epoch, state.isr_version, tuple(isr), self._lives(isr, followers)
        )

    def _new_members(self, partition: HostedPartition, now_ms: int) -> list[int]:
        """Return who may join now; one at a time where several were refused. O(replicas)."""
        state, followers = partition.state, partition.followers
        new = [
            member
            for member in state.replicas
            if member not in state.isr
            and member in followers
            and now_ms - followers[member].fetched_ms <= self._lag_ms
            and self._may_join(partition, followers[member])
            and not self._was_refused(partition, member, now_ms)
        ]
        if len(new) > 1 and now_ms < self._one_by_one.get(partition, now_ms):
            # What a dead one held goes on to count for a while: who fetched last goes first.
            return [max(new, key=lambda member: followers[member].fetched_ms)]
        return new

    def _lives(self, isr: list[int], followers: Mapping[int, Follower]) -> tuple[int, ...]:
        own = self._broker.session.broker_epoch
        return tuple(
            own
            if member == self._broker.node_id
            else followers[member].broker_epoch
            if member in followers
            else UNKNOWN
            for member in isr
        )

    def _drop_settled(self) -> None:
        for partition, proposal in list(self._open.items()):
            if not _stands(partition, proposal):
                del self._open[partition]

    async def _ask(self, proposals: Mapping[HostedPartition, Proposal]) -> bool:
        """Send one AlterIsr and take in its answer; False when there was none."""
        session = self._broker.session
        request = _request(
            self._broker.node_id, session.broker_epoch, self._broker.configs.level, proposals
        )
        answer = await ask_once(session, request, "AlterIsr")
        if answer is None:
            return False
        by_key = {partition.key: partition for partition in proposals}
        for topic in answer.topics:
            for part in topic.partitions:
                partition = by_key.pop(TopicPartition(topic.topic_name, part.partition_index), None)
                if partition is not None:
                    self._settle(partition, proposals[partition], part)
        return not self._open

    def _settle(self, partition: HostedPartition, proposal: Proposal, part: Any) -> None:
        """Take in the answer for one partition, unless something newer has come since."""
        error = error_code(part.error_code)
        if not _stands(partition, proposal):
            self._open.pop(partition, None)
            return
        state = partition.state
        new = [member for member in proposal.isr if member not in state.isr]
        same_epoch = part.leader_epoch == state.leader_epoch and part.leader_id == state.leader
        if error in _HOLDS and same_epoch:
            del self._open[partition]
            if part.isr_version > state.isr_version:
                logger.info("%s: the ISR is %s", partition.key, part.isr)
                partition.take_isr(tuple(part.isr), part.isr_version)
                if new and partition in self._one_by_one:
                    self._want(partition)
            elif error is ErrorCode.NONE:
                partition.take_isr(state.isr, state.isr_version)
            if proposal.unclean_handled and error is ErrorCode.NONE:
                partition.settle_debt()
                self._broker.data_loss.confirmed(partition)
            self._tell_handled_again(partition)
        elif error in _HOLDS or error in _DEPOSED:
            # Whether an earlier try of it was committed is not known: it counts on.
            del self._open[partition]
            logger.warning("%s: AlterIsr answered %s", partition.key, error.name)
        elif error in _REFUSED:
            del self._open[partition]
            logger.info("%s: the ISR %s was refused: %s", partition.key, proposal.isr, error.name)
            self._note_refusal(partition, new)
            partition.take_isr(state.isr, state.isr_version)
            self._tell_handled_again(partition)

    def _note_refusal(self, partition: HostedPartition, new: list[int]) -> None:
        """The controller does not say who was refused: of several new members each is tried."""
        now_ms = self._broker.clock.monotonic_ms()
        if len(new) > 1:
            self._one_by_one[partition] = now_ms + self._lag_ms
        else:
            for member in new or partition.state.replicas:
                self._refused_until[partition, member] = now_ms + REFUSED_MS
        if new and partition in self._one_by_one:
            self._want(partition)

    def _want(self, partition: HostedPartition) -> None:
        self._wanted[partition] = None
        self._wake.set()

    def _tell_handled_again(self, partition: HostedPartition) -> None:
        """After another answer: what the controller still does not know is told, with a pause."""
        if self._broker.data_loss.is_handled(partition):
            loop = asyncio.get_running_loop()
            loop.call_later(REFUSED_MS / 1000, self.handled, partition)


def _stands(partition: HostedPartition, proposal: Proposal) -> bool:
    """Return whether a proposal is still the partition's change in flight."""
    state = partition.state
    return (
        partition.is_leader
        and state.leader_epoch == proposal.leader_epoch
        and state.isr_version == proposal.isr_version
        and partition.proposed_isr == proposal.isr
    )


def _request(
    node_id: int,
    broker_epoch: int,
    level: Level,
    proposals: Mapping[HostedPartition, Proposal],
) -> messages.AlterIsrRequest:
    request = messages.AlterIsrRequest
    topics: dict[tuple[str, UUID], Any] = {}
    for partition, proposal in proposals.items():
        key = (partition.topic, partition.topic_id if level.topic_ids else NO_UUID)
        topic = topics.get(key)
        if topic is None:
            topic = topics[key] = request.TopicData(key[0], [], topic_id=key[1])
        topic.partitions.append(
            request.PartitionData(
                partition_index=partition.partition,
                leader_epoch=proposal.leader_epoch,
                new_isr=list(proposal.isr),
                isr_version=proposal.isr_version,
                broker_epochs=list(proposal.broker_epochs),
                unclean_handled=proposal.unclean_handled,
            )
        )
    return request(broker_id=node_id, broker_epoch=broker_epoch, topics=list(topics.values()))
