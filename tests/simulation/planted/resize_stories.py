"""Stories of resizes that no random seed tells often: each is red with its bug (KIP-253).

Owns the stories, on four simulated brokers with one topic ``t``, and the bugs that each finds. A
client of theirs sends one batch to one broker, whoever leads.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from math import inf
from typing import Any, NamedTuple

from tests.simulation.clients import read_whole
from tests.simulation.cluster.clients import target
from tests.simulation.cluster.nodes import PORT, BrokerNode
from tests.simulation.cluster.scripted_run import Script, ScriptedRun
from tests.simulation.history import Outcome, Write
from tests.simulation.planted.search import Patch
from tests.simulation.scenarios.result import Result
from tidelog.broker.handlers import describe_fences, offset_fetch, produce
from tidelog.broker.partitions import resize_checks
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.connecting.connection import connect
from tidelog.client.errors import ClientError
from tidelog.client.fetching.fetch_requests import FetchOptions
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.client.groups.first_positions import Resets
from tidelog.client.groups.group_member import GroupMember
from tidelog.client.groups.group_reader import GroupReader
from tidelog.groups import positions
from tidelog.metadata import layout
from tidelog.metadata.records import TopicHistory
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.replication import resize_rules
from tidelog.replication.resize_rules import NOT_NAMED, Named, ToProduce
from tidelog.runtime.backoff import Backoff

ANSWER_MS = 2_000
PRODUCER_ID = 4_000
CREATE = messages.CreatePartitionsRequest


class Sent(NamedTuple):
    """One batch with one record of an idempotent producer, and the numbers that it names."""

    partition: int
    named: Named
    value: bytes
    sequence: int = 0


class Story:
    """What stories do with a cluster of three brokers and one controller."""

    def __init__(self, run: ScriptedRun) -> None:
        self.run = run
        self._writes: dict[bytes, Write] = {}

    def cluster(self) -> Cluster:
        """Return a client's view of the cluster."""
        addresses = [f"{node.host}:{PORT}" for node in self.run.cluster.brokers]
        backoff = Backoff(50, 500, self.run.world.random("story"))
        return Cluster(addresses, ClusterSettings(client_id="story", backoff=backoff))

    async def resize(self, count: int, *replicas: list[int]) -> None:
        """Begin a resize, with the replicas of new partitions: it is accepted.

        A broker that reaches no controller says that the time is over, like one whose request was
        accepted and takes longer: the store tells them apart.
        """
        before = self._resize_epoch
        new = [CREATE.CreatePartitionsAssignment(brokers) for brokers in replicas]
        topic = CREATE.CreatePartitionsTopic(name="t", count=count, assignments=new or None)
        request = CREATE(topics=[topic], timeout_ms=1_000, force=True)
        while self._resize_epoch == before:
            answer = await self.run.outside.until(request, lambda _: True)
            code = ErrorCode(answer.results[0].error_code)
            assert code in (ErrorCode.NONE, ErrorCode.REQUEST_TIMED_OUT), answer

    async def resized(self, count: int, *replicas: list[int]) -> None:
        """Resize and wait until a broker shows it."""
        await self.resize(count, *replicas)
        await self.until_shown(count)

    async def until_shown(self, count: int) -> None:
        """Wait until some broker shows so many partitions that take records, each with a leader.

        One that is cut off from the controllers may show as many of a former incarnation.
        """
        async with asyncio.timeout(30):
            while True:
                try:
                    topic = await self.run.outside.topic("t")
                except (ClientError, OSError):
                    continue
                finally:
                    await asyncio.sleep(0.02)
                led = [part for part in topic.partitions if part.leader_id > 0]
                is_present = topic.resize_epoch == self._resize_epoch
                if is_present and topic.undeleted_partition_count == count <= len(led):
                    return

    @property
    def _resize_epoch(self) -> int:
        """Return the topic's resize epoch, or that of the resize under way, as the store has it."""
        path = layout.topic_history("t")
        history = layout.decode(path, self.run.cluster.tree.nodes[path].data)
        assert isinstance(history, TopicHistory)
        return history.resize_epoch

    async def named(self, partition: int) -> Named:
        """Return the numbers for a partition, as the newest metadata of any broker have them."""
        found = [await self.run.outside.topic("t") for _ in range(6)]
        newest = max(found, key=lambda topic: topic.resize_epoch)
        part = next(each for each in newest.partitions if each.partition_index == partition)
        return Named(newest.undeleted_partition_count, newest.resize_epoch, part.partition_epoch)

    def leader_of(self, partition: int) -> BrokerNode:
        """Return the leader as the store has it."""
        place = self.run.states.place("t", partition)
        assert place is not None
        return self.run.cluster.broker(self.run.states.places[place].state.leader)

    async def send(self, node: BrokerNode, sent: Sent) -> ErrorCode | None:
        """Send a batch to a broker, once; None without an answer. A refusal is on record."""
        write = self._writes.get(sent.value)
        if write is None:
            name, number = f"t-{sent.partition}", len(self._writes)
            write = self.run.history.send(name, "story", number, sent.value)
            self._writes[sent.value] = write
        try:
            connection = await connect(node.host, PORT, connect_timeout_ms=1_000)
            try:
                answer = await connection.send(_request(sent), timeout_ms=ANSWER_MS)
            finally:
                connection.close()
        except (ClientError, OSError):
            return None
        part = answer.responses[0].partition_responses[0]
        code = ErrorCode(part.error_code)
        if code is ErrorCode.NONE:
            self.run.history.end(write, Outcome.ACKED, part.base_offset)
        elif code is ErrorCode.INVALID_PARTITION_METADATA:
            self.run.history.end(write, Outcome.REFUSED)
        return code

    def offset_of(self, sent: Sent) -> int:
        """Return the offset that the last answer to a batch named."""
        return self._writes[sent.value].offset

    async def committed(self, node: BrokerNode, partition: int) -> tuple[ErrorCode, int]:
        """Ask a broker where the group has committed in a partition."""
        fetch = messages.OffsetFetchRequest
        topic = fetch.OffsetFetchRequestTopics(name="t", partition_indexes=[partition])
        group = fetch.OffsetFetchRequestGroup(group_id="g", topics=[topic])
        connection = await connect(node.host, PORT, connect_timeout_ms=1_000)
        try:
            answer = await connection.send(fetch(groups=[group]), timeout_ms=30_000)
        finally:
            connection.close()
        found = answer.groups[0]
        offsets = [part.committed_offset for each in found.topics for part in each.partitions]
        return ErrorCode(found.error_code), offsets[0] if offsets else -1

    def cut(self, node: BrokerNode, *others: str) -> None:
        """Cut a broker off from other hosts."""
        for other in others:
            self.run.world.network.cut(node.host, other)


