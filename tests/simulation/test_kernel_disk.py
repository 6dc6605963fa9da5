"""The simulated disk after kill -9, power loss, errors and when it is full."""

from __future__ import annotations

import errno
import random

import pytest

from tests.simulation.kernel import (
    Crash,
    Fail,
    ProcessKilled,
    SimulatedDisk,
    Trace,
    crash_at,
    fail_once,
)


def new_disk(seed: int = 1, **options: int) -> SimulatedDisk:
    return SimulatedDisk(random.Random(seed), Trace(lambda: 0.0), lambda: 5_000, **options)


def after_power_loss(seeds: range, prepare) -> set[bytes | None]:
    """All contents of /d/f (None: missing) that power loss can leave, over many seeds."""
    found: set[bytes | None] = set()
    for seed in seeds:
        disk = new_disk(seed)
        view = disk.view()
        view.make_directory("/d")
        view.sync_directory("/")
        prepare(view)
        disk.lose_power()
        fresh = disk.view()
        found.add(fresh.read("/d/f") if fresh.exists("/d/f") else None)
    return found


def synced_file(view, content: bytes) -> None:
    file = view.open("/d/f", create=True)
    file.write_at(0, [content])
    file.sync()
    view.sync_directory("/d")
    return file


def test_a_kill_keeps_everything_written() -> None:
    disk = new_disk()
    view = disk.view()
    view.make_directory("/d")
    view.open("/d/f", create=True).write_at(0, [b"ab", b"cd"])
    disk.kill(view)
    assert disk.view().read("/d/f") == b"abcd"


def test_a_dead_process_can_touch_nothing() -> None:
    disk = new_disk()
    view = disk.view()
    view.make_directory("/d")
    file = view.open("/d/f", create=True)
    disk.kill(view)
    for late in (
        lambda: file.write_at(0, [b"late"]),
        lambda: file.truncate(0),
        lambda: file.sync(),
        lambda: file.read_at(0, 1),
        lambda: view.remove("/d/f"),
        lambda: view.rename("/d/f", "/d/g"),
        lambda: view.replace("/d/f", b"late"),
        lambda: view.make_directory("/e"),
    ):
        with pytest.raises(ProcessKilled):
            late()
    file.close()
    assert disk.view().read("/d/f") == b""


def test_power_loss_keeps_what_was_synced() -> None:
    assert after_power_loss(range(50), lambda view: synced_file(view, b"x" * 2000)) == {b"x" * 2000}


def test_a_file_that_is_synced_without_its_directory_may_vanish() -> None:
    def prepare(view) -> None:
        file = view.open("/d/f", create=True)
        file.write_at(0, [b"x" * 700])
        file.sync()

    assert after_power_loss(range(50), prepare) == {None, b"x" * 700}


def test_an_unsynced_directory_takes_its_files_along() -> None:
    outcomes = set()
    for seed in range(50):
        disk = new_disk(seed)
        view = disk.view()
        view.make_directory("/d")
        view.replace("/d/f", b"x")
        disk.lose_power()
        outcomes.add(disk.view().exists("/d/f"))
    assert outcomes == {True, False}


def test_unsynced_sectors_may_tear_and_leave_zeros() -> None:
    def prepare(view) -> None:
        file = synced_file(view, b"a" * 512)
        file.write_at(512, [b"b" * 1024])

    outcomes = after_power_loss(range(200), prepare)
    assert all(content is not None and content.startswith(b"a" * 512) for content in outcomes)
    assert b"a" * 512 + bytes(512) + b"b" * 512 in outcomes
    assert b"a" * 512 in outcomes
    assert b"a" * 512 + b"b" * 1024 in outcomes


def test_an_unsynced_overwrite_leaves_whole_sectors_old_or_new() -> None:
    def prepare(view) -> None:
        file = synced_file(view, b"a" * 1024)
        file.write_at(100, [b"b" * 800])

    old, new = b"a" * 1024, b"a" * 100 + b"b" * 800 + b"a" * 124
    assert after_power_loss(range(100), prepare) == {
        old,
        new,
        new[:512] + old[512:],
        old[:512] + new[512:],
    }


def test_an_unsynced_truncation_may_be_undone() -> None:
    def prepare(view) -> None:
        synced_file(view, b"a" * 1024).truncate(100)

    assert after_power_loss(range(50), prepare) == {b"a" * 1024, b"a" * 100}


def test_replace_leaves_the_old_or_the_new_content_at_every_crash() -> None:
    for kind in ("kill", "power"):
        for number in range(1, 30):
            disk = new_disk(number)
            view = disk.view()
            view.make_directory("/d")
            view.sync_directory("/")
            view.replace("/d/f", b"old")
            before = disk.operations
            disk.plan = crash_at(before + number, Crash(kind, part=number % 2))
            try:
                view.replace("/d/f", b"new")
            except ProcessKilled:
                disk.plan = None
                assert disk.view().read("/d/f") in (b"old", b"new")
            else:
                disk.plan = None
                disk.lose_power()
                assert disk.view().read("/d/f") == b"new"
                break
        else:
            raise AssertionError("replace never ended")


