"""Stories of what happens while the plan of a resize stands: each is red with its bug (KIP-253).

Owns the stories and the bugs that each finds. What stories do with a cluster, and the other ones:
see ``resize_stories``.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

from tests.simulation.cluster.clients import target
from tests.simulation.cluster.nodes import BrokerNode
from tests.simulation.cluster.scripted_run import Script, ScriptedRun
from tests.simulation.planted.resize_stories import Sent, Story, polled, reader_of
from tests.simulation.planted.search import Patch
from tests.simulation.scenarios.result import Result
from tidelog.broker.handlers import describe_fences
from tidelog.client.fetching.fetch_requests import FetchOptions
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.controller import retired
from tidelog.controller.decisions import removal, resize_requests
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

SLOW_WRITE_S = 0.5
"""How long a write to the store takes, so that another decision waits for its turn meanwhile."""

ONE_BATCH = FetchOptions(partition_bytes=1)
"""A fetch has one batch, and a poll hands it out."""

CHECK_MS = 300
"""``retired.check.interval.ms``: a removal does not wait for the end of the plan by itself."""


DELAY_S = 10
"""``retired.purge.delay.ms`` of the runs that are about it."""


class PlannedRun(ScriptedRun):
    """A run on four brokers whose controller often looks at retired partitions."""

    delay_s = 0

    def __init__(self, story: Script) -> None:
        topic = {"min.insync.replicas": "2", "retired.purge": "drained"}
        super().__init__(0, story, "replicated", topic, brokers=4)

    def _configs(self) -> dict[str, str]:
        often = {
            "retired.check.interval.ms": str(CHECK_MS),
            "retired.purge.delay.ms": str(self.delay_s * 1000),
            "resize.timeout.ms": "10000",
        }
        return {**super()._configs(), **often}

    @property
    def retired_at_ms(self) -> int:
        """When the last shrink of the topic was published, as the controller has written it."""
        active = self.cluster.active
        if active is None or active.controller is None:
            return 0
        times = active.controller.cluster.topic_histories["t"].retired_ms
        return max(times.values(), default=0)

    @property
    def is_planned(self) -> bool:
        """Whether a plan of the topic stands and goes forward."""
        active = self.cluster.active
        if active is None or active.controller is None:
            return False
        plan = active.controller.cluster.topic_histories["t"].resize
        return plan is not None and not plan.published


# --- a fence looked up by leader epoch -----------------------------------------------------------


async def a_gate_stands_at_the_fence_although_a_leader_was_elected_in_between(
    run: ScriptedRun,
) -> None:
    """The plan is written, a leader is elected and takes records, then the fence is ordered."""
    story = Story(run)
    first, replicas = run.now.leader, run.now.isr
    preferred = run.cluster.broker(first)
    preferred.kill()
    await run.until(lambda: run.now.leader not in (first, -1), "another leader")
    preferred.start()
    await run.until_isr(*replicas)
    await run.write(3)
    old = await story.named(0)
    before = run.now.leader_epoch
    slow = run.cluster.active
    assert slow is not None
    slow.slow_store_s = SLOW_WRITE_S
    growing = asyncio.create_task(story.resize(2))
    await asyncio.sleep(SLOW_WRITE_S / 2)
    await run.admin.elect("t", 0, unclean=False)
    for number in range(2):
        sent, code = Sent(0, old, b"in between %d" % number, number), None
        while code is not ErrorCode.NONE:
            assert run.hosted(first).leader_epoch <= before + 1, "the fence was ordered too soon"
            code = await story.send(preferred, sent)
            await asyncio.sleep(0.005)
    assert run.hosted(first).leader_epoch == before + 1, "no leader was elected in between"
    slow.slow_store_s = 0.0
    await growing
    await story.until_shown(2)
    child = Sent(1, await story.named(1), b"of the child")
    assert await story.send(story.leader_of(1), child) is ErrorCode.NONE
    async with contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(2):
            cluster = await stack.enter_async_context(story.cluster())
            reader = reader_of(cluster, OffsetReset.EARLIEST, options=ONE_BATCH)
            readers.append(await stack.enter_async_context(reader))
        # The fourth record of the parent is in the hands of the application.
        polls = [polled(each, lambda: False, enough=4, seconds=12) for each in readers]
        got = await asyncio.gather(*polls)
        assert sorted(map(len, got)) == [0, 4], f"the child's gate was open: {got}"
        polls = [polled(each, lambda: False, enough=2, seconds=5) for each in readers]
        got = await asyncio.gather(*polls)
        assert sorted(map(len, got)) == [1, 1], f"the child's gate stayed shut: {got}"


def look_fences_up_by_leader_epoch(patch: Patch) -> None:
    """A fence is where the leader epoch ended that a partition had when the plan was decided."""
    epochs: dict[tuple[str, int, int], int] = {}
    begun, describe = resize_requests.begun, describe_fences._partition

    def noted(cluster: Any, growth: Any, *more: Any) -> Any:
        made = begun(cluster, growth, *more)
        epoch = cluster.topic_histories[growth.name].resize_epoch + 1
        for index in cluster.topics[growth.name].partitions:
            state = cluster.states[TopicPartition(growth.name, index)]
            epochs[growth.name, index, epoch] = state.leader_epoch
        return made

    def converted(broker: Any, topic: Any, asked: Any) -> Any:
        answer = describe(broker, topic, asked)
        for fence in answer.fences or ():
            before = epochs.get((topic.topic, asked.partition, fence.resize_epoch))
            if before is not None:
                log = broker.partitions.get(topic.topic, asked.partition).log
                fence.offset = min(fence.offset, log.end_offset_for_epoch(before)[1])
        return answer

    patch.setattr(resize_requests, "begun", noted)
    patch.setattr(describe_fences, "_partition", converted)


# --- a removal during a plan ---------------------------------------------------------------------


async def a_retired_partition_stays_until_the_plan_of_its_topic_is_done(run: ScriptedRun) -> None:
    """It is emptied while the next shrink waits for a seal that cannot be committed."""
    assert isinstance(run, PlannedRun)
    story = Story(run)
    late, former = 1, 2
    await story.resized(3, [1, 2, 3], [2, 3, 4])
    sent = Sent(former, await story.named(former), b"of the retired one")
    assert await story.send(story.leader_of(former), sent) is ErrorCode.NONE
    await story.resized(2)
    away = story.leader_of(late)
    others = [node.host for node in run.cluster.brokers if node is not away]
    story.cut(away, *others)
    await story.resize(1)
    where = TopicPartition("t", former)
    while run.is_planned and not _is_empty(story.leader_of(former), former):
        await run.admin.delete_records(target(run.outside, "t", former), -1)
    looks = 0
    while run.is_planned and looks < 10:
        assert former in run.states.topics["t"].partitions, f"{where} was removed in a plan"
        looks += 1
        await asyncio.sleep(CHECK_MS / 1000)
    assert looks == 10, "the plan did not stand long enough"
    run.world.network.heal()
    await run.until(lambda: former not in run.states.topics["t"].partitions, f"{where} is gone")


def _is_empty(node: BrokerNode, partition: int) -> bool:
    assert node.running is not None
    log = node.running.broker.partitions.get("t", partition).log
    return bool(log.start_offset == log.high_watermark)


def remove_during_a_plan(patch: Patch) -> None:
    """A partition that is empty is removed although its topic is being resized."""
    why = removal.why_none_goes

    def hasty(cluster: Any, name: str) -> str | None:
        said = why(cluster, name)
        return None if said is not None and "is being resized" in said else said

    for module in (removal, retired):
        patch.setattr(module, "why_none_goes", hasty)


# --- a removal before the last try of a producer -------------------------------------------------


class DelayedRun(PlannedRun):
    """Its retired partitions stay for some seconds."""

    delay_s = DELAY_S


async def a_batch_whose_response_was_lost_is_known_until_its_producer_gives_up(
    run: ScriptedRun,
) -> None:
    """Its partition retires, and its group reads all of it, before the producer tries again."""
    assert isinstance(run, PlannedRun)
    story, former, where = Story(run), 1, TopicPartition("t", 1)
    await story.resized(2, [1, 2, 3])
    sent = Sent(former, await story.named(former), b"its response is lost")
    assert await story.send(story.leader_of(former), sent) is ErrorCode.NONE
    offset = story.offset_of(sent)
    await story.resized(1)
    shrunk_s = asyncio.get_running_loop().time()
    tries = 0
    async with story.cluster() as cluster, reader_of(cluster, OffsetReset.EARLIEST) as reader:
        reading = asyncio.create_task(polled(reader, lambda: False, enough=2, seconds=3 * DELAY_S))
        await run.until(lambda: run.retired_at_ms > 0, "the time of the shrink is written")
        while asyncio.get_running_loop().time() < shrunk_s + DELAY_S - 1:
            assert former in run.states.topics["t"].partitions, f"{where} was removed too soon"
            code = await story.send(story.leader_of(former), sent)
            assert code is ErrorCode.NONE, f"the answer of try {tries} is {code!r}"
            assert story.offset_of(sent) == offset, "another offset"
            tries += 1
            await asyncio.sleep(CHECK_MS / 1000)
        assert tries > DELAY_S, "hardly a try"
        await run.until(lambda: former not in run.states.topics["t"].partitions, f"{where} is gone")
        reading.cancel()


def remove_before_the_last_try(patch: Patch) -> None:
    """A partition goes as soon as its groups have read it, whoever may ask for a batch."""
    patch.setattr(retired, "open_until", lambda *_: {})


def run_story(story: Script) -> Result:
    """Run a story of this module."""
    is_delayed = story is a_batch_whose_response_was_lost_is_known_until_its_producer_gives_up
    return (DelayedRun if is_delayed else PlannedRun)(story).run()


STORIES: tuple[tuple[Script, Callable[[Patch], None]], ...] = (
    (
        a_gate_stands_at_the_fence_although_a_leader_was_elected_in_between,
        look_fences_up_by_leader_epoch,
    ),
    (a_retired_partition_stays_until_the_plan_of_its_topic_is_done, remove_during_a_plan),
    (
        a_batch_whose_response_was_lost_is_known_until_its_producer_gives_up,
        remove_before_the_last_try,
    ),
)