def _request(sent: Sent) -> messages.ProduceRequest:
    identity = Producer(PRODUCER_ID, 0, sent.sequence)
    content = build_batch([NewRecord(1_767_225_600_000, b"k", sent.value)], producer=identity)
    request = messages.ProduceRequest
    data = request.PartitionProduceData(index=sent.partition, records=content)
    topic = request.TopicProduceData(name="t", partition_data=[data])
    topic.undeleted_partition_count, topic.resize_epoch, data.partition_epoch = sent.named
    return request(acks=-1, timeout_ms=ANSWER_MS, topic_data=[topic])


# --- a refusal that is not definite --------------------------------------------------------------


async def a_batch_of_an_earlier_leader_is_not_refused_for_good(run: ScriptedRun) -> None:
    """Its former leader still has the batch, leads again, and commits it."""
    story = Story(run)
    first, replicas = run.now.leader, run.now.isr
    run.cluster.broker(first).kill()
    await run.until(lambda: run.now.leader not in (first, -1), "another leader")
    run.cluster.broker(first).start()
    await run.until_isr(*replicas)
    holder = story.leader_of(0)
    others = [node.host for node in run.cluster.brokers if node is not holder]
    old = await story.named(0)
    story.cut(holder, *others)
    sent = Sent(0, old, b"held by its first leader")
    holding = asyncio.create_task(story.send(holder, sent))
    await asyncio.sleep(0.2)
    await run.admin.elect("t", 0, unclean=False)
    await run.until_led(first)
    await story.resize(2)
    preferred = run.cluster.broker(first)
    assert old.resize_epoch == 0
    await run.until(lambda: _fences(preferred) > 0, "its fence is written")
    code = await story.send(preferred, sent)
    preferred.kill()
    await run.until(lambda: run.now.leader not in (first, -1), "the next leader")
    run.world.network.heal()
    preferred.start()
    await holding
    await run.until_isr(*replicas)
    values = await _read(run, 0)
    assert values == [sent.value], f"the former leader {holder.host} did not lead again"
    assert code is not ErrorCode.NONE


