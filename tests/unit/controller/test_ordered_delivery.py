"""The switch of enable.ordered.delivery (KIP-253)."""

from __future__ import annotations

import pytest

from tests.support.resizing_world import ResizingWorld
from tidelog.controller.audit_lines import audit_lines
from tidelog.controller.decisions.configuration import Alteration, Resource, alter_configs
from tidelog.controller.decisions.decision import RequestRefusal
from tidelog.controller.decisions.external_changes import changed, take_up
from tidelog.metadata import layout
from tidelog.metadata.records import ConfigNode, ResizeKind
from tidelog.metadata.store import Set
from tidelog.model.admin_requests import AlterOperation, ResourceType
from tidelog.model.errors import ErrorCode as E
from tidelog.model.levels import level_of

ORDERED = "enable.ordered.delivery"
TOPIC = Resource(ResourceType.TOPIC, "t")


def switch(world: ResizingWorld, value: str | None) -> list[str] | RequestRefusal:
    """Set or remove the configuration; return the audit lines, or the refusal."""
    operation = AlterOperation.DELETE if value is None else AlterOperation.SET
    asked = [(TOPIC, [Alteration(ORDERED, operation, value)])]
    decision = alter_configs(world.cluster, asked)
    ((_, refusal),) = decision.answer
    if refusal is not None:
        assert not decision.writes
        return refusal
    lines = [str(line) for line in audit_lines(world.cluster, decision.writes)]
    world.do(decision)
    return [line for line in lines if "configuration of" not in line]


def test_the_switch_to_false_ends_the_promise_with_an_audit_line() -> None:
    world = ResizingWorld(2)
    said = "topic t no longer keeps the order of its keys when it is resized"
    assert switch(world, "true") == []
    assert switch(world, "false") == [said]
    assert world.history.resize is None
    assert switch(world, "false") == []


@pytest.mark.parametrize("count", [2, 4, 8])
@pytest.mark.parametrize("value", ["true", None])
def test_the_switch_to_true_is_a_resize_epoch_of_its_own(count: int, value: str | None) -> None:
    world = ResizingWorld(2)
    if count > 2:
        world.ask(count)
        world.settle()
    switch(world, "false")
    epoch = world.history.resize_epoch
    assert switch(world, value) == [
        f"resize of topic t started: from {count} to {count} partitions, resize epoch {epoch + 1}"
    ]
    assert (world.plan.kind, world.plan.to_count) == (ResizeKind.SAME, count)
    world.settle()
    assert world.shown == (count, epoch + 1, count)


@pytest.mark.parametrize(("count", "nearest"), [(3, "2 or 4"), (5, "4 or 8"), (7, "4 or 8")])
def test_it_is_refused_where_the_hashes_differ(count: int, nearest: str) -> None:
    world = ResizingWorld(2)
    world.ask(count)
    world.settle()
    switch(world, "false")
    refusal = switch(world, "true")
    assert isinstance(refusal, RequestRefusal)
    assert refusal.error is E.INVALID_CONFIG
    assert f"Resize it to {nearest} first" in refusal.sentence


def test_it_is_refused_during_a_resize() -> None:
    world = ResizingWorld(2)
    switch(world, "false")
    world.ask(4)
    refusal = switch(world, "true")
    assert isinstance(refusal, RequestRefusal)
    assert refusal.error is E.REASSIGNMENT_IN_PROGRESS


def test_below_level_1_5_it_is_a_configuration_like_any_other() -> None:
    world = ResizingWorld(2)
    world.cluster.level = level_of("1.4")
    switch(world, "false")
    assert switch(world, "true") == []
    assert world.history.resize is None


@pytest.mark.parametrize(("count", "kept"), [(4, "true"), (3, "false")])
def test_another_program_switches_it_on_where_it_can_be(count: int, kept: str) -> None:
    world = ResizingWorld(2)
    world.ask(count)
    world.settle()
    switch(world, "false")
    path = layout.topic_configs("t")
    written = layout.encode(ConfigNode({ORDERED: "true"}))
    assert world.tree.apply(world.session, [Set(path, written)]) is None
    found = changed(world.cluster, {path: world.nodes()[path]})
    taken = world.do(take_up(world.cluster, found, world.chance, deletes=True))
    assert world.cluster.topic_configs["t"] == {ORDERED: kept}
    assert (world.history.resize is not None) is (kept == "true")
    assert len(taken.errors) == (kept == "false")
