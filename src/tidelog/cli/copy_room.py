"""Whether a copy has room on its target: one judgement for ``--watch`` and ``tidelog doctor``.

Owns the rule. A controller does not know the log directories, so its findings do not have it.
"""

from __future__ import annotations

from collections.abc import Sequence

from tidelog.client.admin.nodes import LogDir
from tidelog.model.topics import TopicPartition


def lacks_room(dirs: Sequence[LogDir], tp: TopicPartition, size: int) -> bool:
    """Whether the log directory with a copy, or all if none has it, lack this many bytes."""
    holding = [entry for entry in dirs if tp in entry.replicas] or dirs
    return bool(dirs) and all(
        entry.error is not None or 0 <= entry.usable_bytes < size for entry in holding
    )
