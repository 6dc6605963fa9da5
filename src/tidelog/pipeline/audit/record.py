"""The record of what audits of a lake have compared so far: a table of its pieces beside the lake.

Owns the file `_audit/compared.arrow`, whether it is of this lake (the last manifest that it covers
must still be what it was), what has come since, and which of its lines still count: a file that has
changed since (size or time of change), a piece that was not as it should be, or whose keys were not
judged as they shall be now, is compared again. The record is an Arrow file of one line per piece,
replaced as a whole; without it, or with one that cannot be read, everything is compared
(docs/decisions/0056).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tidelog.pipeline.audit.facts import Keys, Piece, PieceFacts, RecordedLoss
from tidelog.pipeline.audit.pieces import losses_of, pieces_of
from tidelog.pipeline.lake.chain import read_manifests
from tidelog.pipeline.lake.layout import Layout
from tidelog.pipeline.lake.manifest import Manifest
from tidelog.pipeline.lake.summary import Summary

FOLDER = "_audit"
_FILE = "compared.arrow"
_VERSION = 1
_META = b"tidelog.audit"
_TYPES = {"str": pa.string(), "int": pa.int64(), "bool": pa.bool_(), "bytes": pa.binary()}
_PIECE = tuple(column.name for column in fields(Piece))
_FACTS = tuple(column.name for column in fields(PieceFacts))
SCHEMA = pa.schema(
    [
        *((one.name, _TYPES[str(one.type)]) for one in (*fields(Piece), *fields(PieceFacts))),
        ("seen_bytes", pa.int64()),
        ("changed_ns", pa.int64()),
        ("clean", pa.bool_()),
        ("keys", pa.string()),
        ("read_as", pa.string()),
    ]
)


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """All pieces up to a batch with what was found. `seal` distinguishes that batch's manifest from
    that of another lake in the same folder."""

    table: pa.Table
    batch: int = -1
    seal: str = ""
    losses: tuple[RecordedLoss, ...] = ()


EMPTY = AuditRecord(SCHEMA.empty_table())


def seal_of(manifest: Manifest) -> str:
    """What the record remembers of the last manifest that it covers."""
    parts = json.dumps([manifest.batch, manifest.query_id, manifest.end], sort_keys=True)
    return hashlib.sha256(parts.encode()).hexdigest()


def load(root: Path) -> AuditRecord | None:
    """The record of a lake; None when there is none that can be read."""
    try:
        with pa.OSFile(str(root / FOLDER / _FILE)) as file, pa.ipc.open_file(file) as lines:
            table = lines.read_all()
        meta = json.loads((table.schema.metadata or {})[_META])
        if meta["version"] != _VERSION or not table.schema.equals(SCHEMA):
            return None
        losses = tuple(RecordedLoss(**loss) for loss in meta["losses"])
        return AuditRecord(table.replace_schema_metadata(None), meta["batch"], meta["seal"], losses)
    except (OSError, pa.ArrowException, ValueError, KeyError, TypeError):
        return None


def save(root: Path, record: AuditRecord) -> None:
    """Replace the record. Raises OSError; what was there stays then."""
    folder = root / FOLDER
    folder.mkdir(exist_ok=True)
    meta = {
        "version": _VERSION,
        "batch": record.batch,
        "seal": record.seal,
        "losses": [asdict(loss) for loss in record.losses],
    }
    table = record.table.replace_schema_metadata({_META: json.dumps(meta).encode()})
    draft = folder / f"{_FILE}.{os.getpid()}.draft"
    try:
        options = pa.ipc.IpcWriteOptions(compression="zstd")
        with draft.open("wb") as out:
            with pa.ipc.new_file(out, table.schema, options=options) as lines:
                lines.write_table(table)
            out.flush()
            os.fsync(out.fileno())
        draft.replace(folder / _FILE)
    finally:
        draft.unlink(missing_ok=True)


def lines_of(
    examined: Iterable[tuple[Piece, PieceFacts]],
    seen: Sequence[tuple[int, int]],
    keys: Keys,
    isolation: str,
) -> pa.Table:
    """Compared pieces as lines; `seen` is what `size_and_time` said of each before it was read."""
    lines = [
        {
            **asdict(piece),
            **asdict(facts),
            "seen_bytes": size,
            "changed_ns": changed_ns,
            "clean": facts.is_clean(piece),
            "keys": keys.value,
            "read_as": piece.isolation or isolation,
        }
        for (piece, facts), (size, changed_ns) in zip(examined, seen, strict=True)
    ]
    return pa.Table.from_pylist(lines, schema=SCHEMA)


def pairs_of(lines: pa.Table) -> list[tuple[Piece, PieceFacts]]:
    """The reverse of `lines_of`."""
    return [
        (Piece(**_of(line, _PIECE)), PieceFacts(**_of(line, _FACTS))) for line in lines.to_pylist()
    ]


def standing(root: Path, table: pa.Table, keys: Keys, isolation: str) -> pa.Array:
    """Which lines still count, as booleans: clean, the file as it was, judged as it shall be."""
    counts = table.column("clean").combine_chunks()
    if keys is not Keys.ANY:
        counts = pc.and_(counts, pc.equal(table.column("keys").combine_chunks(), keys.value))
        counts = pc.and_(counts, pc.equal(table.column("away").combine_chunks(), 0))
    has_isolation = pc.not_equal(table.column("isolation").combine_chunks(), "")
    as_now = pc.equal(table.column("read_as").combine_chunks(), isolation)
    counts = pc.and_(counts, pc.or_(has_isolation, as_now))
    now = [
        not path or size_and_time(root, path) == (size, then)
        for path, size, then in zip(
            *(table.column(name).to_pylist() for name in ("path", "seen_bytes", "changed_ns")),
            strict=True,
        )
    ]
    return pc.and_(counts, pa.array(now, pa.bool_()))


def size_and_time(root: Path, path: str) -> tuple[int, int]:
    """Size and time of the last change of a file; -1 and -1 when it cannot be checked."""
    try:
        stat = os.stat(root / path)
    except OSError:
        return -1, -1
    return stat.st_size, stat.st_mtime_ns


def _of(line: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: line[name] for name in names}


def known_and_new(
    layout: Layout, whole: Summary, recorded: AuditRecord | None
) -> tuple[AuditRecord, list[Piece]]:
    """The record with all batches up to the last of `whole`, and the pieces of those it lacked.

    The pieces are still to be added to its table. A record of another lake counts as none. Raises
    LakeRefused.
    """
    if recorded is None or not _is_of(layout, whole, recorded):
        recorded = EMPTY
    pieces: list[Piece] = []
    losses = [*recorded.losses]
    seal = recorded.seal
    for manifest in read_manifests(layout, after=recorded.batch):
        if manifest.batch > whole.batch:
            # An archive job goes on meanwhile.
            break
        pieces += pieces_of(manifest)
        losses += losses_of(manifest)
        seal = seal_of(manifest)
    return AuditRecord(recorded.table, whole.batch, seal, tuple(losses)), pieces


def _is_of(layout: Layout, whole: Summary, recorded: AuditRecord) -> bool:
    if not 0 <= recorded.batch <= whole.batch:
        return False
    last = next(read_manifests(layout, after=recorded.batch - 1), None)
    return last is not None and seal_of(last) == recorded.seal
