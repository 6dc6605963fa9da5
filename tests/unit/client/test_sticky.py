"""Sticky assignments: even, with as few moves as that allows; cooperative ones in two rounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tidelog.client.groups.assignors import PartitionCounts, assign
from tidelog.client.groups.consumer_protocol import Subscription
from tidelog.model.topics import TopicPartition

Shares = dict[str, list[TopicPartition]]


def parts(topic: str, *indexes: int) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in indexes]


def counts(**topics: int) -> dict[str, PartitionCounts]:
    return {name: PartitionCounts(number, number) for name, number in topics.items()}


def having(
    topics: dict[str, tuple[str, ...]], shares: Shares, generation: int = 1
) -> dict[str, Subscription]:
    return {
        member: Subscription(names, tuple(shares.get(member, ())), generation)
        for member, names in topics.items()
    }


def test_members_keep_what_they_have_when_one_leaves() -> None:
    before = {"a": parts("t", 0, 3), "c": parts("t", 2, 5)}
    shares = assign("sticky", having({"a": ("t",), "c": ("t",)}, before), counts(t=6))
    assert set(before["a"]) < set(shares["a"]) and set(before["c"]) < set(shares["c"])
    assert len(shares["a"]) == len(shares["c"]) == 3


def test_a_new_member_gets_only_what_others_have_too_many() -> None:
    before = {"a": parts("t", 0, 1, 2), "b": parts("t", 3, 4, 5)}
    said = having(dict.fromkeys("abc", ("t",)), before)
    shares = assign("sticky", said, counts(t=6))
    assert shares == {"a": parts("t", 0, 1), "b": parts("t", 3, 4), "c": parts("t", 2, 5)}


def test_a_partition_of_two_members_is_the_newer_generations() -> None:
    said = {
        "a": Subscription(("t",), tuple(parts("t", 0)), 4),
        "b": Subscription(("t",), tuple(parts("t", 0)), 5),
    }
    assert assign("sticky", said, counts(t=2)) == {"a": parts("t", 1), "b": parts("t", 0)}
    said["a"] = said["a"]._replace(generation=5)
    shares = assign("sticky", said, counts(t=2))
    assert sorted(shares["a"] + shares["b"]) == parts("t", 0, 1)


def test_what_is_gone_or_not_subscribed_is_not_kept() -> None:
    said = {"a": Subscription(("t",), tuple(parts("t", 0, 7) + parts("u", 0)), 1)}
    assert assign("sticky", said, counts(t=1, u=1)) == {"a": parts("t", 0)}


def test_a_cooperative_member_gets_nothing_that_another_still_has() -> None:
    before = {"a": parts("t", 0, 1, 2, 3)}
    topics = dict.fromkeys("ab", ("t",))
    first = assign("cooperative-sticky", having(topics, before), counts(t=4))
    assert first == {"a": parts("t", 0, 1), "b": []}
    second = assign("cooperative-sticky", having(topics, first, 2), counts(t=4))
    assert second == {"a": parts("t", 0, 1), "b": parts("t", 2, 3)}


TOPICS = ("t", "u", "v")
MEMBERS = tuple(f"m{number}" for number in range(5))
READ = st.dictionaries(
    st.sampled_from(MEMBERS),
    st.sets(st.sampled_from(TOPICS), min_size=1).map(lambda names: tuple(sorted(names))),
    min_size=1,
)
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(0, 9)).map(lambda d: counts(**d))


@st.composite
def claims(draw: st.DrawFn) -> dict[str, Subscription]:
    topics = draw(READ)
    anything = st.builds(TopicPartition, st.sampled_from(TOPICS), st.integers(0, 10))
    return {
        member: Subscription(
            names, tuple(draw(st.sets(anything, max_size=8))), draw(st.integers(-1, 2))
        )
        for member, names in topics.items()
    }


def is_even(shares: Shares, said: dict[str, Subscription]) -> bool:
    return not any(
        partition.topic in said[taker].topics and len(shares[taker]) + 2 <= len(share)
        for share in shares.values()
        for partition in share
        for taker in shares
    )


@given(claims(), COUNTS)
def test_an_assignment_is_even_whatever_members_claim(
    said: dict[str, Subscription], known: dict[str, PartitionCounts]
) -> None:
    shares = assign("sticky", said, known)
    assert is_even(shares, said)
    owned = [each for share in shares.values() for each in share]
    assert len(owned) == len(set(owned))


@given(READ, COUNTS)
def test_the_same_members_keep_the_same_partitions(
    topics: dict[str, tuple[str, ...]], known: dict[str, PartitionCounts]
) -> None:
    shares = assign("sticky", having(topics, {}), known)
    assert assign("sticky", having(topics, shares), known) == shares


@given(READ, READ, COUNTS)
def test_cooperative_rounds_end_even_and_never_give_what_is_owned(
    before: dict[str, tuple[str, ...]],
    topics: dict[str, tuple[str, ...]],
    known: dict[str, PartitionCounts],
) -> None:
    """Members come and go; each round is joined with what was kept of the former one."""
    had = assign("cooperative-sticky", having(before, {}), known)
    for _ in range(4):
        said = having(topics, had, 2)
        owned = {each: member for member in topics for each in had.get(member, ())}
        shares = assign("cooperative-sticky", said, known)
        for member, share in shares.items():
            assert all(owned.get(each, member) == member for each in share)
        if shares == {m: sorted(had.get(m, ())) for m in topics}:
            break
        had = shares
    else:
        raise AssertionError(f"rounds do not end: {had}")
    assert is_even(shares, having(topics, {}))
    # Nothing is left over once the owners have given up what was to move.
    read = {topic for names in topics.values() for topic in names}
    listed = sum(each.listed for topic, each in known.items() if topic in read)
    assert sum(map(len, shares.values())) == listed
