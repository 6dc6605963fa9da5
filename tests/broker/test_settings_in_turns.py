"""A setting that concerns many topics takes effect in turns of the loop, and before its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.support.controlled_broker import ControlledBroker, open_channel
from tests.support.every_yield import every_yield
from tests.support.lone_broker import Peer
from tests.support.turn_costs import TurnCosts
from tidelog.broker.metadata.configurations import EntityType
from tidelog.protocol import messages

TOPICS = 150
LONGEST_S = 0.1
"""What one turn may take (docs/design/speed.md), in CPU seconds."""


def commands() -> Any:
    request = messages.LeaderAndIsrRequest
    state = request.LeaderAndIsrPartitionState
    return request(
        controller_id=1,
        controller_epoch=1,
        broker_epoch=7,
        type=1,
        topic_states=[
            request.LeaderAndIsrTopicState(
                topic_name=f"t{number}",
                topic_id=UUID(int=number + 1),
                partition_states=[
                    state(
                        partition_index=0,
                        controller_epoch=1,
                        leader=1,
                        leader_epoch=0,
                        isr=[1],
                        replicas=[1],
                        isr_version=0,
                    )
                ],
            )
            for number in range(TOPICS)
        ],
    )


def settings(*entities: tuple[int, str, Mapping[str, str]]) -> Any:
    request = messages.UpdateConfigsRequest
    named = [
        request.Entity(kind, name, [request.Config(*each) for each in values.items()])
        for kind, name, values in entities
    ]
    return request(1, 1, 7, 9, named)


def retention(broker: Any) -> Iterable[int]:
    return [each.log.configs.retention_ms for each in broker.partitions.all()]


class Configured:
    """How many logs take a setting over in one turn of the loop, at most."""

    def __init__(self, broker: Any) -> None:
        self.most = 0
        self._broker = broker

    async def __aenter__(self) -> Configured:
        self._task = asyncio.create_task(self._watch())
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0)
        self._task.cancel()

    async def _watch(self) -> None:
        while True:
            before = [each.log.configs for each in self._broker.partitions.all()]
            await asyncio.sleep(0)
            now = [each.log.configs for each in self._broker.partitions.all()]
            changed = sum(one is not other for one, other in zip(before, now, strict=True))
            self.most = max(self.most, changed)


@pytest.mark.parametrize("each_yields", [False, True])
def test_a_setting_of_many_topics_leaves_others_their_turn(
    tmp_path: Path, each_yields: bool
) -> None:
    async def work() -> None:
        lone = ControlledBroker(tmp_path)
        await lone.start()
        channel = await Peer.connect(lone.port)
        assert await open_channel(channel) == 0
        assert (await channel.ask(settings(), 0)).error_code == 0
        assert (await channel.ask(commands(), 5)).error_code == 0
        own = [(EntityType.TOPIC, f"t{n}", {"retention.ms": str(n)}) for n in range(TOPICS)]
        changes = (
            (settings((EntityType.BROKER, "", {"log.retention.ms": "77"})), {77}),
            (settings(*own), set(range(TOPICS))),
            (settings((EntityType.BROKER, "1", {"log.segment.bytes": "7777"})), set(range(TOPICS))),
        )
        for change, expected in changes:
            async with Configured(lone.broker) as configured, TurnCosts() as turns:
                assert (await channel.ask(change, 0)).error_code == 0
            assert set(retention(lone.broker)) == expected
            assert turns.longest_s < LONGEST_S
            if each_yields:
                assert configured.most == 1
                assert turns.turns > TOPICS
        assert {each.log.configs.segment_bytes for each in lone.broker.partitions.all()} == {7777}
        await lone.stop()

    with every_yield() if each_yields else nullcontext():
        asyncio.run(work())


def test_what_changes_while_a_setting_is_taken_over_is_not_undone(tmp_path: Path) -> None:
    async def work() -> None:
        lone = ControlledBroker(tmp_path)
        await lone.start()
        for number in range(4):
            lone.lead(f"t{number}")
        cache, partitions = lone.broker.topic_configs, lone.broker.partitions
        first = cache.apply([(EntityType.BROKER, "", {"log.retention.ms": "5"})], complete=False)
        for _ in range(2):
            next(first)
        # Half of them have taken it over: another setting comes, a topic goes and one comes.
        for _ in cache.apply([(EntityType.BROKER, "", {"log.retention.ms": "6"})], complete=False):
            pass
        partitions.stop("t0", 0, delete=True)
        partitions.stop("t3", 0, delete=True)
        lone.lead("new")
        assert list(first) == [None, None]
        assert set(retention(lone.broker)) == {6}
        await lone.stop()

    asyncio.run(work())
