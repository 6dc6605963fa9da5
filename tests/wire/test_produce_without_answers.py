"""A batch whose response was lost or was a refusal, while the next one is acknowledged.

Without an answer of its own an idempotent producer of librdkafka takes the first one for stored:
no broker takes a sequence whose predecessor it lacks. It reports no offset for it then. What it
reports must be there, and in order; and the books of the tests must bear such a report, which comes
when a leader's ISR shrinks and grows again within milliseconds, as when one broker returns in the
moment in which another is missed.
"""

from __future__ import annotations

from pathlib import Path

from tests.support.acked_stream import SOMEWHERE, Writer, lost_acks, read_all
from tests.support.lone_broker import LoneBroker, ThreadedBroker, until
from tests.support.processes import wait_until
from tidelog.broker.partitions.partition import HostedPartition

PATIENCE_MS = 100
"""How long a produce waits for the follower."""

PER_S = 60
"""So that several batches wait at once, and not for as long as each other."""


def lead(lone: LoneBroker) -> HostedPartition:
    configs = {"min.insync.replicas": "2"}
    return lone.lead("t", configs=configs, isr=(1, 2), replicas=(1, 2))


async def refuse_the_first_of_several(hosted: HostedPartition, writer: Writer) -> None:
    """After a while in which all goes well the follower stops fetching, until the oldest produce
    that waits was refused."""
    enough = len(writer.acked) + 10
    waiting = 0

    def all_goes_well() -> bool:
        hosted.follower_fetched(2, hosted.end_offset, 1)
        return writer.has_acked(enough)

    def one_was_refused() -> bool:
        nonlocal waiting
        before, waiting = waiting, len(hosted.waiting.commits.entries)
        return waiting < before

    await until(all_goes_well)
    await until(one_was_refused)
    hosted.follower_fetched(2, hosted.end_offset, 1)


async def keep_up(hosted: HostedPartition) -> None:
    """The follower has at once what is appended."""
    while True:
        await until(lambda: hosted.high_watermark < hosted.end_offset, 60)
        hosted.follower_fetched(2, hosted.end_offset, 1)


def test_what_is_acknowledged_without_an_answer_is_there(tmp_path: Path) -> None:
    node = ThreadedBroker(tmp_path)
    with node as lone:
        hosted: HostedPartition = node.run(lead)
        writer = Writer(
            lone.bootstrap,
            "t",
            "w",
            1,
            idempotent=True,
            per_s=PER_S,
            replicas_within_ms=PATIENCE_MS,
        )
        writer.start()

        def a_report_has_no_offset() -> bool:
            node.run(lambda _: refuse_the_first_of_several(hosted, writer))
            return (0, SOMEWHERE) in list(writer.acked.values())

        wait_until(a_report_has_no_offset, 60, writer.state)
        keeping_up = node.run(lambda lone: lone.broker.loop.create_task(keep_up(hosted)))
        writer.finish()
        node.run(lambda _: keeping_up.cancel())
        assert not writer.failed and not writer.wrong, writer.state()
        found = read_all(lone.bootstrap, "t", 1)
        assert not lost_acks(writer, found)
        values = [value for _, value in sorted(found.items())]
        assert values == [f"w:{number}" for number in range(writer.sent)]