def refuse_above_the_watermark(patch: Patch) -> None:
    """A leader refuses an older resize epoch for good although its fence is not committed."""
    answer = resize_rules.answer_to_produce

    def definite(*of: Any, **more: Any) -> ToProduce:
        found = answer(*of, **more)
        return ToProduce.OLDER if found is ToProduce.UNDETERMINED else found

    patch.setattr(resize_checks, "answer_to_produce", definite)


# --- a deposed leader of a former incarnation ----------------------------------------------------


async def a_deposed_leader_of_a_former_incarnation_acknowledges_nothing(run: ScriptedRun) -> None:
    """It knows the sequence numbers, which begin again in each incarnation."""
    story = Story(run)
    await story.resized(2)
    deposed = story.leader_of(1)
    assert await story.send(deposed, Sent(1, await story.named(1), b"former")) is ErrorCode.NONE
    run.faults.unquiet_until = inf  # it is taken for dead while it runs
    story.cut(deposed, *(node.host for node in run.cluster.controllers))
    await run.until(lambda: story.leader_of(1) is not deposed, "another leader")
    await run.until(lambda: story.leader_of(0) is not deposed, "another leader")
    former = await story.named(1)
    await story.resized(1)
    while 1 in run.states.topics["t"].partitions:
        await run.admin.delete_records(target(run.outside, "t", 1), -1)
        await asyncio.sleep(0.3)
    await story.resized(2)
    present = await story.named(1)
    assert present.partition_epoch > former.partition_epoch
    code = await story.send(deposed, Sent(1, present, b"present"))
    assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER, code
    run.world.network.heal()


def know_batches_before_incarnations(patch: Patch) -> None:
    """A leader looks for duplicates before it compares the partition epoch."""
    answer = resize_rules.answer_to_produce

    def known_first(named: Any, here: Any, *, known: bool, **more: Any) -> ToProduce:
        return ToProduce.KNOWN if known else answer(named, here, known=known, **more)

    patch.setattr(resize_checks, "answer_to_produce", known_first)


# --- partitions of one topic on both sides of a resize -------------------------------------------


async def a_survivor_takes_nothing_of_a_shrink_before_every_seal(run: ScriptedRun) -> None:
    """One broker leads a survivor and a sealed partition; another seal is not committed."""
    story = Story(run)
    survivor, sealed, late = 1, 2, 3
    await story.resized(4, [1, 2, 3], [1, 3, 2], [2, 1, 3])
    old = await story.named(survivor)
    node, away = story.leader_of(survivor), story.leader_of(late)
    assert node is story.leader_of(sealed) is not away
    story.cut(away, *(other.host for other in run.cluster.brokers if other is not away))
    fences = _fences(node, sealed)
    await story.resize(2)
    await run.until(lambda: _fences(node, sealed) > fences, "it is sealed")
    new = Named(2, old.resize_epoch + 1, old.partition_epoch)
    code = await story.send(node, Sent(survivor, new, b"of the shrink"))
    assert code is ErrorCode.NOT_LEADER_OR_FOLLOWER, code
    run.world.network.heal()
    await run.until(run.faults.all_in_sync, "in sync")


def count_per_topic(patch: Patch) -> None:
    """A broker keeps count and resize epoch for a topic: the newest that one partition has."""
    append = produce._append

    def per_topic(broker: Any, partition: Any, named: Any, records: Any, *more: Any) -> Any:
        hosted = broker.partitions.by_topic[partition.topic].values()
        newest = max((each.state for each in hosted), key=lambda state: state.resize_epoch)
        epoch = partition.state.partition_epoch
        if named == (newest.undeleted_count, newest.resize_epoch, epoch) != NOT_NAMED:
            return partition.append(records, more[0], looks=more[1])
        return append(broker, partition, named, records, *more)

    patch.setattr(produce, "_append", per_topic)


