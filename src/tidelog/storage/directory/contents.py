"""The directories in a log directory, by what their names say they are.

Owns the listing. Not what is done with each kind: see `log_directory`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tidelog.model.topics import TopicPartition
from tidelog.runtime.disk import Disk
from tidelog.storage import names


@dataclass(slots=True)
class Contents:
    """Paths by kind; of strays and of others only the names are of interest."""

    hosted: list[tuple[TopicPartition, str]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    futures: dict[TopicPartition, str] = field(default_factory=dict)
    strays: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)


def contents_of(disk: Disk, directory: str) -> Contents:
    """List a log directory. OSError as the disk gives it."""
    contents = Contents()
    for name in disk.list(directory):
        path = f"{directory}/{name}"
        if not disk.is_directory(path):
            continue
        parsed = names.parse_directory(name)
        if parsed is None:
            contents.unknown.append(name)
        elif parsed.ending == names.DELETE_DIRECTORY:
            contents.deleted.append(path)
        elif parsed.ending == names.STRAY_DIRECTORY:
            contents.strays.append(name)
        elif parsed.ending == names.FUTURE_DIRECTORY:
            if contents.futures.setdefault(parsed.partition, path) != path:
                contents.deleted.append(path)  # a power loss brought one back
        else:
            contents.hosted.append((parsed.partition, path))
    return contents
