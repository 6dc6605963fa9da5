"""Throttled copies between real brokers on virtual time: rates within a tenth over ten seconds.

Sources lead partitions with records; targets copy them. A replica in sync, in the same fetch
sessions, is never slowed.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.kernel import Machine, World
from tests.support.lone_broker import LoneBroker
from tidelog.broker.metadata.configurations import DEFAULT_BROKER, EntityType
from tidelog.broker.partitions.partition import HostedPartition, LeaderAndIsrState
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, build_batch
from tidelog.runtime.turns import at_once

pytestmark = [pytest.mark.usefixtures("quiet")]

RATE = 100_000
SECONDS = 10
BATCH_BYTES = 5_000
TOPIC_ID = uuid.uuid5(uuid.NAMESPACE_OID, "t")
TARGET_ID = 11
"""Broker ids: sources from 1 on, targets from 11 on."""


class SimulatedBroker(LoneBroker):
    """A process on the machine of the world, that knows all others."""

    def __init__(self, machine: Machine, node_id: int) -> None:
        self.node_id = node_id
        self.process = machine.process(f"broker-{node_id}")
        configs = {"node.id": node_id, "replica.fetch.max.bytes": 20_000}
        super().__init__(Path(f"/data/{node_id}"), configs, self.process.seams)

    def knows(self, others: list[SimulatedBroker]) -> None:
        request = messages.UpdateMetadataRequest
        live = [
            request.UpdateMetadataBroker(
                id=each.node_id,
                endpoints=[
                    request.UpdateMetadataEndpoint(
                        port=each.port, host="127.0.0.1", listener="PLAINTEXT"
                    )
                ],
            )
            for each in others
        ]
        self.broker.metadata.apply(request(controller_id=1, live_brokers=live), complete=False)

    def applies(self, index: int, state: LeaderAndIsrState) -> HostedPartition:
        partitions = self.broker.partitions
        hosted = partitions.create("t", index, state)
        partitions.apply(hosted, state)
        return hosted

    def configure(self, kind: EntityType, name: str, values: dict[str, str]) -> None:
        at_once(self.broker.topic_configs.apply([(kind, name, values)], complete=False))


def state_of(source: int, replica: int, *, in_sync: bool, target: bool) -> LeaderAndIsrState:
    return LeaderAndIsrState(
        topic_id=TOPIC_ID,
        partition_epoch=0,
        leader=source,
        leader_epoch=1,
        isr=(source, replica) if in_sync else (source,),
        isr_version=1,
        replicas=(source,) if target else (source, replica),
        targets=(replica,) if target else (),
    )


def append(hosted: HostedPartition, size: int, now_ms: int) -> None:
    for _ in range(size // BATCH_BYTES):
        hosted.append(build_batch([NewRecord(now_ms, None, bytes(BATCH_BYTES))]), now_ms)


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
        leads = [SimulatedBroker(machine, 1 + at) for at in range(sources)]
        follows = [SimulatedBroker(machine, TARGET_ID + at) for at in range(targets)]
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
