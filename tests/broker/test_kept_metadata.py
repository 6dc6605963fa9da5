"""Responses of Metadata from kept bytes are those that would be made now, whatever has changed."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

from tests.support.lone_broker import LoneBroker
from tidelog.broker.handlers import metadata
from tidelog.broker.metadata.configurations import EntityType
from tidelog.broker.metadata.encoded_topics import EncodedTopics
from tidelog.model.api_keys import ApiKey
from tidelog.model.work import finish
from tidelog.protocol import codec, messages

TOLD = messages.UpdateMetadataRequest
NAMES = ("a", "b", "c", "d", "unknown")
BROKERS = (1, 2, 3)
MOST_PARTITIONS = 150
"""More than are encoded in one step."""
MOST_BYTES = 20_000
"""So few that some are dropped."""
CHANGES = 500


class Followed:
    """The leaders that this broker follows: it has lost the connection to some."""

    has_sources = False

    def __init__(self) -> None:
        self.lost: set[int] = set()

    def has_lost(self, leader: int) -> bool:
        return leader in self.lost


class Changes:
    """A broker whose metadata changes by chance."""

    def __init__(self, lone: LoneBroker, chance: random.Random) -> None:
        self.chance = chance
        self.followed = cast(Any, Followed())
        self.broker = replace(lone.broker, followers=self.followed)
        self.broker.metadata.encoded = EncodedTopics(MOST_BYTES)
        self.ids = dict.fromkeys(NAMES, 0)
        self.brokers()

    def one(self) -> None:
        """Change one thing."""
        change = self.chance.choice(
            (self.partitions, self.partitions, self.removed, self.brokers, self.lost, self.ordered)
        )
        change()

    def tell(self, complete: bool = False, **what: Any) -> None:
        self.broker.metadata.apply(TOLD(**what), complete=complete)

    def state(self, name: str, leaders: dict[int, int]) -> Any:
        counted = self.chance.random() < 0.5
        parts = [
            TOLD.UpdateMetadataPartitionState(
                partition_index=index,
                leader=leader,
                leader_epoch=self.chance.randrange(9),
                isr=self.chance.sample(BROKERS, 2),
                replicas=self.chance.sample(BROKERS, 3),
                offline_replicas=self.chance.sample(BROKERS, self.chance.randrange(2)),
                partition_epoch=self.chance.randrange(-1, 5),
            )
            for index, leader in leaders.items()
        ]
        return TOLD.UpdateMetadataTopicState(
            topic_name=name,
            topic_id=UUID(int=1 + self.ids[name] * len(NAMES) + NAMES.index(name)),
            partition_states=parts,
            initial_partition_count=1 if counted else -1,
            undeleted_partition_count=len(parts) if counted else -1,
            resize_epoch=0,
        )

    def partitions(self) -> None:
        """Some partitions of some topics, or all that there is."""
        chance = self.chance
        names = chance.sample(NAMES[:-1], chance.randrange(1, 4))
        for name in names:
            self.ids[name] += chance.random() < 0.1
        count = chance.choice((1, 3, MOST_PARTITIONS))
        leaders = [{at: chance.choice((-1, 1, 2, 3, 9)) for at in range(count)} for _ in names]
        states = [self.state(*each) for each in zip(names, leaders, strict=True)]
        self.tell(complete=chance.random() < 0.2, topic_states=states)

    def removed(self) -> None:
        """One partition, or all of a topic."""
        name = self.chance.choice(NAMES[:-1])
        topic = self.broker.metadata.topic(name)
        if topic is not None:
            numbers = list(topic.partitions)
            gone = numbers if self.chance.random() < 0.3 else self.chance.choices(numbers)
            self.tell(topic_states=[self.state(name, dict.fromkeys(gone, -2))])

    def brokers(self) -> None:
        """Some brokers live, and some of these have both listeners."""
        live = [1, *(node for node in BROKERS[1:] if self.chance.random() < 0.7)]
        endpoint = TOLD.UpdateMetadataEndpoint
        given = [
            TOLD.UpdateMetadataBroker(
                id=node,
                endpoints=[endpoint(port=9, host="host", listener="PLAINTEXT")]
                + [endpoint(port=9, host="host", listener="INSIDE")] * self.chance.randrange(2),
            )
            for node in live
        ]
        self.tell(live_brokers=given)

    def lost(self) -> None:
        """The connections to some leaders broke."""
        self.followed.lost = set(self.chance.sample(BROKERS, self.chance.randrange(3)))

    def ordered(self) -> None:
        """Whether a topic keeps the order of keys."""
        value = self.chance.choice(("true", "false"))
        named = [(EntityType.TOPIC, self.chance.choice(NAMES), {"enable.ordered.delivery": value})]
        finish(self.broker.topic_configs.apply(named, complete=False))

    def asked(self) -> tuple[Any, Any]:
        """Some request, and its context."""
        version = self.chance.choice((0, 4, 5, 8, 9, 12, 13))
        names = [
            messages.MetadataRequest.MetadataRequestTopic(name=name)
            for name in self.chance.sample(NAMES, 3)
        ]
        request = messages.MetadataRequest(
            topics=self.chance.choice((names, [] if version == 0 else None)),
            include_topic_authorized_operations=version >= 8 and self.chance.random() < 0.3,
            include_counts=version >= 9 and self.chance.random() < 0.3,
        )
        connection = SimpleNamespace(is_tidelog=False)
        listener = self.chance.choice(("PLAINTEXT", "INSIDE"))
        context = SimpleNamespace(version=version, listener_name=listener, connection=connection)
        return request, context

    def answer(self, request: Any, context: Any, changes_after: int | None = None) -> bytes:
        """The bytes of a response; something changes after so many of its steps."""
        steps = metadata.HANDLER.handle(self.broker, request, context)
        while True:
            if changes_after == 0:
                self.one()
            changes_after = None if changes_after is None else changes_after - 1
            try:
                next(steps)
            except StopIteration as end:
                made = codec.encode_response(ApiKey.METADATA, context.version, 1, end.value)
                return b"".join(made)


def test_kept_bytes_equal_those_that_are_made_now(tmp_path: Path) -> None:
    async def scenario() -> None:
        seed = random.randrange(1 << 32)
        print("seed", seed)
        lone = LoneBroker(tmp_path)
        await lone.start()
        try:
            changes = Changes(lone, random.Random(seed))
            known, sizes = changes.broker.metadata, []
            kept = known.encoded
            for _ in range(CHANGES):
                changes.one()
                asked = changes.asked()
                changes.answer(*asked, changes.chance.randrange(6))
                request, context = changes.chance.choice((asked, changes.asked()))
                first = changes.answer(request, context)
                again = changes.answer(request, context)
                sizes.append(kept.size)
                known.encoded = EncodedTopics()
                fresh = changes.answer(request, context)
                known.encoded = kept
                assert first == again == fresh, (request, context)
                # The joined bytes are those of an ordinary array.
                read = codec.decode_response(
                    ApiKey.METADATA, context.version, memoryview(fresh)[4:]
                )[1]
                plain = codec.encode_response(ApiKey.METADATA, context.version, 1, read)
                assert b"".join(plain) == fresh
            assert max(sizes) <= MOST_BYTES
        finally:
            await lone.stop()

    asyncio.run(scenario())


def test_a_deleted_topic_leaves_no_bytes(tmp_path: Path) -> None:
    async def scenario() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        try:
            changes = Changes(lone, random.Random(1))
            kept = changes.broker.metadata.encoded
            changes.tell(topic_states=[changes.state("a", {0: 1})])
            request = messages.MetadataRequest(topics=None)
            _, context = changes.asked()
            context.version = 9
            changes.answer(request, context)
            assert kept.size > 0
            changes.tell(topic_states=[changes.state("a", {0: -2})])
            assert kept.size == 0
        finally:
            await lone.stop()

    asyncio.run(scenario())
