"""The batch planner: offsets, limits, losses, gates, places and tasks, as tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tests.support.planned_topics import IDS, NO_LIMITS, P, at, gate, log
from tidelog.partitioning.gates import Gate, Prerequisite
from tidelog.pipeline.errors import OptionRefused, PipelineError
from tidelog.pipeline.places import Place, PlaceKind
from tidelog.pipeline.planning.admission import AdmissionLimits, admit
from tidelog.pipeline.planning.losses import LossKind, epochs_to_ask, judge
from tidelog.pipeline.planning.planner import plan, prerequisites
from tidelog.pipeline.planning.positions import SENTINEL, Pid, Positions, is_sentinel
from tidelog.pipeline.planning.ranges import (
    OffsetRange,
    clip,
    ranges_between,
    split,
    without_former_tails,
)
from tidelog.pipeline.planning.resolve import beyond_the_log, check_order, resolve
from tidelog.pipeline.planning.snapshot import FormerEnd, PartitionSnapshot, Snapshot

# Offsets


def test_an_offset_is_the_same_text_however_it_was_made() -> None:
    """P23: version 2 as docs/design/pipeline.md has it; the key is topic id and partition."""
    b9, b10, a0 = Pid("b", 9, "y"), Pid("b", 10, "y"), Pid("a", 0, "x")
    one = Positions(
        {b10: 1, b9: 2, a0: 4}, {"b": "y", "a": "x"}, {b9: 12, a0: 0}, {"a": 3}, {b10: 1}
    )
    two = Positions(
        {a0: 4, b9: 2, b10: 1}, {"a": "x", "b": "y"}, {a0: 0, b9: 12}, {"b": 0, "a": 3}, {b10: 1}
    )
    text = json.dumps(one.to_json())
    assert text == json.dumps(two.to_json())
    assert text == (
        '{"version": 2, "topics": {'
        '"a": {"id": "x", "resizeEpoch": 3, "new": {}, "positions": {"0": [4, 0]}}, '
        '"b": {"id": "y", "resizeEpoch": 0, "new": {"10": 1}, '
        '"positions": {"9": [2, 12], "10": [1, -1]}}}}'
    )
    assert Positions.from_json(json.loads(text)) == two
    assert is_sentinel(SENTINEL) and not is_sentinel(one.to_json())


def test_positions_of_what_is_dropped_are_kept_unless_another_topic_has_the_name() -> None:
    a0, a1, b0 = Pid("a", 0, "x"), Pid("a", 1, "x"), Pid("b", 0, "y")
    whole = Positions({a0: 4, a1: 5, b0: 6}, {"a": "x", "b": "y"}, {a1: 2}, {"a": 3, "b": 1})
    assert whole.parted(lambda _: True) == (whole, Positions())
    read, left = whole.parted(lambda pid: pid == a0)
    assert (read.at, read.topic_ids, read.resize_epochs) == ({a0: 4}, {"a": "x"}, {"a": 3})
    assert left.at == {a1: 5, b0: 6} and left.dropped == {a1, b0} and left.epochs == {a1: 2}
    again = read.beside(left)
    assert again == replace(whole, dropped=frozenset({a1, b0}))
    assert Positions.from_json(json.loads(json.dumps(again.to_json()))) == again
    assert again.parted(lambda _: True)[0] == whole, "it is read again"
    other = Positions({Pid("a", 0, "z"): 0}, {"a": "z"}).beside(left)
    assert set(other.at) == {Pid("a", 0, "z"), b0} and other.dropped == {b0}


V1 = {"version": 1, "topics": {"t": {"id": "id", "positions": {"0": 5, "1": 7}}}}


def test_an_offset_of_version_1_is_read_and_the_next_one_is_of_version_2() -> None:
    """P23: as commit 02f3bcb wrote it; nothing new leaves it as it is."""
    start = Positions.from_json(V1)
    assert start.at == {P[0]: 5, P[1]: 7} and not start.epochs and start.new is None
    states = {pid: PartitionSnapshot(0, 7, leader_epoch=3) for pid in P[:2]}
    assert plan(replace(start, at={P[0]: 7, P[1]: 7}), Snapshot(IDS, states), NO_LIMITS, 0).end.at
    made = plan(start, Snapshot(IDS, states), NO_LIMITS, 0).end
    assert made.to_json() == {
        "version": 2,
        "topics": {
            "t": {"id": "id", "resizeEpoch": 0, "new": {}, "positions": {"0": [7, 3], "1": [7, -1]}}
        },
    }
    # A batch that was planned in version 1 does not say where a new partition begins.
    assert ranges_between(at(4), start, lambda pid: 2) == [
        OffsetRange(P[0], 4, 5),
        OffsetRange(P[1], 2, 7),
    ]


def test_ids_that_were_not_known_are_learned() -> None:
    nameless = Positions({Pid("t", 0): 4}, {"t": ""}, {Pid("t", 0): 2})
    assert nameless.with_ids(IDS) == Positions({P[0]: 4}, IDS, {P[0]: 2})
    assert nameless.with_ids({"t": ""}) is nameless
    assert at(4).with_ids({"t": "another"}) == at(4)


@pytest.mark.parametrize(
    ("offset", "line"),
    [
        ({"t": {"0": 5}}, "another source"),
        ({"version": 3, "topics": {}}, "newer tidelog"),
        ({"version": 2, "topics": {"t": {"id": "id", "positions": {"0": 5}}}}, "damaged"),
        ({"version": 1, "topics": {"t": {"positions": {"0": 5}}}}, "damaged"),
    ],
)
def test_an_offset_that_is_none_is_refused_in_one_line(
    offset: dict[str, object], line: str
) -> None:
    with pytest.raises(PipelineError, match=line) as refused:
        Positions.from_json(offset)
    assert "\n" not in str(refused.value)


# Limits


def test_without_limits_a_batch_takes_all_that_is_readable() -> None:
    assert plan(at(3, 0), log((0, 10), (0, 4)), NO_LIMITS, 0).end.at == at(10, 4).at


def test_nothing_new_gives_the_same_positions() -> None:
    start = at(10, 4)
    assert plan(start, log((0, 10), (0, 4)), NO_LIMITS, 0).end is start


def test_a_new_partition_is_read_from_its_beginning() -> None:
    made = plan(at(10), log((0, 10), (0, 7)), NO_LIMITS, 0)
    assert (made.end.at, made.end.new) == (at(10, 7).at, {P[1]: 0})


@pytest.mark.parametrize(
    ("sizes", "limit", "taken"),
    [
        ((100, 300), 40, (10, 30)),
        ((1000, 1), 10, (9, 1)),
        ((10, 10, 10), 1, (1, 1, 1)),
        ((5, 0), 100, (5,)),
        ((7, 7), 14, (7, 7)),
    ],
)
def test_the_limit_is_shared_in_proportion(
    sizes: tuple[int, ...], limit: int, taken: tuple[int, ...]
) -> None:
    ready = dict(zip(P, sizes, strict=False))
    assert admit(ready, limit) == dict(zip(P, taken, strict=False))


def test_half_of_the_limit_goes_first_to_those_that_hold_others_back() -> None:
    taken = admit({P[0]: 100, P[1]: 10_000}, 100, {P[0]})
    assert taken[P[0]] >= 50
    assert sum(taken.values()) <= 101


def test_min_offsets_waits_but_not_for_ever() -> None:
    limits = AdmissionLimits(min_offsets=20, max_trigger_delay_ms=1000)
    start, snapshot = at(0), log((0, 5))
    assert plan(start, snapshot, limits, 999).end == start
    assert plan(start, snapshot, limits, 1000).end.at == at(5).at
    assert plan(start, log((0, 20)), limits, 0).end.at == at(20).at


def test_gated_records_count_as_available() -> None:
    sight = replace(log((0, 15), (0, 15)), gates={"t": {1: [gate(1, 0, 0, 10)]}})
    limits = AdmissionLimits(min_offsets=20, max_trigger_delay_ms=1000)
    assert plan(at(0, 0), sight, limits, 0).end.at == at(15, 0).at


# Losses: only what is proven lost is lost


def test_retention_passed_the_position() -> None:
    made = plan(at(5), log((8, 10)), NO_LIMITS, 0)
    assert [(loss.kind, loss.position, loss.resumes_at) for loss in made.losses] == [
        (LossKind.RETENTION, 5, 8)
    ]
    assert made.end.at == at(10).at
    assert "offsets 5 to 7 were removed" in str(made.losses[0])


def test_a_new_partition_that_lost_its_beginning() -> None:
    made = plan(at(3), log((0, 3), (2, 5)), NO_LIMITS, 0)
    assert made.losses[0].kind is LossKind.RETENTION
    # The range begins where the partition began, so that the loss is part of the batch.
    assert (made.end.at[P[1]], made.end.new) == (5, {P[1]: 0})


def test_a_topic_that_joins_begins_at_its_log_start() -> None:
    """P15: a topic with history, in a pattern, while the query runs."""
    joined = Pid("u", 0, "u-id")
    states = {P[0]: PartitionSnapshot(0, 3), joined: PartitionSnapshot(1000, 1010)}
    snapshot = Snapshot({**IDS, "u": "u-id"}, states)
    made = plan(at(3), snapshot, NO_LIMITS, 0)
    assert made.losses == ()
    assert (made.end.at[joined], made.end.new) == (1010, {joined: 1000})
    # It joins as a whole: one of its partitions alone would look like a partition that it gained.
    waiting = replace(snapshot, silent={Pid("u", 1, "u-id"): "no leader"})
    assert plan(at(3), waiting, NO_LIMITS, 0).end.at == at(3).at


def test_a_partition_that_one_answer_lacks_is_held_and_not_lost() -> None:
    """P3: 8 partitions, 4 in one stale answer; nothing is lost, and nothing read again."""
    start = at(*[100] * 8)
    stale = log(*[(0, 100)] * 4)
    made = plan(start, stale, NO_LIMITS, 0)
    assert made.end is start and made.losses == () and set(made.held) == set(P[4:8])
    assert judge(start, stale).doubted == set(P[4:8])
    after = plan(made.end, log(*[(0, 120)] * 8), NO_LIMITS, 0).end
    assert {each.start for each in ranges_between(start, after, pytest.fail)} == {100}


def test_a_partition_that_a_second_broker_lacks_is_gone_but_not_forgotten() -> None:
    proven = replace(log((0, 10)), proven=frozenset({P[1]}))
    made = plan(at(5, 6), proven, NO_LIMITS, 0)
    assert [(loss.pid, loss.kind) for loss in made.losses] == [(P[1], LossKind.DELETED)]
    assert made.end.at == at(10, 6).at
    assert plan(made.end, log((0, 10), (0, 9)), NO_LIMITS, 0).end.at == at(10, 9).at


def test_a_removed_partition_keeps_its_position_and_goes_on_where_it_ended() -> None:
    """P22, P23: read to the end of its data and removed is no loss; created again it continues."""
    ended = {P[1]: FormerEnd(5, 6, 2)}
    removed = log((0, 5), former=ended)
    made = plan(at(4, 6), removed, NO_LIMITS, 0)
    assert made.losses == () and made.end.at == at(5, 6).at
    again = replace(
        log((0, 5)),
        partitions={P[0]: PartitionSnapshot(0, 5), P[1]: PartitionSnapshot(6, 9, first=6)},
        former=ended,
    )
    after = plan(made.end, again, NO_LIMITS, 0).end
    assert ranges_between(made.end, after, pytest.fail) == [OffsetRange(P[1], 6, 9)]
    # Its seal was not read: there is no record in it, and none is lost.
    unsealed = plan(at(4, 5), removed, NO_LIMITS, 0)
    assert unsealed.losses == () and unsealed.end.at == at(5, 5).at
    later = plan(unsealed.end, again, NO_LIMITS, 0)
    assert later.losses == () and later.end.at == at(5, 9).at
    ranges = ranges_between(unsealed.end, later.end, pytest.fail)
    assert without_former_tails(ranges, ended) == [OffsetRange(P[1], 6, 9)]
    lost = plan(at(5, 4), removed, NO_LIMITS, 0)
    assert [(loss.kind, loss.resumes_at) for loss in lost.losses] == [(LossKind.DELETED, 5)]
    assert "t-1: the partition was removed after a shrink" in str(lost.losses[0])
    assert lost.end.at == at(5, 6).at, "the loss is reported once"


def test_an_end_of_an_earlier_incarnation_says_nothing_of_a_later_position() -> None:
    """A controller that was deposed knows no newer one."""
    sight = log((0, 5), former={P[1]: FormerEnd(5, 6, 2)})
    made = plan(at(5, 9), sight, NO_LIMITS, 0)
    assert set(made.held) == {P[1]} and not made.losses
    assert judge(at(5, 9), sight).doubted == {P[1]}


def test_a_partition_that_was_born_and_removed_between_two_lookups_is_a_loss() -> None:
    begun = replace(at(3), resize_epochs={"t": 1})
    sight = replace(log((0, 5), former={P[1]: FormerEnd(40, 41, 3)}), resize_epochs={"t": 3})
    made = plan(begun, sight, NO_LIMITS, 0)
    assert [(loss.pid, loss.position, loss.resumes_at) for loss in made.losses] == [(P[1], 0, 40)]
    assert (made.end.at, made.end.new) == (at(5, 41).at, {P[1]: 0})
    assert plan(made.end, sight, NO_LIMITS, 0).losses == (), "the loss is reported once"
    # One that ended before the positions were planned has nothing for the query, nor has one that
    # held nothing but its birth fence.
    known = replace(begun, resize_epochs={"t": 3})
    assert plan(known, sight, NO_LIMITS, 0).losses == ()
    empty = replace(sight, former={P[1]: FormerEnd(1, 2, 3)})
    assert plan(begun, empty, NO_LIMITS, 0).losses == ()


def test_a_topic_that_lost_its_resize_epoch_is_not_an_older_one() -> None:
    """enable.ordered.delivery=false: brokers say no resize epoch any more."""
    begun = replace(at(3), resize_epochs={"t": 4})
    assert plan(begun, log((0, 5)), NO_LIMITS, 0).end.at == at(5).at
    assert plan(begun, replace(log((0, 5)), resize_epochs={"t": 3}), NO_LIMITS, 0).held


def test_metadata_and_leaders_that_are_older_than_a_position_are_waited_out() -> None:
    """P3, P5: by the resize epoch of the topic, and by the leader epoch of the position."""
    start = Positions({P[0]: 10, P[1]: 10}, IDS, {P[0]: 7, P[1]: 7}, {"t": 2})
    states = {P[0]: PartitionSnapshot(0, 50, leader_epoch=7), P[1]: PartitionSnapshot(0, 50)}
    older = Snapshot(IDS, states, resize_epochs={"t": 1}, proven=frozenset(P))
    made = plan(start, older, NO_LIMITS, 0)
    assert made.end is start and set(made.held) == set(P[:2]) and not made.losses
    deposed = {P[0]: PartitionSnapshot(0, 50, leader_epoch=6), P[1]: PartitionSnapshot(0, 50)}
    deposed[P[1]] = PartitionSnapshot(0, 50, leader_epoch=8)
    sight = Snapshot(IDS, deposed, resize_epochs={"t": 2}, proven=frozenset(P))
    made = plan(start, sight, NO_LIMITS, 0)
    assert made.end.at == {P[0]: 10, P[1]: 50} and set(made.held) == {P[0]}
    assert made.end.epochs == {P[0]: 7, P[1]: 8}


def test_a_partition_that_no_broker_answers_for_is_held_and_the_others_go_on() -> None:
    """P21."""
    sight = replace(log((0, 9)), silent={P[1]: "LEADER_NOT_AVAILABLE"})
    made = plan(at(5, 5), sight, NO_LIMITS, 0)
    assert made.end.at == at(9, 5).at
    assert made.held == {P[1]: "LEADER_NOT_AVAILABLE"} and not made.losses
    of_topic = replace(log((0, 9)), unread={"t": "LEADER_NOT_AVAILABLE"})
    assert plan(at(5, 5), of_topic, NO_LIMITS, 0).end.at == at(5, 5).at


def test_a_log_that_was_cut_and_grew_again_is_noticed_by_its_epochs() -> None:
    """P5: the position lies within the log; its leader ends the position's epoch before it."""
    start = Positions({P[0]: 600}, IDS, {P[0]: 3})
    assert epochs_to_ask(start, {P[0]: (900, 5)}) == {P[0]: 3}
    sight = Snapshot(IDS, {P[0]: PartitionSnapshot(0, 900, leader_epoch=5, epoch_end=400)})
    made = plan(start, sight, NO_LIMITS, 0)
    assert [(loss.kind, loss.position, loss.resumes_at) for loss in made.losses] == [
        (LossKind.REWOUND, 600, 400)
    ]
    # The batch only goes back; the next one reads from the cut on.
    assert made.end.at == {P[0]: 400}
    assert ranges_between(start, made.end, pytest.fail) == []
    after = plan(made.end, sight, NO_LIMITS, 0)
    assert ranges_between(made.end, after.end, pytest.fail) == [OffsetRange(P[0], 400, 900)]
    assert not after.losses and after.end.epochs == {P[0]: 5}


