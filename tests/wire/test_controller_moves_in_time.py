"""AlterPartitionReassignments whose time is over before all of it is stored: REQUEST_TIMED_OUT.

What was stored keeps its result, and what had not begun by then never begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from tests.support.controller_process import HeldStore, RecordedBroker, World, configs, run
from tests.support.lone_broker import until
from tests.support.lone_controller import LoneController
from tidelog.metadata.memory import MemoryTree
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages
from tidelog.runtime.seams import Seams

TOPICS, PARTITIONS = ("t0", "t1", "t2"), 100
"""Each topic is a slice, and a write, of its own."""

TIME_MS = 400

Request = messages.AlterPartitionReassignmentsRequest
Row = tuple[ErrorCode, str | None]


class SlowStore(HeldStore):
    """A store that does so many more writes at once; the others wait for ``free``."""

    def __init__(self) -> None:
        super().__init__(MemoryTree())
        self.at_once = 1_000_000

    async def multi(self, operations: Any) -> Any:
        self.at_once -= 1
        if self.at_once < 0:
            self.free.clear()
            self.at_once = 1_000_000
        return await super().multi(operations)


async def begun(world: World) -> tuple[LoneController, SlowStore, RecordedBroker]:
    store = SlowStore()
    controller = LoneController(configs(), Seams(), store)
    world.controllers.append(controller)
    await controller.start()
    one, _ = [await world.broker(controller, number) for number in (1, 2)]
    create = messages.CreateTopicsRequest
    assignment = [create.CreatableReplicaAssignment(x, [1]) for x in range(PARTITIONS)]
    topics = [create.CreatableTopic(name, -1, -1, assignment, []) for name in TOPICS]
    answer = await one.forward(create(topics, timeout_ms=20_000), 7)
    assert {each.error_code for each in answer.topics} == {0}
    return controller, store, one


def asked(targets: Sequence[int] | None, timeout_ms: int) -> Request:
    rows = [Request.ReassignablePartition(x, targets and list(targets)) for x in range(PARTITIONS)]
    return Request(
        timeout_ms=timeout_ms, topics=[Request.ReassignableTopic(name, rows) for name in TOPICS]
    )


def found(answer: Any) -> dict[str, set[Row]]:
    """The results of each topic without the name of the partition; all rows are there."""
    assert answer.error_code == ErrorCode.NONE
    assert [len(topic.partitions) for topic in answer.responses] == [PARTITIONS] * len(TOPICS)
    return {
        topic.name: {
            (
                ErrorCode(row.error_code),
                row.error_message
                and row.error_message.replace(f"{topic.name}-{row.partition_index}", "it"),
            )
            for row in topic.partitions
        }
        for topic in answer.responses
    }


DONE: Row = (ErrorCode.NONE, None)
UNKNOWN, UNCHANGED = (
    (ErrorCode.REQUEST_TIMED_OUT, f"The time was over before the change of it was stored; {how}.")
    for how in ("its outcome is unknown: list the moves", "nothing was changed")
)


def of_all(row: Row) -> dict[str, set[Row]]:
    return {name: {row} for name in TOPICS}


def test_each_partition_says_what_became_of_it_when_the_time_was_over() -> None:
    async def scenario(world: World) -> None:
        controller, store, one = await begun(world)
        for targets in ((2,), None):
            # The second time moves are cancelled: of t2 there is none.
            store.at_once = 1
            loop = asyncio.get_running_loop()
            began_s = loop.time()
            answer = found(await one.forward(asked(targets, TIME_MS), 0))
            assert loop.time() - began_s >= TIME_MS / 1000
            assert answer == {"t0": {DONE}, "t1": {UNKNOWN}, "t2": {UNCHANGED}}
            assert len(controller.cluster.moves) == 100
            store.free.set()
            left = 200 if targets else 0
            await until(lambda left=left: len(controller.cluster.moves) == left)
            assert not any(where.topic == "t2" for where in controller.cluster.moves)
        # All of it, in time.
        assert found(await one.forward(asked((2,), 60_000), 0)) == of_all(DONE)
        assert len(controller.cluster.moves) == len(TOPICS) * PARTITIONS

    run(scenario)


def test_a_slice_that_waits_for_its_turn_never_begins_after_the_time() -> None:
    """Another change holds the turn: nothing was decided, and nothing is later."""

    async def scenario(world: World) -> None:
        controller, _, one = await begun(world)
        async with controller.turn:
            answer = found(await one.forward(asked((2,), TIME_MS), 0))
        assert answer == of_all(UNCHANGED)
        # A later change had its turn after it.
        create = messages.CreateTopicsRequest
        topic = create.CreatableTopic("later", 1, 1, [], [])
        await one.forward(create([topic], timeout_ms=20_000), 7)
        assert not controller.cluster.moves
        for timeout_ms in (0, -1):
            answer = found(await one.forward(asked((2,), timeout_ms), 0))
            assert answer == of_all(UNCHANGED)
        assert not controller.cluster.moves

    run(scenario)
