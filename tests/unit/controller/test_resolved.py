"""Resolved configurations are kept by the controller, and follow every change of their nodes."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.support.controller_world import World
from tidelog.controller.decisions import config_effects
from tidelog.controller.decisions.cluster import KEPT_CONFIGURATIONS
from tidelog.controller.decisions.creation import TopicToCreate
from tidelog.controller.decisions.decision import Put, Remove
from tidelog.metadata import layout
from tidelog.metadata.records import ConfigNode
from tidelog.model.configs.resolve import ResolvedTopic, TopicResolver

MINIMUM = "min.insync.replicas"


def test_what_is_kept_resolved_follows_topics_and_defaults() -> None:
    made = World(1, 2, 3)
    made.create(TopicToCreate("own", 1, 3, configs=((MINIMUM, "3"),)), TopicToCreate("none", 1, 3))
    cluster = made.cluster

    def minimums() -> tuple[int, int]:
        return cluster.min_insync("own", 3), cluster.min_insync("none", 3)

    assert minimums() == (3, 1)
    assert cluster.resolve("none") is cluster.resolve("unknown"), "the same configuration, once"
    made.commit((Put(layout.broker_configs(layout.ALL_BROKERS), ConfigNode({MINIMUM: "2"})),))
    assert minimums() == (3, 2)
    made.commit((Put(layout.topic_configs("own"), ConfigNode({MINIMUM: "1"})),))
    assert minimums() == (1, 2)
    made.commit((Remove(layout.topic_configs("own")),))
    assert minimums() == (2, 2)
    made.commit((Remove(layout.broker_configs(layout.ALL_BROKERS)),))
    assert minimums() == (1, 1)


def test_only_so_many_are_kept() -> None:
    cluster = World(1).cluster
    first = cluster.resolve("t", {"retention.ms": "1"})
    for number in range(2, KEPT_CONFIGURATIONS + 2):
        cluster.resolve("t", {"retention.ms": str(number)})
    again = cluster.resolve("t", {"retention.ms": "1"})
    assert again is not first and again == first


def test_new_defaults_resolve_each_configuration_once(monkeypatch: pytest.MonkeyPatch) -> None:
    count = KEPT_CONFIGURATIONS + 5
    made = World(1)
    made.create(
        *(TopicToCreate(f"t{x}", 1, 1, configs=(("retention.ms", str(x)),)) for x in range(count)),
        *(TopicToCreate(f"n{x}", 1, 1) for x in range(count)),
    )
    asked: list[object] = []
    resolve = TopicResolver.resolve

    def counting(self: TopicResolver, own: Mapping[str, str]) -> ResolvedTopic:
        asked.append(own)
        return resolve(self, own)

    monkeypatch.setattr(TopicResolver, "resolve", counting)
    assert config_effects.of_defaults(made.cluster, {MINIMUM: "2"}) == []
    assert len(asked) <= 2 * (count + 1)