def test_a_position_beyond_the_end_is_asked_for_again() -> None:
    """P5, P14: a new leader may lag, and transactions hold back what may be read."""
    start = Positions({P[0]: 12}, IDS, {P[0]: 3})
    assert epochs_to_ask(start, {P[0]: (10, 3)}) == {P[0]: 3}
    assert epochs_to_ask(at(12), {P[0]: (10, 3)}) == {P[0]: 3}
    assert epochs_to_ask(at(12), {P[0]: (12, 3)}) == {}
    behind = Snapshot(IDS, {P[0]: PartitionSnapshot(0, 10, leader_epoch=4, epoch_end=12)})
    for begin in (start, at(12)):
        assert plan(begin, behind, NO_LIMITS, 0).end is begin
        assert not judge(begin, behind).doubted
    unsure = log((0, 10))
    assert plan(start, unsure, NO_LIMITS, 0).end is start
    assert judge(start, unsure).doubted == {P[0]}
    made = plan(start, replace(unsure, proven=frozenset({P[0]})), NO_LIMITS, 0)
    assert made.losses[0].kind is LossKind.REWOUND
    assert made.end.at == at(10).at


def test_a_topic_that_is_created_again_is_another_one() -> None:
    """P13: the others go on; the new one begins at its start, once two brokers know it."""
    other, new = Pid("u", 0, "u-id"), Pid("t", 0, "new")
    start = Positions({P[0]: 100, other: 5}, {**IDS, "u": "u-id"})
    states = {new: PartitionSnapshot(2, 30), other: PartitionSnapshot(0, 9)}
    sight = Snapshot({"t": "new", "u": "u-id"}, states)
    doubted = plan(start, sight, NO_LIMITS, 0)
    assert doubted.end.at == {P[0]: 100, other: 9} and not doubted.losses
    made = plan(start, replace(sight, proven=frozenset({P[0]})), NO_LIMITS, 0)
    assert [(loss.pid, loss.replaced_by) for loss in made.losses] == [(P[0], "new")]
    assert "deleted and created again" in str(made.losses[0])
    assert made.end.at == {new: 30, other: 9} and made.end.topic_ids == sight.topic_ids
    assert ranges_between(start, made.end, pytest.fail) == [
        OffsetRange(new, 2, 30),
        OffsetRange(other, 5, 9),
    ]


