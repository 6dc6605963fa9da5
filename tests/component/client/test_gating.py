"""The gates of a member: what it reports, when, and what it lets its fetcher deliver."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, cast
from uuid import UUID

import pytest

from tests.support.network_server import until
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import ConnectionLost
from tidelog.client.fences import DescribedFence, DescribedFences
from tidelog.client.groups import commits_ahead, fence_lookups, gating
from tidelog.client.groups.gating import Commit, Gating
from tidelog.client.groups.held_keys import HeldKeys
from tidelog.client.metadata import ClusterMetadata, Partition, Topic
from tidelog.model.topics import TopicPartition
from tidelog.partitioning.gates import Fence, GroupPosition

PARENT, CHILD = TopicPartition("t", 0), TopicPartition("t", 1)
FENCE = 10
"""The offset in the parent that the child's records wait for."""

NEVER_MS = 10**9

Calls = list[tuple[str, dict[TopicPartition, int]]]


def listed(index: int, birth: int, leader_epoch: int) -> Partition:
    """Each partition has another leader."""
    return Partition(
        index, index, leader_epoch, (1,), (1,), (), partition_epoch=index, birth_epoch=birth
    )


def grown(leader_epoch: int = 3) -> Topic:
    """From one partition to two."""
    return Topic(
        "t",
        UUID(int=1),
        False,
        {0: listed(0, 0, leader_epoch), 1: listed(1, 1, 3)},
        initial_partition_count=1,
        undeleted_partition_count=2,
        resize_epoch=1,
    )


class Brokers:
    """What gating needs of a cluster, its leaders' fences included."""

    settings = ClusterSettings()

    def __init__(self) -> None:
        self.view = ClusterMetadata(topics={"t": grown()})
        self.coordinator: int | None = 7
        self.lookups = 0
        self.silent: set[TopicPartition] = set()
        """Partitions whose leaders do not respond."""
        self.are_deposed = False
        """Whether leaders respond that were replaced: what they name does not count."""
        self.readable = 0
        """The first offset of a record that is left to read, from any commit on."""
        self.looked_from: list[int] = []

    async def first_readable(
        self, _: Cluster, positions: Mapping[TopicPartition, int], **__: Any
    ) -> dict[TopicPartition, int]:
        self.looked_from += positions.values()
        # One step at a time.
        return {where: min(offset + 2, self.readable) for where, offset in positions.items()}

    def known_coordinator(self, _: str) -> int | None:
        return self.coordinator

    async def fences(
        self, _: Cluster, places: Iterable[TopicPartition], **__: Any
    ) -> dict[TopicPartition, DescribedFences]:
        self.lookups += 1
        places = list(places)
        if not self.silent.isdisjoint(places):
            await asyncio.Event().wait()
        offsets = {PARENT: FENCE, CHILD: 0}
        epochs = self.view.topics["t"].partitions
        return {
            where: DescribedFences(
                -1 if self.are_deposed else epochs[where.partition].leader_epoch,
                (DescribedFence(Fence(1, offsets[where], offsets[where] - 1), 2, False),),
            )
            for where in places
        }


class Member:
    """One whose coordinator answers with what others have reported."""

    group, is_alone = "g", False

    def __init__(self, calls: Calls) -> None:
        self.calls = calls
        self.known: dict[TopicPartition, GroupPosition] = {}
        self.wanted: list[list[TopicPartition]] = []
        self.failures = 0

    async def exchange_positions(
        self, report: Mapping[TopicPartition, int], wanted: Iterable[TopicPartition]
    ) -> dict[TopicPartition, GroupPosition]:
        if self.failures:
            self.failures -= 1
            raise ConnectionLost("the coordinator is away")
        self.calls.append(("report", dict(report)))
        self.wanted.append(list(wanted))
        return {where: self.known[where] for where in self.wanted[-1] if where in self.known}


class Held:
    """What gating needs of a fetcher."""

    def __init__(self) -> None:
        self.gates: dict[TopicPartition, int] = {}
        self.interrupts = 0
        self.applied = 0

    def hold_at(self, limits: Mapping[TopicPartition, int]) -> None:
        self.gates = dict(limits)
        self.applied += 1

    def interrupt(self) -> None:
        self.interrupts += 1


class Gated:
    """A member's gates, and all that they did."""

    def __init__(self, *, commits: bool = True, keys: HeldKeys | None = None) -> None:
        self.calls: Calls = []
        self.brokers, self.member, self.fetcher = Brokers(), Member(self.calls), Held()

        async def commit(positions: dict[TopicPartition, int]) -> None:
            self.calls.append(("commit", dict(positions)))

        before: Commit | None = commit if commits else None
        self.gating = Gating(
            cast("Cluster", self.brokers), cast("Any", self.member), cast("Any", self.fetcher),
            before, keys,
        )  # fmt: skip

    def reports(self) -> list[dict[TopicPartition, int]]:
        """All reports that said something."""
        return [found for what, found in self.calls if what == "report" and found]

    def start(self, *partitions: TopicPartition) -> None:
        self.gating.start(self.brokers.view.topics, partitions)


