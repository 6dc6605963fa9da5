"""What counts of a topic that is compacted: C10, and which records may be gone.

Owns the rule, and the excuse of the other rules for what the cleaner removes. Not the other rules:
see ``checks``. Of each key only the newest record must stay, and a deletion only for a while:

| a record of a key | may be gone |
|---|---|
| not the last one of the key's list | yes |
| the last one, a deletion | yes, when no older record of the key is left |
| the last one, with a value | no, unless a deletion without an answer may stand after it |

A reader that begins when all is over must end with the newest value of each key, in whatever order
the partitions were cleaned (promise 12).
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.order.history import FreshRead, LogStart, Send
from tests.order.reference import Placed, Reference


def may_be_cleaned(reference: Reference, placed: Placed) -> bool:
    """Whether the cleaner may have removed a record of a key's list."""
    if not reference.is_compacted:
        return False
    key = placed.send.key
    if placed.send.is_deletion or key in reference.unseen_deletions:
        return True
    listed = reference.lists[key]
    return not listed or listed[-1] != placed


def may_be_gone(reference: Reference, send: Send) -> bool:
    """Whether the cleaner may have removed a record that was acknowledged."""
    listed = reference.lists.get(send.key, ())
    return any(placed.send == send and may_be_cleaned(reference, placed) for placed in listed)


def wrong_ends(reference: Reference) -> Iterator[tuple[str, str]]:
    """C10: yield the keys whose final record for a fresh reader is not the newest, and why."""
    starts = {each.partition: each.offset for each in reference.history.of(LogStart)}
    for read in reference.history.of(FreshRead):
        for key, placed in reference.lists.items():
            if not placed or key in reference.in_doubt:
                continue
            newest, found = placed[-1], read.uids.get(key)
            if found == newest.send.uid or newest.offset < starts.get(newest.partition, 0):
                continue
            if found is None and (newest.send.is_deletion or key in reference.unseen_deletions):
                continue
            what = "deletion" if newest.send.is_deletion else "record"
            ended = "without a record" if found is None else f"with record {found}"
            yield (
                key,
                f"{read.reader} ended {ended}, and the newest {what} is {newest.send.uid} "
                f"(partition {newest.partition} offset {newest.offset})",
            )
