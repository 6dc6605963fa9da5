"""A sink whose driver dies in the commit of a batch, for a test of what is left.

`format("killed")` writes as `format("tidelog")` does. Beside the folder of the checkpoint there may
be a file `killed` with the number of a batch: once that is decided, and none of its transactions
has ended, the process that commits kills the JVM of the driver with SIGKILL, and itself.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamArrowWriter
from pyspark.sql.types import StructType

from pyspark_tidelog import DefaultSource
from tidelog.pipeline.sink import protocol

FILE = "killed"


class KilledSink(DefaultSource):
    """The sink, known to Spark as `killed`."""

    @classmethod
    def name(cls) -> str:
        return FILE

    def streamWriter(  # noqa: N802
        self, schema: StructType, overwrite: bool
    ) -> DataSourceStreamArrowWriter:
        arm(Path(self.options["checkpointLocation"]).with_name(FILE))
        return super().streamWriter(schema, overwrite)


def arm(file: Path) -> None:
    """Die in the commit of the batch that the file names; there is one writer per process."""
    commit = protocol.commit_batch
    if commit.__name__ != "commit_batch":
        return

    def killing(
        sink: str, results: list[protocol.TaskResult], batch: int
    ) -> Generator[Any, Any, Any]:
        steps = commit(sink, results, batch)
        result = None
        while True:
            try:
                request = steps.send(result)
            except StopIteration as stopped:
                return stopped.value
            if isinstance(request, protocol.EndAll) and file.read_text() == str(batch):
                os.kill(jvm(), signal.SIGKILL)
                os.kill(os.getpid(), signal.SIGKILL)
            result = yield request

    protocol.commit_batch = killing


def jvm() -> int:
    """The JVM that this worker belongs to: its parent's parent, as a rule."""
    pid = os.getppid()
    while Path(f"/proc/{pid}/comm").read_text().strip() != "java":
        status = Path(f"/proc/{pid}/status").read_text()
        pid = int(next(line for line in status.splitlines() if line.startswith("PPid:"))[5:])
    return pid
