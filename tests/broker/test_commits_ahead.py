"""The look-ups of what is left to read after the commits of many partitions, at a real leader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.isolation import Transactions
from tests.support.lone_broker import LoneBroker, until
from tidelog.client.cluster import Cluster
from tidelog.client.fetching import left_to_read
from tidelog.client.groups import commits_ahead
from tidelog.client.groups.commits_ahead import CommitsAhead
from tidelog.model.topics import TopicPartition

COUNT = 20


class Asked:
    """A member's look-ups, and the questions that they send."""

    def __init__(self, cluster: Cluster) -> None:
        self.questions: list[int] = []
        self.ends: dict[TopicPartition, int] = {}
        self.problems: list[BaseException] = []
        self.ahead = CommitsAhead(cluster, self._take, self._ended)

    def _take(self, partition: TopicPartition, first: int, end: int) -> None:
        assert first == 0
        self.ends[partition] = end

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        self.problems += [] if error is None else [error]

    async def first_readable(
        self, cluster: Cluster, positions: Mapping[TopicPartition, int], **of: Any
    ) -> dict[TopicPartition, int]:
        self.questions.append(len(positions))
        return await left_to_read.first_readable(cluster, positions, **of)


def questions(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    fill: Callable[[int, Transactions], None],
    ends: list[int],
) -> int:
    """Return how many questions a member sends until it knows the ends of what is read in
    ``COUNT`` partitions of one leader."""

    async def main() -> int:
        lone = LoneBroker(folder)
        await lone.start()
        try:
            lone.lead("t", COUNT)
            places = [TopicPartition("t", index) for index in range(COUNT)]
            for tp in places:
                hosted = lone.broker.partitions.get(*tp)
                assert hosted is not None
                fill(tp.partition, Transactions(hosted))
            async with Cluster(lone.bootstrap) as cluster:
                assert (await cluster.leader(places[0])).leader == 1
                member = Asked(cluster)
                monkeypatch.setattr(commits_ahead, "first_readable", member.first_readable)
                member.ahead.want(dict.fromkeys(places, 0))
                member.ahead.want(dict.fromkeys(places, 0))
                wanted = dict(zip(places, ends, strict=True))
                await until(lambda: member.ends == wanted)
                await member.ahead.stop()
                assert not member.problems
                return len(member.questions)
        finally:
            await lone.stop()

    return asyncio.run(main())


def test_one_question_is_about_all_partitions_of_a_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(index: int, log: Transactions) -> None:
        log.data(7)
        log.abort(7)
        log.plain()

    # The second one begins at once: the first may have ended at the end of its bytes.
    assert questions(tmp_path, monkeypatch, fill, [2] * COUNT) <= 2


def test_what_an_answer_has_no_room_for_comes_first_in_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first batch is larger than the room of a first answer, so only one such is in it."""

    def fill(index: int, log: Transactions) -> None:
        log.data(7, left_to_read.FIRST_BYTES + 1)
        log.abort(7)
        log.plain()

    assert questions(tmp_path, monkeypatch, fill, [2] * COUNT) <= 4


def test_batches_that_fit_only_alone_are_asked_for_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(index: int, log: Transactions) -> None:
        if index < 4:
            log.data(7, left_to_read.PARTITION_BYTES + 1)
            log.abort(7)
        log.data(8)
        log.abort(8)

    ends = [4] * 4 + [2] * (COUNT - 4)
    assert questions(tmp_path, monkeypatch, fill, ends) <= 2 * 4 + 2
