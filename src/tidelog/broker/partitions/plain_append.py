"""The append of one plain batch of a client: check it, then have storage write it.

Owns the order of the checks of the batch, that of the Produce table in docs/design/elastic.md. The
rows about the partition come before: see `admission` and `resize_checks`. The rules are functions
of their own, which the general append uses too: `storage.log.appending`. It takes all that is not
plain: another form of the batch, a roll, a new leader epoch, a duplicate, a log out of service.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog.records.batch import (
    HEADER_SIZE,
    LENGTH_OVERHEAD,
    Buffer,
    HeaderFields,
    Rejected,
    check_client_batch,
    unpack_header,
)
from tidelog.storage.log.changes import LogChange
from tidelog.storage.log.results import Appended, as_appended
from tidelog.storage.log.tail import has_room, write_one

if TYPE_CHECKING:
    from tidelog.model.configs.topic import TopicConfigs
    from tidelog.storage.log.state import LogState

# A member looked up by name is a call in Python 3.11.
_CUT = LogChange.CUT


def plain_header(
    log: LogState,
    batch: memoryview,
    leader_epoch: int,
    now_ms: int,
    check: Callable[
        [HeaderFields, memoryview, TopicConfigs, int], Rejected | None
    ] = check_client_batch,
) -> HeaderFields | Rejected | None:
    """Judge a payload of one batch and change nothing: return its header where it may be written
    as it was sent, why it is refused, or None where the general append has to judge it.

    Constant work, but for the CRC. ``check``: that of the batch alone.
    """
    size = len(batch)
    if (
        size <= HEADER_SIZE
        or log.damaged
        or log.resources.failed
        or log.closed
        or log.change is _CUT
        or leader_epoch != log.epochs.latest
    ):
        return None
    header = unpack_header(batch)
    if header[1] != size - LENGTH_OVERHEAD or header[3] != 2 or not has_room(log, header, size):
        return None
    refusal = check(header, batch, log.configs, now_ms)
    if refusal is not None:
        return refusal
    if header[9] >= 0:
        judged = log.producers.judge(header)
        if judged is not None:
            return judged if judged.__class__ is Rejected else None
    return header


def append_plain(
    log: LogState, records: Buffer, leader_epoch: int, now_ms: int
) -> Appended | Rejected | None:
    """Append a payload of one batch as leader; None, with nothing done, where it is not plain.

    The cost is constant, but for the CRC and the write.
    """
    batch = records if records.__class__ is memoryview else memoryview(records)
    header = plain_header(log, batch, leader_epoch, now_ms)
    if not isinstance(header, tuple):
        return header
    first = log.end_offset
    refusal = write_one(log, header, batch, leader_epoch, now_ms)
    if refusal is not None:
        return refusal
    return as_appended(Appended, (first, log.end_offset - 1, -1, log.start_offset, False))
