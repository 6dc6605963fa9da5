"""Planted bugs of a cluster, one for each promise whose checker no other planted bug proves.

As in ``test_cluster``; the search for a seed is in ``search``. Here a bug counts
as found only by the checker of the promise that it breaks: a checker that can never fail would be
as good as none.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.simulation.planted.search import KILLS, SEEDS, Planted, directed, find
from tidelog.broker.control_plane import control_channel, isr_changes
from tidelog.broker.control_plane.channel import ControlChannel
from tidelog.broker.fetching import partition_reads
from tidelog.broker.partitions import awaited_commits, group_commit, partition
from tidelog.controller.decisions import isr, settlement
from tidelog.controller.decisions.cluster import NO_LEADER
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.replication.command_rules import ANY_PARTITION_EPOCH
from tidelog.storage.log.producers import ProducerState
from tidelog.storage.log.syncing import PendingSync

pytestmark = [pytest.mark.long(40), pytest.mark.usefixtures("quiet")]

Patch = pytest.MonkeyPatch


def call_refused_what_was_appended(patch: Patch) -> None:
    """Promise 2: a producer that waited in vain gets an error that says nothing was appended."""
    tell = awaited_commits._call

    def wrong(committed: Any, error: ErrorCode) -> None:
        tell(committed, error if error is ErrorCode.NONE else ErrorCode.NOT_ENOUGH_REPLICAS)

    patch.setattr(awaited_commits, "_call", wrong)


def append_behind_what_was_refused(patch: Patch) -> None:
    """Promise 5: what follows a refused batch is appended, and it too when it comes again."""
    judge = ProducerState.judge

    def lenient(self: Any, header: Any) -> Any:
        producer_id, first = header[9], header[11]
        entry = self.entries.get(producer_id)
        known = [] if entry is None else sorted(entry.batches)
        for batch in known:
            if batch.first_sequence == first:
                return batch
        was_skipped = any(
            before.last_sequence < first < behind.first_sequence
            for before, behind in itertools.pairwise(known)
        )
        is_ahead = not known or first > known[-1].last_sequence
        return None if is_ahead or was_skipped else judge(self, header)

    patch.setattr(ProducerState, "judge", lenient)


def elect_in_the_same_epoch(patch: Patch) -> None:
    """Promise 14: another broker leads, and the leader epoch is not raised for it."""
    settle = settlement.settle

    def lazy(state: Any, *more: Any) -> Any:
        new = settle(state, *more)
        if NO_LEADER in (state.leader, new.leader) or new.leader == state.leader:
            return new
        return msgspec.structs.replace(new, leader_epoch=state.leader_epoch)

    patch.setattr(settlement, "settle", lazy)


def shrink_without_asking(patch: Patch) -> None:
    """Promise 15: a leader cut off from the controller acknowledges with its own, smaller ISR."""
    patch.setattr(
        partition, "maximal", lambda committed, proposed: frozenset(proposed or committed)
    )


def let_the_deposed_change_the_isr(patch: Patch) -> None:
    """Promise 15: AlterIsr counts whoever leads by now, and in whatever epoch."""
    why_not = isr._why_not

    def trusting(cluster: Any, leader: int, proposal: Any) -> ErrorCode:
        error = why_not(cluster, leader, proposal)
        return ErrorCode.NONE if error is ErrorCode.FENCED_LEADER_EPOCH else error

    patch.setattr(isr, "_why_not", trusting)


def elect_uncleanly_without_leave(patch: Patch) -> None:
    """Promise 17."""
    settle = settlement.settle

    def generous(state: Any, replicas: Any, standing: Any, minimum: int, _allowed: bool) -> Any:
        return settle(state, replicas, standing, minimum, True)

    patch.setattr(settlement, "settle", generous)


def take_a_former_life_for_the_present_one(patch: Patch) -> None:
    """Promise 19: topic ids and partition epochs are sent, and no broker checks them."""
    decide, stale = control_channel.decide_leader_and_isr, control_channel.stale_in_full
    fed = partition_reads.why_not_replicated

    def by_name(local: Any, order: Any) -> Any:
        known = order.topic_id if local is None else local.topic_id
        return decide(local, replace(order, topic_id=known, partition_epoch=ANY_PARTITION_EPOCH))

    def stale_by_name(local: Any, full: Any) -> Any:
        return stale(local, {place: local.get(place, found) for place, found in full.items()})

    def fed_by_name(wanted: Any, hosted: Any, node_id: int) -> ErrorCode:
        wanted.topic_id = NO_UUID
        return fed(wanted, hosted, node_id)

    patch.setattr(control_channel, "decide_leader_and_isr", by_name)
    patch.setattr(control_channel, "stale_in_full", stale_by_name)
    patch.setattr(partition_reads, "why_not_replicated", fed_by_name)


def believe_old_metadata(patch: Patch) -> None:
    """Promise 23: UpdateMetadata is taken from whoever brings it, however late."""
    check = ControlChannel.check

    def trusting(self: Any, request: Any, connection: Any) -> ErrorCode:
        if isinstance(request, messages.UpdateMetadataRequest):
            return ErrorCode.NONE if self.present else ErrorCode.STALE_CONTROLLER_EPOCH
        return check(self, request, connection)

    patch.setattr(ControlChannel, "check", trusting)


def take_nobody_back(patch: Patch) -> None:
    """Promise 24: a replica that has left an ISR never joins it again."""
    patch.setattr(isr_changes, "may_join", lambda follower, watermark, start: False)


def sync_again_after_a_failure(patch: Patch) -> None:
    """Promise 25: a failed fsync is tried once more, and its directory goes on."""
    run = PendingSync.run

    def stubborn(self: Any) -> None:
        run(self)
        if self.error is not None:
            self.error = None
            run(self)

    patch.setattr(PendingSync, "run", stubborn)


def sync_on_after_a_failure(patch: Patch) -> None:
    """Promise 25: the other logs of a trip are synced although one of their directory failed."""

    def run_all(pendings: Sequence[PendingSync]) -> None:
        for pending in pendings:
            pending.run()

    patch.setattr(group_commit, "run_all", run_all)


def let_followers_serve_what_is_not_committed(patch: Patch) -> None:
    """Promise 4: consumers that name their rack get all that a follower has."""
    read = partition_reads.Reading.read

    def too_far(self: Any, wanted: Any, hosted: Any) -> Any:
        log = hosted.log
        if not (self.rack and hosted.is_following):
            return read(self, wanted, hosted)
        mark, log.high_watermark = log.high_watermark, log.end_offset
        try:
            answer = read(self, wanted, hosted)
        finally:
            log.high_watermark = mark
        answer.high_watermark = mark
        return answer

    patch.setattr(partition_reads.Reading, "read", too_far)


AWAY = {"isolate": 3.0, "kill_broker": 3.0, "cut_from_controllers": 3.0}

PLANTED = (
    Planted(
        call_refused_what_was_appended,
        ("refused_is_not_readable",),
        directed({"cut": 4.0, "pause": 2.0}, seconds=20.0, end_seconds=24.0),
        first_seed=10,
    ),
    Planted(
        append_behind_what_was_refused,
        ("producer_order_holds",),
        directed({"fill_the_disk": 1.0}),
        first_seed=1,
        alone=True,
    ),
    Planted(elect_in_the_same_epoch, ("one_leader_per_epoch",), directed(KILLS)),
    Planted(
        shrink_without_asking,
        ("acked_is_not_lost", "no_loss_while_clean"),
        directed({"isolate": 4.0}, seconds=20.0, end_seconds=24.0),
        first_seed=10,
    ),
    Planted(
        let_the_deposed_change_the_isr,
        ("only_the_leader_changes_the_isr", "only_the_complete_lead", "only_the_complete_join"),
        # A leader that stands still is deposed, and has proposed a change when it runs again: a
        # quarter of the seeds, where bounced brokers gave a tenth.
        directed(
            {"cut_from_controllers": 3.0, "reset": 2.0, "pause": 2.0},
            seconds=24.0,
            end_seconds=28.0,
        ),
        first_seed=5,
    ),
    Planted(
        elect_uncleanly_without_leave,
        ("unclean_is_allowed",),
        directed(AWAY, seconds=24.0, end_seconds=26.0, unclean=False),
        first_seed=2,
    ),
    Planted(
        take_a_former_life_for_the_present_one,
        ("no_stale_replica",),
        directed(KILLS),
        first_seed=5,
    ),
    Planted(
        believe_old_metadata,
        ("no_step_back",),
        # Old metadata has to come between two newer ones: many replays, close to each other.
        directed({"replay": 8.0, "kill_broker": 1.0}, pause=(0.05, 0.4)),
        first_seed=3,
    ),
    Planted(take_nobody_back, ("recovery_is_bounded",), directed({"kill_broker": 1.0})),
    Planted(
        sync_again_after_a_failure,
        ("failed_sync_is_final",),
        directed({"fail_a_sync": 1.0}, durability="sync"),
    ),
    Planted(
        sync_on_after_a_failure,
        ("failed_sync_is_final",),
        directed({"fail_a_sync": 1.0}, durability="sync"),
        first_seed=1,
    ),
    Planted(
        let_followers_serve_what_is_not_committed,
        ("served above the high watermark", "read_is_not_unread"),
        directed({**KILLS, "isolate": 3.0, "pause": 2.0}),
    ),
)


@pytest.mark.parametrize("planted", PLANTED, ids=[each.plant.__name__ for each in PLANTED])
def test_a_planted_bug_is_found(planted: Planted, monkeypatch: Patch) -> None:
    planted.plant(monkeypatch)
    found = find(planted)
    assert found is not None, f"{planted.plant.__name__} survived {SEEDS} seeds"
    result, line = found
    print(f"{planted.plant.__name__}: seed {result.seed}: {line}")
