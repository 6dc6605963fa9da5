"""A real outbox commands a real broker: what its answers confirm."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest

from tests.support.broker_pair import slow_greeting
from tests.support.controlled_broker import ControlledBroker
from tests.support.controller_commands import OneBadPlace, quarantined
from tests.support.controller_world import DEFAULTS, World
from tests.support.lone_broker import LoneBroker, Peer, until
from tests.support.processes import DEADLINE_S
from tidelog.broker.control_plane.seen_epochs import SEEN_FILE, SeenEpochsFile
from tidelog.broker.metadata.configurations import EntityType
from tidelog.client.connecting import connection
from tidelog.controller import outbox as outboxes
from tidelog.controller.announcements import Announcements
from tidelog.controller.consequences import Kind
from tidelog.controller.decisions import deletion, journal
from tidelog.controller.decisions.completion import complete
from tidelog.controller.decisions.creation import TopicToCreate, create_topics
from tidelog.controller.decisions.decision import Decision
from tidelog.controller.decisions.deletion import PendingDelete, delete_topics
from tidelog.controller.decisions.growth import Growth, create_partitions
from tidelog.controller.decisions.nodes import take
from tidelog.controller.decisions.settlement import put_state
from tidelog.controller.decisions.stops import Stop, stops_of
from tidelog.controller.outbox import Outbox
from tidelog.controller.pending import Changes, changes_of
from tidelog.controller.requests import Sender
from tidelog.metadata import layout
from tidelog.metadata.store import Set
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages
from tidelog.protocol.primitives import NO_UUID
from tidelog.runtime.disk import RealDisk
from tidelog.runtime.seams import Seams

RETRY_MS = 20
BROKER_EPOCH = 7


class Office(World):
    """A controller's cluster, as far as its outboxes know it."""

    def __init__(self) -> None:
        super().__init__(1)
        self.sender = Sender(1, "PLAINTEXT")
        self.announcements = Announcements()
        self.secret = None
        self.tls = None
        self.confirmed: list[Stop] = []
        self._channels = 0

    def found_at(self, port: int) -> None:
        node = msgspec.structs.replace(
            self.cluster.brokers[1],
            endpoints=[f"PLAINTEXT://127.0.0.1:{port}"],
            broker_epoch=BROKER_EPOCH,
        )
        self.cluster.brokers[1] = node

    def channel_key(self, broker: int) -> UUID:
        # As a controller of a version without keys: this broker was given none.
        return NO_UUID

    def next_channel_number(self) -> int:
        self._channels += 1
        return self._channels

    def changed(self, *kinds: Kind) -> None:
        pass

    async def stopped(self, broker: int, stops: Collection[Stop]) -> None:
        self.confirmed += stops
        self.do(deletion.confirm(self.cluster, broker, stops))


@asynccontextmanager
async def commanded(office: Office) -> AsyncIterator[Outbox]:
    """The channel of a controller, from its FULL on."""
    outbox = Outbox(office, 1, 5_000, RETRY_MS, random.Random(1))
    try:
        await until(lambda: outbox.reached >= 0)
        yield outbox
    finally:
        await outbox.close()


def test_a_broker_that_greets_slowly_is_commanded_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was given up after ten seconds, again and again."""
    asked: list[int | None] = []
    least_ms = connection.CONNECT_TIMEOUT_MS
    monkeypatch.setattr(outboxes, "connect", slow_greeting(asked, 4 * least_ms))

    async def main() -> None:
        office, lone = Office(), ControlledBroker(tmp_path)
        await lone.start()
        office.found_at(lone.port)
        try:
            async with commanded(office):
                assert asked == [least_ms, 2 * least_ms, 4 * least_ms]
        finally:
            await lone.stop()

    asyncio.run(main())


def test_a_full_is_looked_at_once_more_when_its_turn_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic cannot be read any more when configurations were sent: what a FULL does not name is
    removed, by a broker of an earlier version also what it names as unreadable."""
    sent: list[str] = []
    send, send_configs = Outbox._send, Outbox._send_configs

    async def main() -> None:
        office, lone = Office(), ControlledBroker(tmp_path)

        async def noted(self: Outbox, connection: Any, request: Any, version: int) -> Any:
            sent.append(type(request).__name__)
            response = await send(self, connection, request, version)
            if isinstance(request, messages.OpenControlChannelRequest):
                response.leaves_unreadable = False
            return response

        async def then_damaged(self: Outbox, connection: Any, configs: Any) -> None:
            await send_configs(self, connection, configs)
            path = layout.topic("t")
            office.cluster.damaged[path] = layout.Damaged(path, "it is torn")

        monkeypatch.setattr(Outbox, "_send", noted)
        monkeypatch.setattr(Outbox, "_send_configs", then_damaged)
        await lone.start()
        office.found_at(lone.port)
        office.create(TopicToCreate("t", 1, 1))
        outbox = Outbox(office, 1, 5_000, RETRY_MS, random.Random(1))
        try:
            await until(lambda: sent.count("OpenControlChannelRequest") == 2)
            assert sent.count("UpdateConfigsRequest") == 1
            assert "LeaderAndIsrRequest" not in sent
        finally:
            await outbox.close()
            await lone.stop()

    asyncio.run(main())