@pytest.fixture
def story(
    monkeypatch: pytest.MonkeyPatch,
) -> Callable[[Gated, Callable[[], Awaitable[None]]], None]:
    """Run a member's gates with leaders that answer at once."""
    monkeypatch.setattr(gating, "EXCHANGE_MS", 1)
    monkeypatch.setattr(fence_lookups, "AGAIN_MS", 1)
    monkeypatch.setattr(commits_ahead, "AGAIN_MS", 1)

    def tell(gated: Gated, what: Callable[[], Awaitable[None]]) -> None:
        monkeypatch.setattr(fence_lookups, "describe_fences", gated.brokers.fences)
        monkeypatch.setattr(commits_ahead, "first_readable", gated.brokers.first_readable)

        async def whole() -> None:
            try:
                async with asyncio.timeout(60):
                    await what()
            finally:
                await gated.gating.stop()

        asyncio.run(whole())

    return tell


def test_a_position_is_committed_and_then_reported(story: Any) -> None:
    gated = Gated()

    async def of() -> None:
        gated.start(PARENT)
        gated.gating.delivered({PARENT: 4})
        await until(lambda: bool(gated.reports()))

    story(gated, of)
    assert gated.calls[:2] == [("commit", {PARENT: 4}), ("report", {PARENT: 4})]


def test_without_automatic_commits_a_position_is_only_reported(story: Any) -> None:
    gated = Gated(commits=False)

    async def of() -> None:
        gated.start(PARENT)
        gated.gating.delivered({PARENT: 4})
        await until(lambda: bool(gated.reports()))

    story(gated, of)
    assert {what for what, _ in gated.calls} == {"report"}


