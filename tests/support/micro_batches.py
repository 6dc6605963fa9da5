"""Micro-batches of the Spark source without Spark: its calls in the order that Spark makes them.

Owns the offset log and the restarts: a reader that is replaced stands for a driver that died, and
the batch that was planned is read from its two offsets alone. Owns no assertions but the contract.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pyspark.sql.pandas.types import from_arrow_schema

from tidelog.pipeline.options import Mode, parse
from tidelog.pipeline.schema import arrow_schema
from tidelog.pipeline.stream_reader import StreamReader


class Row(NamedTuple):
    """A record as the source gives it."""

    batch: int
    partition: int
    epoch: int
    offset: int
    key: bytes
    value: bytes


@dataclass
class MicroBatches:
    """A stream with its checkpoint; `rows` are those of all finished batches."""

    given: Mapping[str, str]
    offsets: list[dict[str, Any]] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """A new driver with the same checkpoint."""
        options = parse(self.given, Mode.STREAM)
        self.reader = StreamReader(options, from_arrow_schema(arrow_schema(options.columns)))

    def run(self, *, die: bool = False) -> bool:
        """Run one batch; False when there is nothing to do. `die`: a driver dies after planning."""
        start = self.offsets[-1] if self.offsets else self.reader.initialOffset()
        end = self.reader.latestOffset(start, self.reader.getDefaultReadLimit())
        if json.dumps(end) == json.dumps(start):
            return False
        # Spark keeps offsets as text, and commits a batch when the next one is in its log.
        self.offsets.append(json.loads(json.dumps(end)))
        if die:
            self.restart()
        elif len(self.offsets) > 1:
            self.reader.commit(start)
        number = len(self.offsets) - 1
        found = [
            Row(number, *(row[name] for name in Row._fields[1:]))
            for task in self.reader.partitions(start, self.offsets[-1])
            for batch in self.reader.read(task)
            for row in batch.to_pylist()
        ]
        homes = {(row.key, row.partition) for row in found}
        assert len(homes) == len({row.key for row in found}), "a key came from two partitions"
        self.rows += found
        return True

    def drain(self, *, die: bool = False) -> int:
        """Run batches until there is nothing to do; how many there were."""
        count = 0
        while self.run(die=die and count % 2 == 0):
            count += 1
        return count