@asynccontextmanager
async def broker_with_two_topics(
    folder: Path, office: Office, disk: OneBadPlace
) -> AsyncIterator[LoneBroker]:
    lone = ControlledBroker(folder, {"log.dirs": f"{folder}/a,{folder}/b"}, Seams(disk=disk))
    await lone.start()
    try:
        office.found_at(lone.port)
        office.create(TopicToCreate("gone", 1, 1), TopicToCreate("kept", 1, 1))
        async with commanded(office):
            assert lone.broker.partitions.get("gone", 0) is not None
        yield lone
    finally:
        await lone.stop()


@pytest.mark.parametrize("fails", ["rename", "sync"])
def test_a_full_confirms_no_replica_that_could_not_be_quarantined(
    tmp_path: Path, fails: str
) -> None:
    async def work() -> None:
        office, disk = Office(), OneBadPlace()
        async with broker_with_two_topics(tmp_path, office, disk) as lone:
            hosted = lone.broker.partitions.get("gone", 0)
            assert hosted is not None
            place = Path(hosted.log.path).parent
            if fails == "rename":
                disk.bad = "gone-0"
            else:
                disk.unsynced = str(place)
            office.do(delete_topics(office.cluster, [PendingDelete("gone")]))
            assert len(stops_of(office.cluster, 1)) == 1
            for _ in range(2):
                # The second one finds no such replica any more, and knows better all the same.
                async with commanded(office):
                    assert lone.broker.partitions.get("gone", 0) is None
            assert lone.broker.directories[0].failed or lone.broker.directories[1].failed
            assert office.confirmed == []
            assert len(office.cluster.deletions) == 1

    asyncio.run(work())


def test_a_full_confirms_what_was_quarantined(tmp_path: Path) -> None:
    async def work() -> None:
        office, disk = Office(), OneBadPlace()
        async with broker_with_two_topics(tmp_path, office, disk) as lone:
            office.do(delete_topics(office.cluster, [PendingDelete("gone")]))
            async with commanded(office):
                assert lone.broker.partitions.get("kept", 0) is not None
            assert [stop.name for stop in office.confirmed] == ["gone"]
            assert office.cluster.deletions == {}
            assert len(quarantined(tmp_path, "stray")) == 1

    asyncio.run(work())


def write(office: Office, name: str, content: bytes) -> None:
    """Write a topic's node as another program does, and take it up as a watch does."""
    path = layout.topic(name)
    written = Set(path, content, office.cluster.versions[path])
    assert office.tree.apply(office.session, [written]) is None
    take(office.cluster, path, office.nodes()[path])


def damage(office: Office, name: str) -> bytes:
    """Tear a topic's node; return what it was."""
    whole = layout.encode(office.cluster.topics[name])
    write(office, name, b"torn")
    assert office.cluster.unreadable_topics == [name]
    return whole


async def shown(lone: LoneBroker, name: str) -> ErrorCode:
    """Return the error of a topic in a Metadata response that may create it."""
    peer = await Peer.connect(lone.port)
    topic = messages.MetadataRequest.MetadataRequestTopic(name=name)
    (found,) = (await peer.ask(messages.MetadataRequest(topics=[topic]), 8)).topics
    peer.writer.close()
    return ErrorCode(found.error_code)


def led(lone: LoneBroker) -> dict[str, int]:
    """Return the leader of each topic's partition that a broker hosts."""
    return {hosted.topic: hosted.state.leader for hosted in lone.broker.partitions.all()}


