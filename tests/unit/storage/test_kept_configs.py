"""A start opens a topic's logs with the configuration of the topic, which its replicas keep."""

from __future__ import annotations

import uuid
from pathlib import Path

from tests.support.kept_configs import KEPT, on_disk
from tests.support.storage_logs import NOW_MS, batch, new_log, open_as_a_server, reopen, resources
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.work import finish
from tidelog.storage.checkpoints import (
    PartitionMetadata,
    decode_partition_metadata,
    encode_partition_metadata,
)

COMPACT = TopicConfigs(cleanup_policy=frozenset({"compact"}), segment_bytes=1000)


def test_a_start_opens_a_log_with_the_configuration_of_its_topic(tmp_path: Path) -> None:
    """S2: it was opened with the defaults, as no controller has spoken yet."""
    log = new_log(tmp_path, COMPACT)
    log.append_as_leader(batch(), 0, NOW_MS)
    assert log.close()
    ((_, found),) = open_as_a_server(tmp_path, resources()).logs.items()
    assert found.configs == COMPACT
    assert found.metadata is not None and found.metadata.configs == KEPT


def test_the_file_is_what_kafka_and_02f3bcb_read(tmp_path: Path) -> None:
    texts = (("a", "x:y=z&crc32c: 1\n"), ("b", ""), ("ü", "ä ö"))
    metadata = PartitionMetadata(uuid.UUID(int=5), 3, texts)
    content = encode_partition_metadata(metadata)
    assert decode_partition_metadata(content) == metadata
    lines = content.decode("ascii").splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "version",
        "topic_id",
        "partition_epoch",
        "configs",
        "crc32c",
    ]
    plain = PartitionMetadata(uuid.UUID(int=5), 3)
    assert b"configs" not in encode_partition_metadata(plain)


def test_changed_configurations_are_kept_durably(tmp_path: Path) -> None:
    log = new_log(tmp_path)
    log.sync()
    assert finish(log.keeping_configs(KEPT)) and not finish(log.keeping_configs(KEPT))
    pending = log.unsynced(closed_only=True)
    assert pending is not None
    assert any(file.path.endswith("partition.metadata") for file in pending.files)
    pending.run()
    log.synced(pending)
    assert on_disk(tmp_path) == KEPT
    found = reopen(tmp_path)
    assert finish(found.keeping_configs(())) and on_disk(tmp_path) == ()