# --- positions that go back ----------------------------------------------------------------------


async def the_last_report_of_a_position_counts(run: ScriptedRun) -> None:
    """The application of a member seeks back: members that wait for its partition wait again."""
    where = TopicPartition("t", 0)
    async with Story(run).cluster() as cluster:
        member = GroupMember(cluster, "g", ["t"])
        await member.join()
        member.positioned()
        for offset in (10, 4):
            await member.exchange_positions({where: offset}, [])
        found = await member.exchange_positions({}, [where])
        assert found[where].offset == 4, found
        await member.leave()


def take_the_highest_report(patch: Patch) -> None:
    """A coordinator keeps the highest position that a member has reported."""
    take = positions._take

    def highest(group: Any, known: Any, *more: Any) -> None:
        before = {name: dict(topic.offsets) for name, topic in known.reported.items()}
        take(group, known, *more)
        for name, topic in known.reported.items():
            for index, offset in before.get(name, {}).items():
                topic.offsets[index] = max(offset, topic.offsets[index])

    patch.setattr(positions, "_take", highest)


# --- `latest` that skips -------------------------------------------------------------------------


async def a_member_that_resets_to_latest_skips_nothing_later(run: ScriptedRun) -> None:
    """It dies before its first commit; what was written since its reset reaches the next one."""
    story = Story(run)
    async with story.cluster() as cluster:
        first = reader_of(cluster, auto_commit_ms=60_000)
        await polled(first, lambda: bool(first.assignment))
        await run.write(1)
        first.member.leave = first.member._stop_tasks  # type: ignore[method-assign]
        await first.close()
    async with story.cluster() as cluster, reader_of(cluster) as second:
        got = await polled(second, lambda: False, enough=1)
        assert len(got) == 1, "the next member did not receive the record"


def read_before_a_reset_is_committed(patch: Patch) -> None:
    """A member reads from where it resets to, and commits that later."""
    patch.setattr(Resets, "_commits_first", lambda *_: False)


async def a_late_coordinator_lets_no_group_skip(run: ScriptedRun) -> None:
    """The controller cannot tell it of a growth, and members see the new partition elsewhere.

    Theirs commit a reset before they read; a stock consumer would read from the end.
    """
    story = Story(run)
    replicas = list(run.states.topics["t"].partitions[0])
    async with story.cluster() as cluster, reader_of(cluster) as reader:
        await polled(reader, lambda: bool(reader.assignment))
        place = run.states.place("__consumer_offsets", 0)
        assert place is not None
        coordinator = run.cluster.broker(run.states.places[place].state.leader)
        assert coordinator.node_id not in replicas, "another seed has the coordinator elsewhere"
        story.cut(coordinator, *(node.host for node in run.cluster.controllers))
        await story.resized(2, replicas)
        code, offset = await story.committed(coordinator, 1)
        said = f"the late coordinator answered {code.name}, {offset}"
        assert code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, said
        run.world.network.heal()


def begin_where_a_late_coordinator_knows_nothing(patch: Patch) -> None:
    """A coordinator answers -1 for a partition that its metadata lack."""
    judge = offset_fetch._Open.judge

    def known_only(self: Any, *asked: Any) -> Any:
        found = judge(self, *asked)
        self.unknown.clear()
        return found

    patch.setattr(offset_fetch._Open, "judge", known_only)


# --- a fence without an offset -------------------------------------------------------------------


