"""Bugs of resizes (KIP-253), to be planted in a run, and the courses that find them.

Owns the plants of the controller and of the product's clients, and the table of all. Those of
brokers: see ``resized_brokers``. Not the search for a seed: see ``search``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from tests.simulation.planted.resized_brokers import (
    begin_without_a_birth_fence,
    report_a_fence_above_the_watermark,
    without,
    write_a_fence_in_each_leader_epoch,
)
from tests.simulation.planted.search import Patch, Planted, directed
from tests.simulation.scenarios.course import Course
from tidelog.client.fetching.fetcher import Fetcher
from tidelog.client.groups import reading_generation
from tidelog.client.groups.gating import Gating
from tidelog.client.groups.held_keys import HeldKeys
from tidelog.client.groups.key_turns import KeyTurns
from tidelog.client.groups.topic_gates import TopicGates
from tidelog.controller import requests
from tidelog.controller.decisions import completion, resizing
from tidelog.controller.decisions.shown_topics import ShownTopic
from tidelog.groups import births
from tidelog.metadata.records import PartitionNode, ResizeStep
from tidelog.partitioning.older_keys import ALONE, OlderKeys

ORDER = ("order_of_keys",)
FIRST = ("fences_come_first",)
LOST = ("order_of_keys: C9",)
STATE = ("order_of_keys: C17",)
TWICE = ("order_of_keys: C3", "order_of_keys: C6", "order_of_keys: C7")


def children_before_parents(patch: Patch) -> None:
    """New partitions are born before the fences of the existing ones are committed."""

    def none(*_: Any) -> Iterator[int]:
        return iter(())

    patch.setattr(resizing, "missing_of", none)
    patch.setattr(resizing, "waits", lambda *_, **__: False)


def survivors_before_seals(patch: Patch) -> None:
    """A shrink goes on with its survivors while retired partitions may still take records."""
    patch.setattr(resizing, "awaited", without(resizing.awaited, ResizeStep.SEAL))


def complete_with_children(patch: Patch) -> None:
    """What completes topics makes every partition of a topic's node, also those of a plan."""
    patch.setattr(completion, "shown_topic", lambda *_: ShownTopic())
    patch.setattr(completion, "first_unborn", lambda *found: len(found[2].partitions))


def show_a_plan(patch: Patch) -> None:
    """Clients see the new count while the plan is under way."""

    def early(node: Any, history: Any) -> ShownTopic:
        if history is None:
            return ShownTopic(node.initial_partition_count, node.undeleted_partition_count)
        return ShownTopic(
            node.initial_partition_count, node.undeleted_partition_count, history.resize_epoch
        )

    patch.setattr(requests, "shown_topic", early)


def begin_again_at_0(patch: Patch) -> None:
    """A partition that is created again does not go on where the former one ended."""
    born = resizing._born

    def at_0(*found: Any) -> Any:
        writes = born(*found)
        for write in writes or ():
            if isinstance(write.record, PartitionNode):
                record = msgspec.structs.replace(write.record, birth_offset=0)
                writes[writes.index(write)] = type(write)(write.path, record)
        return writes

    patch.setattr(resizing, "_born", at_0)


def begin_nowhere_at_a_birth(patch: Patch) -> None:
    """A group that existed before a growth has no position in its partitions."""
    patch.setattr(births, "begins_at_birth", lambda *_: False)


def read_without_counts(patch: Patch) -> None:
    """A member's requests name no counts: it reads beyond the fence of a newer resize epoch."""
    patch.setattr(reading_generation, "stamps_of", lambda *_: {})


def deliver_beyond_gates(patch: Patch) -> None:
    """A member delivers what it has, without a look at other partitions."""
    patch.setattr(TopicGates, "ends", lambda *_: {})


