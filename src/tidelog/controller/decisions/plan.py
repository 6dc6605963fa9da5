"""The plan in ``/admin/reassign_partitions``: its rows, and which of them are begun, done or ended.

Owns the reading of rows and the state of each row. What a controller does with a plan: see
``reassignment_node``.

| a row | the partition |
|---|---|
| due | this controller has not begun it |
| (none of the others) | its move is running with the targets of the row |
| done | it has the replicas of the row, and no move is running |
| ended | anything else: its move was cancelled or replaced, refused, or its topic is gone |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from tidelog.metadata.records import ReassignmentRow, ReassignPartitionsNode
from tidelog.model.topics import TopicPartition

SHARE = 16
"""A node is written again when one of 16 rows is done: each time would be quadratic in the rows."""


@dataclass
class WrittenPlan:
    """The valid rows of the node; the sets and ``problems`` are this controller's own knowledge.

    ``problems`` has a sentence for each invalid row, until they are logged.
    """

    rows: dict[TopicPartition, list[int]] = field(default_factory=dict)
    is_written: bool = False
    due: set[TopicPartition] = field(default_factory=set, compare=False)
    done: set[TopicPartition] = field(default_factory=set, compare=False)
    ended: set[TopicPartition] = field(default_factory=set, compare=False)
    problems: list[str] = field(default_factory=list, compare=False)
    content: ReassignPartitionsNode | None = None
    """The node as it was read, with its invalid rows: None while it is empty."""

    def copy(self) -> WrittenPlan:
        """Return a plan that changes apart from this one. O(rows)."""
        return WrittenPlan(
            self.rows,
            self.is_written,
            set(self.due),
            set(self.done),
            set(self.ended),
            list(self.problems),
            self.content,
        )

    def read(self, node: ReassignPartitionsNode) -> WrittenPlan:
        """Return the plan of a node that replaces this one: rows that are new are due."""
        rows, problems = rows_of(node)
        kept = rows.keys() & self.rows.keys()
        due = (rows.keys() - kept) | (self.due & kept)
        return WrittenPlan(rows, True, due, self.done & kept, self.ended & kept, problems, node)

    def note(
        self, tp: TopicPartition, replicas: Sequence[int], targets: Sequence[int] | None
    ) -> None:
        """Note how a partition stands now; ``replicas`` are empty when it is gone."""
        if tp not in self.rows or tp in self.due:
            return
        wanted = self.rows[tp]
        self.done.discard(tp)
        self.ended.discard(tp)
        if targets is None and replicas == wanted:
            self.done.add(tp)
        elif targets != wanted:
            self.ended.add(tp)

    def begin(self, tp: TopicPartition) -> None:
        """Note that a row is begun, or refused: then it has ended unless ``note`` follows."""
        if tp in self.due:
            self.due.discard(tp)
            self.ended.add(tp)

    @property
    def is_outdated(self) -> bool:
        """Whether the node is to be written again, or removed. O(1).

        A row that has ended leaves at once: the next controller would begin its move again.
        """
        if not self.is_written or self.problems:
            return False
        return bool(self.ended) or len(self.done) * SHARE >= len(self.rows)


def rows_of(
    node: ReassignPartitionsNode,
) -> tuple[dict[TopicPartition, list[int]], list[str]]:
    """Return the valid rows of a node, and a sentence for each of the others."""
    rows: dict[TopicPartition, list[int]] = {}
    problems: list[str] = []
    repeated: dict[TopicPartition, None] = {}
    for position, row in enumerate(node.partitions):
        try:
            one = msgspec.convert(row, ReassignmentRow)
        except msgspec.ValidationError as error:
            problems.append(f"Row {position} is no reassignment: {error}.")
            continue
        tp = TopicPartition(one.topic, one.partition)
        if tp in rows:
            repeated[tp] = None
        rows[tp] = one.replicas
    for tp in repeated:
        del rows[tp]
        problems.append(f"{tp} is named more than once.")
    return rows, problems


def node_of(plan: WrittenPlan) -> ReassignPartitionsNode | None:
    """Return the node with the rows whose work is not over; None if there are none."""
    left: Iterable[tuple[TopicPartition, list[int]]] = (
        (tp, targets)
        for tp, targets in plan.rows.items()
        if tp not in plan.done and tp not in plan.ended
    )
    rows = [msgspec.to_builtins(ReassignmentRow(*tp, targets)) for tp, targets in left]
    return ReassignPartitionsNode(rows) if rows else None
