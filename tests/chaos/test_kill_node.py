"""kill -9 in mid-stream, many times: nothing acked is lost, nothing twice of the idempotent one.

`TIDELOG_KILLS` (default 20) and `TIDELOG_SEED` set how often and when; the seed is printed.
`make chaos` kills more often and with both durabilities.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable

import pytest
from tests.conftest import TARGET
from tests.support import clients
from tests.support.acked_stream import GroupReader, Writer, read_all, violations
from tests.support.node import Node
from tests.support.processes import SIGCONT, SIGSTOP, wait_until

pytestmark = pytest.mark.kill

KILLS = int(os.environ.get("TIDELOG_KILLS", "20"))
SEED = int(os.environ.get("TIDELOG_SEED", str(random.SystemRandom().randrange(2**32))))
PARTITIONS = 3
TOPIC = "stream"
DURABILITIES = ["replicated", "sync"] if os.environ.get("TIDELOG_KILLS") else ["replicated"]


def begin(node: Node) -> tuple[list[Writer], GroupReader]:
    """An idempotent writer, a plain one, and a group that reads both."""
    clients.create_topic(node.bootstrap, TOPIC, PARTITIONS, segment_bytes=1 << 20)
    writers = [
        Writer(node.bootstrap, TOPIC, "idempotent", PARTITIONS, idempotent=True),
        Writer(node.bootstrap, TOPIC, "plain", PARTITIONS, idempotent=False),
    ]
    reader = GroupReader(node.bootstrap, TOPIC, "readers")
    for part in (*writers, reader):
        part.start()
    return writers, reader


def acked(writers: list[Writer]) -> int:
    return sum(len(writer.acked) for writer in writers)


def check(node: Node, writers: list[Writer], reader: GroupReader) -> None:
    """Let all come to rest, then hold the books against the topic."""
    for writer in writers:
        writer.finish()
    found = read_all(node.bootstrap, TOPIC, PARTITIONS)
    wait_until(lambda: len(reader.seen) >= len(set(found.values())), 30, "the group catches up")
    reader.finish()
    for writer in writers:
        assert not writer.failed, f"{writer.name}: {len(writer.failed)} {writer.failed[:3]}"
    wrong = violations(writers, found, reader)
    assert not wrong, f"{len(wrong)} broken promises, seed {SEED}:\n" + "\n".join(wrong[:20])


@pytest.mark.parametrize("durability", DURABILITIES)
def test_killed_in_mid_stream(make_node: Callable[..., Node], durability: str) -> None:
    print(f"seed {SEED}, {KILLS} kills: TIDELOG_SEED={SEED} replays the moments")
    moments = random.Random(SEED)
    config = {} if TARGET == "kafka" else {"log.durability": durability}
    node = make_node(config)
    writers, reader = begin(node)
    slowest_start_s = 0.0
    for _ in range(KILLS):
        # Both must be at work again, and then some more: the kill falls anywhere in their work.
        enough = [len(writer.acked) + moments.randrange(1, 800) for writer in writers]
        wait_until(
            lambda enough=enough: all(
                len(w.acked) >= n for w, n in zip(writers, enough, strict=True)
            ),
            60,
            "both writers go on; " + ", ".join(writer.state() for writer in writers),
            pause_s=0.001,
        )
        node.kill()
        node.start()
        slowest_start_s = max(slowest_start_s, node.started_in_s)
    print(f"{acked(writers)} records acked; slowest start {slowest_start_s:.2f} s")
    check(node, writers, reader)


def test_stopped_cleanly_in_mid_stream(make_node: Callable[..., Node]) -> None:
    node = make_node()
    writers, reader = begin(node)
    for _ in range(3):
        before = acked(writers)
        wait_until(lambda before=before: acked(writers) > before + 500, 60, "the writers go on")
        begun = time.monotonic()
        status = node.stop(deadline_s=20)
        assert status == (143 if TARGET == "kafka" else 0), node.said("stops cleanly")
        assert time.monotonic() - begun < 10
        node.start()
    check(node, writers, reader)


def test_frozen_in_mid_stream(make_node: Callable[..., Node]) -> None:
    """SIGSTOP longer than the group's session, then SIGCONT: slow, but nothing is wrong."""
    node = make_node()
    writers, reader = begin(node)
    wait_until(lambda: acked(writers) > 500, 60, "the writers are at work")
    node.program.send(SIGSTOP)
    frozen_at = time.monotonic()
    wait_until(lambda: time.monotonic() - frozen_at > 7, 20, "longer than a session")
    node.program.send(SIGCONT)
    before = acked(writers)
    wait_until(lambda: acked(writers) > before + 2000, 60, "the writers go on")
    check(node, writers, reader)
