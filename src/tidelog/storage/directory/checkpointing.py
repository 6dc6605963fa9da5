"""Writing the checkpoint files of a log directory, in any thread, in the order of their moments.

Owns that order: an older checkpoint never replaces what a newer one wrote, whichever thread is
late. Not the meaning of the offsets: see `claims`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

from tidelog.model.topics import TopicPartition
from tidelog.runtime.disk import Disk
from tidelog.storage.checkpoints import encode_offsets

Content = bytes | dict[TopicPartition, int]
"""The content of a file: bytes, or the offsets of an offset checkpoint, which the thread
encodes."""


class Checkpoint:
    """The checkpoint files of one moment, written by ``run`` in any thread."""

    def __init__(
        self,
        owner: Checkpoints,
        number: int,
        files: dict[str, Content],
        named: frozenset[TopicPartition],
    ) -> None:
        self.number = number
        self.named = named
        """The partitions that the files name."""
        self.files = files
        self.error: OSError | None = None
        self._owner = owner

    def run(self) -> None:
        """Replace the files durably, unless a newer checkpoint did. Blocks; a failure is kept in
        ``error``.
        """
        try:
            self._owner.write(self)
        except OSError as error:
            self.error = error


class Checkpoints:
    """The contents of the checkpoint files of one directory. ``write`` is for any thread."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lock = threading.Lock()
        self._number = 0
        self._newest_begun = 0
        self._newest_failure: OSError | None = None
        self._written: dict[str, Content] = {}

    def changed(
        self, contents: Mapping[str, Content], named: frozenset[TopicPartition] = frozenset()
    ) -> Checkpoint | None:
        """Return the checkpoint to write so that the files say ``contents``; None when they do."""
        files = {
            path: content
            for path, content in contents.items()
            if self._written.get(path) != content
        }
        if not files:
            return None
        for path in files:
            # Until the write has ended, the content of the file is unknown.
            self._written.pop(path, None)
        self._number += 1
        return Checkpoint(self, self._number, files, named)

    def write(self, checkpoint: Checkpoint) -> None:
        """Replace the files of ``checkpoint``, one checkpoint at a time. OSError if it fails.

        A checkpoint that a newer one has overtaken is as durable as the newer one: it fails with
        the newer one's error.
        """
        with self._lock:
            if checkpoint.number < self._newest_begun:
                if self._newest_failure is not None:
                    raise self._newest_failure
                return
            self._newest_begun, self._newest_failure = checkpoint.number, None
            try:
                for path, content in checkpoint.files.items():
                    if not isinstance(content, bytes):
                        content = encode_offsets(content)
                    self._disk.replace(path, content)
            except OSError as error:
                self._newest_failure = error
                raise

    def finished(self, checkpoint: Checkpoint) -> bool:
        """Note that ``checkpoint`` was run without an error; return whether it is the newest."""
        is_newest = checkpoint.number == self._number
        if is_newest:
            self._written.update(checkpoint.files)
        return is_newest
