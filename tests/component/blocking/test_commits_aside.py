"""Commits that a blocking consumer begins: what becomes of them at its end, and in its log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from typing import Any

import pytest

from tests.support.processes import DEADLINE_S
from tests.support.scripted_cluster import ScriptedCluster, topic, view_of
from tidelog.aio import Consumer as AsyncConsumer
from tidelog.blocking.consumer import Consumer
from tidelog.client.errors import WrongState
from tidelog.client.groups.group_reader import GroupReader
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

A = TopicPartition("t", 0)


class Coordinator:
    """A cluster of one broker, which coordinates a group without members."""

    def __init__(self) -> None:
        self.code = ErrorCode.NONE
        self.is_silent = False
        self.cluster = ScriptedCluster(
            view_of(topic("t", [1], ordered=False)), {messages.OffsetCommitRequest: self._commit}
        )

    def _commit(self, *_: Any) -> Any:
        if self.is_silent:
            return asyncio.get_running_loop().create_future()
        of = messages.OffsetCommitResponse
        part = of.OffsetCommitResponsePartition(partition_index=0, error_code=self.code)
        return of(topics=[of.OffsetCommitResponseTopic(name="t", partitions=[part])])


@pytest.fixture
def coordinator(monkeypatch: pytest.MonkeyPatch) -> Coordinator:
    one = Coordinator()
    made = partial(AsyncConsumer, cluster=one.cluster)
    monkeypatch.setattr("tidelog.blocking.consumer.AsyncConsumer", made)
    return one


@pytest.fixture
def consumer(coordinator: Coordinator) -> Iterator[Consumer]:
    with Consumer(group_id="g", enable_auto_commit=False) as made:
        made.assign([A])
        yield made


def outcome(future: Future[None]) -> BaseException | None:
    return future.exception(DEADLINE_S)


def test_the_end_calls_back_for_each_commit_with_its_error(
    coordinator: Coordinator, consumer: Consumer
) -> None:
    """The callback of a commit that ``close`` cancelled got no error."""
    coordinator.is_silent = True
    ended: list[Any] = []
    begun = [
        consumer.commit_async(
            {A: offset}, lambda offsets, error: ended.append((offsets[A].offset, type(error)))
        )
        for offset in (5, 6)
    ]
    consumer.close(timeout_ms=1)
    assert ended == [(5, WrongState), (6, WrongState)]
    assert [type(outcome(each)) for each in begun] == [WrongState, WrongState]


def test_the_end_waits_for_commits(coordinator: Coordinator, consumer: Consumer) -> None:
    ended: list[Any] = []
    for offset in (5, 6):
        consumer.commit_async({A: offset}, lambda offsets, error: ended.append((offsets, error)))
    consumer.close()
    assert [(offsets[A].offset, error) for offsets, error in ended] == [(5, None), (6, None)]
    assert len(coordinator.cluster.asked_for(messages.OffsetCommitRequest)) == 2


def test_a_commit_that_fails_without_a_callback_is_logged(
    coordinator: Coordinator, consumer: Consumer, caplog: pytest.LogCaptureFixture
) -> None:
    coordinator.code = ErrorCode.GROUP_AUTHORIZATION_FAILED
    with caplog.at_level(logging.WARNING):
        assert outcome(consumer.commit_async({A: 5})) is not None
        assert outcome(consumer.commit_async({A: 6}, lambda *_: None)) is not None
    logged = [each.getMessage() for each in caplog.records if "not committed" in each.getMessage()]
    assert len(logged) == 1 and "GROUP_AUTHORIZATION_FAILED" in logged[0]


def test_a_commit_that_its_caller_cancels_is_an_error_to_the_callback(
    coordinator: Coordinator, consumer: Consumer
) -> None:
    coordinator.is_silent = True
    ended: list[Any] = []
    begun = consumer.commit_async({A: 5}, lambda _, error: ended.append(type(error)))
    begun.cancel()
    consumer.close(timeout_ms=1)
    assert ended == [WrongState]


@pytest.mark.usefixtures("coordinator")
def test_a_callback_that_commits_again_is_called_once_in_a_poll() -> None:
    """It was called again and again, as long as its commit was refused at once."""
    refused: list[Any] = []

    def again(offsets: Any, error: BaseException | None) -> None:
        refused.append(error)
        if len(refused) < 100:
            assert outcome(consumer.commit_async(offsets, again)) is not None

    with Consumer(enable_auto_commit=False) as consumer:
        consumer.assign([])
        assert outcome(consumer.commit_async({A: 5}, again)) is not None
        for polls in (1, 2):
            assert consumer.poll() == {}
            assert len(refused) == polls
        refused.extend([None] * 100)


def test_an_error_at_the_end_does_not_keep_commits_from_their_callbacks(
    coordinator: Coordinator, consumer: Consumer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def give_up(*_: Any, **__: Any) -> None:
        raise ValueError("a listener's")

    monkeypatch.setattr(GroupReader, "give_up", give_up)
    coordinator.is_silent = True
    ended: list[Any] = []
    consumer.commit_async({A: 5}, lambda _, error: ended.append(type(error)))
    with pytest.raises(ValueError, match="a listener's"):
        consumer.close(timeout_ms=1)
    assert ended == [WrongState]


def test_a_callback_that_closes_the_consumer_calls_those_after_it(consumer: Consumer) -> None:
    """The call in which it ran raised IndexError then."""
    ended: list[int] = []

    def callback(offsets: Any, _: BaseException | None) -> None:
        ended.append(offsets[A].offset)
        consumer.close()

    begun = [consumer.commit_async({A: offset}, callback) for offset in (5, 6)]
    assert [outcome(each) for each in begun] == [None, None]
    consumer.close()
    assert ended == [5, 6]
