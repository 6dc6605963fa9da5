"""A cluster run whose course a test scripts, instead of one drawn from a seed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from tests.simulation.clients import read_whole, send_once
from tests.simulation.cluster.clients import target
from tests.simulation.history import Outcome
from tests.simulation.scenarios.cluster import REST_SECONDS, ClusterRun
from tests.simulation.scenarios.course import Course
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.metadata.records import PartitionState, UncleanDebt
from tidelog.metadata.store import ROOT
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

SEEDS = 2
WAIT_SECONDS = 30.0
Script = Callable[["ScriptedRun"], Awaitable[None]]


class ScriptedRun(ClusterRun):
    """A run whose course a test tells; partition t-0 has three replicas.

    With ``moves`` each commit that moves it is checked, and what its moves leave.
    """

    def __init__(
        self,
        seed: int,
        script: Script,
        durability: str,
        configs: dict[str, str],
        *,
        moves: bool = False,
        brokers: int = 3,
        controllers: int = 1,
    ) -> None:
        course = Course(
            controllers=controllers,
            durability=durability,
            unclean=False,
            mixed=False,
            moves=moves,
            brokers=brokers,
        )
        super().__init__(seed, course)
        self._script = script
        self._topic = configs
        self._number = 0
        self.place = TopicPartition("t", 0)

    async def _main(self) -> None:
        self.cluster.start()
        await self._until(lambda: all(node.ready for node in self.cluster.nodes), "ready", 30)
        await self.admin.create("t", 1, 3, self._topic)
        self.target = target(self.outside, "t", 0)
        await self.until_isr(*self.states.topics["t"].partitions[0])
        await self._script(self)

    @property
    def now(self) -> PartitionState:
        """The state as the controller has it."""
        active = self.cluster.active
        assert active is not None and active.controller is not None
        return active.controller.cluster.states[self.place]

    @property
    def losses(self) -> tuple[list[UncleanDebt], list[UncleanDebt]]:
        """The open and the handled records of unclean elections."""
        active = self.cluster.active
        assert active is not None and active.controller is not None
        memory = active.controller.cluster.topic_histories["t"]
        return list(memory.unclean.values()), memory.unclean_past.get(0, [])

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        await self._until(condition, what, WAIT_SECONDS)

    async def until_isr(self, *members: int) -> None:
        def reached() -> bool:
            place = self.states.place("t", 0)
            return place is not None and set(self.now.isr) == set(members) and self.now.leader > 0

        await self.until(reached, f"ISR {members}")

    async def until_led(self, *brokers: int) -> None:
        await self.until(lambda: self.now.leader in brokers, f"led by one of {brokers}")

    async def write(self, count: int) -> None:
        """Write records with acks=all until so many are acknowledged."""
        acked = 0
        while acked < count:
            self._number += 1
            found = await send_once(self.history, self.target, "w", self._number)
            acked += found is ErrorCode.NONE

    @property
    def sent(self) -> int:
        """How many records were sent, acknowledged or not."""
        return self._number

    def lose_power(self, broker: int) -> None:
        """Take what was not synced from a broker."""
        self.cluster.broker(broker).lose_power()
        if self.durability != "sync":
            self.states.lost(broker)

    async def refused(self) -> None:
        self._number += 1
        found = await send_once(self.history, self.target, "w", self._number)
        assert found is not ErrorCode.NONE

    async def read_at_the_end(self, replicas: Sequence[int] = (1, 2, 3)) -> list[int]:
        """Everything is up and in sync; return the offsets that can be read."""
        await self.until_isr(*replicas)
        final = await read_whole(self.target, seconds=REST_SECONDS)
        self.history.finals.append(final)
        await self._until(self.verdict.replicas_agree, "replicas alike", REST_SECONDS)
        self.verdict.replicas()
        return sorted(final.records)

    def acknowledged(self) -> None:
        """What was read at the end is each acknowledged record, once, and of the others none that
        was refused."""
        found = list(self.history.finals[-1].records.values())
        of_topic = [x for x in self.history.writes if x.partition == self.target.name]
        acked = {x.value for x in of_topic if x.outcome is Outcome.ACKED}
        open_ones = {x.value for x in of_topic if x.outcome is Outcome.UNDETERMINED}
        assert len(found) == len(set(found)), "none twice"
        assert acked <= set(found) <= acked | open_ones

    async def move(self, *replicas: int) -> None:
        """Begin the move of the partition to these brokers; it is accepted."""
        request = messages.AlterPartitionReassignmentsRequest
        part = request.ReassignablePartition(0, list(replicas))
        asked = request(timeout_ms=10_000, topics=[request.ReassignableTopic("t", [part])])
        answer = await self.outside.until(asked, lambda found: found.error_code == ErrorCode.NONE)
        assert answer.responses[0].partitions[0].error_code == ErrorCode.NONE, answer

    async def moved(self, *replicas: int) -> None:
        """Wait until a move is over: replicas, ISR, leader, record, stops and disks are exact."""
        watch = self.move_watch
        assert watch is not None

        def is_over() -> bool:
            return (
                list(self.states.topics["t"].partitions[0]) == list(replicas)
                and not watch.left()
                and not self.leftovers.left()
            )

        await self.until(is_over, f"moved to {replicas}")

    async def put_back(self, copy: dict[str, Any]) -> None:
        """Put a copy of the store's nodes in their place, under a dead controller."""
        controller = self.cluster.controllers[0]
        controller.kill()
        await self.until(lambda: not controller.sessions, "its session has ended")
        self.cluster.tree.put_back(copy)
        controller.start()
        await self.until(lambda: controller.ready and controller.active, "on the old store")

    async def lose_store(self) -> None:
        """Put an empty store in the place of the present one."""
        self.cluster.controllers[0].is_new = False
        await self.put_back({ROOT: self.cluster.tree.copy()[ROOT]})

    async def restored(
        self, *, accept: bool, dropped: tuple[str, ...] = (), without: tuple[int, ...] = ()
    ) -> tuple[ErrorCode, dict[str, Any]]:
        """Ask what the store does not know, or accept it; the error and the report."""
        request = messages.RestoredStoreRequest(
            accept=accept, drop_unknown=list(dropped), without_brokers=list(without)
        )
        answer = await self.outside.until(
            request, lambda found: found.error_code != ErrorCode.REQUEST_TIMED_OUT
        )
        return ErrorCode(answer.error_code), json.loads(answer.report)

    async def until_noticed(self, *missing: int) -> dict[str, Any]:
        """Wait until the store is known to be old, and what all brokers hold that are not missing;
        the report."""
        return await self._until_reported(
            lambda found: found["went_back"] and found["brokers_missing"] == list(missing)
        )

    async def until_late(self) -> list[dict[str, Any]]:
        """Wait until replicas are known that an accepted store did not know; these."""
        found = await self._until_reported(lambda found: found["late"])
        late: list[dict[str, Any]] = found["late"]
        return late

    async def _until_reported(self, is_there: Callable[[dict[str, Any]], Any]) -> dict[str, Any]:
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                _, found = await self.restored(accept=False)
                if is_there(found):
                    return found
                await asyncio.sleep(0.2)

    def hosted(self, broker: int) -> HostedPartition:
        running = self.cluster.broker(broker).running
        assert running is not None
        found = running.broker.partitions.get("t", 0)
        assert found is not None
        return found


def run_script(
    story: Script, durability: str = "replicated", *, moves: bool = False, **configs: str
) -> None:
    named = {name.replace("_", "."): value for name, value in configs.items()}
    for seed in range(SEEDS):
        result = ScriptedRun(seed, story, durability, named, moves=moves).run()
        assert not result.violations, result.report()
