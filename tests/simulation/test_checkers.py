"""Each checker on a good history and on a bad one: it must tell them apart."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation import checkers
from tests.simulation.cluster.disks import Batch
from tests.simulation.cluster.replica_ends import from_start
from tests.simulation.history import EpochAnswer, Final, History, Outcome, Recovery, Write

P = "t-0"


def acked(history: History, number: int, offset: int, *, at_once: bool = True, **more) -> Write:
    write = history.send(P, "p", number, b"v%d" % number, **more)
    if at_once:
        history.end(write, Outcome.ACKED, offset)
    return write


def final(history: History, *values: bytes, start: int = 0, **more) -> None:
    records = {start + place: value for place, value in enumerate(values)}
    history.finals.append(Final(P, start, start + len(values), records, **more))


def good() -> History:
    history = History()
    for number in range(3):
        acked(history, number, number)
        history.read(P, number, b"v%d" % number, "r")
    history.disk_space("full")
    refused = history.send(P, "p", 3, b"v3")
    history.end(refused, Outcome.REFUSED)
    history.disk_space("read")
    history.disk_space("room")
    corrupt = history.send(P, "q", 0, b"bad", corrupt=True)
    history.end(corrupt, Outcome.REFUSED)
    lost = history.send(P, "p", 4, b"v4")
    history.end(lost, Outcome.UNDETERMINED)
    acked(history, 5, 4)
    history.deleted(P, 1, 4)
    final(history, b"v1", b"v2", b"v4", b"v5", start=1)
    history.directory("d", "one", "sync")
    history.directory("d", "one", "acked")
    history.directory("d", "one", "sync failed")
    history.directory("d", "two", "acked")
    history.recoveries.append(
        Recovery(P, "power", {1: b"v1", 2: b"v2"}, {1: b"v1", 2: b"v2"}, 2, start=1)
    )
    history.recoveries.append(
        Recovery(P, "kill", {0: b"v0"}, {0: b"v0", 1: b"v1"}, 0, frozenset({b"v1"}))
    )
    history.epochs.append(EpochAnswer(P, 1, said=9, ended=10, kept=8, start=0))
    history.epochs.append(EpochAnswer(P, 1, said=12, ended=10, kept=-1, start=12))
    history.epochs.append(EpochAnswer(P, 2, said=-1, ended=10, kept=-1, start=0))
    return history


def epoch_that_ends_too_high(history: History) -> None:
    history.epochs.append(EpochAnswer(P, 1, 11, 10, 8, 0))


def epoch_that_ends_too_low(history: History) -> None:
    history.epochs.append(EpochAnswer(P, 1, 7, 10, 8, 0))


def epoch_that_is_not_known(history: History) -> None:
    history.epochs.append(EpochAnswer(P, 1, -1, 10, 8, 0))


def lost_record(history: History) -> None:
    history.finals.clear()
    final(history, b"v1", b"v2", start=1)
    history.reads.clear()


def refused_appears(history: History) -> None:
    history.read(P, 9, b"v3", "r")


def duplicate(history: History) -> None:
    history.read(P, 7, b"v4", "r")


def offset_reused(history: History) -> None:
    history.read(P, 2, b"v5", "late")


def read_rolled_back(history: History) -> None:
    history.end(history.send(P, "q", 1, b"w"), Outcome.UNDETERMINED)
    history.read(P, 5, b"w", "r")


def order_turned(history: History) -> None:
    late = history.send(P, "p", 6, b"v6")
    later = history.send(P, "p", 7, b"v7")
    history.end(later, Outcome.ACKED, 5)
    history.end(late, Outcome.ACKED, 6)


def sent_after_ack_stands_before(history: History) -> None:
    history.end(history.send(P, "q", 1, b"a"), Outcome.ACKED, 20)
    history.end(history.send(P, "r", 1, b"b"), Outcome.ACKED, 19)


def acked_after_failed_sync(history: History) -> None:
    history.directory("d", "one", "acked")


def synced_again(history: History) -> None:
    history.directory("d", "one", "sync")


def synced_record_cut(history: History) -> None:
    history.recoveries.append(Recovery(P, "power", {0: b"a", 1: b"b"}, {0: b"a"}, 2))


def written_record_cut_by_kill(history: History) -> None:
    history.recoveries.append(Recovery(P, "kill", {0: b"a", 1: b"b"}, {0: b"a"}, 0))


def garbage_after_recovery(history: History) -> None:
    history.recoveries.append(Recovery(P, "power", {0: b"a"}, {0: b"a", 1: b"?"}, 0))


def hole_after_recovery(history: History) -> None:
    history.recoveries.append(
        Recovery(P, "power", {0: b"a", 1: b"b", 2: b"c"}, {0: b"a", 2: b"c"}, 0)
    )


def retention_too_far(history: History) -> None:
    history.deleted(P, 5, 4)


def corrupt_accepted(history: History) -> None:
    acked(history, 9, 5, corrupt=True)


def does_not_heal(history: History) -> None:
    for write in history.writes:
        if write.number == 5:
            write.outcome = Outcome.REFUSED


def read_fails_while_full(history: History) -> None:
    history.disk_space("full")
    history.disk_space("read failed")


def corruption_is_served(history: History) -> None:
    history.corruption("corrupted", "b1", P)
    history.corruption("served", "b1", P, "7 has a wrong CRC")


def corruption_is_refused_and_not_named(history: History) -> None:
    history.corruption("corrupted", "b1", P)
    history.corruption("refused", "b1", P)


def corruption_is_not_repaired(history: History) -> None:
    history.corruption("corrupted", "b1", P)
    history.corruption("named", "b1", P)


def named_without_corruption(history: History) -> None:
    history.corruption("corrupted", "b2", P)
    history.corruption("named", "b1", P)
    history.corruption("repaired", "b1", P)


def full_broker_does_not_heal(history: History) -> None:
    history.disk_space("full", "b1")
    history.disk_space("appended", "b2")
    history.disk_space("room", "b1")


def full_broker_goes_out_of_service(history: History) -> None:
    history.disk_space("full", "b1")
    history.disk_space("out of service", "b1")


BAD: list[tuple[Callable[[History], None], checkers.Checker]] = [
    (lost_record, checkers.acked_is_not_lost),
    (refused_appears, checkers.refused_is_not_readable),
    (duplicate, checkers.idempotent_is_once),
    (offset_reused, checkers.one_offset_one_record),
    (read_rolled_back, checkers.read_is_not_unread),
    (order_turned, checkers.producer_order_holds),
    (sent_after_ack_stands_before, checkers.real_time_order_holds),
    (acked_after_failed_sync, checkers.failed_sync_is_final),
    (synced_again, checkers.failed_sync_is_final),
    (synced_record_cut, checkers.only_the_torn_tail_is_cut),
    (written_record_cut_by_kill, checkers.only_the_torn_tail_is_cut),
    (garbage_after_recovery, checkers.only_the_torn_tail_is_cut),
    (hole_after_recovery, checkers.only_the_torn_tail_is_cut),
    (epoch_that_ends_too_high, checkers.epochs_end_where_they_did),
    (epoch_that_ends_too_low, checkers.epochs_end_where_they_did),
    (epoch_that_is_not_known, checkers.epochs_end_where_they_did),
    (retention_too_far, checkers.retention_stays_below_the_watermark),
    (corrupt_accepted, checkers.no_bad_crc_is_accepted),
    (does_not_heal, checkers.a_full_disk_heals),
    (read_fails_while_full, checkers.a_full_disk_heals),
    (full_broker_does_not_heal, checkers.a_full_disk_heals),
    (full_broker_goes_out_of_service, checkers.a_full_disk_heals),
    (corruption_is_served, checkers.damage_is_never_served),
    (corruption_is_refused_and_not_named, checkers.damage_is_never_served),
    (corruption_is_not_repaired, checkers.damage_is_never_served),
    (named_without_corruption, checkers.damage_is_never_served),
]


def test_a_good_history_passes_all() -> None:
    assert checkers.violations(good()) == []


def test_damage_that_is_named_and_repaired_passes() -> None:
    history = good()
    for what in ("corrupted", "refused", "named", "repaired"):
        history.corruption(what, "b1", P)
    history.corruption("corrupted", "b2", "")
    for what in ("named", "repaired"):
        history.corruption(what, "b2", P)
    for what in ("full", "room", "appended"):
        history.disk_space(what, "b1")
    assert checkers.violations(history) == []


@pytest.mark.parametrize(("spoil", "checker"), BAD, ids=[spoil.__name__ for spoil, _ in BAD])
def test_a_bad_history_is_found(
    spoil: Callable[[History], None], checker: checkers.Checker
) -> None:
    history = good()
    assert checker(history) == []
    spoil(history)
    assert checker(history) != []


def test_every_checker_has_a_bad_history() -> None:
    assert {checker for _, checker in BAD} == set(checkers.ALL)


def compacted_history(*, keep_newest: bool) -> History:
    history = History()
    acked(history, 0, 0, key=b"a")
    acked(history, 1, 1, key=b"a")
    acked(history, 2, 2, key=b"b")
    acked(history, 3, 3, key=b"b", tombstone=True)
    kept = {1: b"v1"} if keep_newest else {0: b"v0"}
    keys = dict.fromkeys(kept, b"a")
    history.finals.append(Final(P, 0, 4, kept, keys, compacted=True))
    return history


def test_compaction_may_drop_older_values_only() -> None:
    assert checkers.acked_is_not_lost(compacted_history(keep_newest=True)) == []
    assert checkers.acked_is_not_lost(compacted_history(keep_newest=False)) != []


def test_damage_below_the_start_of_a_log_is_not_compared() -> None:
    whole = [Batch(base, base + 2, 0, base, sound=True) for base in range(0, 30, 3)]
    moved = [whole[0], whole[1]._replace(base=7_001, last=7_003), *whole[2:]]
    assert from_start(whole, 0) == whole
    assert from_start(whole, 10) == from_start(moved, 10) == whole[3:]
    assert from_start(whole, 30) == []
    assert from_start([], 5) == []
