"""The application of LeaderAndIsr and StopReplica to the hosted partitions.

Owns the application. Not which channel is accepted: see ``channel``; not the rules of a partition:
see ``replication.command_rules``. The response does not wait for replication. A request of many
partitions lets others run between two, and continues only if its channel, controller epoch and
broker epoch are still current; the epochs of a partition are checked right before its command is
applied.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from tidelog.broker.control_plane.commands import (
    PartitionCommand,
    command_of,
    commands_of,
    kind_of,
    state_of,
    stops_of,
)
from tidelog.broker.partitions.inventory import local_replica
from tidelog.broker.partitions.partition import HostedPartition, LeaderAndIsrState, StorageFailed
from tidelog.broker.partitions.registry import NotQuarantined
from tidelog.broker.partitions.state import NotYet
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work
from tidelog.observe.gathered_lines import GatheredLines
from tidelog.protocol import messages
from tidelog.replication.command_rules import (
    Action,
    Apply,
    CommandRefusal,
    LeaderAndIsrCommand,
    LeaderAndIsrType,
    StopAction,
    StopReplicaCommand,
    decide_leader_and_isr,
    decide_stop_replica,
    stale_in_full,
)
from tidelog.runtime import pace
from tidelog.storage.names import why_no_directory

if TYPE_CHECKING:
    from tidelog.broker.control_plane.channel import ControlChannel, ControlRequest
    from tidelog.broker.partitions.log_work import LogWork
    from tidelog.broker.partitions.registry import Partitions
    from tidelog.broker.partitions.repairs import Repairs
    from tidelog.network.router import Peer
    from tidelog.runtime.clock import Clock

logger = logging.getLogger(__name__)

Errors = list[tuple[str, UUID, int, ErrorCode]]
"""(topic, id, partition, error) for each partition of a request."""

LOGS_AT_REST_WITHIN_S = 5.0
"""Longest total wait of a request for logs that a thread is changing: after it their commands get
KAFKA_STORAGE_ERROR, and the controller sends them again."""


class Control:
    """Applies the commands of the newest channel of the newest controller epoch (promise 23)."""

    def __init__(
        self,
        channel: ControlChannel,
        partitions: Partitions,
        repairs: Repairs,
        log_work: LogWork,
        forgetting: Callable[[], Work[None]],
        checkpoint: Callable[[], Awaitable[None]],
        clock: Clock,
    ) -> None:
        """``forgetting`` removes the loss notes of deleted replicas from the disk, in pieces;
        ``checkpoint`` writes the checkpoints of all log directories."""
        self._channel = channel
        self._partitions = partitions
        self._repairs = repairs
        self._log_work = log_work
        self._forgetting = forgetting
        self._checkpoint = checkpoint
        self._clock = clock
        self._undeleted: dict[TopicPartition, set[UUID]] = {}
        """Replicas that a failing disk did not delete, with their topic ids: their deletion is not
        confirmed before the next start has read the directories."""

    # -- LeaderAndIsr

    async def apply_leader_and_isr(
        self, request: messages.LeaderAndIsrRequest, connection: Peer
    ) -> Errors | ErrorCode:
        """Apply a request of any version; return the error if it is, or becomes, stale."""
        error = self._channel.check(request, connection)
        named = list(commands_of(request))
        kind = kind_of(request)
        results: Errors = []
        deadline_s = asyncio.get_running_loop().time() + LOGS_AT_REST_WITHIN_S
        commands = [
            (TopicPartition(one.topic, one.state.partition_index), command_of(one, kind))
            for one in named
        ]
        stuck: dict[TopicPartition, UUID] = {}
        stale: dict[TopicPartition, str | HostedPartition] = {}
        if not error:
            stale |= self._to_rebuild(zip(commands, named, strict=True))
            left = None
            if kind is LeaderAndIsrType.FULL:
                left = frozenset(request.unreadable_topics)
            stale |= self._stale(commands, left)
        if stale:
            error = await self._drop_stale(stale, stuck, request, connection, deadline_s)
        if not error and self._partitions.reuses_names(key for key, _ in commands):
            # Once, in a thread: the first creation would otherwise write it on the loop.
            await self._checkpoint()
            error = self._channel.check(request, connection)
        # Partitions whose log a thread is changing come last, so that no other waits for them.
        pairs = zip(commands, named, strict=True)
        ordered = sorted(pairs, key=lambda pair: self._is_changing(pair[0][0]))
        adopted: list[tuple[int, HostedPartition]] = []
        turn = pace.Turn(self._clock)
        try:
            for (key, command), state in ordered:
                is_at_rest = await self._at_rest(key, deadline_s)
                # Checked after each wait: a newer channel may have commanded meanwhile (promise
                # 23).
                error = error or self._channel.check(request, connection)
                if error:
                    return error
                code = ErrorCode.KAFKA_STORAGE_ERROR
                if is_at_rest and key not in stuck:
                    code, hosted = self._lead_or_follow(key, command, state)
                    if hosted is not None:
                        adopted.append((len(results), hosted))
                results.append((key.topic, command.topic_id, key.partition, code))
                if await turn.pause():
                    error = self._channel.check(request, connection)
        finally:
            # Also when the request has become stale: what was applied until then has to be fetched.
            self._partitions.steps.follow_new()
        for place, hosted in adopted:
            if not await self._write_identity(hosted):
                results[place] = (*results[place][:3], ErrorCode.KAFKA_STORAGE_ERROR)
        if kind is LeaderAndIsrType.FULL:
            # The response confirms that replicas which a FULL does not name are gone: not these.
            results += self._undeleted_results()
            answered = {*self._undeleted, *(key for key, _ in commands)}
            results += [
                (key.topic, topic_id, key.partition, ErrorCode.KAFKA_STORAGE_ERROR)
                for key, topic_id in stuck.items()
                if key not in answered
            ]
        return error or results

    def _is_changing(self, key: TopicPartition) -> bool:
        hosted = self._partitions.get(*key)
        return hosted is not None and hosted.log.change is not None

    async def _at_rest(self, key: TopicPartition, deadline_s: float) -> bool:
        """Wait until no thread is changing the log; False after the deadline."""
        if self._is_changing(key):
            self._partitions.steps.follow_new()  # they do not wait for it
        while (hosted := self._partitions.get(*key)) is not None:
            log = hosted.log
            if not await self._log_work.until_free(log, deadline_s):
                break
            if hosted.log is log and self._partitions.get(*key) is hosted:
                return True  # if it has moved meanwhile, the move of the new one may go on
        else:
            return True
        logger.error("%s: a change of its log (cut, moved) takes long: the command is resent", key)
        return False

    def _undeleted_results(self) -> Errors:
        failed = ErrorCode.KAFKA_STORAGE_ERROR
        return [
            (key.topic, topic_id, key.partition, failed)
            for key, topic_ids in self._undeleted.items()
            for topic_id in topic_ids
        ]

    def _not_deleted(self, key: TopicPartition, topic_id: UUID) -> None:
        self._undeleted.setdefault(key, set()).add(topic_id)

    def _stale(
        self,
        commands: Sequence[tuple[TopicPartition, LeaderAndIsrCommand]],
        left: frozenset[str] | None,
    ) -> dict[TopicPartition, str]:
        """Return the stale replicas and why: those that commands replace, or a FULL does not name.
        They are quarantined first; a command is applied only if its stale replica is gone.

        ``left``: the topics that a FULL cannot speak of; None: the request is no FULL.
        """
        partitions = self._partitions
        stale = {}
        for key, command in commands:
            decision = decide_leader_and_isr(partitions.local(*key), command)
            if isinstance(decision, Apply) and decision.action is Action.REPLACE:
                stale[key] = decision.why
        if left is not None:
            full = {(key.topic, key.partition): command.incarnation for key, command in commands}
            local = {
                (p.topic, p.partition): local_replica(p).incarnation
                for p in partitions.all()
                if p.topic not in left
            }
            for place, why in stale_in_full(local, full).items():
                stale.setdefault(TopicPartition(*place), why)
        return stale

    def _to_rebuild(
        self,
        commands: Iterable[tuple[tuple[TopicPartition, LeaderAndIsrCommand], PartitionCommand]],
    ) -> dict[TopicPartition, HostedPartition]:
        """Return the damaged replicas that these commands allow to rebuild from a leader."""
        partitions = self._partitions
        damaged = {}
        for (key, command), state in commands:
            hosted = partitions.get(*key)
            if hosted is None or hosted.log.damaged is None:
                continue
            decision = decide_leader_and_isr(local_replica(hosted), command)
            taken = (Action.BECOME, Action.UPDATE)
            is_new = isinstance(decision, Apply) and decision.action in taken
            if is_new and self._repairs.is_due(hosted, state_of(state)):
                damaged[key] = hosted
        return damaged

    async def _drop_stale(
        self,
        stale: Mapping[TopicPartition, str | HostedPartition],
        stuck: dict[TopicPartition, UUID],
        request: ControlRequest,
        connection: Peer,
        deadline_s: float,
    ) -> ErrorCode:
        """Quarantine replicas that are stale (value: why) or damaged (value: the replica), with one
        sync for all; those that could not be quarantined are added to ``stuck``."""
        partitions = self._partitions
        ids: dict[TopicPartition, UUID] = {}
        error = ErrorCode.NONE
        lines = GatheredLines(logger)
        turn = pace.Turn(self._clock)
        for key, reason in stale.items():
            await turn.pause()
            # Last: in another turn of the loop a change of its log could begin.
            is_at_rest = await self._at_rest(key, deadline_s)
            error = self._channel.check(request, connection)
            if error:
                break
            local = partitions.local(*key)
            if local is None:
                continue
            if not is_at_rest:
                stuck[key] = local.topic_id
                continue
            ids[key] = local.topic_id
            try:
                if isinstance(reason, str):
                    partitions.quarantine(*key, reason, durable=False, gathered=lines)
                elif partitions.get(*key) is reason:
                    self._repairs.quarantine(reason)
            except StorageFailed as failure:
                # It is no longer served in any case, and the other commands still apply.
                logger.error("%s: %s", key, failure)
                self._not_deleted(key, local.topic_id)
                stuck[key] = local.topic_id
        lines.say()
        try:
            await self._sync_names()
        except NotQuarantined as failure:
            logger.error("%s", failure)
            for key, topic_id in ids.items():
                if key in failure.keys:
                    stuck[key] = topic_id
                    self._not_deleted(key, topic_id)
        return error or self._channel.check(request, connection)

    async def _sync_names(self) -> None:
        """Make the quarantines durable, in a thread. Raises NotQuarantined."""
        log_work = self._log_work
        await log_work.run(None, self._partitions.syncing_names())
        # After the replicas: one that a power loss brings back must still have its notes.
        await log_work.run(None, self._forgetting())

    def _lead_or_follow(
        self, key: TopicPartition, command: LeaderAndIsrCommand, state: PartitionCommand
    ) -> tuple[ErrorCode, HostedPartition | None]:
        """Apply one command; also return the partition if it adopted an identity: not synced."""
        partitions = self._partitions
        unfit = why_no_directory(key)
        if unfit is not None:
            logger.error("LeaderAndIsr for %r refused: %s", key, unfit)
            return ErrorCode.INVALID_TOPIC_EXCEPTION, None
        decision = decide_leader_and_isr(partitions.local(*key), command)
        if isinstance(decision, CommandRefusal):
            logger.warning("LeaderAndIsr for %s refused: %s", key, decision.why)
            return decision.error, None
        if decision.action is Action.IGNORE and not decision.adopt_identity:
            return ErrorCode.NONE, None
        try:
            self._apply(key, decision, state_of(state))
        except StorageFailed as error:
            logger.log(error.level, "%s cannot be hosted: %s", key, error)
            return ErrorCode.KAFKA_STORAGE_ERROR, None
        return ErrorCode.NONE, partitions.get(*key) if decision.adopt_identity else None

    def _apply(self, key: TopicPartition, decision: Apply, state: LeaderAndIsrState) -> None:
        partitions = self._partitions
        if decision.action is Action.REPLACE:
            # It became stale during a yield.
            raise NotYet(f"it is stale: {decision.why}")
        if decision.adopt_identity:
            partitions.adopt_identity(*key, state.topic_id, state.partition_epoch)
        if decision.action is Action.CREATE:
            if partitions.reuses_names([key]):
                raise NotYet("the checkpoints still hold entries of its former replica")
            partitions.apply(partitions.create(*key, state), state, is_new=True)
        elif decision.action in (Action.BECOME, Action.UPDATE):
            hosted = partitions.get(*key)
            assert hosted is not None
            if self._repairs.is_due(hosted, state):
                raise StorageFailed(f"its log is damaged, found just now: {hosted.log.damaged}")
            partitions.apply(hosted, state)

    async def _write_identity(self, hosted: HostedPartition) -> bool:
        """Write a replica's adopted topic id and partition epoch to its disk, durably."""
        work = self._partitions.syncing_identity(hosted)
        try:
            await self._log_work.run(hosted.log, work)
        except StorageFailed as error:
            logger.error("%s: %s", hosted.key, error)
            return False
        return True

    # -- StopReplica

    async def apply_stop_replica(
        self, request: messages.StopReplicaRequest, version: int, connection: Peer
    ) -> Errors | ErrorCode:
        """Apply a request of any version; return the error if it is, or becomes, stale."""
        error = self._channel.check(request, connection)
        stopped: Errors = []
        lines = GatheredLines(logger)
        deadline_s = asyncio.get_running_loop().time() + LOGS_AT_REST_WITHIN_S
        turn = pace.Turn(self._clock)
        for topic, partition, command in stops_of(request, version):
            key = TopicPartition(topic, partition)
            is_at_rest = await self._at_rest(key, deadline_s)
            error = error or self._channel.check(request, connection)
            if error:
                break
            code = self._stop(key, command, lines) if is_at_rest else ErrorCode.KAFKA_STORAGE_ERROR
            stopped.append((topic, command.topic_id, partition, code))
            if await turn.pause():
                error = self._channel.check(request, connection)
        lines.say()
        if error:
            return error
        try:
            # The controller forgets a stop that is confirmed: after that no power loss may undo it.
            await self._sync_names()
        except NotQuarantined as failure:
            logger.error("%s", failure)
            for place, (topic, topic_id, index, why) in enumerate(stopped):
                if TopicPartition(topic, index) in failure.keys:
                    self._not_deleted(TopicPartition(topic, index), topic_id)
                    failed = why or ErrorCode.KAFKA_STORAGE_ERROR
                    stopped[place] = (topic, topic_id, index, failed)
        return stopped

    def _stop(
        self, key: TopicPartition, command: StopReplicaCommand, lines: GatheredLines
    ) -> ErrorCode:
        partitions = self._partitions
        local = partitions.local(*key)
        decision = decide_stop_replica(local, command)
        if isinstance(decision, CommandRefusal):
            lines.add(key, f"StopReplica refused: {decision.why}", logging.WARNING)
            return decision.error
        if decision is StopAction.NOTHING:
            # Its directory may still exist: the name must not count as free (KIP-516).
            return ErrorCode.KAFKA_STORAGE_ERROR if key in self._undeleted else ErrorCode.NONE
        delete = decision is StopAction.DELETE
        why = f"StopReplica, leader epoch {command.leader_epoch}"
        try:
            partitions.stop(*key, delete=delete)
        except StorageFailed as error:
            logger.error("%s cannot be stopped: %s", key, error)
            self._not_deleted(key, command.topic_id if local is None else local.topic_id)
            return ErrorCode.KAFKA_STORAGE_ERROR
        lines.add(key, f"{'deleted' if delete else 'stopped'} by {why}")
        return ErrorCode.NONE
