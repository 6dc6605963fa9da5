"""One full disk with logs and metadata store (promise 28): it is cured by the means of an operator.

Deleting a topic, a shorter retention and DeleteRecords need the controller, whose store writes to
the same disk; and a start must pass on it, after a clean stop and after a kill.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

from tests.support import clients
from tests.support.clients import Record
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import TidelogNode, run_tidelog
from tests.support.small_disk import SmallDisk
from tests.support.target import TARGET

pytestmark = [
    pytest.mark.kill,
    pytest.mark.long(30),
    pytest.mark.skipif(TARGET != "tidelog", reason="its own store of metadata"),
]

MB = 1024 * 1024


@pytest.fixture
def full(tmp_path: Path) -> Iterator[tuple[TidelogNode, SmallDisk]]:
    node = TidelogNode(
        tmp_path / "node",
        {
            "metadata.store": None,  # its place is the first log directory
            "log.retention.check.interval.ms": 200,
            "log.segment.delete.delay.ms": 100,
        },
    )
    with SmallDisk(node) as disk, node:
        for topic in ("deleted", "shortened", "cut"):
            clients.create_topic(node.bootstrap, topic, **{"segment.bytes": MB})
            records = [Record(None, "x" * 100_000) for _ in range(40)]
            clients.write_confluent(node.bootstrap, topic, records, "none")
        disk.fill()
        yield node, disk


def test_a_full_disk_is_cured_through_the_controller(full: tuple[TidelogNode, SmallDisk]) -> None:
    node, disk = full

    def makes_room(what: str) -> None:
        free = lambda: os.statvfs(node.data).f_bavail * os.statvfs(node.data).f_frsize  # noqa: E731
        if disk.is_mounted:
            wait_until(lambda: free() > MB, DEADLINE_S, lambda: node.said(what))
        disk.fill()

    at = ("--bootstrap-server", node.bootstrap)
    # A clean stop ends the session of the store, and a kill does not.
    assert node.stop() == 0, node.said("stops")
    node.start()
    deleted = run_tidelog("topics", *at, "--delete", "--topic", "deleted")
    assert deleted.returncode == 0, deleted
    makes_room("the topic is deleted")
    node.kill()
    node.start()
    config = ("--entity-type", "topics", "--entity-name", "shortened")
    shortened = run_tidelog(
        "configs", *at, "--alter", *config, "--add-config", f"retention.bytes={MB}"
    )
    assert shortened.returncode == 0, shortened
    makes_room("the retention is shorter")
    node.restart()
    admin = clients.admin(node.bootstrap)
    place = confluent_kafka.TopicPartition("cut", 0, 30)
    (answer,) = admin.delete_records([place]).values()
    assert answer.result(DEADLINE_S).low_watermark == 30
    makes_room("the records are deleted")
    # What is left is still there, and goes on when there is room.
    disk.free()
    clients.write_confluent(node.bootstrap, "cut", [Record(None, "last")], "none")
    assert "deleted" not in admin.list_topics(timeout=DEADLINE_S).topics
    left = run_tidelog("consume", *at, "--topic", "cut", "--from-beginning", "--max-messages", "11")
    assert left.stdout.splitlines()[-1:] == ["last"], node.said("serves")
    reserve = node.log_folder() / "metadata.sqlite.reserve"
    clients.create_topic(node.bootstrap, "after")
    wait_until(reserve.exists, DEADLINE_S, lambda: node.said("the reserve is there again"))
