"""Bad records: the rows in which a read returns what it cannot decode, or Spark cannot represent.

Owns the form of these rows (docs/decisions/0151), and which timestamps fit. Not which bytes are
bad: see `chunks`. A record whose only fault is its timestamp keeps its other columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tidelog.pipeline.schema import BAD_RAW, BAD_REASON, BAD_TO, COLUMNS, EPOCH, arrow_schema
from tidelog.records.record import CorruptRecords
from tidelog.records.varints import Positions

_US_PER_MS = 1000
_MOST_MS = (2**63 - 1) // _US_PER_MS


def fits(time_ms: int) -> bool:
    """Whether Spark's microseconds hold a timestamp."""
    return -_MOST_MS <= time_ms <= _MOST_MS


@dataclass(frozen=True, slots=True)
class BadTimes:
    """Some of the rows of a chunk: which, and the bytes and timestamps of their records."""

    size: int
    rows: Positions
    raws: Sequence[bytes]
    times: Sequence[int]

    def column(self, name: str, offsets: Positions) -> pa.Array:
        """One of the columns of bad records; null in the other rows."""
        values: list[object] = [None] * self.size
        for row, raw, time in zip(self.rows.tolist(), self.raws, self.times, strict=True):
            if name == BAD_REASON:
                values[row] = _reason(time)
            else:
                values[row] = raw if name == BAD_RAW else int(offsets[row]) + 1
        return pa.array(values, COLUMNS[name][1])


def bad_times(
    times: Positions, bounds: tuple[Positions, Positions], data: bytes, *, quarantine: bool
) -> BadTimes | None:
    """The rows whose timestamps (ms) do not fit; `bounds`: where the bytes of each row are in
    `data`. Raises CorruptRecords for the first of them, unless they are to be quarantined.
    """
    if fits(int(times.min())) and fits(int(times.max())):
        return None
    rows = np.flatnonzero((times > _MOST_MS) | (times < -_MOST_MS))
    misfits = times[rows].tolist()
    if not quarantine:
        raise CorruptRecords(
            f"{_reason(misfits[0])}; leave out the column timestamp (option columns) to read it, or"
            " set onBadRecord=quarantine"
        )
    raws = [data[int(bounds[0][row]) : int(bounds[1][row])] for row in rows]
    return BadTimes(len(times), rows, raws, misfits)


def _reason(time_ms: int) -> str:
    return (
        f"a record's timestamp of {time_ms} ms does not fit into Spark's microseconds; its"
        " producer may have written nanoseconds"
    )


def bad_batch(
    place: tuple[str, int, int],
    columns: Sequence[str],
    span: tuple[int, int],
    reason: str,
    raw: bytes | memoryview,
) -> pa.RecordBatch:
    """The one row of a batch that cannot be decoded: the offsets [from, to) of it that are read.

    `place`: topic, partition, and resize epoch.
    """
    (topic, partition, epoch), (first, end) = place, span
    values = {
        "topic": topic,
        "partition": partition,
        "offset": first,
        EPOCH: epoch,
        BAD_REASON: reason,
        BAD_TO: end,
        BAD_RAW: bytes(raw),
    }
    row = {name: values.get(name) for name in columns}
    return pa.RecordBatch.from_pylist([row], schema=arrow_schema(columns))