# Gates (KIP-253); random histories are in test_pipeline_histories.


def test_a_gate_opens_one_batch_after_its_prerequisite() -> None:
    snapshot = replace(log((0, 30), (0, 9)), gates={"t": {1: [gate(1, 0, 0, 20)]}})
    first = plan(at(0, 0), snapshot, NO_LIMITS, 0).end
    assert first.at == at(30, 0).at
    assert plan(first, snapshot, NO_LIMITS, 0).end.at == at(30, 9).at


def test_a_gate_whose_prerequisite_is_unknown_is_shut() -> None:
    """P22: a fence that is not known, and a partition that the snapshot lacks."""
    sight = Snapshot(IDS, {P[4]: PartitionSnapshot(0, 50)}, gates={"t": {4: [gate(1, 0, 0, 77)]}})
    assert plan(Positions({}, IDS), sight, NO_LIMITS, 0).end.at == {P[4]: 0}
    unknown = Gate(1, 0, (Prerequisite(4, None),))
    sight = replace(sight, gates={"t": {4: [unknown]}})
    assert plan(Positions({}, IDS), sight, NO_LIMITS, 0).end.at == {P[4]: 0}


def test_a_resized_topic_without_a_trace_of_a_partition_is_not_read() -> None:
    """P22: what the partition has gates with is not known; where it ended, nothing waits for it."""
    sight = replace(log((0, 9)), gates={"t": {}}, resize_epochs={"t": 2})
    made = plan(at(5, 5), sight, NO_LIMITS, 0)
    assert made.end.at == at(5, 5).at and set(made.held) == {P[1]}
    proven = replace(sight, proven=frozenset({P[1]}))
    assert plan(at(5, 5), proven, NO_LIMITS, 0).end.at == at(9, 5).at
    ended = replace(sight, former={P[1]: FormerEnd(5, 6, 2)})
    assert plan(at(5, 5), ended, NO_LIMITS, 0).end.at == at(9, 5).at


