"""The verdict on a cluster's run: the history, the replicas at the end, the clients' books.

Owns the checks after the run. Not those while it runs: see ``journal`` and ``disks``. A partition
with an unclean election is checked only for the promises that hold for it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.simulation import group_checkers
from tests.simulation.checkers import (
    ALL,
    a_full_disk_heals,
    damage_is_never_served,
    failed_sync_is_final,
    no_bad_crc_is_accepted,
    violations,
)
from tests.simulation.clients import SimulatedProducer, SimulatedReader
from tests.simulation.cluster.audit import Auditor
from tests.simulation.cluster.clients import GroupBook
from tests.simulation.cluster.disks import Batch, replica_log, topic_id_in
from tests.simulation.cluster.group_log import stored_in
from tests.simulation.cluster.journal import Known, Place, StateWatch
from tests.simulation.cluster.members import OFFSETS_TOPIC, Group
from tests.simulation.cluster.nodes import LOGS, Cluster
from tests.simulation.cluster.replica_ends import end_offset, epoch_start, from_start
from tests.simulation.history import Final, History, Outcome, Write
from tests.simulation.kernel import SimulatedDisk
from tidelog.metadata import layout
from tidelog.protocol.primitives import NO_UUID

ALWAYS = (
    no_bad_crc_is_accepted,
    failed_sync_is_final,
    damage_is_never_served,
    a_full_disk_heals,
)
"""Checkers that hold for partitions that are not clean, too."""

WHILE_CLEAN = tuple(check for check in ALL if check not in ALWAYS)


FOR_EVER = 1 << 62


def as_of(write: Write, until: int) -> Write:
    """Return a write as it was known before a moment."""
    if write.done_at < until:
        return write
    return replace(write, outcome=Outcome.UNDETERMINED, offset=-1)


class Verdict:
    """Collects in ``found`` what breaks a promise at the end of a run."""

    def __init__(self, cluster: Cluster, states: StateWatch, history: History) -> None:
        self.cluster = cluster
        self.states = states
        self.history = history
        self.found: list[str] = []
        self.cut_at: dict[Place, int] = {}
        """When a partition was first elected uncleanly, as the history counts."""
        states.when_elected = self.elected
        states.when_unclean = self.unclean
        states.when_grown = self.grown

    @property
    def not_clean(self) -> set[str]:
        """The partitions with an unclean election, as histories name them."""
        return {str(place) for place in self.states.unclean}

    def of_history(self) -> list[str]:
        """Return what the checkers of one broker find in the history of the whole cluster."""
        return [
            *violations(self.clean_history(), WHILE_CLEAN),
            *violations(self.history, ALWAYS),
        ]

    def clean_history(self) -> History:
        """Return the history as far as partitions were clean.

        What came before an unclean election keeps its order and its places; what was acknowledged
        may go with it, and what is read later may be something else.
        """
        lives: dict[str, int] = {}
        for place, at in self.cut_at.items():
            lives[place.topic] = min(at, lives.get(place.topic, at))
        cuts = {str(place): at for place, at in self.cut_at.items()}

        def clean_until(partition: str) -> int:
            topic, at, _ = partition.partition("@")
            return lives.get(topic, FOR_EVER) if at else cuts.get(partition, FOR_EVER)

        history = self.history
        return History(
            writes=[
                as_of(write, clean_until(write.partition))
                for write in history.writes
                if write.sent_at < clean_until(write.partition)
            ],
            reads=[read for read in history.reads if read.at < clean_until(read.partition)],
            finals=[x for x in history.finals if clean_until(x.partition) == FOR_EVER],
        )

    def restarts(self, producers: Sequence[SimulatedProducer]) -> None:
        """Promises 5 and 6: no leader forgets a producer, or takes its batches out of order, while
        the partition is clean (with acks=all)."""
        for producer in producers:
            where = producer.target.name
            if producer.restarts and producer.acks == -1 and where not in self.not_clean:
                self.found.append(
                    f"idempotence_survives: {producer.name} of {where} was forgotten "
                    f"{producer.restarts} times"
                )

    def lives(self) -> None:
        """Promise 19: nothing of a name's former life is read in a later one.

        A write without a response may come late, in the next incarnation: it was not refused.
        """
        late = {
            write.value for write in self.history.writes if write.outcome is Outcome.UNDETERMINED
        }
        for final in self.history.finals:
            if "@" not in final.partition:
                continue
            life = f"{final.partition}/".encode()
            for offset, value in final.records.items():
                if not value.startswith(life) and value not in late:
                    self.found.append(
                        f"no_stale_replica: {final.partition} {offset} is {value[:40]!r}"
                    )

    def metadata(self) -> None:
        """Promise 13: no broker names another life of a topic than the present one.

        Below level 1.4 it need not name any.
        """
        for node in self.cluster.brokers:
            cache = None if node.running is None else node.running.broker.metadata
            for name, topic in ({} if cache is None else cache.topics).items():
                known = layout.id_text(topic.topic_id)
                if topic.topic_id != NO_UUID and known != self.states.id_of(name):
                    self.found.append(
                        f"no_stale_metadata: {node.host} says that {name} has the id {known}, it "
                        f"has {self.states.id_of(name)}"
                    )

    def readers(self, readers: Sequence[SimulatedReader]) -> None:
        """Promise 4: nothing above the high watermark is served."""
        for reader in readers:
            if reader.above_watermark:
                self.found.append(f"served above the high watermark: {reader.above_watermark[:5]}")

    def followers(self, audit: Auditor) -> None:
        """Promise 4 at every replica, also those that only follow (KIP-392)."""
        self.found += [f"served above the high watermark: {x}" for x in audit.above_watermark[:5]]
        for final in self.history.finals:
            if final.partition in self.not_clean:
                continue
            for base, host in audit.seen.get(final.partition, {}).items():
                if base >= final.start and base not in final.records:
                    self.found.append(
                        f"read_is_not_unread: {host} served {final.partition} {base}, which is gone"
                    )

    @property
    def _commits_are_clean(self) -> bool:
        return OFFSETS_TOPIC not in {place.topic for place in self.states.unclean}

    def loner(self, loner: GroupBook) -> None:
        """Promise 1 for commits: an answered one stays."""
        if self._commits_are_clean:
            self.found += [f"commits_stay: {line}" for line in loner.lost[:5]]

    def group(self, group: Group, asked: Mapping[str, int]) -> None:
        """What a group promises, on the log that the leader of its partition has.

        ``asked``: up to where DeleteRecords was asked for.
        """
        finals = {final.partition: final for final in self.history.finals}
        starts = {
            name: finals[name].start
            for share in group.book.shares
            for name in share.partitions
            if name not in self.not_clean
        }
        passed = [jump for jump in group.book.jumps if jump.target <= asked.get(jump.partition, 0)]
        lost = group_checkers.a_group_gets_everything(self.history, group.reader, starts, passed)
        self.found += [f"a_group_gets_everything: {line}" for line in lost[:5]]
        fallen = group_checkers.positions_hold(group.book, self.not_clean)
        self.found += [f"positions_hold: {line}" for line in fallen[:5]]
        place = self.states.place(OFFSETS_TOPIC, 0)
        if not self._commits_are_clean or place is None:
            return
        leader = self.cluster.broker(self.states.places[place].state.leader)
        group.book.log = stored_in(leader.machine.disk, OFFSETS_TOPIC, 0, group.name)
        self.found += group_checkers.violations(group.book)

    def start(self, final: Final, asked: int) -> None:
        """Promise 1: only records that a request asked to delete are deleted."""
        if final.start > asked and final.partition not in self.not_clean:
            self.found.append(
                f"only_what_was_asked_goes: {final.partition} starts at {final.start}, "
                f"DeleteRecords was asked up to {asked}"
            )

    # --- while it runs -------------------------------------------------------------------------

    def unclean(self, place: Place) -> None:
        """The partition is not clean from now on."""
        self.cut_at.setdefault(place, self.history.now)

    def elected(self, place: Place, known: Known) -> None:
        """Promise 16: the elected leader of a clean partition has all acknowledged records."""
        disk = self._disk(place, known.state.leader)
        if disk is None or place in self.states.unclean:
            return
        end, highest = end_offset(disk, place.topic, place.partition), self._highest_acked(place)
        if highest >= end:
            self.found.append(
                f"only_the_complete_lead: {place} elected {known.state.leader}, whose log ends at "
                f"{end}, though {highest} was acknowledged"
            )

    def grown(self, place: Place, known: Known, member: int) -> None:
        """Promise 16: a replica that joins an ISR has all committed records, in its leader's epoch.

        Committed is at least what was acknowledged or read. The leader has become leader: no other
        broker proposes an ISR in its epoch.
        """
        disk, leading = self._disk(place, member), self._disk(place, known.state.leader)
        if disk is None or leading is None:
            return
        end = end_offset(disk, place.topic, place.partition)
        epoch = known.state.leader_epoch
        needed = [
            (
                "the leader epoch begins at",
                epoch_start(leading, place.topic, place.partition, epoch),
            )
        ]
        if place not in self.states.unclean:
            read = (x.offset for x in self.history.reads if x.partition == str(place))
            needed.append(("acknowledged is all below", self._highest_acked(place) + 1))
            needed.append(("read is all below", max(read, default=-1) + 1))
        for what, offset in needed:
            if end < offset:
                self.found.append(
                    f"only_the_complete_join: {member} joined the ISR of {place} with {end}, "
                    f"{what} {offset}"
                )

    def _highest_acked(self, place: Place) -> int:
        acked = (
            write.offset
            for write in self.history.writes
            if write.partition == str(place) and write.outcome is Outcome.ACKED
        )
        return max(acked, default=-1)

    def _disk(self, place: Place, broker: int) -> SimulatedDisk | None:
        """Return the disk of a replica whose broker runs and has registered in its present life."""
        node = self.cluster.broker(broker)
        if not node.ready or not node.alive:
            return None
        known = self.states.id_on_disk(node, f"{LOGS}/{place}")
        return node.machine.disk if known == place.topic_id else None

    # --- replicas ------------------------------------------------------------------------------

    def _replicas(self) -> dict[Place, dict[str, list[Batch]]]:
        """Return the log of every assigned replica by partition and host."""
        found: dict[Place, dict[str, list[Batch]]] = {}
        for topic, node in self.states.topics.items():
            for partition, brokers in node.partitions.items():
                place = self.states.place(topic, partition)
                assert place is not None
                found[place] = {
                    self.cluster.broker(broker).host: replica_log(
                        self.cluster.broker(broker).machine.disk, topic, partition
                    )
                    for broker in brokers
                }
        return found

    def replicas_agree(self) -> bool:
        """Whether all replicas end alike: the last records have come to all of them."""
        return all(
            len({log[-1] if log else None for log in logs.values()}) == 1
            for logs in self._replicas().values()
        )

    def replicas(self) -> None:
        """Promise 3 and 19: all replicas hold the same bytes, under the id of the topic.

        From the log's start on: below it there are no reads, so damage is not met.
        Below level 1.4 replicas need not have an id on record
        (docs/design/levels.md): then the one for whose life the replica was made counts.
        """
        for place, logs in self._replicas().items():
            for host in logs:
                node = next(node for node in self.cluster.brokers if node.host == host)
                known = topic_id_in(node.machine.disk, f"{LOGS}/{place}")
                if not self.states.level.topic_ids:
                    known = self.states.id_on_disk(node, f"{LOGS}/{place}")
                if known != place.topic_id:
                    self.found.append(
                        f"no_stale_replica: {host} holds {place} of topic id {known}, the topic's "
                        f"is {place.topic_id}"
                    )
            if place.topic.startswith("__"):
                continue  # compacted: each replica when it comes to it
            read = (final.start for final in self.history.finals if final.partition == str(place))
            begun = max(read, default=0)
            logs = {host: from_start(log, begun) for host, log in logs.items()}
            start = max(log[0].base if log else 0 for log in logs.values())
            kept = {host: [x for x in log if x.base >= start] for host, log in logs.items()}
            first_host, first = next(iter(kept.items()))
            for host, log in kept.items():
                for mine, theirs in zip(log, first, strict=False):
                    if mine != theirs:
                        self.found.append(
                            f"one_offset_one_record: {place}: {host} has {mine}, "
                            f"{first_host} has {theirs}"
                        )
                        break