async def a_grandchild_waits_until_its_empty_parent_is_open(run: ScriptedRun) -> None:
    """Nothing was written to the parent; the grandparent's records are not delivered yet."""
    story = Story(run)
    await run.write(3)
    await story.resized(2)
    await story.resized(4)
    sent = Sent(3, await story.named(3), b"of the grandchild")
    assert await story.send(story.leader_of(3), sent) is ErrorCode.NONE
    async with contextlib.AsyncExitStack() as stack:
        readers = []
        for _ in range(4):
            cluster = await stack.enter_async_context(story.cluster())
            reader = reader_of(cluster, OffsetReset.EARLIEST)
            readers.append(await stack.enter_async_context(reader))
        # The application of the grandparent's owner is not done with what it got.
        got = await asyncio.gather(*(polled(each, lambda: False, seconds=12) for each in readers))
        assert sorted(map(len, got)) == [0, 0, 0, 3], f"the grandchild's gate was open: {got}"
        got = await asyncio.gather(*(polled(each, lambda: False, seconds=5) for each in readers))
        assert sorted(map(len, got)) == [0, 0, 0, 1], f"the grandchild's gate stayed shut: {got}"


def take_no_offset_for_a_fence(patch: Patch) -> None:
    """Fences have the offset at which the data before them ends: several share one."""
    fence = describe_fences._Fence

    def shared(epoch: int, count: int, _: int, kind: int, end: int) -> Any:
        return fence(epoch, count, end, kind, end)

    patch.setattr(describe_fences, "_Fence", shared)


def reader_of(
    cluster: Cluster,
    reset: OffsetReset = OffsetReset.LATEST,
    auto_commit_ms: int = 300,
    options: FetchOptions | None = None,
) -> GroupReader:
    """Return a member of a group that reads the topic."""
    return GroupReader(
        cluster,
        "g",
        ["t"],
        reset=reset,
        auto_commit_ms=auto_commit_ms,
        options=options or FetchOptions(),
        session_timeout_ms=6_000,
        heartbeat_interval_ms=500,
        partition_check_ms=500,
    )


async def polled(
    reader: GroupReader, until: Callable[[], bool], *, enough: int = 1, seconds: float = 30.0
) -> list[bytes]:
    """Poll until a condition holds, or enough values came, or the time is over."""
    got: list[bytes] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while not until() and len(got) < enough:
                with contextlib.suppress(ClientError):
                    for piece in await reader.poll(200):
                        got += [bytes(row.value or b"") for row in piece.rows()]
                await asyncio.sleep(0.01)
    return got


def _fences(node: BrokerNode, partition: int = 0) -> int:
    assert node.running is not None
    hosted = node.running.broker.partitions.get("t", partition)
    return 0 if hosted is None else len(hosted.log.fences.entries)


async def _read(run: ScriptedRun, partition: int) -> list[bytes]:
    """Return the values of a partition, which count for the verdict."""
    final = await read_whole(target(run.outside, "t", partition), seconds=60)
    run.history.finals.append(final)
    return [final.records[offset] for offset in sorted(final.records)]


SEEDS = {"a_late_coordinator_lets_no_group_skip": 5}
"""Of stories that need a broker to have a role; 0 for the others."""


class ResizedRun(ScriptedRun):
    """A run on four brokers in which a retired partition goes as soon as it is empty."""

    def __init__(self, story: Script) -> None:
        configs = {"min.insync.replicas": "2"}
        super().__init__(SEEDS.get(story.__name__, 0), story, "replicated", configs, brokers=4)

    def _configs(self) -> dict[str, str]:
        return {**super()._configs(), "retired.purge.delay.ms": "0"}


def run_story(story: Script) -> Result:
    """Run a story of this module."""
    return ResizedRun(story).run()


STORIES: tuple[tuple[Script, Callable[[Patch], None]], ...] = (
    (a_batch_of_an_earlier_leader_is_not_refused_for_good, refuse_above_the_watermark),
    (
        a_deposed_leader_of_a_former_incarnation_acknowledges_nothing,
        know_batches_before_incarnations,
    ),
    (a_survivor_takes_nothing_of_a_shrink_before_every_seal, count_per_topic),
    (the_last_report_of_a_position_counts, take_the_highest_report),
    (
        a_member_that_resets_to_latest_skips_nothing_later,
        read_before_a_reset_is_committed,
    ),
    (a_grandchild_waits_until_its_empty_parent_is_open, take_no_offset_for_a_fence),
    (a_late_coordinator_lets_no_group_skip, begin_where_a_late_coordinator_knows_nothing),
)