def test_a_gate_below_the_position_counts() -> None:
    """P22: a query that begins in the middle, its child after the gate, its parent before it."""
    sight = replace(log((0, 30), (0, 9)), gates={"t": {1: [gate(1, 0, 0, 20)]}})
    first = plan(at(15, 5), sight, NO_LIMITS, 0).end
    assert first.at == at(30, 5).at
    assert plan(first, sight, NO_LIMITS, 0).end.at == at(30, 9).at


def test_a_prerequisite_after_a_shut_gate_is_not_met() -> None:
    """A query begins in the middle: 0 before its fence, 1 and 2 after theirs."""
    gates = {1: [gate(1, 0, 0, 20)], 2: [gate(2, 0, 1, 4)]}
    sight = replace(log((0, 30), (0, 9), (0, 9)), gates={"t": gates})
    first = plan(at(15, 5, 3), sight, NO_LIMITS, 0).end
    assert first.at == at(30, 5, 3).at
    assert plan(first, sight, NO_LIMITS, 0).end.at == at(30, 9, 9).at


def test_half_of_a_limit_goes_to_what_others_wait_for() -> None:
    sight = replace(log((0, 1000), (0, 1000), (0, 1000)), gates={"t": {1: [gate(1, 0, 0, 900)]}})
    made = plan(at(0, 0, 0), sight, AdmissionLimits(max_offsets=100), 0)
    assert made.end.at[P[1]] == 0 and made.end.at[P[0]] >= 70


