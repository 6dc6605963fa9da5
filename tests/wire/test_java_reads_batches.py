"""Kafka's own reader reads each batch that a leader takes with ``log.batch.check=full`` (B2).

The other readers of the kind: see ``tests/broker/test_batches_and_readers.py``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import java
from tests.support.lying_batches import family
from tests.support.storage_logs import NOW_MS, new_log
from tidelog.model.configs.topic import TopicConfigs
from tidelog.records.batch import Rejected, read_header
from tidelog.records.reader import read_batch
from tidelog.records.record import Record

SEEDS, PER_SEED = range(4), 180
CONFIGS = TopicConfigs(max_message_bytes=40_000_000)


def text(content: bytes | None) -> str:
    return "null" if content is None else "x" + content.hex()


def line(record: Record) -> str:
    fields = [str(record.offset), str(record.timestamp), text(record.key), text(record.value)]
    headers = [f"{text(name.encode())}={text(content)}" for name, content in record.headers]
    return " ".join(fields + headers) + ","


@pytest.mark.java
def test_kafka_reads_what_is_taken(tmp_path: Path) -> None:
    why = java.missing()
    if why:
        pytest.skip(why)
    log = new_log(tmp_path / "log", CONFIGS, checks_records=True)
    claims, stored, expected = [], [], []
    for seed in SEEDS:
        for lie in family(seed, NOW_MS, PER_SEED):
            got = log.append_as_leader(lie.batch, 0, NOW_MS)
            if isinstance(got, Rejected) or got.duplicate:
                continue
            data = log.read(got.first_offset, 1)
            assert not isinstance(data, Rejected)
            if read_header(data).size > 100_000:
                continue
            claims.append(f"seed {seed}: {lie.claim}")
            stored.append(bytes(data).hex())
            expected.append("".join(map(line, read_batch(data))))
    given = tmp_path / "batches"
    given.write_text("\n".join(stored) + "\n")
    source = Path(__file__).with_name("ReadBatches.java")
    done = subprocess.run(
        ["java", *java.TOOL_FLAGS, "-cp", java.class_path("clients-3.9"), source, given],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    found = done.stdout.splitlines()
    assert len(found) == len(expected) > 50
    for claim, theirs, ours in zip(claims, found, expected, strict=True):
        assert theirs == ours, f"{claim}: {theirs[:200]}"
