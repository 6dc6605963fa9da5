"""Compacted logs on disk: records by key, runs of the cleaner, what is left."""

from __future__ import annotations

import pickle

from tests.support.storage_logs import NOW_MS, QuickDisk, records_of
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.work import finish
from tidelog.records.builder import NO_PRODUCER, NewRecord, Producer, build_batch
from tidelog.storage.compaction.cleaner import compact
from tidelog.storage.compaction.plan import ENTRY_BYTES, WHOLE, Share, plan_compaction
from tidelog.storage.compaction.swap import applying
from tidelog.storage.log.partition_log import PartitionLog
from tidelog.storage.log.results import Appended

COMPACT = TopicConfigs(
    cleanup_policy=frozenset({"compact"}),
    segment_bytes=900,
    min_cleanable_dirty_ratio=0.01,
    index_interval_bytes=100,
    delete_retention_ms=1000,
    file_delete_delay_ms=0,
)


def put(
    log: PartitionLog,
    *pairs: tuple[str, str | None],
    producer: Producer = NO_PRODUCER,
    codec: int = 0,
    now_ms: int = NOW_MS,
) -> int:
    records = [
        NewRecord(now_ms, key.encode(), None if value is None else value.encode())
        for key, value in pairs
    ]
    got = log.append_as_leader(build_batch(records, producer=producer, codec=codec), 0, now_ms)
    assert isinstance(got, Appended), got
    log.high_watermark = log.end_offset
    return got.first_offset


def clean(
    log: PartitionLog,
    now_ms: int = NOW_MS,
    share: Share = WHOLE,
    *,
    keeps_tombstones: bool = False,
) -> str | None:
    log.sync()
    plan = plan_compaction(log, now_ms, share=share, keeps_tombstones=keeps_tombstones)
    if plan is None:
        return None
    result = pickle.loads(pickle.dumps(compact(QuickDisk(), pickle.loads(pickle.dumps(plan)))))
    return finish(applying(log, result, now_ms))


def few(keys: int) -> Share:
    """What a run may use that has room for so many keys."""
    return Share(buffer_bytes=2 * keys * ENTRY_BYTES, load_factor=0.5)


def contents(log: PartitionLog) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for record in records_of(log):
        assert record.key is not None
        found[record.key.decode()] = None if record.value is None else record.value.decode()
    return found