def test_a_read_begins_after_what_was_removed() -> None:
    """Where the partition comes back it is known from where on it is read."""
    sight = log((2, 10), former={P[1]: FormerEnd(5, 6, 2)})
    assert resolved(Place(PlaceKind.EARLIEST), sight).at == {P[0]: 2, P[1]: 6}
    assert resolved(Place(PlaceKind.LATEST), sight).at == {P[0]: 10, P[1]: 6}


# Places


def resolved(
    place: Place, snapshot: Snapshot, *, latest: bool = False, option: str = "startingOffsets"
) -> Positions:
    def by_time(times: Mapping[Pid, int]) -> Mapping[Pid, int]:
        return {pid: (7 if ms < 100 else -1) for pid, ms in times.items()}

    return resolve(
        place,
        snapshot,
        option=option,
        latest_if_no_match=latest,
        by_time=by_time,
        committed=lambda: {P[0]: 4},
    )


def test_places() -> None:
    snapshot = log((2, 10), (3, 20))
    assert resolved(Place(PlaceKind.EARLIEST), snapshot) == at(2, 3)
    assert resolved(Place(PlaceKind.LATEST), snapshot) == at(10, 20)
    assert resolved(Place(PlaceKind.GROUP), snapshot) == at(4, 3)
    given = Place(PlaceKind.OFFSETS, by_partition={"t": {0: -2, 1: -1}})
    assert resolved(given, snapshot) == at(2, 20)
    given = Place(PlaceKind.OFFSETS, by_partition={"t": {0: 5, 1: 6}})
    assert resolved(given, snapshot) == at(5, 6)
    assert resolved(Place(PlaceKind.TIMESTAMP, timestamp_ms=5), snapshot) == at(7, 7)
    late = Place(PlaceKind.TIMESTAMPS, by_partition={"t": {0: 5, 1: 500}})
    assert resolved(late, snapshot, latest=True) == at(7, 20)
    with pytest.raises(OptionRefused, match="no record at or after 500"):
        resolved(late, snapshot)


