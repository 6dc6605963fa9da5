"""A follower whose log begins above its leader's fences takes them over before it fetches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.broker_pair import Pair, append, run, running, until_same
from tests.support.lone_broker import until
from tidelog.broker.following import fence_copies
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.records.control_records import ChangeKind
from tidelog.storage.log.fences import FenceEntry, Fences

FENCE = ChangeKind.FENCE


def grown(epoch: int, **more: Any) -> dict[str, Any]:
    return {"undeleted_count": 2 * epoch, "resize_epoch": epoch, "isr": (1,), **more}


async def leading(pair: Pair) -> HostedPartition:
    """Records and fences at offsets 0 to 7, of which retention has left the last two."""
    leader = pair.lead(epoch=1, isr=(1,))
    append(leader, "a", "b")
    pair.lead(epoch=2, **grown(1))
    append(leader, "c")
    pair.lead(epoch=3, **grown(2))
    append(leader, "d", "e", "f")
    await until(lambda: leader.high_watermark == 8)
    assert leader.log.advance_start(6) is None
    assert [each.offset for each in leader.log.fences.entries] == [2, 4]
    return leader


def test_a_moved_replica_that_becomes_leader_writes_no_second_fence(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = await leading(pair)
            target = pair.follow(epoch=3, **grown(2))
            await until_same(leader, target)
            assert target.log.start_offset == 6
            assert target.log.fences == leader.log.fences
            assert target.log.fences.entries == (
                FenceEntry(1, 2, FENCE, 2, 2),
                FenceEntry(2, 4, FENCE, 4, 4),
            )
            moved = grown(2, isr=(2,), leader=2, replicas=(2,))
            pair.follow(epoch=4, **moved)
            assert target.is_leader and target.end_offset == 8, "nothing was appended"
            append(target, "g")
            assert target.end_offset == 9
        # They are on the disk, too.
        async with running(tmp_path) as pair:
            (log,) = pair.follower.broker.partitions.directories[0].logs.values()
            assert [each.offset for each in log.fences.entries] == [2, 4]

    run(main())


def test_nothing_begins_before_the_fences_are_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def unanswered(*_: Any) -> dict[Any, Fences]:
        nonlocal asked
        asked += 1
        return {}

    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = await leading(pair)
            with monkeypatch.context() as patched:
                patched.setattr(
                    "tidelog.broker.following.source_fetcher.leaders_fences", unanswered
                )
                target = pair.follow(epoch=3, **grown(2))
                await until(lambda: asked > 1)
                assert target.end_offset == 0 and target.log.fences == Fences()
            await until_same(leader, target)
            assert target.log.fences == leader.log.fences

    run(main())


def test_a_leader_of_another_epoch_or_incarnation_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with running(tmp_path) as pair:
            leader = await leading(pair)
            found: list[Any] = []
            ask = fence_copies.leaders_fences

            async def noting(connection: Any, wanted: Any, timeout_ms: int) -> Any:
                wanted = list(wanted)
                # Between the fetch and this question the leader may have changed.
                for hosted in wanted:
                    hosted.leader_epoch += 1
                found.append(await ask(connection, wanted, timeout_ms))
                for hosted in wanted:
                    hosted.leader_epoch -= 1
                return {}

            with monkeypatch.context() as patched:
                patched.setattr("tidelog.broker.following.source_fetcher.leaders_fences", noting)
                target = pair.follow(epoch=3, **grown(2))
                await until(lambda: found)
            assert found[0] == {} and target.end_offset == 0
            await until_same(leader, target)

    run(main())


def test_a_fence_that_no_other_replica_has_goes_with_the_log(tmp_path: Path) -> None:
    """The target of an unclean election lacks it: below the leader's start, its own list counts."""

    async def main() -> None:
        async with running(tmp_path) as pair:
            former = pair.follow(epoch=1, leader=2, isr=(2,))
            append(former, "a", "b", "c")
            pair.follow(epoch=2, **grown(1, leader=2, isr=(2,)))
            assert [each.offset for each in former.log.fences.entries] == [3]
            leader = await leading(pair)
            pair.follow(epoch=3, **grown(2))
            await until_same(leader, former)
            assert former.log.fences == leader.log.fences

    run(main())


def test_a_topic_that_was_never_resized_asks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_: Any) -> Any:
        raise AssertionError("asked")

    async def main() -> None:
        monkeypatch.setattr("tidelog.broker.following.source_fetcher.leaders_fences", never)
        async with running(tmp_path) as pair:
            leader = pair.lead(epoch=1, isr=(1,))
            append(leader, "a", "b", "c", "d")
            assert leader.log.advance_start(3) is None
            await until_same(leader, pair.follow(epoch=1, isr=(1,)))

    run(main())
