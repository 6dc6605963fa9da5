"""What waits for its removal: which of it is due, and what was let go of."""

from __future__ import annotations

import errno
from pathlib import Path

from tidelog.runtime.disk import RealDisk
from tidelog.storage.removals import Removals


def due(removals: Removals, now_ms: int) -> list[str]:
    removal = removals.due(now_ms)
    return [] if removal is None else list(removal.paths)


def test_what_is_due_is_handed_over_once_in_the_order_of_time() -> None:
    removals = Removals(RealDisk())
    for path, due_ms in (("/d/b", 20), ("/d/a", 10), ("/e/c", 30)):
        removals.add(path, due_ms)
    assert due(removals, 9) == []
    assert due(removals, 20) == ["/d/a", "/d/b"]
    assert len(removals) == 1
    assert due(removals, 30) == ["/e/c"]
    assert due(removals, 99) == []
    assert len(removals) == 0


def test_what_lay_in_a_renamed_directory_is_let_go_of_but_not_what_comes_there_later() -> None:
    removals = Removals(RealDisk())
    removals.add("/d/t-1/0.log.deleted", 10)
    removals.add("/d/t-10/0.log.deleted", 10)
    removals.add("/d/t-1.0f-delete", 15)
    removals.forget_below("/d/t-1")
    # The next life of the partition, with a file of the same name.
    removals.add("/d/t-1/0.log.deleted", 20)
    assert len(removals) == 3
    assert due(removals, 15) == ["/d/t-10/0.log.deleted", "/d/t-1.0f-delete"]
    assert due(removals, 20) == ["/d/t-1/0.log.deleted"]


def test_what_could_not_be_removed_has_another_turn(tmp_path: Path) -> None:
    removals = Removals(RealDisk())
    kept = tmp_path / "kept"
    kept.write_bytes(b"x")
    removals.add(str(kept), 10)
    removals.add(str(tmp_path / "gone"), 10)
    removal = removals.due(10)
    assert removal is not None
    removal.run()
    assert (removal.left, kept.exists()) == ([], False)
    removal.left = [str(kept)]
    removals.finished(removal, 30)
    assert due(removals, 29) == []
    assert due(removals, 30) == [str(kept)]


def test_a_disk_that_cannot_say_what_is_there_keeps_it_for_another_turn() -> None:
    class Bad(RealDisk):
        def is_directory(self, path: str) -> bool:
            raise FileNotFoundError(path)

        def exists(self, path: str) -> bool:
            raise OSError(errno.EIO, "planted", path)

    removals = Removals(Bad())
    removals.add("/d/a", 10)
    removals.add("/d/b", 10)
    removal = removals.due(10)
    assert removal is not None
    removal.run()
    assert removal.left == ["/d/a", "/d/b"]
    assert removal.error is not None and removal.error.errno == errno.EIO
