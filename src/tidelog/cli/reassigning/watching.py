"""The ``--watch`` of moves: a table of copies under way, until there is none.

Owns the loop and the screen. Not the rows: see ``progress``.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Collection

from tidelog.cli.output import say
from tidelog.cli.reassigning import tables
from tidelog.cli.reassigning.progress import Samples, TargetProgress
from tidelog.cli.reassigning.situation import Situation, check
from tidelog.cli.reassigning.throttle import note_limits, rate_of
from tidelog.client.admin.sending import TIMEOUT_MS
from tidelog.client.cluster import Cluster
from tidelog.model.topics import TopicPartition

INTERVAL_S = 2.0
"""The pause between two samples."""

CLEAR = "\033[H\033[J"
"""What clears a terminal."""


class MovesWatch:
    """The running moves of a plan, or (None) all, shown until they are done.

    ``as_json`` prints one line of JSON for each sample.
    """

    def __init__(self, plan: Collection[TopicPartition] | None, as_json: bool) -> None:
        self._plan = plan
        self._as_json = as_json
        self.waits_for = "waiting for the controller"
        """The line on stderr until there is a first table."""

    async def until_done(self, cluster: Cluster) -> None:
        """Show the moves until there are none."""
        samples = Samples()
        shown: list[TargetProgress] | None = None
        while True:
            now = _of_plan(await check(cluster, dirs=True, timeout_ms=TIMEOUT_MS), self._plan)
            self.waits_for = ""
            if shown is None and now.moves:
                await note_limits(cluster, now.racks)
            rate = await rate_of(cluster)
            copies = samples.copies(now, asyncio.get_running_loop().time(), rate)
            if self._as_json:
                print(json.dumps(_data(now, copies), ensure_ascii=False), flush=True)
            elif now.moves and copies != shown:
                _print(now, copies)
            if now.moves:
                shown = copies
            if not now.moves:
                break
            await asyncio.sleep(INTERVAL_S)
        if not self._as_json:
            say("No partition is being reassigned." if shown is None else "All moves are done.")


def _of_plan(now: Situation, plan: Collection[TopicPartition] | None) -> Situation:
    if plan is None:
        return now
    moves = {tp: move for tp, move in now.moves.items() if tp in plan}
    return Situation(now.racks, now.partitions, moves, now.dirs)


def _data(now: Situation, copies: list[TargetProgress]) -> dict[str, object]:
    return {"moves": len(now.moves), "copies": [tables.copy_data(copy) for copy in copies]}


def _print(now: Situation, copies: list[TargetProgress]) -> None:
    if sys.stdout.isatty():
        sys.stdout.write(CLEAR)
    tables.print_copies(copies[: tables.PARTITIONS_SHOWN])
    hidden = len(copies) - tables.PARTITIONS_SHOWN
    if hidden > 0:
        say(f"… and {hidden} more")
    say(f"{len(now.moves)} moves, {len(copies)} copies")
    say("")
    sys.stdout.flush()
