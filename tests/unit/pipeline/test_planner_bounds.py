"""The batch planner at its bounds: what one offset, one epoch or one partition more decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.planned_topics import IDS, NO_LIMITS, P, at, gate, log
from tidelog.pipeline.options import Mode, parse
from tidelog.pipeline.places import Place, PlaceKind
from tidelog.pipeline.planning.admission import AdmissionLimits, admit
from tidelog.pipeline.planning.losses import LossKind, LossVerdict, epochs_to_ask, judge
from tidelog.pipeline.planning.planner import plan, shut_ends
from tidelog.pipeline.planning.positions import Pid, Positions
from tidelog.pipeline.planning.ranges import OffsetRange, split
from tidelog.pipeline.planning.resolve import resolve
from tidelog.pipeline.planning.snapshot import FormerEnd, PartitionSnapshot, Snapshot
from tidelog.pipeline.tasks import make_tasks

FORMER_ID = Pid("t", 0, "former")


# Plans


def test_a_position_that_transactions_hold_back_takes_nothing_from_what_is_available() -> None:
    """The end of its epoch lies above it: it is not lost."""
    held_back = PartitionSnapshot(0, 10, leader_epoch=4, epoch_end=12)
    sight = Snapshot(IDS, {P[0]: held_back, P[1]: PartitionSnapshot(0, 5)})
    limits = AdmissionLimits(min_offsets=5, max_trigger_delay_ms=1000)
    assert plan(at(12, 0), sight, limits, 0).end.at == at(12, 5).at


def test_a_position_of_an_unknown_epoch_notes_none() -> None:
    assert plan(at(0), log((0, 5)), NO_LIMITS, 0).end.epochs == {}


def test_a_topic_that_was_created_again_begins_with_its_own_resize_epoch() -> None:
    """Otherwise its metadata would be older than the checkpoint for ever."""
    start = replace(Positions({FORMER_ID: 9}, {"t": "former"}), resize_epochs={"t": 5})
    sight = replace(log((0, 3)), resize_epochs={"t": 1}, proven=frozenset({FORMER_ID}))
    made = plan(start, sight, NO_LIMITS, 0).end
    assert (made.at, made.resize_epochs) == ({P[0]: 3}, {"t": 1})
    assert not plan(made, sight, NO_LIMITS, 0).held


def test_positions_of_another_topic_of_the_name_open_and_shut_nothing() -> None:
    gated = replace(log((0, 9), (0, 9)), gates={"t": {1: [gate(1, 0, 0, 5)]}})
    judged = LossVerdict(at={P[0]: 4, P[1]: 0, FORMER_ID: 100})
    assert shut_ends(judged, gated) == {P[1]: 0}
    doubted = replace(judged, doubted={P[2]})
    assert shut_ends(doubted, gated) == {P[0]: 0, P[1]: 0}


def test_a_partition_whose_position_is_in_doubt_holds_no_other_of_a_resized_topic() -> None:
    """It is listed, so that its gates are known."""
    sight = replace(log((0, 10), (0, 9)), gates={"t": {}}, resize_epochs={"t": 2})
    made = plan(at(12, 5), sight, NO_LIMITS, 0)
    assert set(made.held) == {P[0]}
    assert made.end.at == at(12, 9).at


def test_nothing_waits_for_a_partition_that_is_lost_for_good() -> None:
    sight = Snapshot(
        IDS,
        {P[1]: PartitionSnapshot(0, 9)},
        gates={"t": {1: [gate(1, 0, 0, 10)]}},
        proven=frozenset({P[0]}),
    )
    made = plan(at(5, 0), sight, NO_LIMITS, 0)
    assert [loss.pid for loss in made.losses] == [P[0]]
    assert made.end.at == at(5, 9).at


def test_ids_that_are_learned_are_those_of_new_partitions_too() -> None:
    nameless = Positions({Pid("t", 0): 4}, {"t": ""}, new={Pid("t", 0): 2})
    assert nameless.with_ids(IDS).new == {P[0]: 2}


# Limits


def test_exactly_half_of_the_limit_goes_to_those_that_hold_others_back() -> None:
    assert admit({P[0]: 100, P[1]: 10_000}, 100, {P[0]}) == {P[0]: 51, P[1]: 49}


def test_many_partitions_that_hold_others_back_move_no_position_back() -> None:
    """Each takes one offset at least, which is more than the limit."""
    ready = {P[0]: 10_000} | dict.fromkeys(P[1:], 10)
    assert admit(ready, 2, P[1:]) == dict.fromkeys(P, 1)


def test_ranges_are_not_split_where_there_are_enough() -> None:
    two = [OffsetRange(P[0], 0, 10), OffsetRange(P[1], 0, 90)]
    assert split(two, 2, None) == two
    assert len(split(two, 3, None)) == 4


def test_no_range_is_split_into_more_pieces_than_it_has_offsets() -> None:
    pieces = split([OffsetRange(P[0], 4, 7)], 10, None)
    assert [(each.start, each.end) for each in pieces] == [(4, 5), (5, 6), (6, 7)]


# Losses


def test_metadata_that_are_older_than_the_positions_ask_for_another_broker() -> None:
    start = replace(at(3), resize_epochs={"t": 3})
    older = replace(log((0, 5)), resize_epochs={"t": 2})
    assert judge(start, older).behind == {P[0]}
    silent = replace(older, resize_epochs={"t": 3}, silent={P[0]: "no leader"})
    assert judge(start, silent).behind == set()


@pytest.mark.parametrize("epoch", [-1, 4])
def test_a_cut_needs_a_second_look_unless_a_later_leader_says_it(epoch: int) -> None:
    start = Positions({P[0]: 12}, IDS, {P[0]: epoch})
    sight = Snapshot(IDS, {P[0]: PartitionSnapshot(0, 20, leader_epoch=4, epoch_end=9)})
    judged = judge(start, sight)
    assert judged.doubted == {P[0]} and not judged.losses
    later = judge(Positions({P[0]: 12}, IDS, {P[0]: 3}), sight)
    assert [loss.kind for loss in later.losses] == [LossKind.REWOUND]


def test_a_position_goes_back_to_the_log_start_at_most() -> None:
    start = Positions({P[0]: 12}, IDS, {P[0]: 3})
    sight = Snapshot(IDS, {P[0]: PartitionSnapshot(5, 20, leader_epoch=4, epoch_end=2)})
    assert plan(start, sight, NO_LIMITS, 0).end.at == {P[0]: 5}


@pytest.mark.parametrize(
    ("epoch", "leader_epoch", "asked"),
    [(-1, -1, {}), (-1, 3, {P[0]: 3}), (3, 3, {P[0]: 3}), (4, 3, {}), (2, 3, {P[0]: 2})],
)
def test_no_leader_is_asked_for_an_epoch_that_it_cannot_know(
    epoch: int, leader_epoch: int, asked: dict[Pid, int]
) -> None:
    start = Positions({P[0]: 12}, IDS, {P[0]: epoch})
    assert epochs_to_ask(start, {P[0]: (10, leader_epoch)}) == asked


def test_a_new_partition_joins_when_its_leader_has_its_first_offset() -> None:
    """It went on where its former incarnation ended, and the leader lags."""
    sight = Snapshot(IDS, {P[0]: PartitionSnapshot(0, 5), P[1]: PartitionSnapshot(0, 5, first=9)})
    judged = judge(at(5), sight)
    assert judged.at == {P[0]: 5}
    assert not judged.new and not judged.held and not judged.doubted


def test_what_a_topic_removed_before_it_joined_is_no_loss() -> None:
    joined = [Pid("u", number, "u-id") for number in range(2)]
    sight = Snapshot(
        {**IDS, "u": "u-id"},
        {P[0]: PartitionSnapshot(0, 5), joined[0]: PartitionSnapshot(0, 4)},
        former={joined[1]: FormerEnd(40, 41, 3)},
        resize_epochs={"u": 3},
    )
    made = plan(at(5), sight, NO_LIMITS, 0)
    assert made.losses == ()
    assert made.end.at == {P[0]: 5, joined[0]: 4}


# Places and tasks


def test_a_place_at_the_end_has_the_epoch_of_the_leader_that_named_it() -> None:
    sight = Snapshot(IDS, {P[0]: PartitionSnapshot(0, 9, leader_epoch=4)})
    assert resolved(PlaceKind.LATEST, sight).epochs == {P[0]: 4}


def test_a_partition_that_came_back_is_read_where_its_log_begins() -> None:
    sight = log((0, 5), (7, 9), former={P[1]: FormerEnd(5, 6, 2)})
    assert resolved(PlaceKind.EARLIEST, sight).at == at(0, 7).at
    silent = replace(log((0, 5)), former={P[1]: FormerEnd(5, 6, 2)}, silent={P[1]: "no leader"})
    assert not silent.is_removed(P[1])
    assert resolved(PlaceKind.EARLIEST, silent).at == at(0).at


def resolved(kind: PlaceKind, snapshot: Snapshot) -> Positions:
    return resolve(
        Place(kind),
        snapshot,
        option="startingOffsets",
        latest_if_no_match=False,
        by_time=lambda _: {},
        committed=dict,
    )


def test_what_is_lost_of_a_removed_partition_is_one_task() -> None:
    options = parse(
        {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "maxRecordsPerPartition": "2"},
        Mode.STREAM,
    )
    gone = log((0, 5), former={P[1]: FormerEnd(1_000_008, 1_000_009, 2)})
    tasks = make_tasks(options, [OffsetRange(P[1], 3, 1_000_009)], at(5, 1_000_009), gone)
    assert [(each.range.start, each.range.end, each.lost_from) for each in tasks] == [
        (1_000_008, 1_000_009, 3)
    ]


def test_the_first_piece_alone_tells_of_a_loss_in_front_of_it() -> None:
    options = parse(
        {"kafka.bootstrap.servers": "h:1", "subscribe": "t", "maxRecordsPerPartition": "2"},
        Mode.STREAM,
    )
    end = replace(at(9), resize_epochs={"t": 6}, epochs={P[0]: 4})
    tasks = make_tasks(options, [OffsetRange(P[0], 1, 9)], end, log((5, 9)))
    assert [(each.range.start, each.range.end, each.lost_from) for each in tasks] == [
        (5, 7, 1),
        (7, 9, None),
    ]
    assert {(each.leader_epoch, each.resize_epoch, each.topic_id) for each in tasks} == {
        (4, 6, "id")
    }
