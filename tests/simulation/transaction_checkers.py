"""Whether transactions are atomic and in order, and readers not held up, by a history. Pure.

Each checker takes the history and the partitions that are not clean, and returns what is wrong, a
line each. What is in a partition that is not clean counts for nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator

from tests.simulation.transaction_history import (
    Sent,
    StableOffset,
    Transaction,
    TransactionHistory,
    Verdict,
)
from tidelog.model.topics import OFFSETS_TOPIC, TRANSACTIONS_TOPIC

Checker = Callable[[TransactionHistory, Collection[str]], list[str]]


def _visible(history: TransactionHistory, each: Transaction) -> tuple[list[Sent], list[Sent]]:
    """Return what of a transaction is readable at the end, or was acknowledged and deleted, and
    what is not."""
    there: list[Sent] = []
    gone: list[Sent] = []
    for sent in each.sent:
        start = history.starts.get(sent.partition, 0)
        if sent.value in history.finals.get(sent.partition, {}).values():
            there.append(sent)
        elif sent.offset >= start:
            gone.append(sent)
        elif sent.offset >= 0 and each.verdict is Verdict.COMMITTED:
            there.append(sent)
        elif not start:
            gone.append(sent)
        # What is in doubt may have been deleted, or was never there.
    return there, gone


def _clean(each: Transaction, not_clean: Collection[str]) -> Transaction:
    """Return the transaction without what counts for nothing."""
    if not any(sent.partition in not_clean for sent in each.sent):
        return each
    kept = [sent for sent in each.sent if sent.partition not in not_clean]
    return Transaction(
        each.transactional_id,
        each.number,
        each.began_at,
        kept,
        each.has_offsets,
        each.commit_sent_at,
        each.verdict,
    )


def committed_is_whole(history: TransactionHistory, not_clean: Collection[str]) -> list[str]:
    """Each record of a committed transaction is readable, where it was acknowledged.

    Where no response says what became of a transaction, all of it is readable or nothing.
    """
    found = []
    for whole in history.of(Verdict.COMMITTED, Verdict.UNKNOWN):
        each = _clean(whole, not_clean)
        there, gone = _visible(history, each)
        if gone and (there or each.verdict is Verdict.COMMITTED):
            found.append(
                f"{each} is {each.verdict.value}; {_places(there)} is there, {_places(gone)} is not"
            )
        found += [
            f"{each}: {sent.value!r} was acknowledged at {sent.partition} {sent.offset}, where "
            f"{history.finals[sent.partition].get(sent.offset)!r} is"
            for sent in there
            if sent.offset >= history.starts.get(sent.partition, 0)
            and history.finals[sent.partition].get(sent.offset) != sent.value
        ]
    return found


def _places(sent: list[Sent]) -> str:
    counts = Counter(each.partition for each in sent)
    return ", ".join(f"{count} of {name}" for name, count in sorted(counts.items())) or "nothing"


def aborted_is_never_visible(history: TransactionHistory, not_clean: Collection[str]) -> list[str]:
    """No reader of committed records gets one of an aborted transaction, nor one of a transaction
    whose producer has not asked for its commit yet."""
    sent = history.by_value()
    found = []
    for seen in history.seen:
        each = sent[seen.value][0]
        if seen.partition in not_clean:
            continue
        if not each.may_count:
            found.append(f"{seen.reader} got {seen.value!r} of {each}, which was aborted")
        elif seen.at < each.commit_sent_at:
            found.append(f"{seen.reader} got {seen.value!r} of {each} before its commit")
    for partition, records in history.finals.items():
        if partition in not_clean:
            continue
        found += [
            f"{partition} {offset} has {value!r} of {sent[value][0]}, which was aborted"
            for offset, value in records.items()
            if not sent[value][0].may_count
        ]
    return found


def committed_stays(history: TransactionHistory, not_clean: Collection[str]) -> list[str]:
    """Promises 3 and 4: what a reader of committed records got is there at the end."""
    return [
        f"{seen.reader} got {seen.value!r} at {seen.partition} {seen.offset}, where "
        f"{history.finals[seen.partition].get(seen.offset)!r} is"
        for seen in history.seen
        if seen.partition not in not_clean
        and seen.partition in history.finals
        and seen.offset >= history.starts.get(seen.partition, 0)
        and history.finals[seen.partition].get(seen.offset) != seen.value
    ]


def transactions_keep_their_order(
    history: TransactionHistory, not_clean: Collection[str]
) -> list[str]:
    """Promises 5 and 6: each record of an id stands once in its partition, as they were sent."""
    order = {
        sent.value: (each.number, place)
        for each in history.transactions
        for place, sent in enumerate(each.sent)
    }
    of_id = {value: each.transactional_id for value, (each, _) in history.by_value().items()}
    found = []
    for partition, records in history.finals.items():
        last: dict[str, tuple[int, int]] = {}
        for offset, value in sorted(records.items()) if partition not in not_clean else ():
            before = last.get(of_id[value], (-1, -1))
            if order[value] <= before:
                found.append(
                    f"{partition} {offset} has record {order[value]} of {of_id[value]} after "
                    f"{before}"
                )
            last[of_id[value]] = max(before, order[value])
    return found


def offsets_agree(history: TransactionHistory, not_clean: Collection[str]) -> list[str]:
    """A group's offsets count with their transaction, and not before or without it."""
    made = {(each.transactional_id, each.number): each for each in history.transactions}
    found = []
    for seen in history.positions:
        if seen.offset < 0:
            continue
        each = made[seen.transactional_id, seen.offset]
        if not each.may_count:
            found.append(f"the group had the offset of {each}, which was aborted")
        elif seen.at < each.commit_sent_at:
            found.append(f"the group had the offset of {each} before its commit")
    for name, offset in history.last_positions.items():
        allowed = set(_last_positions(history, name, not_clean))
        if offset not in allowed:
            found.append(f"the group of {name} is at {offset}, not at one of {sorted(allowed)}")
    return found