def test_a_rename_is_lost_or_kept_as_a_whole() -> None:
    outcomes = set()
    for seed in range(80):
        disk = new_disk(seed)
        view = disk.view()
        view.make_directory("/d")
        view.make_directory("/e")
        view.sync_directory("/")
        view.replace("/d/f", b"x")
        view.rename("/d/f", "/e/f")
        disk.lose_power()
        fresh = disk.view()
        outcomes.add((fresh.exists("/d/f"), fresh.exists("/e/f")))
    assert outcomes == {(True, False), (False, True)}


def test_a_removal_that_was_not_synced_may_be_undone() -> None:
    def prepare(view) -> None:
        synced_file(view, b"x")
        view.remove("/d/f")

    assert after_power_loss(range(50), prepare) == {None, b"x"}


def test_a_failed_sync_forgets_and_a_second_one_lies() -> None:
    disk = new_disk()
    view = disk.view()
    view.make_directory("/d")
    view.sync_directory("/")
    file = synced_file(view, b"a" * 10)
    file.write_at(0, [b"b" * 10])
    disk.plan = fail_once("sync", "/f")
    with pytest.raises(OSError, match="Input/output") as caught:
        file.sync()
    assert caught.value.errno == errno.EIO
    file.sync()
    assert view.read("/d/f") == b"b" * 10, "the page cache still has it"
    disk.lose_power()
    assert disk.view().read("/d/f") == b"a" * 10


def test_a_full_disk_takes_a_part_refuses_and_heals() -> None:
    disk = new_disk(capacity=1024)
    view = disk.view()
    view.make_directory("/d")
    file = view.open("/d/f", create=True)
    with pytest.raises(OSError, match="No space") as caught:
        file.write_at(0, [b"x" * 2000])
    assert caught.value.errno == errno.ENOSPC
    assert view.read("/d/f") == b"x" * 1024
    assert view.free_bytes("/d") == 0
    file.write_at(0, [b"y" * 1024])
    view.remove("/d/f")
    assert view.free_bytes("/d") == 1024
    assert view.open("/d/g", create=True).write_at(0, [b"z" * 512]) == 512


def test_replacing_a_file_frees_the_old_one() -> None:
    disk = new_disk(capacity=2048)
    view = disk.view()
    view.make_directory("/d")
    for _ in range(5):
        view.replace("/d/f", b"x" * 600)
    assert view.free_bytes("/d") == 1024


def test_planned_errors_reach_reads_and_partial_writes() -> None:
    disk = new_disk()
    view = disk.view()
    view.make_directory("/d")
    file = view.open("/d/f", create=True)
    disk.plan = fail_once("write", "/f", Fail(errno.EIO, part=0.5))
    with pytest.raises(OSError, match="Input/output"):
        file.write_at(0, [b"12345678"])
    assert file.read_at(0, 100) == b"1234"
    disk.plan = fail_once("read")
    with pytest.raises(OSError, match="Input/output"):
        file.read_at(0, 1)
    assert disk.failed_paths == [("write", "/d/f"), ("read", "/d/f")]


def test_a_bit_flips_in_cache_and_on_the_platter() -> None:
    disk = new_disk()
    view = disk.view()
    view.make_directory("/d")
    view.sync_directory("/")
    synced_file(view, b"\x00\x00")
    disk.flip_bit("/d/f", 9)
    assert view.read("/d/f") == b"\x00\x02"
    disk.lose_power()
    assert disk.view().read("/d/f") == b"\x00\x02"


def test_a_lock_ends_with_its_process() -> None:
    disk = new_disk()
    first, second = disk.view("a"), disk.view("b")
    first.make_directory("/d")
    held = first.lock("/d/.lock")
    assert held is not None
    assert second.lock("/d/.lock") is None
    held.close()
    assert second.lock("/d/.lock") is not None
    assert first.lock("/d/.lock") is None
    disk.kill(second)
    assert first.lock("/d/.lock") is not None


def test_names_behave_like_a_file_system() -> None:
    view = new_disk().view()
    with pytest.raises(FileNotFoundError):
        view.open("/none/f", create=True)
    with pytest.raises(FileNotFoundError):
        view.open("/f")
    assert view.make_directory("/a/b") and not view.make_directory("/a/b")
    view.open("/a/b/f", create=True).write_at(0, [b"1"])
    view.open("/a/b/e", create=True)
    assert view.list("/a/b") == ["e", "f"]
    assert view.size("/a/b/f") == 1
    assert view.modified_ms("/a/b/f") == 5_000
    with pytest.raises(IsADirectoryError):
        view.remove("/a/b")
    view.rename("/a/b", "/c")
    assert view.read("/c/f") == b"1"
    view.remove_tree("/c")
    assert view.list("/") == ["a"]
    assert view.is_directory("/a") and not view.exists("/c")
