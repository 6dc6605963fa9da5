"""``min.insync.machines``: what a leader refuses while its ISR is on too few machines (0131)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.support.led_partition import append
from tests.support.lone_broker import LoneBroker, until
from tests.support.produce_fetch import LATEST, batch, produce, run, running, send
from tidelog.model.errors import ErrorCode
from tidelog.model.work import finish
from tidelog.protocol import messages

LONG_MS = 60_000
TWO = {"min.insync.machines": "2"}
FOUR = (1, 2, 3, 4)
PLACES = {1: "a/m", 2: "a/m", 3: "b/n", 4: "b/n"}


def place(lone: LoneBroker, racks: Mapping[int, str | None], host: str = "127.0.0.1") -> None:
    """Send a broker the live brokers with their racks."""
    request = messages.UpdateMetadataRequest
    end = request.UpdateMetadataEndpoint(port=lone.port, host=host, listener="PLAINTEXT")
    brokers = [
        request.UpdateMetadataBroker(id=node_id, endpoints=[end], rack=rack)
        for node_id, rack in racks.items()
    ]
    lone.broker.metadata.apply(request(controller_id=1, live_brokers=brokers), complete=False)


def test_an_isr_on_one_machine_is_too_small(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2, 3), replicas=FOUR, configs=TWO)
            place(lone, PLACES)
            peer.send(produce(batch("a"), timeout_ms=LONG_MS), LATEST)
            await until(lambda: len(hosted.waiting.commits.entries) == 1)
            hosted.follower_fetched(2, 1)
            assert hosted.high_watermark == 0, "broker 3 is in the ISR"

            # Machine b is gone: two replicas have the record, and one machine.
            hosted.take_isr((1, 2), 1)
            answer = (await peer.receive()).responses[0].partition_responses[0]
            assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            assert (hosted.end_offset, hosted.high_watermark) == (1, 0)
            refused = await send(peer, batch("b"))
            assert refused.error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            assert refused.error_message == (
                "t-0 has replicas in sync on 1 of the 2 machines that min.insync.machines asks for"
            )
            # With acks=1 it is appended; readers do not see it.
            assert (await send(peer, batch("c"), acks=1)).error_code == 0
            hosted.follower_fetched(2, 2)
            assert (hosted.end_offset, hosted.high_watermark) == (2, 0)

            hosted.take_isr((1, 2, 4), 2)
            hosted.follower_fetched(4, 2)
            assert hosted.high_watermark == 2

    run(main())


def test_a_change_in_flight_does_not_count_for_the_machines(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=FOUR, configs=TWO)
            place(lone, PLACES)
            assert (await send(peer, batch("a"), acks=1)).error_code == 0
            for node_id in (2, 3):
                hosted.follower_fetched(node_id, 1)
            assert hosted.high_watermark == 0, "broker 3 holds it, and no controller says so"
            hosted.take_isr((1, 2, 3), 1)
            assert hosted.high_watermark == 1

    run(main())


def test_brokers_that_name_no_machine_are_their_own(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, _):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2), configs=TWO)
            append(hosted)
            hosted.follower_fetched(2, 1)
            assert hosted.high_watermark == 0, "no broker is known yet"
            place(lone, {1: None, 2: None})
            await until(lambda: hosted.high_watermark == 1)

    run(main())


def test_another_machine_of_a_broker_counts_at_once(tmp_path: Path) -> None:
    """Broker 2 comes back on the machine of broker 1, then on its own again."""

    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=(1, 2), configs=TWO)
            place(lone, {1: "host-7", 2: "host-8"})
            place(lone, {1: "host-7"})
            peer.send(produce(batch("a"), timeout_ms=LONG_MS), LATEST)
            await until(lambda: len(hosted.waiting.commits.entries) == 1)
            # One that is not listed now keeps its machine; what waits is refused when it changes.
            place(lone, {1: "host-7", 2: "host-7"})
            assert (await send(peer, batch("b"))).error_code == (
                ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
            )
            assert (await peer.receive()).responses[0].partition_responses[0].error_code == (
                ErrorCode.NOT_ENOUGH_REPLICAS
            )
            hosted.follower_fetched(2, 1)
            assert hosted.high_watermark == 0
            place(lone, {1: "host-7", 2: "host-8"})
            await until(lambda: hosted.high_watermark == 1)

    run(main())


def test_a_raised_minimum_of_machines_ends_the_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (lone, peer):
            hosted = lone.lead("t", isr=(1, 2), replicas=FOUR)
            place(lone, PLACES)
            peer.send(produce(batch("a"), timeout_ms=LONG_MS), LATEST)
            await until(lambda: len(hosted.waiting.commits.entries) == 1)
            finish(lone.broker.topic_configs.apply([(2, "t", TWO)], complete=False))
            answer = (await peer.receive()).responses[0].partition_responses[0]
            assert answer.error_code == ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND

    run(main())


def test_the_default_of_the_file_counts_for_every_topic(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, dict(TWO)) as (lone, peer):
            lone.lead("t", isr=(1, 2), replicas=FOUR)
            place(lone, PLACES)
            assert (await send(peer, batch("a"))).error_code == ErrorCode.NOT_ENOUGH_REPLICAS
            lone.lead("single", isr=(1,), replicas=(1,))
            single = lone.broker.partitions.get("single", 0)
            assert single is not None
            append(single)
            assert single.high_watermark == 1, "capped at its replicas"

    run(main())
