"""The part of a lake that an audit knows from its record, and what has come since.

Owns whether a record is this lake's: the last manifest that it covers must still be what it was.
"""

from __future__ import annotations

from tidelog.pipeline.audit import record
from tidelog.pipeline.audit.facts import Piece
from tidelog.pipeline.audit.pieces import losses_of, pieces_of
from tidelog.pipeline.audit.record import EMPTY, AuditRecord
from tidelog.pipeline.lake.chain import read_manifests
from tidelog.pipeline.lake.layout import Layout
from tidelog.pipeline.lake.summary import Summary


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
        seal = record.seal_of(manifest)
    return AuditRecord(recorded.table, whole.batch, seal, tuple(losses)), pieces


def _is_of(layout: Layout, whole: Summary, recorded: AuditRecord) -> bool:
    if not 0 <= recorded.batch <= whole.batch:
        return False
    last = next(read_manifests(layout, after=recorded.batch - 1), None)
    return last is not None and record.seal_of(last) == recorded.seal
