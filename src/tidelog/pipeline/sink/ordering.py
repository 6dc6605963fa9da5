"""The rows of a task in an order: sorted in memory, within a bound.

Owns the option `orderBy`. Spark refuses to sort a stream, and does not keep the order of rows
through a shuffle; a task that has all rows of its keys can sort them itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pipeline.errors import RowRefused

ROWS = 20_000
"""How many rows the sorted batches have."""


def in_order(
    batches: Iterable[pa.RecordBatch], by: tuple[int, ...], most_bytes: int
) -> Iterator[pa.RecordBatch]:
    """The rows of all batches, sorted by columns; equal rows keep their order, nulls come last.

    Raises RowRefused when they have more than ``most_bytes``.
    """
    if not by:
        yield from batches
        return
    kept: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        kept.append(batch)
        size += batch.nbytes
        if size > most_bytes:
            raise RowRefused(
                f"a task has more than {most_bytes} bytes of rows to sort (option orderBy): lower"
                " maxOffsetsPerTrigger, use more tasks, or raise the option orderBytes"
            )
    if not kept:
        return
    rows = pa.Table.from_batches(kept)
    kept.clear()
    # Names may repeat in Spark: sort by position.
    keys = pa.table({str(index): rows.column(index) for index in by})
    order = pc.sort_indices(keys, [(str(index), "ascending") for index in by])
    for begin in range(0, len(order), ROWS):
        yield from rows.take(order.slice(begin, ROWS)).combine_chunks().to_batches()
