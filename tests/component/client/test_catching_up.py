"""A member asks for metadata that are as new as those of its assignment, for a moment."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.support.scripted_cluster import ScriptedCluster, topic, view_of
from tidelog.client.groups import resized_topics
from tidelog.client.groups.resized_topics import catch_up

OLD = topic("t", [1], resize_epoch=4)
NEW = replace(OLD, resize_epoch=5)


def test_a_topic_at_its_epoch_is_not_asked_for() -> None:
    cluster = ScriptedCluster(view_of(OLD))
    asyncio.run(catch_up(cluster, {"t": 4}))
    assert cluster.described_by == []


@pytest.mark.parametrize("is_known", [True, False])
def test_one_that_is_older_or_unknown_is(is_known: bool) -> None:
    cluster = ScriptedCluster(view_of(OLD) if is_known else view_of())
    cluster.described = view_of(NEW)
    asyncio.run(catch_up(cluster, {"t": 5}))
    assert cluster.described_by == [None]
    assert cluster.view.topics["t"].resize_epoch == 5


def test_brokers_that_are_older_are_asked_again() -> None:
    class Late(ScriptedCluster):
        async def describe(self, *names: object, **other: object) -> object:  # type: ignore[override]
            if len(self.described_by) == 2:
                self.described = view_of(NEW)
            return await super().describe(*names, **other)  # type: ignore[arg-type]

    cluster = Late(view_of(OLD))
    asyncio.run(catch_up(cluster, {"t": 5}))
    assert len(cluster.described_by) == 3
    assert cluster.view.topics["t"].resize_epoch == 5


def test_a_member_goes_on_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resized_topics, "CATCH_UP_MS", 5)
    cluster = ScriptedCluster(view_of(OLD))
    asyncio.run(catch_up(cluster, {"t": 5}))
    assert cluster.view.topics["t"].resize_epoch == 4
