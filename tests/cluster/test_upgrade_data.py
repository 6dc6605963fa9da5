"""A data directory and a store that 02f3bcb has left start under this code, with all that was in
them: after a clean stop, after kill -9, and after the loss of power.

The fixture's compacted topic has leader epochs that 02f3bcb wrote too high (fault S2).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients import Record, write_confluent
from tests.support.old_release import (
    COMPACTED,
    CONFIG,
    PARTITIONS,
    PLAIN,
    Books,
    committed,
    contents,
    topic_ids,
    unpack_fixture,
)
from tests.support.server import TidelogNode
from tests.support.target import TARGET
from tidelog.storage.checkpoints import decode_epochs, decode_partition_metadata
from tidelog.storage.names import EPOCH_CHECKPOINT, EPOCH_CHECKSUM, LIFE

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(TARGET != "tidelog", reason="tidelog's own files"),
]


THIS_BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def newest(records: dict[str, list[str]]) -> dict[str, str]:
    """Key -> value of the record with the greatest offset."""
    return {key: value for _, (key, value) in sorted(records.items(), key=lambda r: int(r[0]))}


def is_all_there(node: TidelogNode, books: Books) -> None:
    assert topic_ids(node.bootstrap) == books.topic_ids
    assert committed(node.bootstrap) == books.committed
    plain = contents(node.bootstrap, PLAIN)
    assert plain == books.records[PLAIN]
    for partition, records in contents(node.bootstrap, COMPACTED).items():
        before = books.records[COMPACTED][partition]
        assert records.items() <= before.items(), "it may have been compacted again"
        assert newest(records) == newest(before)


def epochs_of(node: TidelogNode) -> dict[int, int]:
    folder = node.data / f"{COMPACTED}-0"
    return dict(decode_epochs((folder / EPOCH_CHECKPOINT).read_bytes()))


@pytest.mark.parametrize(
    ("which", "boot"),
    [("clean", THIS_BOOT), ("killed", THIS_BOOT), ("killed", "another")],
    ids=["a clean stop", "kill -9", "a loss of power"],
)
def test_what_02f3bcb_left_is_all_there(which: str, boot: str, tmp_path: Path) -> None:
    node = TidelogNode(tmp_path / "node", CONFIG)
    books = unpack_fixture(node.folder, which)
    (node.data / LIFE).write_text(f"boot.id={boot}\nlog.durability=replicated\n")
    true = dict(enumerate(books.epochs))
    before = epochs_of(node)
    assert any(before[epoch] > start for epoch, start in true.items() if epoch in before), (
        "the fixture has what 02f3bcb got wrong"
    )
    with node:
        is_all_there(node, books)
        after = epochs_of(node)
        for epoch, start in true.items():
            assert after.get(epoch, 0) <= start, after
        node.restart()
        is_all_there(node, books)
        folders = [
            node.data / f"{topic}-{number}"
            for topic in (PLAIN, COMPACTED)
            for number in range(PARTITIONS)
        ]
        for folder in folders:
            assert (folder / EPOCH_CHECKSUM).exists(), folder
            metadata = decode_partition_metadata((folder / "partition.metadata").read_bytes())
            assert ("segment.bytes", "2000") in metadata.configs, "a start knows its topic"
        write_confluent(node.bootstrap, PLAIN, [Record("k", "new")], "none")
        assert node.stop() == 0, node.said("stopped cleanly")
    assert "Traceback" not in node.log.read_text(), node.said("had no error")
