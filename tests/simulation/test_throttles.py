"""Throttled copies between real brokers on virtual time: rates within a tenth over ten seconds.

Sources lead partitions with records; targets copy them. A replica in sync, in the same fetch
sessions, is never slowed.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.copying_brokers import CopyingBroker, append, state_of
from tests.simulation.kernel import World
from tidelog.broker.metadata.configurations import DEFAULT_BROKER, EntityType
from tidelog.broker.partitions.partition import HostedPartition

pytestmark = [pytest.mark.usefixtures("quiet")]

RATE = 100_000
SECONDS = 10
TARGET_ID = 11
"""Broker ids: sources from 1 on, targets from 11 on."""


def copied_bytes(
    throttle: dict[tuple[EntityType, str], dict[str, str]],
    sources: int,
    targets: int,
    *,
    move: bool,
) -> tuple[dict[int, int], float]:
    """Copy for ten seconds; return what each target has, and how long a replica in sync, of the
    same brokers, took meanwhile to get as much again as a target may copy in that time."""
    with World(seed=sources * 10 + targets) as world:
        machine = world.machine("127.0.0.1")
        leads = [CopyingBroker(machine, 1 + at) for at in range(sources)]
        follows = [CopyingBroker(machine, TARGET_ID + at) for at in range(targets)]
        both = [*leads, *follows]

        async def main() -> tuple[dict[int, int], float]:
            for each in both:
                await each.process.run(each.start())
                each.session = SimpleNamespace(broker_epoch=7)
            return await course()

        async def course() -> tuple[dict[int, int], float]:
            copies: dict[int, list[HostedPartition]] = {each.node_id: [] for each in follows}
            for each in both:
                for (kind, name), values in throttle.items():
                    each.process.call(each.configure, kind, name, values)
                each.process.call(each.knows, both)
            now_ms = leads[0].seams.clock.wall_ms()
            index, pairs = 0, []
            for lead in leads:
                for follow in follows:
                    for in_sync in (False, True):
                        state = state_of(
                            lead.node_id,
                            follow.node_id,
                            in_sync=in_sync,
                            target=move and not in_sync,
                        )
                        led = lead.process.call(lead.applies, index, state)
                        if in_sync:
                            pairs.append((lead, led))
                        else:
                            lead.process.call(append, led, 2 * SECONDS * RATE, now_ms)
                        copy = follow.process.call(follow.applies, index, state)
                        if not in_sync:
                            copies[follow.node_id].append(copy)
                        index += 1
            begun = world.loop.time()
            for lead, led in pairs:
                lead.process.call(append, led, SECONDS * RATE, now_ms)
            await world.until(lambda: all(led.high_watermark == led.end_offset for _, led in pairs))
            took_s = world.loop.time() - begun
            await world.until(lambda: world.loop.time() >= begun + SECONDS)
            return {
                node_id: sum(each.log.size for each in found) for node_id, found in copies.items()
            }, took_s

        return world.run(main())


EVERY_BROKER = (EntityType.BROKER, DEFAULT_BROKER)
LISTS = (EntityType.TOPIC, "t")


@pytest.mark.parametrize("sources", [1, 3])
@pytest.mark.parametrize("kind", ["move", "follower", "leader"])
def test_a_rate_is_kept_within_a_tenth_over_ten_seconds(kind: str, sources: int) -> None:
    throttle: dict[Any, dict[str, str]]
    if kind == "move":
        throttle = {EVERY_BROKER: {"reassignment.throttled.rate": str(RATE)}}
    else:
        throttle = {
            EVERY_BROKER: {f"{kind}.replication.throttled.rate": str(RATE)},
            LISTS: {f"{kind}.replication.throttled.replicas": "*"},
        }
    found, in_sync_s = copied_bytes(throttle, sources, 1, move=kind == "move")
    # A leader's throttle is its own: three leaders send three times as much.
    expected = SECONDS * RATE * (sources if kind == "leader" else 1)
    assert 0.9 * expected <= found[TARGET_ID] <= 1.1 * expected
    assert in_sync_s < 2


def test_one_source_sends_its_rate_to_three_targets_together() -> None:
    throttle: dict[Any, dict[str, str]] = {EVERY_BROKER: {"reassignment.throttled.rate": str(RATE)}}
    found, in_sync_s = copied_bytes(throttle, 1, 3, move=True)
    total = sum(found.values())
    assert 0.9 * SECONDS * RATE <= total <= 1.1 * SECONDS * RATE
    assert min(found.values()) > 0
    assert in_sync_s < 2


def test_without_a_throttle_a_copy_takes_what_the_network_gives() -> None:
    found, _ = copied_bytes({}, 1, 1, move=True)
    assert found[TARGET_ID] >= 2 * SECONDS * RATE


def test_a_rate_without_a_list_slows_only_moves() -> None:
    throttle: dict[Any, dict[str, str]] = {
        EVERY_BROKER: {"leader.replication.throttled.rate": "1", "reassignment.throttled.rate": "1"}
    }
    found, _ = copied_bytes(throttle, 1, 1, move=False)
    assert found[TARGET_ID] >= 2 * SECONDS * RATE


def test_a_throttle_that_is_removed_holds_up_no_copy_any_longer() -> None:
    """A rate of one byte a second makes a debt of hours, which ends with the throttle."""
    with World(seed=77) as world:
        machine = world.machine("127.0.0.1")
        lead, follow = CopyingBroker(machine, 1), CopyingBroker(machine, TARGET_ID)

        async def main() -> None:
            for each in (lead, follow):
                await each.process.run(each.start())
                each.session = SimpleNamespace(broker_epoch=7)
                each.process.call(each.knows, [lead, follow])
                rate = {"reassignment.throttled.rate": "1"}
                each.process.call(each.configure, *EVERY_BROKER, rate)
            state = state_of(1, TARGET_ID, in_sync=False, target=True)
            led = lead.process.call(lead.applies, 0, state)
            lead.process.call(append, led, 10 * RATE, lead.seams.clock.wall_ms())
            copy = follow.process.call(follow.applies, 0, state)
            await world.until(lambda: copy.end_offset > 0)
            begun = world.loop.time()
            await world.until(lambda: world.loop.time() >= begun + 5)
            assert copy.end_offset < led.end_offset
            for each in (lead, follow):
                each.process.call(each.configure, *EVERY_BROKER, {})
            await world.until(lambda: copy.end_offset == led.end_offset, 3.0)

        world.run(main())
