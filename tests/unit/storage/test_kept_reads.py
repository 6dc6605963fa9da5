"""Which small reads are kept, which reads get them again, and how many there are."""

from __future__ import annotations

from tidelog.storage.segments.kept_reads import MOST_READS, KeptRead, KeptReads

TAIL = KeptRead(5, 9, memoryview(b"batches"), 100)


def kept(read: KeptRead) -> KeptReads[str]:
    reads: KeptReads[str] = KeptReads()
    reads.keep("log", read)
    return reads


def test_the_end_of_a_log_is_given_to_each_read_with_room_for_it() -> None:
    reads = kept(TAIL)
    for at_least_one in (True, False):
        assert reads.find("log", 5, 7, 9, at_least_one) == b"batches"
        assert reads.find("log", 5, 6, 9, at_least_one) is None
    assert reads.find("other", 5, 7, 9, True) is None
    assert reads.find("log", 4, 100, 9, True) is None
    assert reads.find("log", 5, 100, 10, True) is None, "there is more by now"


def test_that_a_batch_is_too_large_is_said_for_the_same_room_only() -> None:
    reads = kept(KeptRead(5, 9, memoryview(b""), 100))
    assert reads.find("log", 5, 100, 9, False) == b""
    assert reads.find("log", 5, 101, 9, False) is None
    assert reads.find("log", 5, 100, 9, True) is None


def test_it_is_a_copy_that_its_log_forgets() -> None:
    large = bytearray(b"batches and more")
    reads = kept(TAIL._replace(data=memoryview(large)[:7]))
    large[:7] = b"another"
    assert reads.find("log", 5, 7, 9, True) == b"batches"
    reads.forget("log")
    reads.forget("log")
    assert reads.find("log", 5, 7, 9, True) is None


def test_the_oldest_makes_way() -> None:
    reads: KeptReads[int] = KeptReads()
    for log in range(MOST_READS):
        reads.keep(log, TAIL)
    reads.keep(0, TAIL)
    assert reads.find(0, 5, 7, 9, True) == b"batches"
    reads.keep(MOST_READS, TAIL)
    assert [reads.find(log, 5, 7, 9, True) is None for log in (0, 1, MOST_READS)] == [
        True,
        False,
        False,
    ]