def test_a_topic_that_cannot_be_read_holds_up_no_other(tmp_path: Path) -> None:
    async def work() -> None:
        office = Office()
        async with broker_with_two_topics(tmp_path, office, OneBadPlace()) as lone:
            whole = damage(office, "gone")
            async with commanded(office):
                assert led(lone) == {"gone": 1, "kept": 1}
                assert lone.broker.metadata.partition("gone", 0) is not None
                assert await shown(lone, "gone") is ErrorCode.NONE
            await lone.stop()
            again = ControlledBroker(tmp_path, {"log.dirs": f"{tmp_path}/a,{tmp_path}/b"})
            await again.start()
            try:
                office.found_at(again.port)
                async with commanded(office) as outbox:
                    assert led(again) == {"gone": -1, "kept": 1}
                    assert await shown(again, "gone") is ErrorCode.LEADER_NOT_AVAILABLE
                    assert await shown(again, "kept") is ErrorCode.NONE
                    write(office, "gone", whole)
                    outbox.notice(Changes(partitions={TopicPartition("gone", 0)}))
                    await until(lambda: led(again)["gone"] == 1, DEADLINE_S)
                    await until(lambda: not again.broker.metadata.unreadable, DEADLINE_S)
                    assert await shown(again, "gone") is ErrorCode.NONE
            finally:
                await again.stop()
        assert not quarantined(tmp_path, "stray")

    asyncio.run(work())


def test_a_full_confirms_no_deletion_of_a_topic_that_it_cannot_speak_of(tmp_path: Path) -> None:
    """Another topic has the name since, and its node is torn: the broker keeps both."""

    async def work() -> None:
        office = Office()
        async with broker_with_two_topics(tmp_path, office, OneBadPlace()) as lone:
            office.do(delete_topics(office.cluster, [PendingDelete("gone")]))
            office.create(TopicToCreate("gone", 1, 1))
            damage(office, "gone")
            async with commanded(office):
                assert office.confirmed == []
                assert not quarantined(tmp_path, "stray")
                # The deletion is asked for by itself: it names the topic's id.
                await until(lambda: bool(office.confirmed), DEADLINE_S)
            assert lone.broker.partitions.get("gone", 0) is None
            assert office.cluster.deletions == {}

    asyncio.run(work())


def test_a_broker_keeps_the_revision_of_every_change_of_a_state(tmp_path: Path) -> None:
    """An ISR changes within a leader epoch: only the revision shows a store from before that."""

    async def work() -> None:
        office, where = Office(), TopicPartition("kept", 0)
        async with broker_with_two_topics(tmp_path, office, OneBadPlace()) as lone:
            file = SeenEpochsFile(RealDisk(), f"{tmp_path}/a/{SEEN_FILE}")
            async with commanded(office) as outbox:
                # The second one comes too soon after the first to be sent alone at once.
                for _ in range(2):
                    write = put_state(office.cluster, where, office.cluster.states[where])
                    changes = changes_of(office.cluster, [write])
                    office.commit((write,))
                    outbox.notice(changes)
                    now = office.cluster.revision
                    await until(lambda now=now: file.read().store_revision == now, DEADLINE_S)
            assert lone.broker.channel.seen_epochs.store_revision == office.cluster.revision

    asyncio.run(work())


def test_the_end_of_a_topic_is_no_change_of_its_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each replica stored the configuration without its values, and was deleted then: a sync for
    each, and errors for directories that were gone."""
    sent: list[str] = []
    send = Outbox._send

    async def noted(self: Outbox, channel: Any, request: Any, version: int) -> Any:
        sent.append(type(request).__name__)
        return await send(self, channel, request, version)

    monkeypatch.setattr(Outbox, "_send", noted)

    async def work() -> None:
        office, lone = Office(), ControlledBroker(tmp_path)
        await lone.start()
        office.found_at(lone.port)
        try:
            configs = (("retention.ms", "5"),)
            office.create(TopicToCreate("t", PARTITIONS, 1, configs=configs))
            async with commanded(office) as outbox:
                configured = lone.broker.topic_configs
                assert configured.of(EntityType.TOPIC, "t") == dict(configs)
                sent.clear()
                decision = delete_topics(office.cluster, [PendingDelete("t")])
                changes = changes_of(office.cluster, decision.writes)
                office.do(decision)
                outbox.notice(changes)
                await until(lambda: len(office.confirmed) == PARTITIONS, DEADLINE_S)
                await until(lambda: not configured.of(EntityType.TOPIC, "t"), DEADLINE_S)
            ordered = [x for x in sent if x in ("StopReplicaRequest", "UpdateConfigsRequest")]
            assert ordered == ["StopReplicaRequest", "UpdateConfigsRequest"]
        finally:
            await lone.stop()

    asyncio.run(work())
    files = list(tmp_path.glob("**/t-*-delete/partition.metadata"))
    assert len(files) == PARTITIONS
    assert all("retention.ms" in x.read_text() for x in files)


def test_a_command_for_a_thousand_partitions_writes_a_few_log_lines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Two lines for each deleted replica filled the log, and hid all others."""

    async def work() -> None:
        office, lone = Office(), ControlledBroker(tmp_path)
        await lone.start()
        office.found_at(lone.port)
        try:
            office.create(TopicToCreate("t", 1_000, 1))
            async with commanded(office) as outbox:
                caplog.clear()
                decision = delete_topics(office.cluster, [PendingDelete("t")])
                changes = changes_of(office.cluster, decision.writes)
                office.do(decision)
                outbox.notice(changes)
                await until(lambda: len(office.confirmed) == 1_000, DEADLINE_S)
        finally:
            await lone.stop()

    with caplog.at_level(logging.INFO):
        asyncio.run(work())
    lines = [x.getMessage() for x in caplog.records if "t-" in x.getMessage()]
    assert lines == [
        "t-0, t-1, t-2, t-3, t-4 and 995 more: deleted by StopReplica, leader epoch -2"
    ]
    assert len(caplog.records) < 30


