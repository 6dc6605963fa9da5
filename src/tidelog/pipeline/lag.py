"""The lag of a streaming query, from Spark's own progress.

Owns the three numbers that the stock Kafka source reports as metrics; a Python source cannot report
metrics (docs/operating/pipeline.md), but both offsets in the progress are this source's JSON.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.streaming import StreamingQueryListener

from tidelog.pipeline.planning.positions import Positions

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lag:
    """The lag in offsets: its sum, and per partition."""

    total: int
    least: int
    most: int
    average: float

    def to_json(self) -> dict[str, Any]:
        """Under the names of the stock source's metrics."""
        return {
            "totalOffsetsBehindLatest": self.total,
            "minOffsetsBehindLatest": self.least,
            "maxOffsetsBehindLatest": self.most,
            "avgOffsetsBehindLatest": self.average,
        }


def lag_of(end_offset: str | None, latest_offset: str | None) -> Lag | None:
    """The lag from `endOffset` and `latestOffset` of a source's progress; None if unknown."""
    if not end_offset or not latest_offset:
        return None
    end, latest = json.loads(end_offset), json.loads(latest_offset)
    # "null" right after a restart; the sentinel in batch 0; an offset of another source.
    if not all(isinstance(offset, dict) and "topics" in offset for offset in (end, latest)):
        return None
    read, ends = Positions.from_json(end).at, Positions.from_json(latest).at
    behind = [max(0, ends[pid] - read.get(pid, 0)) for pid in ends]
    if not behind:
        return Lag(0, 0, 0, 0.0)
    return Lag(sum(behind), min(behind), max(behind), sum(behind) / len(behind))


class LagListener(StreamingQueryListener):  # type: ignore[misc]
    """`spark.streams.addListener(LagListener())` logs or reports the lag of tidelog queries.

    `report` is called with the name (or id) of the query and the lag, after each progress.
    """

    def __init__(self, report: Callable[[str, Lag], None] | None = None) -> None:
        self._report = report or _log_lag

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """There is no lag yet."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        progress = event.progress
        for source in progress.sources:
            lag = lag_of(source.endOffset, source.latestOffset)
            if lag is not None:
                self._report(progress.name or str(progress.id), lag)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """An idle query has no new lag."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """There is no further lag."""


def _log_lag(query: str, lag: Lag) -> None:
    _log.info("%s: %s", query, json.dumps(lag.to_json()))
