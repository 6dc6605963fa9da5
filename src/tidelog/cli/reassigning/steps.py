"""The execution of a plan in bounded steps: so many partitions move at a time, then the next.

Owns the loop. A plan that is begun needs no tool to finish what runs: if the tool dies, the running
moves end by themselves, and another run makes a plan from what is there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from tidelog.cli.output import note
from tidelog.client.admin.elections import elect_leaders
from tidelog.client.admin.reassignments import alter_reassignments, list_reassignments
from tidelog.client.cluster import Cluster
from tidelog.client.errors import Refused
from tidelog.model.admin_requests import ElectionType
from tidelog.model.topics import TopicPartition
from tidelog.model.wording import counted, named
from tidelog.planning.plan import Change

AT_ONCE = 50
"""Partitions that move at the same time; brokers copy fewer (reassignment.parallel.copies)."""

POLL_S = 0.5

WATCH = "`tidelog reassign-partitions --watch` shows what each one waits for"

QUIET_S = 10.0
"""So long after the last partition that has moved, what is awaited is named."""


@dataclass(slots=True)
class Done:
    """How far an execution is: partitions moved, refused, and all."""

    of: int = 0
    moved: list[TopicPartition] = field(default_factory=list)
    refused: dict[TopicPartition, Refused] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"moved {len(self.moved)} of {self.of} partitions"


async def carry_out(cluster: Cluster, changes: Sequence[Change], done: Done) -> None:
    """Make the changes in their order, and let the new preferred leaders lead; adds to ``done``.

    A partition that is refused (deleted meanwhile, being resized) is noted, and the others go on.
    """
    waiting = deque(changes)
    done.of += len(waiting)
    running: set[TopicPartition] = set()
    loop = asyncio.get_running_loop()
    said_at = loop.time()
    while waiting or running:
        some = [waiting.popleft() for _ in range(min(AT_ONCE - len(running), len(waiting)))]
        if some:
            outcomes = await alter_reassignments(cluster, {move.where: move.after for move in some})
            for tp, refusal in outcomes.items():
                if refusal is None:
                    running.add(tp)
                else:
                    done.refused[tp] = refusal
        left = set(await list_reassignments(cluster, sorted(running))) if running else set()
        ended = sorted(running - left)
        if ended:
            # One that needs no election is no failure: the leader may be the right one already.
            await elect_leaders(cluster, ElectionType.PREFERRED, ended)
            done.moved += ended
            running &= left
            said_at = loop.time()
        elif running:
            if loop.time() - said_at >= QUIET_S:
                many = counted(len(running), "partition")
                note(f"waiting for {many} to move ({named(sorted(running))}): {WATCH}")
                said_at = loop.time()
            await asyncio.sleep(POLL_S)