def test_the_same_position_is_reported_again_after_a_while(
    story: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A coordinator that took over in place of another one, and has the same id, knows none."""
    monkeypatch.setattr(gating, "REPORT_AGAIN_MS", 20)
    gated = Gated()

    async def of() -> None:
        gated.start(PARENT)
        gated.gating.delivered({PARENT: 4})
        await until(lambda: len(gated.reports()) > 2)

    story(gated, of)
    assert all(found == {PARENT: 4} for found in gated.reports())


def test_a_new_coordinator_is_sent_them_at_once(
    story: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gating, "REPORT_AGAIN_MS", NEVER_MS)
    gated = Gated()

    async def of() -> None:
        gated.start(PARENT, CHILD)
        gated.gating.delivered({PARENT: 4, CHILD: 0})
        await until(lambda: bool(gated.reports()))
        gated.brokers.coordinator = 8
        # Its child's gate is shut, so it exchanges without a change of its own.
        await until(lambda: len(gated.reports()) > 1)

    story(gated, of)
    assert gated.reports()[1] == {PARENT: 4}


def test_what_could_not_be_reported_is_reported_later(story: Any) -> None:
    gated = Gated()
    gated.member.failures = 2

    async def of() -> None:
        gated.start(PARENT)
        gated.gating.delivered({PARENT: 4})
        await until(lambda: bool(gated.reports()))

    story(gated, of)
    assert gated.reports() == [{PARENT: 4}]


def test_a_member_that_rests_reports_a_new_position_at_once(
    story: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with the next repetition: another member waits for it. Past the fence none does."""
    monkeypatch.setattr(gating, "REPORT_AGAIN_MS", NEVER_MS)
    gated = Gated()

    async def of() -> None:
        gated.start(PARENT)
        for position in (4, FENCE + 2):
            gated.gating.delivered({PARENT: position})
            await until(lambda: {PARENT: position} in gated.reports())  # noqa: B023
        gated.gating.delivered({PARENT: FENCE + 5})
        await until(lambda: not gated.gating._changed.is_set())
        gated.gating.delivered({PARENT: 2})
        await until(lambda: len(gated.reports()) > 2)

    story(gated, of)
    assert gated.reports() == [{PARENT: 4}, {PARENT: FENCE + 2}, {PARENT: 2}]


def test_no_gate_opens_while_a_generation_ends(story: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cooperative member reads on while it joins: with open gates it would get records of a key
    before older ones that lie in another partition."""
    gated = Gated()
    gated.brokers.are_deposed = True
    held: list[dict[TopicPartition, int]] = []

    async def ends_late(*_: Any) -> dict[TopicPartition, GroupPosition]:
        """A request that takes some time to be called off; look-ups of fences go on meanwhile."""
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            before = gated.fetcher.applied
            await until(lambda: gated.fetcher.applied > before)
            held.append(dict(gated.fetcher.gates))
            raise
        return {}

    monkeypatch.setattr(gated.member, "exchange_positions", ends_late)

    async def of() -> None:
        gated.start(PARENT, CHILD)
        gated.gating.delivered({PARENT: 4, CHILD: 0})
        await until(lambda: gated.brokers.lookups > 2)
        assert gated.fetcher.gates[CHILD] == 0
        await gated.gating.stop()
        held.append(dict(gated.fetcher.gates))

    story(gated, of)
    assert [gates.get(CHILD) for gates in held] == [0, 0]


def test_a_child_is_held_until_its_parent_has_reached_the_fence(story: Any) -> None:
    gated = Gated()

    async def of() -> None:
        gated.start(CHILD)
        assert gated.fetcher.gates == {CHILD: 0}
        gated.gating.delivered({CHILD: 0})
        gated.member.known = {PARENT: GroupPosition(FENCE - 1)}
        await until(lambda: len(gated.member.wanted) > 2)
        assert gated.fetcher.gates == {CHILD: 0}
        assert gated.gating.why_shut(CHILD) == f"{CHILD} waits for {PARENT} at 9 of 10"
        gated.member.known = {PARENT: GroupPosition(FENCE)}
        await until(lambda: gated.fetcher.gates == {})

    story(gated, of)
    assert gated.member.wanted[0] == [PARENT] and gated.reports() == []


def test_a_commit_before_what_no_member_reads_opens_the_gate(story: Any) -> None:
    gated = Gated()
    gated.member.known = {PARENT: GroupPosition(4, True)}

    async def of() -> None:
        gated.start(CHILD)
        gated.gating.delivered({CHILD: 0})
        gated.brokers.readable = 4
        await until(lambda: len(gated.brokers.looked_from) > 2)
        assert gated.fetcher.gates == {CHILD: 0}
        assert set(gated.brokers.looked_from) == {4}
        gated.brokers.readable = FENCE + 5
        await until(lambda: gated.fetcher.gates == {})
        # Each question goes on where the answer before has ended.
        assert sorted(set(gated.brokers.looked_from))[:3] == [4, 6, 8]

    story(gated, of)


def test_a_newer_leader_of_the_parent_shuts_the_gate_until_it_has_named_its_fences(
    story: Any,
) -> None:
    gated = Gated()
    gated.member.known = {PARENT: GroupPosition(FENCE)}

    async def of() -> None:
        gated.start(CHILD)
        gated.gating.delivered({CHILD: 0})
        await until(lambda: gated.fetcher.gates == {})
        gated.gating.has_shut = False
        looked = gated.brokers.lookups
        gated.brokers.view = ClusterMetadata(topics={"t": grown(leader_epoch=4)})
        gated.gating.delivered({CHILD: 5})
        assert gated.fetcher.gates == {CHILD: 0}
        assert gated.gating.has_shut, "the reader goes back to what may be delivered"
        await until(lambda: gated.fetcher.gates == {})
        assert gated.brokers.lookups > looked

    story(gated, of)


def test_a_silent_leader_holds_up_no_gate_that_needs_others(story: Any) -> None:
    """Each rebalance of a grown topic shut all gates until the last leader had answered, and no
    position was exchanged meanwhile."""
    gated = Gated()
    gated.brokers.silent = {CHILD}
    gated.member.known = {PARENT: GroupPosition(FENCE)}

    async def of() -> None:
        gated.start(CHILD)
        gated.gating.delivered({CHILD: 0})
        assert gated.fetcher.gates == {CHILD: 0}
        await until(lambda: gated.fetcher.gates == {})

    story(gated, of)


def test_what_the_application_has_not_flushed_is_not_reported(story: Any) -> None:
    keys = HeldKeys()
    gated = Gated(keys=keys)

    async def of() -> None:
        gated.start(PARENT)
        await until(lambda: gated.brokers.lookups > 0)
        keys.were_loaded([PARENT], {})
        keys.flushed({PARENT: 3})
        keys.were_loaded([PARENT], {})
        gated.gating.delivered({PARENT: 8})
        await until(lambda: bool(gated.reports()))

    story(gated, of)
    assert gated.reports()[0] == {PARENT: 3}
    assert ("commit", {PARENT: 3}) in gated.calls


def test_state_that_can_be_loaded_ends_a_wait_in_poll(story: Any) -> None:
    keys = HeldKeys()
    gated = Gated(keys=keys)
    gated.member.known = {PARENT: GroupPosition(FENCE)}

    async def of() -> None:
        gated.start(CHILD)
        gated.gating.delivered({CHILD: 0})
        assert gated.fetcher.interrupts == 0
        await until(lambda: gated.fetcher.interrupts > 0)
        assert gated.fetcher.gates == {CHILD: 0}, "nothing before its state is loaded"

    story(gated, of)
