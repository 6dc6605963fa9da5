"""What the copy of a compacted log knows of producers: as much as the log itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.compacting import COMPACT, clean, put
from tests.support.storage_logs import NOW_MS, new_log
from tidelog.records.builder import NewRecord, Producer, build_batch
from tidelog.storage.log.results import Appended


@pytest.mark.parametrize("sequence", range(5))
def test_a_replica_that_copies_a_compacted_log_knows_all_retries(
    tmp_path: Path, sequence: int
) -> None:
    """Otherwise its leader would refuse a batch that is in the log, for good after a resize.

    In the simulation (`compacted`, seed 47) the client then wrote it again, elsewhere.
    """
    log = new_log(tmp_path / "leader", COMPACT)
    batches = [put(log, ("a", f"{number}"), producer=Producer(9, 0, number)) for number in range(5)]
    for number in range(30):
        put(log, ("a", f"x{number}" * 4))
    clean(log)
    copy = new_log(tmp_path / "copy", COMPACT)
    for segment in log.segments:
        copied = copy.append_as_follower(segment.read_bytes(0, segment.size), NOW_MS)
        assert isinstance(copied, Appended), copied
    record = NewRecord(NOW_MS, b"a", b"%d" % sequence)
    again = build_batch([record], producer=Producer(9, 0, sequence))
    answer = copy.append_as_leader(again, 0, NOW_MS)
    assert isinstance(answer, Appended), answer
    assert (answer.duplicate, answer.first_offset) == (True, batches[sequence])