def report_before_the_callback(patch: Patch) -> None:
    """A position is reported as soon as its batches are handed to the application, whose state is
    not flushed yet."""
    poll = Fetcher.poll
    gatings: dict[int, Gating] = {}
    begin = Gating.__init__

    def noted(
        self: Gating, cluster: Any, member: Any, fetcher: Any, commit: Any, keys: Any = None
    ) -> None:
        begin(self, cluster, member, fetcher, None, keys)
        gatings[id(fetcher)] = self

    async def early(self: Fetcher, *options: Any) -> Any:
        taken = await poll(self, *options)
        gating = gatings.get(id(self))
        if taken and gating is not None and gating.is_active:
            gating.delivered(self.positions())
        return taken

    patch.setattr(Gating, "__init__", noted)
    patch.setattr(Fetcher, "poll", early)
    patch.setattr(HeldKeys, "done_with", lambda _, positions: dict(positions))


def commit_without_a_flush(patch: Patch) -> None:
    """A position is committed when its records are processed, and their keys' state not flushed."""

    async def nothing(_: KeyTurns) -> None:
        pass

    patch.setattr(KeyTurns, "flush_received", nothing)
    patch.setattr(KeyTurns, "done_with", lambda self: self._positions())


def keep_the_state_when_a_gate_opens(patch: Patch) -> None:
    """State that was loaded before keys came into a partition is not loaded again."""
    were_loaded, to_flush = HeldKeys.were_loaded, HeldKeys.to_flush
    patch.setattr(HeldKeys, "were_loaded", lambda self, found, _: were_loaded(self, found, {}))
    patch.setattr(HeldKeys, "to_flush", lambda self, at, _, fences: to_flush(self, at, {}, fences))


def pass_older_batches(patch: Patch) -> None:
    """A sender hashes again while older batches have no outcome."""
    patch.setattr(OlderKeys, "holds", lambda *_: False)


def forget_where_keys_came_from(patch: Patch) -> None:
    """A record waits for older batches of its own partition, and not for those of the parent."""
    add = OlderKeys.add
    patch.setattr(OlderKeys, "add", lambda self, partition, _: add(self, partition, ALONE))


def resized(weights: dict[str, float], **more: Any) -> Course:
    """Return a directed course in which the resizer seldom rests."""
    options = {
        "resizes": (0.05, 0.6),
        "deletes": False,
        "seconds": 20.0,
        "end_seconds": 25.0,
        "controllers": 1,
        **more,
    }
    return directed(weights, **options)


AWAY = {"kill_broker": 3.0, "cut": 2.0}

PLANTED = (
    Planted(children_before_parents, ("order_of_keys", "fences_come_first"), resized(AWAY)),
    Planted(survivors_before_seals, FIRST, resized(AWAY)),
    Planted(report_a_fence_above_the_watermark, FIRST, resized(AWAY)),
    Planted(write_a_fence_in_each_leader_epoch, ("a_fence_is_written_once",), resized(AWAY)),
    Planted(begin_without_a_birth_fence, FIRST, resized(AWAY)),
    Planted(
        complete_with_children,
        ("only_a_growth_makes_partitions",),
        resized({"bounce_broker": 4.0, "cut": 3.0}, resizes=(0.0, 0.2), pause=(0.05, 0.4)),
        first_seed=9,
    ),
    Planted(read_without_counts, ORDER, resized(AWAY), first_seed=33),
    Planted(show_a_plan, ORDER, resized(AWAY), first_seed=22),
    Planted(begin_again_at_0, ORDER, resized(AWAY), first_seed=1),
    Planted(begin_nowhere_at_a_birth, LOST, resized(AWAY), first_seed=12),
    Planted(deliver_beyond_gates, ORDER, resized(AWAY)),
    Planted(report_before_the_callback, ORDER, resized(AWAY)),
    Planted(commit_without_a_flush, STATE, resized(AWAY), first_seed=2),
    Planted(keep_the_state_when_a_gate_opens, STATE, resized(AWAY), first_seed=1),
    Planted(pass_older_batches, TWICE, resized(AWAY), first_seed=26),
    Planted(forget_where_keys_came_from, TWICE, resized(AWAY), first_seed=38),
)
