"""How long one request of many partitions holds the controller's loop: in turns of a few ms."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tests.support.best_turns import BestTurns
from tests.support.controller_process import RecordedBroker, World, run
from tests.support.lone_broker import until
from tests.support.lone_controller import LoneController
from tests.support.turn_costs import TurnCosts
from tidelog.controller.decisions.creation import Defaults, TopicToCreate, create_topics
from tidelog.controller.handlers import (
    alter_isr,
    alter_partition_reassignments,
    list_partition_reassignments,
)
from tidelog.metadata import layout
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

TOPICS, PARTITIONS = 51, 100
LONGEST_S = 0.01
"""A turn takes 3 ms where nothing else runs."""
ATTEMPTS = 6
"""Each turn's best one counts: CPU time grows, too, when others have the caches."""

PLANNED_TOPICS = 100
LONGEST_OF_A_PLAN_S = 0.04
"""A turn takes 20 ms: a slice of 100 partitions is decided, written and applied. Heartbeats have
100 ms."""

Request = messages.AlterIsrRequest


async def create(controller: LoneController, topics: int, partitions: int) -> None:
    """Topics t0, t1, … whose partitions are led by 1 and followed by 2."""
    assignment = tuple((index, (1, 2)) for index in range(partitions))
    for number in range(topics):
        wanted = [TopicToCreate(f"t{number}", assignment=assignment)]

        def decide(cluster: Any, wanted: Any = wanted) -> Any:
            return create_topics(cluster, wanted, Defaults(1, 1), controller.entropy)

        (made,), _ = await controller.perform(decide)
        assert made.refusal is None


async def two_brokers(world: World) -> tuple[LoneController, list[RecordedBroker]]:
    """A controller and two brokers that receive its requests and then send no response."""
    controller = await world.controller()
    brokers = [await world.broker(controller, number) for number in (1, 2)]
    for broker in brokers:
        await broker.told(lambda requests: len(requests) >= 4)
        broker.holds = asyncio.Event()
    return controller, brokers


def proposal(
    controller: LoneController, broker: RecordedBroker, isr: list[int], **values: Any
) -> messages.AlterIsrRequest:
    """Of all partitions, in the versions that are known."""
    cluster = controller.cluster
    topics = [
        Request.TopicData(
            topic_name=name,
            topic_id=cluster.topic_id(name),
            partitions=[
                Request.PartitionData(
                    partition_index=index,
                    leader_epoch=0,
                    new_isr=isr,
                    isr_version=cluster.versions[layout.state(name, index)],
                    **values,
                )
                for index in node.partitions
            ],
        )
        for name, node in cluster.topics.items()
    ]
    return Request(broker_id=1, broker_epoch=broker.epoch, topics=topics)


def errors(answer: messages.AlterIsrResponse) -> list[tuple[str, int, int]]:
    return [
        (topic.topic_name, part.partition_index, part.error_code)
        for topic in answer.topics
        for part in topic.partitions
    ]


async def until_turn(holds: Callable[[], bool]) -> None:
    """Look in each turn of the loop, so that what follows is done in the turn after."""
    for _ in range(1_000_000):
        if holds():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came")


def session_of(controller: LoneController, broker: int) -> Any:
    return SimpleNamespace(connection=controller.session_watch._peers[broker])


def test_an_isr_of_5100_partitions_is_changed_in_short_turns() -> None:
    """It was one decision, 54 ms of CPU in one turn, and heartbeats waited."""

    async def scenario(world: World) -> None:
        controller, brokers = await two_brokers(world)
        await create(controller, TOPICS, PARTITIONS)
        # The requests about it are on their way.
        await until(lambda: all(x.requests for x in brokers))
        session = session_of(controller, 1)
        best = BestTurns()
        for attempt in range(ATTEMPTS):
            isr = [1, 2] if attempt % 2 else [1]
            asked = proposal(controller, brokers[0], isr)
            revision = controller.cluster.revision
            async with TurnCosts() as turns:
                answer = await alter_isr.HANDLER.handle(controller, asked, session)
            everything = [
                (f"t{number}", index, 0) for number in range(TOPICS) for index in range(PARTITIONS)
            ]
            assert errors(answer) == everything
            states = controller.cluster.states
            assert {tuple(states[TopicPartition(*at[:2])].isr) for at in everything} == {tuple(isr)}
            assert controller.cluster.revision - revision <= TOPICS * PARTITIONS // 100
            best.add(turns.costs_s)
            if best.longest_s < LONGEST_S:
                break
        assert best.longest_s < LONGEST_S
        for broker in brokers:
            assert broker.holds is not None
            broker.holds.set()

    run(scenario)


