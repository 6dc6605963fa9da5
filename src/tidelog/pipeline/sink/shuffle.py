"""Writes that keep the order of a key through a shuffle.

Owns `write_ordered`. Imports pyspark when it is called: the package of the pipeline imports this
module, also where no Spark is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tidelog.pipeline.errors import OptionRefused

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def write_ordered(
    rows: DataFrame,
    *,
    order_by: Sequence[str] = ("epoch", "offset"),
    key: str = "key",
    tasks: int | None = None,
) -> DataFrameWriter | DataStreamWriter:
    """A writer of rows, with `format("tidelog")`, that writes those of each key in an order.

    The rows are shuffled by ``key`` into ``tasks`` tasks (default: `spark.sql.shuffle.partitions`),
    and each task sorts its own by ``order_by``. Set the options of the sink, and start it. A stream
    sorts in memory: the option orderBytes bounds the rows of a task. Rows without a key have no
    order and are spread out. Raises OptionRefused for a column that does not exist.
    """
    from pyspark.sql import functions

    for name in (key, *order_by):
        if name not in rows.columns:
            raise OptionRefused(f"write_ordered needs the column {name}; there are {rows.columns}")
    place = functions.col(key)
    spread = functions.when(place.isNull(), functions.xxhash64(*order_by))
    count = () if tasks is None else (tasks,)
    parted = rows.repartition(*count, place, spread)
    if rows.isStreaming:
        stream = parted.writeStream.format("tidelog")
        return stream.option("orderBy", ",".join(order_by))
    return parted.sortWithinPartitions(*order_by).write.format("tidelog").mode("append")
