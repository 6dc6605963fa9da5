"""Makes `format("tidelog")` known to Spark: reads, streams and writes.

Owns the name only. Spark imports every top-level module that begins with `pyspark_` and registers
its `DefaultSource`; one such import that fails switches off the look-up of all Python sources, so
this one imports nothing of tidelog until a query needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):  # type: ignore[misc]
    """A topic of tidelog or Apache Kafka as a batch or a stream of rows, read or written.

    Options are those of Spark's Kafka source and sink (docs/operating/pipeline.md). Raises
    OptionRefused, one line, for an option that does not exist or is malformed.
    """

    @classmethod
    def name(cls) -> str:
        return "tidelog"

    def schema(self) -> str:
        from tidelog.pipeline.options import check_names, parse_columns
        from tidelog.pipeline.schema import spark_schema

        return spark_schema(parse_columns(check_names(self.options)))

    def reader(self, schema: StructType) -> DataSourceReader:
        from tidelog.pipeline.batch_reader import BatchReader
        from tidelog.pipeline.options import Mode, parse

        return BatchReader(parse(self.options, Mode.BATCH), schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        from tidelog.pipeline.options import Mode, parse
        from tidelog.pipeline.stream_reader import StreamReader

        return StreamReader(parse(self.options, Mode.STREAM), schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from tidelog.pipeline.errors import OptionRefused
        from tidelog.pipeline.sink.options import parse
        from tidelog.pipeline.sink.writers import BatchWriter

        if overwrite:
            raise OptionRefused('mode("overwrite") is not possible: a topic is only appended to')
        options = parse(self.options)
        if options.sink is not None:
            raise OptionRefused("option transactionalId is for streams: a batch has no checkpoint")
        return BatchWriter(options, schema)

    # Rows of the output mode complete are appended, as the stock sink does.
    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        from tidelog.pipeline.sink.options import parse
        from tidelog.pipeline.sink.writers import ExactlyOnceWriter, StreamWriter

        options = parse(self.options)
        kind = StreamWriter if options.sink is None else ExactlyOnceWriter
        return kind(options, schema)