@pytest.mark.parametrize(
    ("place", "option", "named"),
    [
        (Place(PlaceKind.TIMESTAMP, timestamp_ms=500), "startingOffsets", "startingTimestamp:"),
        (
            Place(PlaceKind.TIMESTAMPS, by_partition={"t": {0: 500, 1: 5}}),
            "startingOffsets",
            "startingOffsetsByTimestamp:",
        ),
        (
            Place(PlaceKind.TIMESTAMPS, by_partition={"t": {0: 5}}),
            "endingOffsets",
            "endingOffsetsByTimestamp does",
        ),
        (Place(PlaceKind.OFFSETS, by_partition={"t": {0: 5}}), "endingOffsets", "endingOffsets do"),
        (Place(PlaceKind.TIMESTAMP, timestamp_ms=500), "endingOffsets", "endingTimestamp:"),
    ],
)
def test_an_error_names_the_option_that_was_given(place: Place, option: str, named: str) -> None:
    with pytest.raises(OptionRefused, match=f"option {named}"):
        resolved(place, log((2, 10), (3, 20)), option=option)


def offsets(*of: int) -> Place:
    return Place(PlaceKind.OFFSETS, by_partition={"t": dict(enumerate(of))})


@pytest.mark.parametrize(
    ("start", "end", "line"),
    [
        (offsets(9, 0), offsets(3, 1), "startingOffsets names 9 for t-0, after its end"),
        (offsets(3, 1), offsets(3, 1), None),
        (offsets(-2, 9), offsets(3, -1), None),
        (offsets(9, 9), Place(PlaceKind.LATEST), None),
        (
            Place(PlaceKind.TIMESTAMP, timestamp_ms=9),
            Place(PlaceKind.TIMESTAMP, timestamp_ms=8),
            "startingTimestamp is 9, after endingTimestamp 8",
        ),
        (
            Place(PlaceKind.TIMESTAMP, timestamp_ms=9),
            Place(PlaceKind.TIMESTAMP, timestamp_ms=9),
            None,
        ),
        (
            Place(PlaceKind.TIMESTAMPS, by_partition={"t": {0: 3, 1: 9}}),
            Place(PlaceKind.TIMESTAMPS, by_partition={"t": {0: 3, 1: 8}}),
            "startingOffsetsByTimestamp names 9 for t-1, after its end in option"
            " endingOffsetsByTimestamp, 8",
        ),
        (Place(PlaceKind.GROUP), offsets(0, 0), None),
    ],
)
def test_a_start_after_its_end_is_refused(start: Place, end: Place, line: str | None) -> None:
    if line is None:
        check_order(start, end)
        return
    with pytest.raises(OptionRefused, match=line):
        check_order(start, end)