def test_a_session_that_ends_between_two_slices_changes_nothing_more() -> None:
    async def scenario(world: World) -> None:
        controller, brokers = await two_brokers(world)
        await create(controller, 4, PARTITIONS)
        asked = proposal(controller, brokers[0], [1])
        work = asyncio.ensure_future(
            alter_isr.HANDLER.handle(controller, asked, session_of(controller, 1))
        )
        first = TopicPartition("t0", 0)
        await until_turn(lambda: controller.cluster.states[first].isr == [1])
        brokers[0].epoch += 1
        del controller.session_watch._peers[1]
        answer = await work
        assert (answer.error_code, answer.topics) == (ErrorCode.STALE_BROKER_EPOCH, [])
        isrs = [len(state.isr) for state in controller.cluster.states.values()]
        assert {*isrs} == {1, 2}, "the first slice is done, the last one is not"
        for broker in brokers:
            assert broker.holds is not None
            broker.holds.set()

    run(scenario)


def test_a_topic_whose_handling_is_done_is_decided_at_once() -> None:
    """Its record may be as large as a commit: it is not written once for each slice."""

    async def scenario(world: World) -> None:
        controller, brokers = await two_brokers(world)
        await create(controller, 2, 6 * PARTITIONS)
        asked = proposal(controller, brokers[0], [1])
        asked.topics[0].partitions[-1].unclean_handled = True
        revision = controller.cluster.revision
        answer = await alter_isr.HANDLER.handle(controller, asked, session_of(controller, 1))
        assert {error for _, _, error in errors(answer)} == {0}
        # One for the first topic, five for the other.
        assert controller.cluster.revision - revision == 6
        for broker in brokers:
            assert broker.holds is not None
            broker.holds.set()

    run(scenario)


def test_a_plan_of_10000_partitions_starts_lists_and_is_cancelled_in_short_turns() -> None:
    """Kafka's tool sends it in one request."""

    async def scenario(world: World) -> None:
        controller, brokers = await two_brokers(world)
        # A target that never joins.
        brokers.append(await world.broker(controller, 3))
        await brokers[2].told(lambda requests: len(requests) >= 4)
        brokers[2].holds = asyncio.Event()
        await create(controller, PLANNED_TOPICS, PARTITIONS)
        await until(lambda: all(x.requests for x in brokers))
        alter, listing = (
            messages.AlterPartitionReassignmentsRequest,
            messages.ListPartitionReassignmentsRequest,
        )
        context: Any = SimpleNamespace(connection=None, carrier=None, forwarded=False)
        moves = PLANNED_TOPICS * PARTITIONS
        bests = [BestTurns() for _ in range(4)]
        for _ in range(ATTEMPTS):
            best = iter(bests)
            for targets in ([1, 3], None):
                rows = [alter.ReassignablePartition(index, targets) for index in range(PARTITIONS)]
                asked = alter(
                    topics=[
                        alter.ReassignableTopic(f"t{number}", rows)
                        for number in range(PLANNED_TOPICS)
                    ]
                )
                revision = controller.cluster.revision
                async with TurnCosts() as turns:
                    answer = await alter_partition_reassignments.HANDLER.handle(
                        controller, asked, context
                    )
                next(best).add(turns.costs_s)
                done = [row.error_code for topic in answer.responses for row in topic.partitions]
                assert done == [ErrorCode.NONE] * moves
                # A slice is at least 100 partitions.
                assert controller.cluster.revision - revision <= 3 * moves // 100
                async with TurnCosts() as turns:
                    found = await list_partition_reassignments.HANDLER.handle(
                        controller, listing(topics=None), context
                    )
                next(best).add(turns.costs_s)
                count = sum(len(topic.partitions) for topic in found.topics)
                assert count == (moves if targets else 0)
            longest = [each.longest_s for each in bests]
            if max(longest) < LONGEST_OF_A_PLAN_S:
                break
        assert max(longest) < LONGEST_OF_A_PLAN_S, longest
        for broker in brokers:
            assert broker.holds is not None
            broker.holds.set()

    run(scenario)
