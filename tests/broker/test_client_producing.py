"""The sender against one broker: what the trouble of one partition is to the others."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.support.group_broker import done, read_back
from tests.support.lone_broker import LoneBroker, until
from tests.support.processes import DEADLINE_S
from tests.support.storage_logs import records_of
from tidelog.broker.handlers import metadata
from tidelog.client.cluster import Cluster, ClusterSettings
from tidelog.client.errors import ClientError, Refused
from tidelog.client.producing import flights
from tidelog.client.producing.lanes import Lane
from tidelog.client.producing.produce_requests import wait_for_replicas_ms
from tidelog.client.producing.sender import RecordSender
from tidelog.client.producing.settings import SendSettings
from tidelog.model.errors import ErrorCode
from tidelog.network.router import Handler, Router

REQUEST_TIMEOUT_MS = 2_000


class DenyingBroker(LoneBroker):
    """It leads partitions, and its metadata refuse the topics in ``denied``."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.denied: set[str] = set()

    def router(self, extra: Iterable[Handler] = ()) -> Router:
        routes = super().router(extra)
        true = metadata.HANDLER
        routes._handlers[true.api_key] = Handler(true.api_key, true.scope, self._metadata)
        return routes

    async def _metadata(self, broker: Any, request: Any, context: Any) -> Any:
        answer = done(metadata.HANDLER.handle(broker, request, context))
        if asyncio.iscoroutine(answer) or asyncio.isfuture(answer):
            answer = done(await answer)
        answer = read_back(metadata, context.version, answer)
        for topic in answer.topics:
            if topic.name in self.denied:
                topic.error_code = int(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
                topic.partitions = []
        return answer


def test_a_final_error_of_one_topic_fails_only_what_was_looked_up(tmp_path: Path) -> None:
    async def story() -> None:
        lone = DenyingBroker(tmp_path)
        await lone.start()
        lone.lead("good")
        lone.lead("bad")
        async with (
            asyncio.timeout(DEADLINE_S),
            Cluster(lone.bootstrap) as cluster,
            RecordSender(cluster, SendSettings(linger_ms=3_600_000, batch_bytes=300)) as sender,
        ):
            for topic in ("good", "bad"):
                first = await sender.send(topic, b"1")
                await sender.flush()
                assert first.result().offset == 0
            # The partition moves, and the client may not look up its new leader.
            lone.lead("bad", leader=2, epoch=1)
            lone.denied.add("bad")
            lingers = await sender.send("good", b"2")
            # What fills a batch goes out at once; the last record lingers after it.
            refused = [await sender.send("bad", b"x" * 250) for _ in range(2)]
            for outcome in refused:
                with pytest.raises(Refused, match="bad-0: TOPIC_AUTHORIZATION_FAILED"):
                    await outcome
            assert not lingers.done()
            await sender.flush()
            assert lingers.result().offset == 1
        await lone.stop()

    asyncio.run(story())


def test_a_leader_answers_before_the_connection_is_given_up() -> None:
    for request_timeout_ms in (1, 3, 100, 1_000, 30_000, 3_600_000):
        wait_ms = wait_for_replicas_ms(request_timeout_ms)
        assert 1 <= wait_ms <= request_timeout_ms
        assert request_timeout_ms < 4 or wait_ms < request_timeout_ms
    assert wait_for_replicas_ms(30_000) == 27_000


def test_a_slow_partition_does_not_close_the_connection_of_the_others(tmp_path: Path) -> None:
    async def story() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        lone.lead("fast")
        # Its second replica never asks for anything.
        lone.lead("slow", isr=(1, 2), replicas=(1, 2))
        settings = ClusterSettings(request_timeout_ms=REQUEST_TIMEOUT_MS)
        async with asyncio.timeout(DEADLINE_S), Cluster(lone.bootstrap, settings) as cluster:
            sender = RecordSender(cluster, SendSettings(linger_ms=3_600_000))
            waits = await sender.send("slow", b"1")
            goes = await sender.send("fast", b"1")
            flushing = asyncio.create_task(sender.flush())
            await until(lambda: sender.delivery.connections)
            connection = sender.delivery.connections[Lane(1)]
            # One request for both, and its answer comes when the slow one's time is over.
            assert (await goes).offset == 0
            assert not waits.done()
            assert not connection.closed
            # Its second replica is there in the end.
            lone.lead("slow", isr=(1,), replicas=(1,), epoch=1)
            assert (await waits).offset == 0
            await flushing
            await sender.close()
        await lone.stop()

    asyncio.run(story())


def test_a_partition_that_waits_for_its_replicas_holds_up_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All partitions of a leader waited with the one whose follower is stopped."""
    monkeypatch.setattr(flights, "LATE_S", 0.02)

    async def story() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        logs = {"fast": lone.lead("fast").log}
        logs["slow"] = lone.lead("slow", isr=(1, 2), replicas=(1, 2)).log
        async with asyncio.timeout(DEADLINE_S), Cluster(lone.bootstrap) as cluster:
            sender = RecordSender(cluster, SendSettings(linger_ms=0))
            sent: dict[str, list[asyncio.Future[Any]]] = {"fast": [], "slow": []}
            for number in range(20):
                for name, futures in sent.items():
                    futures.append(await sender.send(name, b"%d" % number))
                await asyncio.sleep(0)
            await asyncio.gather(*sent["fast"])
            assert not any(each.done() for each in sent["slow"])
            lone.lead("slow", isr=(1,), replicas=(1,), epoch=1)
            await asyncio.gather(*sent["slow"])
            for name, futures in sent.items():
                assert [each.result().offset for each in futures] == list(range(20))
                values = [record.value for record in records_of(logs[name])]
                assert values == [b"%d" % number for number in range(20)], "each once, in order"
            await sender.close()
        await lone.stop()

    asyncio.run(story())


def test_a_sender_that_closes_takes_nothing_more_and_writes_what_it_took(tmp_path: Path) -> None:
    """A busy sender must not keep ``close`` from ending, nor add to what is never sent."""

    async def story() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        lone.lead("t")
        async with asyncio.timeout(DEADLINE_S), Cluster(lone.bootstrap) as cluster:
            settings = SendSettings(linger_ms=3_600_000, buffer_bytes=400)
            sender = RecordSender(cluster, settings)
            taken = await sender.send("t", b"x" * 250)
            # There is no memory for this one, and it waits.
            waits = asyncio.ensure_future(sender.send("t", b"y" * 250))
            await asyncio.sleep(0)
            closing = asyncio.ensure_future(sender.close())
            await asyncio.sleep(0)
            with pytest.raises(ClientError, match="this producer is closed"):
                await sender.send("t", b"z")
            with pytest.raises(ClientError, match="this producer is closed"):
                await waits
            await closing
            assert taken.result().offset == 0
            async with RecordSender(cluster) as other:
                after = await other.send("t", b"z")
                await other.flush()
                assert after.result().offset == 1
        await lone.stop()

    asyncio.run(story())


def test_a_close_that_is_cancelled_gives_up_what_is_not_written(tmp_path: Path) -> None:
    async def story() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        lone.lead("t")
        async with asyncio.timeout(DEADLINE_S), Cluster(lone.bootstrap) as cluster:
            sender = RecordSender(cluster, SendSettings(linger_ms=3_600_000))
            first = await sender.send("t", b"1")
            await sender.flush()
            assert first.result().offset == 0
            # The partition has no leader now: what is sent stays where it is.
            lone.lead("t", leader=2, epoch=1)
            open_one = await sender.send("t", b"2")
            closing = asyncio.ensure_future(sender.close())
            await asyncio.sleep(0)
            flushing = asyncio.ensure_future(sender.flush())
            await asyncio.sleep(0)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
            with pytest.raises(ClientError, match="closed before this was acknowledged"):
                await open_one
            await flushing
            left = [task.get_name() for task in asyncio.all_tasks()]
            assert not [name for name in left if name.startswith("producer: ")]
        await lone.stop()

    asyncio.run(story())