def test_what_lies_beyond_the_log_is_named() -> None:
    found = beyond_the_log(at(10, 21, 5), log((2, 10), (3, 20)), "startingOffsets")
    assert found == {P[1]: "option startingOffsets names 21 for t-1, whose log ends at 20"}


@pytest.mark.parametrize("parts", [{0: 5}, {0: 5, 1: 5, 2: 5}])
def test_offsets_must_name_all_partitions_and_no_other(parts: dict[int, int]) -> None:
    with pytest.raises(OptionRefused, match=r"name all|names t-2"):
        resolved(Place(PlaceKind.OFFSETS, by_partition={"t": parts}), log((0, 9), (0, 9)))


def test_a_start_that_was_looked_up_later_has_no_epoch() -> None:
    """P14: what lies after the snapshot's end may be of an epoch that it does not know."""
    states = {
        pid: PartitionSnapshot(0, end, leader_epoch=4) for pid, end in zip(P, (5, 9), strict=False)
    }
    made = resolved(Place(PlaceKind.TIMESTAMP, timestamp_ms=5), Snapshot(IDS, states))
    assert (made.at, made.epochs) == (at(7, 7).at, {P[1]: 4})


# Tasks


def test_ranges_and_their_splits() -> None:
    found = ranges_between(at(0, 5), at(100, 5), pytest.fail)
    assert found == [OffsetRange(P[0], 0, 100)]
    assert [part.size for part in split(found, None, 30)] == [25, 25, 25, 25]
    assert [part.size for part in split(found, 3, None)] == [33, 33, 34]
    new = replace(at(9), new={P[0]: 4})
    assert ranges_between(at(), new, pytest.fail) == [OffsetRange(P[0], 4, 9)]
    with pytest.raises(PipelineError, match="does not say where t-0 begins"):
        ranges_between(at(), at(9), pytest.fail)
    two = [OffsetRange(P[0], 0, 900), OffsetRange(P[1], 0, 100)]
    parts = split(two, 10, None)
    assert sum(part.size for part in parts) == 1000
    assert [part.pid for part in parts].count(P[0]) == 9
    assert split(two, 1, None) == two


