"""The columns of the source: their names, Spark types and Arrow types.

Owns the order and the choice of columns; does not fill them. The first eight are the stock Kafka
source's. Arrow types must be exactly what Spark derives from its own (docs/internals/pipeline.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

_BINARY = pa.binary()
_HEADERS = pa.list_(
    pa.field(
        "element",
        pa.struct([pa.field("key", pa.string()), pa.field("value", _BINARY)]),
    )
)

# The resize epoch of a record (KIP-253): (epoch, offset) orders the records of a key.
EPOCH = "epoch"

# For the lake, on request: the leader epoch in the header of a record's batch; and the end of a
# loss. With the second column each loss that failOnDataLoss=false skips has its own marker row:
# `offset` is the first lost offset, `lostTo` (null in other rows) the first that is not lost,
# `value` the cause.
LEADER_EPOCH = "leaderEpoch"
LOST_TO = "lostTo"

# The timestamp as the log has it, in milliseconds: also one that Spark's `timestamp` cannot hold.
TIMESTAMP_MS = "timestampMs"

# Bad records (onBadRecord=quarantine): each has, or the batch that cannot be decoded has, a row of
# its own from `offset` to `badTo` (exclusive), with the reason and the bytes as the log has them.
# In other rows these columns are null.
BAD_REASON = "badReason"
BAD_TO = "badTo"
BAD_RAW = "badRaw"
BAD_COLUMNS = (TIMESTAMP_MS, BAD_REASON, BAD_TO, BAD_RAW)

# name -> (Spark's DDL, Arrow type), in the order in which columns are produced.
COLUMNS: dict[str, tuple[str, pa.DataType]] = {
    "key": ("binary", _BINARY),
    "value": ("binary", _BINARY),
    "topic": ("string", pa.string()),
    "partition": ("int", pa.int32()),
    "offset": ("bigint", pa.int64()),
    "timestamp": ("timestamp", pa.timestamp("us", tz="UTC")),
    "timestampType": ("int", pa.int32()),
    "headers": ("array<struct<key:string,value:binary>>", _HEADERS),
    EPOCH: ("int", pa.int32()),
    LEADER_EPOCH: ("int", pa.int32()),
    LOST_TO: ("bigint", pa.int64()),
    TIMESTAMP_MS: ("bigint", pa.int64()),
    BAD_REASON: ("string", pa.string()),
    BAD_TO: ("bigint", pa.int64()),
    BAD_RAW: ("binary", _BINARY),
}
STOCK_COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def choose_columns(
    columns: Sequence[str] | None, *, headers: bool, epoch: bool, bad: bool = False
) -> tuple[str, ...]:
    """The columns of one read, in the order of COLUMNS.

    Without an explicit list: the stock source's, `headers` and `epoch` as asked for. `bad`: with
    those of bad records, also beside a list: without them such a row looks like a record.
    """
    if columns is None:
        wanted = {*STOCK_COLUMNS, *(["headers"] if headers else []), *([EPOCH] if epoch else [])}
    else:
        wanted = set(columns)
    if bad:
        wanted.update(BAD_COLUMNS)
    return tuple(name for name in COLUMNS if name in wanted)


def spark_schema(columns: Sequence[str]) -> str:
    """The columns as Spark's DDL."""
    return ", ".join(f"`{name}` {COLUMNS[name][0]}" for name in columns)


def arrow_schema(columns: Sequence[str]) -> pa.Schema:
    """The columns as the Arrow schema that Spark expects of the first batch."""
    return pa.schema([pa.field(name, COLUMNS[name][1]) for name in columns])
