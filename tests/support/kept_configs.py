"""Configurations of a topic, and what the file of a replica keeps of them."""

from __future__ import annotations

from pathlib import Path

from tidelog.storage.checkpoints import (
    KeptConfigs,
    decode_partition_metadata,
)

KEPT = (("cleanup.policy", "compact"), ("segment.bytes", "1000"))


def on_disk(folder: Path) -> KeptConfigs:
    content = (folder / "t-0" / "partition.metadata").read_bytes()
    return decode_partition_metadata(content).configs
