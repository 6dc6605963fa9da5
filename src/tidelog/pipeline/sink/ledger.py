"""The ledger of a sink: the newest batch that is decided, and the transactions that belong to it.

Owns its form (docs/decisions/0152): metadata of committed offsets, in pieces below the limit that
brokers have. Pure. Not when it is written: see ``protocol``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tidelog.client.producing.transaction import PreparedTransaction
from tidelog.pipeline.errors import LedgerRefused

VERSION = 1

PIECE_BYTES = 3_800
"""The most bytes of a piece; `offset.metadata.max.bytes` is 4,096 by default."""

MOST_PIECES = 50
"""The default of `offsets.topic.num.partitions`."""

LEDGER_TOPIC = "__consumer_offsets"
"""A committed offset needs a topic that exists: this one does wherever a group has offsets. Its
partitions are numbers of pieces here."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """What is decided. ``unended``: its transactions, until all of them have ended."""

    query: str
    batch: int
    unended: tuple[PreparedTransaction, ...] = ()

    def holds(self, query: str, batch: int) -> bool:
        """Whether a batch of a query is decided: it must not be written again."""
        return self.query == query and self.batch >= batch

    def ended(self) -> Ledger:
        """Return the ledger after all of its transactions have ended."""
        return Ledger(self.query, self.batch)


def encode(ledger: Ledger, sink: str, most_pieces: int) -> list[str]:
    """The pieces of a ledger. Raises LedgerRefused when there are more than ``most_pieces``."""
    head = {"version": VERSION, "query": ledger.query, "batch": ledger.batch}
    prefix = f"{sink}/"
    pieces: list[list[list[Any]]] = [[]]
    # The head of the first piece, with room for the number of pieces.
    used = len(json.dumps({**head, "pieces": most_pieces, "transactions": []}).encode())
    for name, producer_id, epoch in ledger.unended:
        one = [name.removeprefix(prefix), producer_id, epoch]
        size = len(json.dumps(one, separators=(",", ":")).encode()) + 1
        if used + size > PIECE_BYTES:
            pieces.append([])
            used = len(json.dumps({"batch": ledger.batch, "transactions": []}).encode())
        pieces[-1].append(one)
        used += size
    if len(pieces) > most_pieces:
        raise LedgerRefused(
            f"sink {sink}: a batch has {len(ledger.unended)} tasks with rows, more than the ledger"
            f" has room for ({most_pieces} pieces of {PIECE_BYTES} bytes): write with fewer tasks,"
            " as with coalesce()"
        )
    first = {**head, "pieces": len(pieces), "transactions": pieces[0]}
    rest = [{"batch": ledger.batch, "transactions": piece} for piece in pieces[1:]]
    return [json.dumps(piece, separators=(",", ":")) for piece in (first, *rest)]


def pieces_in(first: str) -> int:
    """How many pieces the first one names; 1 where it names none: ``decode`` says what is wrong."""
    try:
        return max(1, min(int(json.loads(first)["pieces"]), MOST_PIECES))
    except (ValueError, KeyError, TypeError):
        return 1


def decode(pieces: Mapping[int, str], sink: str) -> Ledger | None:
    """The ledger that pieces have, by their numbers; None where there is none.

    Pieces beyond the number that the first one names are of former batches. Raises LedgerRefused,
    one line, for what no sink has written.
    """
    if 0 not in pieces:
        if pieces:
            raise LedgerRefused(f"sink {sink}: the first piece of its ledger is missing")
        return None
    try:
        first = json.loads(pieces[0])
        version, query, batch = first["version"], first["query"], first["batch"]
        if version != VERSION:
            raise LedgerRefused(
                f"sink {sink}: its ledger is of version {version}, this one reads {VERSION}:"
                " use the version of tidelog that wrote it, or a newer one"
            )
        listed = list(first["transactions"])
        for number in range(1, first["pieces"]):
            piece = json.loads(pieces[number])
            if piece["batch"] != batch:
                raise ValueError(f"piece {number} is of batch {piece['batch']}")
            listed += piece["transactions"]
        unended = tuple(
            PreparedTransaction(f"{sink}/{name}", int(producer_id), int(epoch))
            for name, producer_id, epoch in listed
        )
        return Ledger(str(query), int(batch), unended)
    except (ValueError, KeyError, TypeError) as error:
        raise LedgerRefused(
            f"sink {sink}: its ledger cannot be read ({error!r}): another program has committed"
            f" offsets to the group {group_of(sink)}"
        ) from error


def group_of(sink: str) -> str:
    """The group whose committed offsets are the ledger of a sink."""
    return f"__sink.{sink}"