PARTITIONS = 12


@pytest.mark.parametrize("channel", ["stays", "begins again"])
@pytest.mark.parametrize("kind", ["creation", "growth"])
def test_no_broker_knows_a_part_of_a_topic_that_takes_several_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, channel: str
) -> None:
    """Order of keys: a client that hashes them by a part of the count puts one key's records into
    two partitions. So between the commits, too, brokers know all partitions or the former ones."""
    monkeypatch.setattr(journal, "MANY", 1)

    async def work() -> None:
        office = Office()
        async with broker_with_two_topics(tmp_path, office, OneBadPlace()) as lone:
            if kind == "creation":
                name = "new"
                decision: Decision[Any] = create_topics(
                    office.cluster, [TopicToCreate(name, PARTITIONS, 1)], DEFAULTS, office.chance
                )
            else:
                name, asked = "kept", [Growth("kept", PARTITIONS)]
                decision = create_partitions(office.cluster, asked, office.chance)
            parts = list(journal.parts(decision, 700))
            assert len(parts) > 3, "this change is not cut"
            if channel == "stays":
                async with commanded(office) as outbox:
                    for part in parts:
                        outbox.notice(commit(office, tuple(part)))
                        now = office.cluster.revision
                        await until(lambda now=now: outbox.reached >= now)
                        check_known(lone, office, name)
            else:
                for part in parts:
                    commit(office, tuple(part))
                    async with commanded(office):
                        check_known(lone, office, name)
            assert known(lone, name) == set(range(PARTITIONS))
            assert lone.broker.partitions.get(name, PARTITIONS - 1) is not None

    asyncio.run(work())


def test_a_partition_that_waits_for_its_only_broker_counts_from_the_first_word_on(
    tmp_path: Path,
) -> None:
    """It gets its nodes when that broker registers; a coordinator, too, goes by the count."""

    async def work() -> None:
        office = Office()
        async with broker_with_two_topics(tmp_path, office, OneBadPlace()) as lone:
            office.cluster.brokers[2] = office.cluster.brokers[1]
            office.cluster.presumed.add(2)
            topic = TopicToCreate("new", assignment=((0, (1,)), (1, (2,)), (2, (1,))))
            made = create_topics(office.cluster, [topic], DEFAULTS, office.chance)
            async with commanded(office) as outbox:
                for decide in (lambda: made, lambda: complete(office.cluster, office.chance)):
                    outbox.notice(commit(office, decide().writes))
                    now = office.cluster.revision
                    await until(lambda now=now: outbox.reached >= now)
                    assert known(lone, "new") == {0, 1, 2}
                    office.cluster.presumed.discard(2)
            assert TopicPartition("new", 1) in office.cluster.states

    asyncio.run(work())


def commit(office: Office, writes: tuple[Any, ...]) -> Any:
    """Make writes durable, as a controller does; return what brokers must be sent."""
    changes = changes_of(office.cluster, writes)
    office.commit(writes)
    return changes


def known(lone: LoneBroker, name: str) -> set[int]:
    topic = lone.broker.metadata.topic(name)
    return set() if topic is None else set(topic.partitions)


def check_known(lone: LoneBroker, office: Office, name: str) -> None:
    node = office.cluster.topics.get(name)
    assert known(lone, name) == (set() if node is None else set(node.partitions))