def _last_positions(
    history: TransactionHistory, name: str, not_clean: Collection[str]
) -> Iterator[int]:
    """Yield where the group of an id may be: at the last commit, or later at one in doubt."""
    mine = [x for x in history.transactions if x.transactional_id == name and x.has_offsets]
    for whole in sorted(mine, key=lambda each: each.number, reverse=True):
        each = _clean(whole, not_clean)
        there, _ = _visible(history, each)
        if each.verdict is Verdict.COMMITTED or there:
            yield each.number
            return
        if each.verdict is Verdict.UNKNOWN and not each.sent:
            yield each.number  # no record says what became of it
    yield -1


def stable_offsets_stay(history: TransactionHistory, not_clean: Collection[str]) -> list[str]:
    """No leader says less than what it, or one before it, had said before the request.

    A deposed leader may say what held in its time.
    """
    found = []
    by_partition: dict[str, list[StableOffset]] = {}
    for each in history.stable:
        if each.partition not in not_clean:
            by_partition.setdefault(each.partition, []).append(each)
    for partition, said in by_partition.items():
        for place, later in enumerate(said):
            before = [
                each
                for each in said[:place]
                if each.at <= later.asked_at and each.leader_epoch <= later.leader_epoch
            ]
            most = max(before, key=lambda each: each.offset, default=None)
            if most is not None and later.offset < most.offset:
                found.append(
                    f"{partition} was stable below {most.offset} in leader epoch "
                    f"{most.leader_epoch}, then below {later.offset} in {later.leader_epoch}"
                )
    return found


ALL: dict[str, Checker] = {
    "committed_is_whole": committed_is_whole,
    "aborted_is_never_visible": aborted_is_never_visible,
    "committed_stays": committed_stays,
    "transactions_keep_their_order": transactions_keep_their_order,
    "offsets_agree": offsets_agree,
    "stable_offsets_stay": stable_offsets_stay,
}


NEED_DECISIONS = frozenset({"committed_is_whole", "offsets_agree"})
"""Checkers that count on the log of decisions: an unclean election may take one."""

NEED_POSITIONS = frozenset({"offsets_agree"})


def violations(history: TransactionHistory, not_clean: Collection[str]) -> list[str]:
    """Return what all checkers find, each line with its checker's name.

    An unclean election of a partition of decisions or positions ends what counts on them.
    """
    left_out: frozenset[str] = frozenset()
    for topic, names in ((TRANSACTIONS_TOPIC, NEED_DECISIONS), (OFFSETS_TOPIC, NEED_POSITIONS)):
        if any(name.rpartition("-")[0] == topic for name in not_clean):
            left_out |= names
    return [
        f"{name}: {line}"
        for name, check in ALL.items()
        if name not in left_out
        for line in check(history, not_clean)[:5]
    ]
