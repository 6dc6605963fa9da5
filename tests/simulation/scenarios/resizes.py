"""The cluster scenario with a topic that grows and shrinks at level 1.5 (KIP-253).

Owns the course of such a run: beside the clients of ``cluster`` there are writers and members of
``cluster.elastic`` and the ``resizer``; at the end the order checker judges their history.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from tests.order.checks import violations_in
from tests.order.reference import Reference
from tests.order.timeline import report
from tests.simulation.cluster.elastic import INITIAL, NAME, Elastic
from tests.simulation.cluster.resizer import Resizer
from tests.simulation.scenarios.cluster import REST_SECONDS, SEGMENTS, ClusterRun
from tests.simulation.scenarios.course import Course, resizing_course
from tests.simulation.scenarios.result import Findings, Result

LEVEL = "1.5"


class ResizesRun(ClusterRun):
    """One run of the scenario."""

    elastic_kind: type[Elastic] = Elastic
    resizer_kind: type[Resizer] = Resizer
    are_aware = True
    """Whether all producers of the topic send a count: then an unforced shrink is accepted."""

    def __init__(
        self, seed: int, course: Course | None = None, enough: Callable[[str], bool] | None = None
    ) -> None:
        super().__init__(seed, course or resizing_course(seed), enough)
        for node in self.cluster.nodes:
            node.set_level(LEVEL)
        self.elastic = self.elastic_kind(self.world, self.cluster, self.states, self.outside)
        if enough is not None:
            self.elastic.found = self.elastic.watch.found = Findings(enough, self._end)
        self.resizer = self.resizer_kind(
            self.elastic,
            self.outside,
            self.world.random("resizer"),
            self.say,
            self.course.resizes,
            self.course.resizer_moves,
        )
        self._elastic_work: list[asyncio.Task[None]] = []
        self._resizing: asyncio.Task[None] | None = None

    def run(self) -> Result:
        """Run; what was found beside the course counts also where the run ended early."""
        result = super().run()
        found = dict.fromkeys([*result.violations, *self.elastic.found])
        return replace(result, violations=list(found))

    def _configs(self) -> dict[str, str]:
        draw = self.world.random("resize configs")
        return {
            **super()._configs(),
            "resize.timeout.ms": draw.choice(("1500", "10000")),
            "retired.check.interval.ms": "300",
            "retired.purge.delay.ms": "0",
        }

    async def _create_topics(self) -> None:
        await super()._create_topics()
        await self.admin.create(NAME, INITIAL, 3, self._topic_configs())

    def _topic_configs(self) -> dict[str, str]:
        return {**SEGMENTS, "min.insync.replicas": "2", "retired.purge": "drained"}

    def _start_clients(self) -> list[asyncio.Task[None]]:
        background = super()._start_clients()
        self._start_elastic()
        return background

    def _start_elastic(self) -> None:
        self._elastic_work = self.elastic.start()
        self._resizing = asyncio.create_task(self.resizer.run())

    async def _recover(self) -> None:
        await super()._recover()
        await self._end_resizes()
        await self._until(lambda: self.resizer.is_at_rest, "the resize ends", REST_SECONDS)
        self.say("no resize is under way")
        refused = await self.resizer.why_unaware() if self.are_aware else ""
        if refused:
            self.found.append(f"no_doubt_outlives_faults: {refused}")

    async def _end_resizes(self) -> None:
        """Let no client ask for a resize any more."""
        assert self._resizing is not None
        if self._resizing.done():
            self._resizing.result()
        self._resizing.cancel()

    async def _come_to_rest(self) -> None:
        await self._rest_elastic()
        await super()._come_to_rest()
        self._judge()

    async def _rest_elastic(self) -> None:
        """The writers have their answers, and the members have everything."""
        for writer in self.elastic.writers:
            writer.finish()
        await self._until(
            lambda: all(writer.done.is_set() for writer in self.elastic.writers),
            "writers answered",
            REST_SECONDS,
        )
        await self._settle_members()
        for task in self._elastic_work:
            if task.done():
                task.result()
            task.cancel()

    async def _settle_members(self) -> None:
        """Promise 24: the members receive all that was written."""
        for group in self.elastic.groups.values():
            for member in group.members:
                member.settles = True
        try:
            await self.world.until(lambda: not self.elastic.left(), REST_SECONDS)
        except TimeoutError:
            self.found.append(
                f"recovery_is_bounded: not in {REST_SECONDS} s: members lack {self.elastic.left()}"
            )

    def _judge(self) -> None:
        self.elastic.note_what_is_stored()
        listed = list(self.states.topics[NAME].partitions)
        self.elastic.watch.look_at_logs(listed, lambda place: place not in self.states.unclean)
        reference = Reference(self.elastic.history)
        found = violations_in(reference)
        self.found += [f"order_of_keys: {each.rule} {each.key}: {each.text}" for each in found]
        if found:
            self.say(report(reference, found, self.seed))

    def _counts(self) -> dict[str, int]:
        moves = self.resizer.moves
        return {
            **super()._counts(),
            **self.elastic.counts(),
            "elastic moves": moves.get("NONE", 0),
            "moves refused": sum(moves.values()) - moves.get("NONE", 0),
        }


def run_resizes(seed: int) -> Result:
    """Run the scenario once."""
    return replace(ResizesRun(seed).run(), scenario="resizes")
