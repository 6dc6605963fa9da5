"""The partitions that this broker hosts: created, changed, stopped, deleted, quarantined.

Owns the map from (topic, partition) to ``HostedPartition``. Not where the log of a new replica
goes: see ``new_replicas``; not which commands are applied: see ``control_plane.control_channel``;
not the steps of the other parts after a change of role: see ``role_steps``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tidelog.broker.partitions.fencing import is_closed, write_owed
from tidelog.broker.partitions.in_sync import Machines
from tidelog.broker.partitions.inventory import failures, inventory, local_replica
from tidelog.broker.partitions.new_replicas import NewReplicas
from tidelog.broker.partitions.partition import HostedPartition, LeaderAndIsrState, StorageFailed
from tidelog.broker.partitions.role_changes import NoSteps, RoleChanges
from tidelog.broker.partitions.sums import Past
from tidelog.model.topics import TopicPartition
from tidelog.model.work import Work
from tidelog.observe.gathered_lines import GatheredLines
from tidelog.protocol.primitives import NO_UUID
from tidelog.replication.command_rules import LocalReplica, may_be_of
from tidelog.runtime import pace
from tidelog.runtime.clock import Clock
from tidelog.storage.checkpoints import PartitionMetadata
from tidelog.storage.directory.log_directory import LogDirectory
from tidelog.storage.log.partition_log import PartitionLog

if TYPE_CHECKING:
    from tidelog.broker.metadata.configurations import ConfigCache
    from tidelog.broker.partitions.group_commit import GroupCommit

logger = logging.getLogger(__name__)


class NotQuarantined(StorageFailed):
    """Deleted or quarantined replicas (``keys``) may be hosted again after a power loss."""

    def __init__(self, reason: str, keys: Sequence[TopicPartition]) -> None:
        super().__init__(reason)
        self.keys = frozenset(keys)


def _do_nothing(_: TopicPartition) -> None:
    """Without moves between log directories no copy ends."""


class Partitions:
    """The hosted partitions of one broker."""

    def __init__(
        self,
        node_id: int,
        directories: Sequence[LogDirectory],
        configs: ConfigCache,
        commit: GroupCommit,
        stale_delay_ms: int,
    ) -> None:
        self.by_topic: dict[str, dict[int, HostedPartition]] = {}
        self.machines = Machines()
        """The machine of each broker, for ``min.insync.machines``."""
        self.steps: RoleChanges = NoSteps()
        """The steps of the other parts; set once, before the first command is applied."""
        self.when_unhosted: Callable[[TopicPartition], None] = _do_nothing
        """Called when a replica goes: it will be deleted or quarantined."""
        self.directories = directories
        self.new_replicas = NewReplicas(directories, configs)
        self._renamed: dict[LogDirectory, list[HostedPartition]] = {}
        """Replicas that were deleted or quarantined, not yet durably."""
        self._undecided: dict[TopicPartition, list[HostedPartition]] = {}
        """Replicas with another topic id under the name of a hosted one: the topic id in the next
        command for that name decides which one is kept (docs/decisions/0045)."""
        self._unfenced: dict[HostedPartition, None] = {}
        """Leaders whose fence or seal a full disk refused, or whose seal's segment is open, in the
        order of their commands."""
        self.past = Past()
        """Sums of the counts of removed replicas."""
        self.away: Sequence[str] = ()
        """Sentences about log directories that could not be used at the start. A replica not hosted
        may be in them, unless it is in its first leader epoch: it is not created again."""
        self.commit = commit
        self._node_id = node_id
        self.configs = configs
        self._quarantine_ms = stale_delay_ms
        for directory in directories:
            directory.resources.on_failure = lambda reason, d=directory: self._failed(d, reason)
            directory.resources.on_damage = lambda key, d=directory: self._damaged(d, key)
            directory.resources.sync_soon = self._sync_soon
            for key, log in directory.logs.items():
                if self.get(*key) is None:
                    self._host(key, log)
                else:
                    other = self._made(key, log)
                    self._undecided.setdefault(key, []).append(other)

    # -- reading

    def get(self, topic: str, partition: int) -> HostedPartition | None:
        """Return a hosted partition."""
        hosted = self.by_topic.get(topic)
        return None if hosted is None else hosted.get(partition)

    def all(self) -> Iterator[HostedPartition]:
        """Yield every hosted partition; the map must not change meanwhile."""
        for hosted in self.by_topic.values():
            yield from hosted.values()

    async def for_each(self, do: Callable[[HostedPartition], object], clock: Clock) -> None:
        """Do something with each partition that is hosted now, in turns of the loop."""
        turn = pace.Turn(clock)
        for hosted in list(self.all()):
            do(hosted)
            await turn.pause()

    def local(self, topic: str, partition: int) -> LocalReplica | None:
        """Return a local replica as the rules of ``replication.command_rules`` need it."""
        hosted = self.get(topic, partition)
        return None if hosted is None else local_replica(hosted)

    def directory_of(self, partition: HostedPartition) -> LogDirectory:
        """Return the log directory that a partition's log is in. O(directories)."""
        for directory in self.directories:
            if directory.logs.get(partition.key) is partition.log:
                return directory
        raise KeyError(str(partition.key))

    def reuses_names(self, keys: Iterable[TopicPartition]) -> bool:
        """Whether checkpoints hold entries of former replicas of partitions that are created."""
        sound = [directory for directory in self.directories if directory.failed is None]
        return any(directory.is_noted(key) for key in keys for directory in sound)

    def inventory(self) -> list[Any]:
        """Return the local replicas for BrokerRegistration (tag 10002)."""
        return inventory(chain(self.all(), *self._undecided.values()))

    def failures(self) -> Any:
        """Return the failures for heartbeats (tag 10000), or None."""
        return failures(self.all(), self.directories, len(self.away))

    # -- changing

    def create(self, topic: str, partition: int, state: LeaderAndIsrState) -> HostedPartition:
        """Host a partition, with a new log if there is none. Raises StorageFailed."""
        key = TopicPartition(topic, partition)
        existing = self.get(topic, partition)
        if existing is not None:
            return existing
        if state.topic_id != NO_UUID and (decided := self._decide(key, state)) is not None:
            self.by_topic.setdefault(topic, {})[partition] = decided
            if state.leader_epoch < decided.leader_epoch:
                raise StorageFailed(f"leader epoch {state.leader_epoch} is older than its log's")
            return decided
        if self.away and state.leader_epoch > 0:
            # It may be there: a second replica would conflict with it when the disk is back.
            raise StorageFailed(f"{key} may be in an unusable directory: {'; '.join(self.away)}")
        return self._host(key, self.new_replicas.create(key, state))

    def _decide(self, key: TopicPartition, state: LeaderAndIsrState) -> HostedPartition | None:
        """Return the undecided replica with the command's topic id; quarantine the others."""
        decided = None
        for other in self._undecided.pop(key, ()):
            is_meant = other.topic_id == state.topic_id
            epochs = other.partition_epoch, state.partition_epoch, state.birth_epoch
            if is_meant and may_be_of(*epochs):
                decided = other
                continue
            delay_ms, what = self._kept_ms(other)
            why = f"the topic of that name is {state.topic_id}"
            logger.warning(
                "%(path)s: quarantined, %(what)s: %(why)s",
                {"path": other.log.path, "what": what, "why": why},
            )
            directory = self.directory_of(other)
            try:
                directory.mark_stray(key, remove_after_ms=delay_ms, durable=False)
            except OSError as error:
                # It is not served, and after the next start the controller decides again.
                directory.leave(key)
                directory.resources.fail(f"{other.log.path} cannot be quarantined: {error}")
        return decided

    def apply(
        self, partition: HostedPartition, state: LeaderAndIsrState, *, is_new: bool = False
    ) -> None:
        """Lead or follow as ``state`` says, then perform the steps of the other parts. What
        ``is_new`` fetches from ``steps.follow_new`` on."""
        if partition.key in self._undecided and state.topic_id != NO_UUID:
            self._decide(partition.key, state)
        led, epoch = partition.is_leader, partition.leader_epoch
        partition.become(state)
        self._unfenced.pop(partition, None)
        # In the same turn: no append of a client comes before it.
        now_ms = self.directories[0].now_ms()
        write_owed(partition, now_ms)
        if partition.fence_unwritten or not is_closed(partition, now_ms):
            self._unfenced[partition] = None
        leads = partition.is_leader
        self.steps.become(
            partition,
            led_until=epoch if led and not leads else None,
            leads_new_epoch=leads and not (led and partition.leader_epoch == epoch),
            is_new=is_new,
        )

    def write_fences_again(self) -> None:
        """Write the fences and seals that a full disk refused, and close the segments of seals.
        O(leaders that have not done so)."""
        now_ms = self.directories[0].now_ms()
        for partition in list(self._unfenced):
            if partition.fence_unwritten and partition.is_leader:
                write_owed(partition, now_ms)
                if not partition.fence_unwritten:
                    self.steps.fenced(partition)
            if not (partition.fence_unwritten and partition.is_leader) and is_closed(
                partition, now_ms
            ):
                del self._unfenced[partition]

    def stop(self, topic: str, partition: int, *, delete: bool) -> None:
        """Stop serving at once; with ``delete`` the log is renamed now and removed later.

        Durable after ``syncing_names``, once for many. Raises StorageFailed when the rename fails;
        the partition does not serve in any case.
        """
        hosted = self._stop(topic, partition)
        if hosted is not None and delete:
            self.steps.remove(hosted.key)
            self._unhost(hosted, lambda directory: directory.delete(hosted.key, durable=False))

    def syncing_names(self) -> Work[None]:
        """Make the renames of ``stop`` and ``quarantine`` durable, in pieces. Raises NotQuarantined
        with the replicas in directories that failed, after all directories were synced."""
        failed: list[TopicPartition] = []
        reason = ""
        for directory in self.directories:
            # Before the sync: a rename that comes while a thread waits for the disk needs another
            # one.
            renamed = self._renamed.pop(directory, [])
            try:
                yield from directory.syncing_names()
            except OSError as error:
                reason = f"deletions in {directory.path} cannot be made durable: {error}"
                directory.resources.fail(reason)
                for hosted in renamed:
                    self._may_come_back(hosted)
                    failed.append(hosted.key)
        if reason:
            raise NotQuarantined(reason, failed)

    def quarantine(
        self,
        topic: str,
        partition: int,
        reason: str,
        *,
        durable: bool = True,
        gathered: GatheredLines | None = None,
    ) -> None:
        """Stop serving; quarantine the log, and remove it after a delay (KIP-516), if it has an id
        and is not damaged.

        ``gathered`` takes the log lines of many. Without ``durable``, call ``syncing_names``, once
        for many, before the response is sent.
        """
        hosted = self._stop(topic, partition)
        if hosted is None:
            return
        self.steps.remove(hosted.key)
        delay_ms, what = self._kept_ms(hosted)
        lines = gathered or GatheredLines(logger)
        lines.add(hosted.key, f"quarantined, {what}: {reason}", logging.WARNING)
        if gathered is None:
            lines.say()
        self._unhost(
            hosted,
            lambda d: d.mark_stray(hosted.key, remove_after_ms=delay_ms, durable=durable),
        )

    def _kept_ms(self, hosted: HostedPartition) -> tuple[int | None, str]:
        """Return how long a quarantined replica is kept, None for ever, and the words for it."""
        # A missing file proves nothing: the replica may have all there is (promise 20). A damaged
        # one is in no report, so the controller does not know it. One without records has nothing,
        # if its folder has nothing else: a kill left it between its folder and its file.
        is_empty = hosted.offline_reason is None and hosted.end_offset == hosted.start_offset
        if is_empty and hosted.topic_id == NO_UUID:
            is_empty = hosted.key not in self.directory_of(hosted).strange
        is_known = hosted.topic_id != NO_UUID and hosted.log.damaged is None
        if not is_empty and not is_known:
            return None, "kept until you remove it"
        return self._quarantine_ms, f"removed in {self._quarantine_ms} ms"

    def quarantine_for_repair(self, hosted: HostedPartition) -> tuple[LogDirectory, str]:
        """Stop serving; quarantine the log without a time limit. Return its directory and path.

        Durable after ``syncing_names``. Raises StorageFailed.
        """
        directory = self.directory_of(hosted)
        self._stop(*hosted.key)
        paths: list[str] = []
        self._unhost(
            hosted, lambda directory: paths.append(directory.mark_stray(hosted.key, durable=False))
        )
        return directory, paths[0]

    def adopt_identity(
        self, topic: str, partition: int, topic_id: UUID, partition_epoch: int
    ) -> None:
        """Write its topic id and partition epoch to a replica that is older than these.

        Durable after ``syncing_identity``. Raises StorageFailed.
        """
        hosted = self.get(topic, partition)
        if hosted is None:
            return
        if (failed := self.directory_of(hosted).failed) is not None:
            # Promise 25: after a failure the directory gets no writes or syncs.
            raise StorageFailed(f"{hosted.log.path} cannot take its topic id: {failed}")
        try:
            metadata = hosted.log.metadata
            if metadata is None:
                own = self.configs.own(topic)
                metadata = PartitionMetadata(topic_id, partition_epoch, own)
            hosted.log.adopt_metadata(replace(metadata, partition_epoch=partition_epoch))
        except OSError as error:
            raise self._identity_failed(hosted, error) from error

    def syncing_identity(self, hosted: HostedPartition) -> Work[None]:
        """Sync the topic id written by ``adopt_identity``, in pieces. Raises StorageFailed."""
        try:
            yield from hosted.log.syncing_metadata()
        except OSError as error:
            raise self._identity_failed(hosted, error) from error

    def _identity_failed(self, hosted: HostedPartition, error: OSError) -> StorageFailed:
        reason = f"{hosted.log.path} cannot take its topic id: {error}"
        resources = hosted.log.resources
        if not resources.is_full(error):
            resources.fail(reason)
        return StorageFailed(reason)

    def reconfigure(self, topics: Collection[str] | None) -> Work[None]:
        """Apply the changed configuration of topics (None: all) to their partitions.

        O(their partitions). Each gets the configuration of its time, not that of the call.
        """
        for partition in self._hosted_of(topics):
            # It may have been removed since; a newer replica has the new configuration.
            if self.get(*partition.key) is partition:
                partition.log.configure(self.configs.topic(partition.topic))
                partition.configure()
            yield None

    def machines_changed(self) -> Work[None]:
        """Apply ``min.insync.machines`` again to the led partitions that have it."""
        for partition in list(self.all()):
            if partition.is_leader and partition.log.configs.min_insync_machines > 1:
                partition.configure()
            yield None

    def _hosted_of(self, topics: Collection[str] | None) -> list[HostedPartition]:
        if topics is None:
            return list(self.all())
        of_topics = [self.by_topic.get(name, {}) for name in topics]
        return [partition for hosted in of_topics for partition in hosted.values()]

    def close(self) -> None:
        """Stop serving all; the logs stay as they are."""
        for partition in list(self.all()):
            self._stop(*partition.key)

    def _host(self, key: TopicPartition, log: PartitionLog) -> HostedPartition:
        hosted = self._made(key, log)
        self.by_topic.setdefault(key.topic, {})[key.partition] = hosted
        return hosted

    def _made(self, key: TopicPartition, log: PartitionLog) -> HostedPartition:
        made = HostedPartition(key, log, self._node_id, self.commit)
        made.machines = self.machines
        return made

    def _sync_soon(self, key: TopicPartition) -> bool:
        hosted = self.get(*key)
        if hosted is None:
            return False
        self.commit.want(hosted, closed_only=True)
        return True

    def _stop(self, topic: str, partition: int) -> HostedPartition | None:
        hosted = self.get(topic, partition)
        if hosted is None:
            return None
        led, epoch = hosted.is_leader, hosted.leader_epoch
        hosted.stop()
        self.steps.resign(hosted.key, epoch if led else None)
        return hosted

    def _unhost(self, hosted: HostedPartition, action: Callable[[LogDirectory], object]) -> None:
        key = hosted.key
        self.when_unhosted(key)
        directory = self.directory_of(hosted)
        of_topic = self.by_topic[key.topic]
        del of_topic[key.partition]
        self.past.went(hosted, is_last=not of_topic)
        if not of_topic:
            del self.by_topic[key.topic]
            self.configs.forget(key.topic)
        metadata = hosted.log.metadata
        if metadata is not None and metadata.replaces:
            # The next replica must also replace those that this one had to replace.
            self.new_replicas.also_replaces(key, metadata.replaces)
        try:
            action(directory)
            self._renamed.setdefault(directory, []).append(hosted)
        except OSError as error:
            self._may_come_back(hosted)
            directory.resources.fail(f"{hosted.log.path} cannot be quarantined: {error}")
            raise StorageFailed(f"{hosted.log.path} cannot be quarantined: {error}") from error

    def _may_come_back(self, hosted: HostedPartition) -> None:
        """Have the next replica record that it replaces this one, left on a failing disk."""
        metadata = hosted.log.metadata
        if metadata is not None and metadata.created is not None:
            self.new_replicas.also_replaces(hosted.key, (metadata.created,))

    def _failed(self, directory: LogDirectory, reason: str) -> None:
        logger.error(
            "%(log_dir)s is out of service: %(why)s", {"log_dir": directory.path, "why": reason}
        )
        for partition in list(self.all()):
            if directory.logs.get(partition.key) is partition.log:
                self._take_offline(partition, reason)

    def _damaged(self, directory: LogDirectory, key: TopicPartition) -> None:
        """A log was found damaged while it served. Heartbeats report it after a thread has synced
        the note of the damage."""
        hosted = self.get(*key)
        log = directory.logs.get(key)
        if hosted is None or log is not hosted.log or log.damaged is None:
            return
        logger.error(
            "%(partition)s is out of service: %(why)s", {"partition": key, "why": log.damaged}
        )
        self._take_offline(hosted, log.damaged)
        self.commit.want(hosted)

    def _take_offline(self, partition: HostedPartition, reason: str) -> None:
        led, epoch = partition.is_leader, partition.leader_epoch
        partition.go_offline(reason)
        self.steps.resign(partition.key, epoch if led else None)