def test_what_is_lost_is_clipped_off_before_ranges_are_split() -> None:
    """P16: a million lost offsets and a hundred records are one task."""
    whole = [OffsetRange(P[0], 0, 1_000_100), OffsetRange(P[1], 5, 9)]
    kept, lost = clip(whole, {P[0]: 1_000_000, P[1]: 3})
    assert kept == [OffsetRange(P[0], 1_000_000, 1_000_100), OffsetRange(P[1], 5, 9)]
    assert lost == {P[0]: OffsetRange(P[0], 0, 1_000_000)}
    assert len(split(kept, None, 100)) == 2
    kept, lost = clip(whole[1:], {P[1]: 100})
    assert kept == [OffsetRange(P[1], 9, 9)] and lost == {P[1]: whole[1]}
    assert split(kept, 4, 100) == kept, "what tells of a loss is a task too"


# Resize epochs of positions


def resized(epoch: int | None, *bounds: tuple[int, int], topic_id: str = "id") -> Snapshot:
    """A snapshot in a resize epoch; None: keys are not kept in order any more."""
    pids = [Pid("t", number, topic_id) for number in range(len(bounds))]
    states = {pid: PartitionSnapshot(*bound) for pid, bound in zip(pids, bounds, strict=True)}
    epochs = {} if epoch is None else {"t": epoch}
    return Snapshot({"t": topic_id}, states, resize_epochs=epochs)


def test_positions_keep_the_newest_resize_epoch_that_was_seen() -> None:
    start = replace(at(0), resize_epochs={"t": 3})
    assert plan(start, resized(4, (0, 5)), NO_LIMITS, 0).end.resize_epochs == {"t": 4}
    made = plan(start, resized(None, (0, 5)), NO_LIMITS, 0).end
    assert made.at == {P[0]: 5} and made.resize_epochs == {"t": 3}


def test_no_partition_joins_by_metadata_that_are_older_than_the_positions() -> None:
    start = replace(at(0), resize_epochs={"t": 3})
    assert set(judge(start, resized(2, (0, 5), (0, 5))).at) == {P[0]}
    assert set(judge(start, resized(3, (0, 5), (0, 5))).at) == {P[0], P[1]}


def test_the_metadata_of_another_topic_of_the_name_are_not_older() -> None:
    start = replace(at(0), resize_epochs={"t": 3})
    judged = judge(start, resized(0, (0, 5), topic_id="another"))
    assert judged.behind == set() and judged.doubted == {P[0]}


def test_a_partition_that_was_removed_unseen_and_came_back_has_its_loss_in_the_range() -> None:
    start = replace(at(0), resize_epochs={"t": 1})
    came_back = replace(
        resized(4, (0, 5), (9, 12)),
        former={P[1]: FormerEnd(8, 9, resize_epoch=3)},
    )
    states = {**came_back.partitions, P[1]: PartitionSnapshot(9, 12, first=9)}
    judged = judge(start, replace(came_back, partitions=states))
    assert [(loss.position, loss.resumes_at) for loss in judged.losses] == [(0, 8)]
    assert judged.new == {P[1]: 0} and judged.at[P[1]] == 9


def test_a_partition_at_the_fence_holds_no_other_back() -> None:
    shut = replace(log((0, 9), (0, 9)), gates={"t": {1: [gate(1, 0, 0, 5)]}})
    assert prerequisites(judge(at(4, 0), shut), shut) == {P[0]}
    assert prerequisites(judge(at(5, 0), shut), shut) == frozenset()


def test_a_loss_is_not_kept_back_until_a_batch_is_large_enough() -> None:
    limits = AdmissionLimits(min_offsets=20, max_trigger_delay_ms=1000)
    made = plan(at(0), log((3, 5)), limits, 0)
    assert [loss.kind for loss in made.losses] == [LossKind.RETENTION]
    assert made.end.at == {P[0]: 5}
