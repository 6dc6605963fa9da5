"""One hosted partition: its role, its epochs and its high watermark.

Owns the state that LeaderAndIsr sets, and the high watermark. Not the records: see ``storage.log``;
not the rules: see ``replication``; not the requests that wait: see ``waiters``.

| role | append | read by clients | reason |
|---|---|---|---|
| LEADER | yes | up to the high watermark | LeaderAndIsr names this broker |
| FOLLOWER | NOT_LEADER_OR_FOLLOWER | the same, with a rack (KIP-392) | LeaderAndIsr names another |
| OFFLINE | KAFKA_STORAGE_ERROR | KAFKA_STORAGE_ERROR | a disk failure or a damaged log |

A record is stored once it is written or, with ``log.durability=sync``, once it is synced. The high
watermark never passes the stored end of the log.

Each fetch of a follower has its log end (``follower_fetched``). The ``leadership`` keeps these and
the ISR change in flight (``isr_changes``), one object per leader epoch and set of replicas. While a
change is in flight the high watermark counts the members of both ISRs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from uuid import UUID

from tidelog.broker.partitions.awaited_commits import Committed
from tidelog.broker.partitions.counts import Counts
from tidelog.broker.partitions.in_sync import Machines, is_too_small, lacks_machines
from tidelog.broker.partitions.leadership import Leadership
from tidelog.broker.partitions.plain_append import append_plain
from tidelog.broker.partitions.read_limit import read_limit
from tidelog.broker.partitions.state import NO_LEADER as NO_LEADER
from tidelog.broker.partitions.state import NO_VERSION, UNASSIGNED, Commit
from tidelog.broker.partitions.state import LeaderAndIsrState as LeaderAndIsrState
from tidelog.broker.partitions.state import Role as Role
from tidelog.broker.partitions.state import StorageFailed as StorageFailed
from tidelog.broker.partitions.waiters import Waiting, wake
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition, with_joined
from tidelog.records.batch import Buffer, Rejected
from tidelog.replication.isr import UNKNOWN, Follower, maximal
from tidelog.replication.watermark import high_watermark, required_in_sync
from tidelog.storage.log.changes import LogChange
from tidelog.storage.log.inspecting import UNINSPECTED, Batches, InspectionAllowance
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended

_NO_FOLLOWERS: Mapping[int, Follower] = MappingProxyType({})


class HostedPartition:
    """A replica on this broker, created by ``Partitions``. Used on the event loop only."""

    __slots__ = (
        "_alone",
        "_commit",
        "_is_short",
        "_leader_mark",
        "_marked_generation",
        "_node_id",
        "bytes_in",
        "bytes_out",
        "counts",
        "fence_unwritten",
        "has_uninspected",
        "is_leader",
        "key",
        "leader_epoch",
        "leadership",
        "log",
        "machines",
        "noted_ms",
        "offline_epoch",
        "offline_reason",
        "required_in_sync",
        "state",
        "waiting",
    )

    def __init__(
        self, key: TopicPartition, log: PartitionLog, node_id: int, commit: Commit
    ) -> None:
        self.key, self.log = key, log
        self.machines = Machines()  # the broker has one for all its partitions: ``registry``
        self.state, self.is_leader = UNASSIGNED, False
        self.leader_epoch = log.latest_epoch  # before the first LeaderAndIsr (KIP-570's fencing)
        self.offline_reason: str | None = log.failed
        self.offline_epoch, self.required_in_sync = -1, 1
        self.bytes_in = self.bytes_out = 0
        self.noted_ms = -1  # when a batch without a count was last noted (``unaware_writers``)
        self.has_uninspected = False  # whether batches wait for ``inspected_appends``
        self.fence_unwritten = False  # whether its own fence or seal is still to be written
        self.counts, self.waiting = Counts(), Waiting()
        self.leadership: Leadership | None = None  # the leader's state; None while not leading
        self._node_id, self._commit = node_id, commit
        self._alone = False
        self._is_short = False
        """Whether a replica is not in the ISR: then it may lack committed records."""
        self._leader_mark = UNKNOWN
        """The leader's high watermark in its last response; it may be above the stored end."""
        self._marked_generation = log.generation
        """The log's generation then: after a truncation ``_leader_mark`` is not used."""

    # -- its state

    @property
    def topic(self) -> str:
        return self.key.topic

    @property
    def partition(self) -> int:
        return self.key.partition

    @property
    def topic_id(self) -> UUID:
        """The topic id on disk, otherwise that of LeaderAndIsr; ``NO_UUID`` without either."""
        metadata = self.log.metadata
        return metadata.topic_id if metadata is not None else self.state.topic_id

    @property
    def partition_epoch(self) -> int:
        """The partition epoch on disk, otherwise that of LeaderAndIsr; -1 without either."""
        metadata = self.log.metadata
        return metadata.partition_epoch if metadata is not None else self.state.partition_epoch

    @property
    def role(self) -> Role:
        if self.offline_reason is not None:
            return Role.OFFLINE
        return Role.LEADER if self.is_leader else Role.FOLLOWER

    @property
    def assigned(self) -> bool:
        """Whether it was commanded since the start of the broker: see ``LeaderAndIsrState``."""
        return self.state.is_assigned

    @property
    def isr(self) -> tuple[int, ...]:
        return self.state.isr

    @property
    def isr_version(self) -> int:
        return self.state.isr_version

    @property
    def replicas(self) -> tuple[int, ...]:
        return self.state.replicas

    @property
    def followers(self) -> Mapping[int, Follower]:
        """The followers' log ends in this leadership; empty while not leading."""
        return _NO_FOLLOWERS if self.leadership is None else self.leadership.followers

    @property
    def epoch_start(self) -> int:
        """The start offset of the present leader epoch; 0 while not leading."""
        return 0 if self.leadership is None else self.leadership.start

    @property
    def proposed_isr(self) -> tuple[int, ...] | None:
        """The ISR of the change in flight, or None."""
        leadership = self.leadership
        return None if leadership is None or leadership.change is None else leadership.change.isr

    @property
    def start_offset(self) -> int:
        return self.log.start_offset

    @property
    def end_offset(self) -> int:
        return self.log.end_offset

    @property
    def high_watermark(self) -> int:
        return self.log.high_watermark

    @property
    def watermark_is_certain(self) -> bool:
        """Whether the high watermark is known to be at least that of the former leader (KIP-207).

        A new leader has the high watermark of its last fetch; records committed after that are
        confirmed when its followers have fetched. A newer epoch of the same leader changes nothing.
        """
        leadership = self.leadership
        certain_from = 0 if leadership is None else leadership.certain_from
        return len(self.state.hosts) <= 1 or self.log.high_watermark >= certain_from

    @property
    def is_following(self) -> bool:
        """Whether it follows a leader: consumers may read up to its high watermark."""
        return not self.is_leader and self.state.leader >= 0 and self.offline_reason is None

    def why_not_answering(self, leader_epoch: int) -> ErrorCode:
        """Return why a request that has waited since ``leader_epoch`` cannot be answered, or NONE.

        It can be if this broker has led without a break since: then the log was not truncated.
        """
        leadership = self.leadership
        if leadership is not None and leadership.since <= leader_epoch <= self.leader_epoch:
            return ErrorCode.NONE
        return self.why_not_serving(leader_epoch)

    def why_not_serving(self, current_leader_epoch: int = -1) -> ErrorCode:
        """Return why a client's request cannot be served here, or NONE (KIP-320)."""
        if self.offline_reason is not None:
            return ErrorCode.KAFKA_STORAGE_ERROR
        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:
            if current_leader_epoch < self.leader_epoch:
                return ErrorCode.FENCED_LEADER_EPOCH
            return ErrorCode.UNKNOWN_LEADER_EPOCH
        return ErrorCode.NONE if self.is_leader else ErrorCode.NOT_LEADER_OR_FOLLOWER

    # -- changes of role

    def become(self, state: LeaderAndIsrState) -> None:
        """Lead or follow as ``state`` says. The same leader epoch changes ISR and flags only.

        A leader that leads again in a newer epoch does not truncate its log: requests keep waiting,
        by the rules of the new epoch. Its followers' log ends are unknown until they fetch in it.
        """
        same_epoch = state.leader_epoch == self.leader_epoch
        former, isr = self.leadership, self.state.isr
        self.state = state.after(self.state)
        if not same_epoch:
            self._leader_mark = UNKNOWN
        self.leader_epoch = state.leader_epoch
        self.is_leader = state.leader == self._node_id and self.offline_reason is None
        if not self.is_leader:
            self._cease_leading()
        elif former is not None and same_epoch:
            self.leadership = former.settled(state.hosts)
        else:
            end = self.log.end_offset
            self.leadership = Leadership(state.leader_epoch, state.hosts, end, former)
            self.log.begin_epoch(state.leader_epoch)
        if self.is_leader:
            led, end = former is not None, self.log.end_offset
            self.counts.leads(led, end, len(isr), len(state.isr))
        if self.stored_end < self.log.end_offset:
            # A crash left a tail that must be synced to count; perhaps no append ever comes.
            self._commit.want(self)
        if former is not None and not self.is_leader:
            self.waiting.give_up(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif not same_epoch:
            self.waiting.epoch_began(led_before=former is not None)
        self.configure()

    def _cease_leading(self) -> None:
        if self.leadership is not None:
            self.counts.led_until(self.log.end_offset)
        self.is_leader = False
        self.leadership = None

    def configure(self) -> None:
        """Apply the topic's configuration and the ISR to the high watermark."""
        replicas = max(1, len(self.state.replicas))
        self.required_in_sync = required_in_sync(self.log.configs.min_insync_replicas, replicas)
        self._alone = (
            self.state.isr == (self._node_id,)
            and self.required_in_sync <= 1
            and len(self.state.hosts) <= 1
        )
        self._is_short = not set(self.state.replicas).issubset(self.state.isr)
        mark, noted = self.log.high_watermark, self.log.watermark_note.offset
        if mark > max(noted, self.log.start_offset):
            # It moved before the ISR shrank, or before this replica received the shrunk ISR.
            self._note(mark)
        if self.is_leader:
            self.waiting.moved()
            self.advance()
            if is_too_small(self):
                self.waiting.commits.too_few()

    def take_isr(self, isr: tuple[int, ...], isr_version: int) -> None:
        """Apply the ISR of a response to a proposal; targets in it are replicas, which count for
        ``required_in_sync`` (KIP-455)."""
        self.counts.isr_changed(len(self.state.isr), len(isr))
        replicas = with_joined(self.state.replicas, self.state.targets, isr)
        self.state = replace(self.state, isr=isr, isr_version=isr_version, replicas=replicas)
        if self.leadership is not None:
            self.leadership.change = None
        self.configure()

    def settle_debt(self) -> None:
        """The controller has cleared the unclean flag and the debt record (KIP-704)."""
        self.state = replace(self.state, is_unclean_leader=False, has_debt=False)

    def stop(self) -> None:
        """Stop serving; all waiters get NOT_LEADER_OR_FOLLOWER at once."""
        self._cease_leading()
        self._leader_mark = UNKNOWN
        # Without the ISR version: the same LeaderAndIsr, on a new channel, starts it again.
        self.state = replace(self.state, leader=NO_LEADER, isr_version=NO_VERSION)
        self.waiting.give_up(ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def go_offline(self, reason: str) -> None:
        """Stop serving after a disk failure: acknowledge no further record (promise 25)."""
        if self.offline_reason is None:
            self.offline_reason = reason
            self.offline_epoch = self.state.leader_epoch
            self._cease_leading()
            self.waiting.give_up(ErrorCode.KAFKA_STORAGE_ERROR)

    # -- appending

    def append(
        self,
        records: Buffer,
        now_ms: int,
        *,
        from_client: bool = True,
        allowance: InspectionAllowance | None = None,
        inspected: Batches | None = None,
        resumes: bool = False,
    ) -> Appended | Rejected:
        """Append as leader; the watermark may move. With ``allowance``: or ``UNINSPECTED``."""
        if not self.is_leader:
            return self._refuse()
        if self.has_uninspected and allowance is not None:
            return UNINSPECTED
        log, epoch = self.log, self.leader_epoch
        plain = from_client and inspected is None and not resumes
        result = append_plain(log, records, epoch, now_ms) if plain else None
        if result is None:
            append = partial(log.append_as_leader, from_client=from_client, resumes=resumes)
            result = append(records, epoch, now_ms, allowance=allowance, inspected=inspected)
        if isinstance(result, Rejected):
            self.check_disk()
            return result
        return self.appended(len(records)) or result

    def appended(self, size: int) -> Rejected | None:
        """Count a batch in the log, move the watermark, wake waiters; return why it is refused."""
        log, waiting = self.log, self.waiting
        self.counts.appends += 1
        self.bytes_in += size
        waiting.uncommitted_bytes += size
        end, synced = log.end_offset, self._commit.before_ack
        if synced or end - log.synced_end_offset >= log.configs.flush_messages:
            self._commit.want(self)
        if not synced:
            if self._alone:
                log.raise_watermark(end)
                waiting.committed(log)
            elif len(self.state.isr) == 1:
                self.advance()
            if not self.is_leader:
                return self._refuse()
        if waiting.followers:
            wake(waiting.followers, size)
        return None

    def when_committed(self, offset: int, committed: Committed, *, patient: bool = True) -> None:
        """Call ``committed`` once: when the high watermark passes ``offset``, or with an error when
        this broker stops leading; if not ``patient``, also while the ISR is too small."""
        if not self.is_leader:
            committed(self._refuse().error)
        elif offset < self.log.high_watermark:
            committed(ErrorCode.NONE)
        else:
            self.waiting.commits.add(offset, committed, patient=patient)

    def _refuse(self) -> Rejected:
        if self.offline_reason is not None:
            return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, self.offline_reason)
        return Rejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"this broker does not lead {self.key}")

    def check_disk(self) -> None:
        """Go offline when the log's disk has failed."""
        failed = self.log.failed
        if failed is not None:
            self.go_offline(failed)

    # -- the high watermark

    def synced(self) -> None:
        """The log was synced: with ``log.durability=sync`` the stored end has moved."""
        if not self._commit.before_ack:
            return
        if self.is_leader:
            self.advance()
        elif self.is_following and self._marked_generation == self.log.generation:
            # The leader sends a watermark once, perhaps before its records are synced here.
            self._take_over_mark()

    @property
    def stored_end(self) -> int:
        """The end of the stored records: written or, with ``log.durability=sync``, synced.

        A follower's fetch offset and its high watermark do not pass it."""
        end = self.log.end_offset
        return min(self.log.synced_end_offset, end) if self._commit.before_ack else end

    # -- as a follower

    def replicated(self, size: int, leader_watermark: int) -> None:
        """Take over the leader's high watermark, after the records of its response were appended.

        Not for a response with a diverging epoch: it could pass records that must be truncated."""
        self.bytes_in += size
        self.counts.replicated_in += size
        self.waiting.uncommitted_bytes += size
        self._leader_mark = leader_watermark
        self._marked_generation = self.log.generation
        self._take_over_mark()

    def _take_over_mark(self) -> None:
        mark = min(self._leader_mark, self.stored_end)
        if mark > self.log.high_watermark and self.log.change is not LogChange.CUT:
            if self._is_short:
                # On disk before readers see it: only some replicas have these records.
                self.log.watermark_note.write(mark)
            self.log.raise_watermark(mark)
            self.waiting.committed(self.log)

    def follower_fetched(
        self,
        node_id: int,
        offset: int,
        broker_epoch: int = -1,
        now_ms: int = 0,
        log_start: int = -1,
    ) -> None:
        """Note that a follower has this leader's records from ``log_start`` to ``offset``."""
        leadership = self.leadership
        if leadership is None or node_id not in leadership.replicas:
            return
        follower = leadership.followers.get(node_id)
        if follower is None:
            follower = leadership.followers[node_id] = Follower()
        if broker_epoch < follower.broker_epoch:
            # A late fetch from before the follower restarted: it may hold less now.
            return
        follower.fetched(offset, self.log.end_offset, broker_epoch, now_ms)
        if log_start > follower.start_offset:
            follower.start_offset = log_start
            if self.waiting.deletions:
                wake(self.waiting.deletions)
        if offset > self.log.high_watermark:
            self.advance()

    def advance(self) -> None:
        """Move the high watermark as far as the rules allow, and wake the waiters."""
        log, leadership = self.log, self.leadership
        if leadership is None:
            return
        own = self.stored_end
        if self._alone:
            moved = max(own, log.high_watermark)
        else:
            isr, change = self.state.isr, leadership.change
            ends = {node: state.end_offset for node, state in leadership.followers.items()}
            ends[self._node_id] = own
            moved = high_watermark(
                log.high_watermark,
                isr if change is None else maximal(isr, change.isr),
                ends,
                len(isr),
                self.required_in_sync,
                lacks_machines=lacks_machines(self),
            )
        if moved > log.high_watermark and self._note(moved):
            log.raise_watermark(moved)
            self.waiting.committed(log)

    def _note(self, mark: int) -> bool:
        """Write a watermark to disk before readers see it, if needed; False if the disk failed."""
        if self._is_short and self.offline_reason is None:
            self.log.watermark_note.write(mark)
            self.check_disk()
        return self.offline_reason is None

    # -- reading

    def read(
        self, offset: int, max_bytes: int, *, committed: bool = True, at_least_one: bool = True
    ) -> memoryview | Rejected:
        """Return whole batches from ``offset`` on, up to ``read_limit``.

        With ``at_least_one`` a first batch above ``max_bytes`` is returned whole.
        """
        log = self.log
        limit = read_limit(log, committed)
        batches = log.read(offset, max_bytes, limit, at_least_one=at_least_one)
        if isinstance(batches, Rejected):
            if batches.error is ErrorCode.KAFKA_STORAGE_ERROR:
                self.check_disk()
            return batches
        self.bytes_out += len(batches)
        return batches
