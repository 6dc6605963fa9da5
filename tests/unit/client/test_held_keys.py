"""When the state of keys is loaded and flushed, and what may be delivered meanwhile."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.groups.held_keys import HeldKeys
from tidelog.model.topics import TopicPartition

PARENT, CHILD = TopicPartition("t", 0), TopicPartition("t", 1)
FENCE = {PARENT: [10]}


def begun(positions: dict[TopicPartition, int], ends: dict[TopicPartition, int]) -> HeldKeys:
    """A generation in which everything that may be is loaded."""
    keys = HeldKeys()
    assert keys.to_flush(positions, ends, FENCE) == []
    keys.were_loaded(keys.to_load(positions, ends), ends)
    return keys


def test_nothing_is_delivered_before_its_state_is_loaded() -> None:
    keys = HeldKeys()
    assert keys.limits({}, [PARENT]) == {PARENT: 0}
    assert keys.to_load({PARENT: 3}, {}) == [PARENT]
    keys.were_loaded([PARENT], {})
    assert keys.limits({}, [PARENT]) == {}


def test_a_child_is_loaded_when_its_gate_opens() -> None:
    positions = {PARENT: 3, CHILD: 0}
    keys = begun(positions, {CHILD: 0})
    assert keys.loaded == [PARENT]
    assert keys.limits({CHILD: 0}, [PARENT, CHILD]) == {CHILD: 0}
    assert keys.to_load(positions, {}) == [CHILD]


def test_a_parent_is_flushed_at_the_fence_and_counts_only_then() -> None:
    keys = begun({PARENT: 3, CHILD: 0}, {CHILD: 0})
    before = {PARENT: 9, CHILD: 0}
    assert keys.to_flush(before, {CHILD: 0}, FENCE) == []
    assert keys.done_with(before) == {PARENT: 3, CHILD: 0}
    at_fence = {PARENT: 11, CHILD: 0}
    assert keys.to_flush(at_fence, {CHILD: 0}, FENCE) == [PARENT]
    assert keys.done_with(at_fence)[PARENT] == 3
    keys.flushed({PARENT: 11})
    assert keys.done_with(at_fence) == at_fence
    # It goes on only after its state was loaded again: keys have left it.
    assert keys.limits({}, [PARENT, CHILD]) == {PARENT: 0, CHILD: 0}
    assert keys.to_load(at_fence, {}) == [PARENT, CHILD]


def test_a_parent_that_was_read_past_the_fence_before_needs_no_flush() -> None:
    keys = HeldKeys()
    positions = {PARENT: 11, CHILD: 0}
    assert keys.to_flush(positions, {CHILD: 0}, FENCE) == []
    assert keys.done_with(positions) == positions


def test_a_survivor_is_flushed_before_other_keys_come_in() -> None:
    shut = {PARENT: 10}
    keys = begun({PARENT: 3}, shut)
    assert keys.limits(shut, [PARENT]) == {PARENT: 10}
    # Its gate opens: what it has is written before all of its state is read again.
    assert keys.to_flush({PARENT: 7}, {}, {}) == [PARENT]
    assert keys.limits({}, [PARENT]) == {PARENT: 10}
    keys.flushed({PARENT: 7})
    assert keys.to_load({PARENT: 7}, {}) == [PARENT]
    keys.were_loaded([PARENT], {})
    assert keys.limits({}, [PARENT]) == {}


def test_a_gate_that_shuts_again_lets_state_be_loaded_again() -> None:
    positions = {PARENT: 11, CHILD: 5}
    keys = begun(positions, {})
    assert keys.to_flush(positions, {CHILD: 0}, {}) == []
    assert keys.limits({CHILD: 0}, [PARENT, CHILD]) == {CHILD: 0}
    assert keys.to_flush(positions, {}, {}) == [CHILD]


def test_a_rewind_takes_a_report_back() -> None:
    keys = begun({PARENT: 3}, {})
    keys.to_flush({PARENT: 11}, {}, FENCE)
    keys.flushed({PARENT: 11})
    keys.were_loaded([PARENT], {})
    assert keys.to_flush({PARENT: 4}, {}, FENCE) == []
    assert keys.done_with({PARENT: 4}) == {PARENT: 4}
    assert keys.to_flush({PARENT: 12}, {}, FENCE) == [PARENT]


def test_what_was_received_is_flushed_before_a_commit() -> None:
    keys = begun({PARENT: 3, CHILD: 0}, {})
    assert keys.received({PARENT: 3, CHILD: 0}) == []
    assert keys.received({PARENT: 5, CHILD: 0}) == [PARENT]


STEPS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from([PARENT, CHILD]), st.integers(0, 20), min_size=2),
        st.dictionaries(st.sampled_from([PARENT, CHILD]), st.integers(0, 20)),
    )
)


@given(STEPS)
def test_no_position_counts_beyond_its_flush_and_callbacks_alternate(
    steps: list[tuple[dict[TopicPartition, int], dict[TopicPartition, int]]],
) -> None:
    keys = HeldKeys()
    has: set[TopicPartition] = set()
    flushed_at: dict[TopicPartition, int] = {}
    for positions, ends in steps:
        due = keys.to_flush(positions, ends, FENCE)
        assert set(due) <= has
        for partition in positions.keys() - has:
            flushed_at[partition] = positions[partition]
        keys.flushed({each: positions[each] for each in due})
        flushed_at.update({each: positions[each] for each in due})
        has -= set(due)
        for partition, offset in keys.done_with(positions).items():
            assert offset <= min(positions[partition], flushed_at[partition])
        to_load = keys.to_load(positions, ends)
        assert not has & set(to_load)
        keys.were_loaded(to_load, ends)
        has |= set(to_load)
        limits = keys.limits(ends, [PARENT, CHILD])
        for partition in (PARENT, CHILD):
            assert limits.get(partition, 99) <= ends.get(partition, 99)
            assert partition in has or limits[partition] == 0


def test_a_position_that_equals_the_fence_has_reached_it_and_is_flushed_once() -> None:
    keys = begun({PARENT: 3}, {})
    assert keys.to_flush({PARENT: 10}, {}, FENCE) == [PARENT]
    keys.flushed({PARENT: 10})
    keys.were_loaded([PARENT], {})
    assert keys.to_flush({PARENT: 10}, {}, FENCE) == []
    assert keys.to_flush({PARENT: 12}, {}, FENCE) == []
