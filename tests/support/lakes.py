"""Small lakes for tests: rows as the source gives them, and batches as the job commits them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tidelog.pipeline.lake import files
from tidelog.pipeline.lake.chain import read_manifests
from tidelog.pipeline.lake.commit import commit
from tidelog.pipeline.lake.layout import Layout
from tidelog.pipeline.lake.manifest import LakeFile, Manifest, check_files
from tidelog.pipeline.lake.offsets import LakePartition, ends
from tidelog.pipeline.schema import arrow_schema

HOME = LakePartition("t", "id", 0)
QUERY = "q"


def at(offset: int, *, topic_id: str = "id") -> dict[str, Any]:
    """An offset of version 2: partition 0 of topic `t` is read up to here."""
    return positions({"0": offset}, topic_id)


def positions(each: Mapping[str, int], topic_id: str = "id") -> dict[str, Any]:
    """An offset of version 2, of topic `t`."""
    topic = {
        "id": topic_id,
        "resizeEpoch": 0,
        "new": {},
        "positions": {number: [offset, 3] for number, offset in each.items()},
    }
    return {"version": 2, "topics": {"t": topic}}


def first_version(offset: int) -> dict[str, Any]:
    """The same as commit 02f3bcb wrote it."""
    return {"version": 1, "topics": {"t": {"id": "id", "positions": {"0": offset}}}}


def rows(first: int, last: int, partition: int = 0, **more: object) -> pa.RecordBatch:
    """Records of topic `t`; `more` are columns that are the same for all of them."""
    count = last - first + 1
    columns = {
        "key": [None] * count,
        "value": [b"v%d" % n for n in range(first, last + 1)],
        "topic": ["t"] * count,
        "partition": [partition] * count,
        "offset": list(range(first, last + 1)),
        "timestamp": [1_000_000 + 1000 * n for n in range(first, last + 1)],
        "timestampType": [0] * count,
        "headers": [[]] * count,
        "epoch": [0] * count,
        "leaderEpoch": [3] * count,
        "lostTo": [None] * count,
        **{name: [value] * count for name, value in more.items()},
    }
    schema = arrow_schema(files.READ_COLUMNS)
    arrays = [pa.array(columns[field.name]).cast(field.type) for field in schema]
    # As Spark hands them over.
    headers = schema.get_field_index("headers")
    schema = schema.set(headers, schema.field(headers).with_nullable(False))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def new_layout(root: Path) -> Layout:
    """A lake without a batch."""
    made = Layout.at(str(root))
    for place in (made.manifests, made.inflight):
        place.mkdir(parents=True)
    return made


def stage(layout: Layout, *batches: pa.RecordBatch, roll_bytes: int = 1 << 30) -> list[str]:
    """What the tasks say after they have staged these rows."""
    out = files.stage(str(layout.inflight), "zstd", roll_bytes)(batches)
    return [line for batch in out for line in batch.column("line").to_pylist()]


def staged(layout: Layout, *batches: pa.RecordBatch, homes: tuple[LakePartition, ...] = (HOME,)):
    """The staged files with their places."""
    return files.Staged.of(stage(layout, *batches), homes)


def write_batch(
    layout: Layout, batch: int, first: int, last: int, query: str = QUERY, **more: Any
) -> Manifest:
    """Commit the records `first` to `last`, as the next batch."""
    made = staged(layout, rows(first, last))
    done = Manifest(batch, query, at(first) if batch else None, at(last + 1), made.files, **more)
    check_files(made.files, at(first), done.end)
    commit(layout, done, made.places)
    return done


def first_lake(layout: Layout) -> Manifest:
    """Batch 0, which only says where the lake begins."""
    done = Manifest(0, QUERY, None, at(0))
    commit(layout, done, {})
    return done


def write_first_version(layout: Layout, batch: int, first: int, last: int) -> None:
    """A batch as commit 02f3bcb wrote it."""
    name = f"t/p=0/{first:020d}-{last:020d}.parquet"
    if batch:
        (layout.root / name).parent.mkdir(parents=True, exist_ok=True)
        table = pa.Table.from_batches([rows(first, last)]).select(files.COLUMNS)
        life = pa.array([0] * table.num_rows, pa.int32())
        pq.write_table(table.append_column("incarnation", life), layout.root / name)
    file = {
        "path": name,
        "topic": "t",
        "partition": 0,
        "incarnation": 0,
        "first": first,
        "last": last,
        "rows": last - first + 1,
        "size_bytes": 1,
    }
    manifest = {
        "version": 1,
        "batch": batch,
        "queryId": QUERY,
        "start": first_version(first) if batch else None,
        "end": first_version(last + 1 if batch else first),
        "files": [file] if batch else [],
    }
    layout.manifest(batch).write_text(json.dumps(manifest, indent=1))


def offsets(layout: Layout) -> list[int]:
    """What is in the lake: the records of the files of its manifests."""
    return [
        offset
        for each in read_manifests(layout)
        for file in each.files
        for offset in pq.ParquetFile(layout.root / file.path).read(["offset"])[0].to_pylist()
    ]


def lake_file(first: int, last: int, path: str, home: LakePartition = HOME) -> LakeFile:
    """A file that is only named."""
    return LakeFile(path, home, first, last, last - first + 1, 1)


def reached(layout: Layout) -> int:
    """Where partition 0 of the lake ends."""
    return ends(list(read_manifests(layout))[-1].end)[HOME]
