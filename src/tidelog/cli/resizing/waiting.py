"""A resize with its progress, until it is published or undone (``topics --alter --wait``).

Owns the repeated question to the controller, the lines on stderr, and how the wait ends. A broker
answers a resize within some seconds, whether it is done or not, and the request may lose its
controller: what counts is the topic's own record, by its resize epoch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tidelog.cli.output import note
from tidelog.client.admin.resizes import TopicResize, describe_resizes
from tidelog.client.admin.topics import Outcome, create_partitions
from tidelog.client.cluster import Cluster
from tidelog.client.errors import ClientError, Refused, RequestTimedOut
from tidelog.client.metadata import Topic
from tidelog.model.errors import ErrorCode

PAUSE_S = 0.3
"""The time between two questions."""

SAY_AFTER_S = 2.0
"""How long a question may take before a line says that no controller answers."""

SILENT_S = 60.0
"""How long no controller may answer before the wait ends with an error."""

States = Mapping[str, TopicResize | None]


class _Progress:
    """What has been said of a wait, and when a controller last answered."""

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.answered()

    def answered(self) -> None:
        """Count the silence of controllers from now."""
        self._answered_at = asyncio.get_running_loop().time()

    @property
    def left_s(self) -> float:
        """How much longer no controller may answer."""
        return self._answered_at + SILENT_S - asyncio.get_running_loop().time()

    def say_silent(self) -> None:
        """Say that no controller answers, and how long that may last."""
        line = f"no active controller answers: waiting for one, at most {SILENT_S:.0f} s"
        if self.said.get("") != line:
            self.said[""] = line
            note(line)


async def resize_and_wait(
    cluster: Cluster,
    topics: Sequence[Topic],
    count: int,
    assignments: Mapping[str, Sequence[Sequence[int]]],
    *,
    force: bool,
) -> dict[str, Outcome]:
    """Resize topics; return each outcome when all are published, undone or refused.

    Raises RequestTimedOut when no controller answers for ``SILENT_S``.
    """
    counts = {topic.name: count for topic in topics}
    before = {topic.name: topic.resize_epoch for topic in topics}
    request = asyncio.ensure_future(
        create_partitions(cluster, counts, assignments=assignments, force=force)
    )
    progress = _Progress()
    try:
        while not request.done():
            await asyncio.wait([request], timeout=PAUSE_S)
            if not request.done():
                _say(await _states(cluster, counts, progress, request), progress.said)
        outcomes = _outcomes(request, counts)
        open_ones = {name for name, outcome in outcomes.items() if _is_open(outcome)}
        ended = await _until_ended(cluster, {x: before[x] for x in open_ones}, count, progress)
    finally:
        request.cancel()
    cluster.forget()
    return outcomes | ended


def _outcomes(
    request: asyncio.Future[dict[str, Outcome]], counts: Mapping[str, int]
) -> dict[str, Outcome]:
    """Return the outcomes of a request; after a lost one each is open."""
    error = request.exception()
    if isinstance(error, Refused) or (error is not None and not isinstance(error, ClientError)):
        raise error
    if error is None:
        return request.result()
    lost = Refused(ErrorCode.REQUEST_TIMED_OUT, "the resize", str(error))
    return dict.fromkeys(counts, lost)


def _is_open(outcome: Outcome) -> bool:
    return outcome is not None and outcome.code == ErrorCode.REQUEST_TIMED_OUT


async def _states(
    cluster: Cluster,
    names: Mapping[str, int],
    progress: _Progress,
    request: asyncio.Future[Any] | None = None,
) -> States | None:
    """Return what a controller says now; None from one that does not say it, or as soon as
    ``request`` has ended.

    Asks again while none answers, and says so soon. Raises RequestTimedOut after ``SILENT_S``.
    """
    while progress.left_s > 0:
        asking = asyncio.ensure_future(describe_resizes(cluster, names))
        awaited = {asking} if request is None else {asking, request}
        try:
            done = await _first_of(awaited, min(SAY_AFTER_S, progress.left_s))
            if not done:
                progress.say_silent()
                done = await _first_of(awaited, progress.left_s)
            if request in done:
                return None
            if asking in done:
                states = asking.result()
                progress.answered()
                return states
        except ClientError:
            progress.say_silent()
        finally:
            asking.cancel()
        await asyncio.sleep(PAUSE_S)
    raise RequestTimedOut(f"no active controller answered for {SILENT_S:.0f} s")


async def _first_of(
    awaited: Collection[asyncio.Future[Any]], within_s: float
) -> set[asyncio.Future[Any]]:
    """Return those that are done when the first one is, or none in time."""
    done, _ = await asyncio.wait(
        awaited, timeout=max(0.0, within_s), return_when=asyncio.FIRST_COMPLETED
    )
    return done


async def _until_ended(
    cluster: Cluster, before: Mapping[str, int], count: int, progress: _Progress
) -> dict[str, Outcome]:
    """Wait until the resizes with an open outcome have ended; return how."""
    ended: dict[str, Outcome] = {}
    while before.keys() - ended.keys():
        states = await _states(cluster, before, progress)
        if states is None:
            return {name: _not_known(name) for name in before}
        _say(states, progress.said)
        for name, state in states.items():
            if state is None or state.plan is None:
                ended[name] = outcome_of(name, state, before[name], count)
        if before.keys() - ended.keys():
            await asyncio.sleep(PAUSE_S)
    return ended


def outcome_of(name: str, state: TopicResize | None, before: int, count: int) -> Outcome:
    """Return how a resize ended whose topic has no plan now; ``before``: the epoch before it."""
    subject = f"topic {name!r}"
    if state is None:
        code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return Refused(code, subject, "It was deleted meanwhile.")
    if state.resize_epoch > before and state.partition_count == count:
        return None
    if state.last_undo is not None and state.last_undo[0] > before:
        return Refused(ErrorCode.NOT_ENOUGH_REPLICAS, subject, state.last_undo[1])
    if state.resize_epoch > before:
        sentence = (
            f"The resize was undone, or another one followed: it has {state.partition_count} "
            "partitions. `tidelog doctor` says what is missing."
        )
        return Refused(ErrorCode.NOT_ENOUGH_REPLICAS, subject, sentence)
    sentence = "The controller did not begin the resize: send it again."
    return Refused(ErrorCode.REQUEST_TIMED_OUT, subject, sentence)


def _not_known(name: str) -> Refused:
    sentence = "Its controller does not say how the resize goes: see tidelog topics --describe."
    return Refused(ErrorCode.REQUEST_TIMED_OUT, f"topic {name!r}", sentence)


def _say(states: States | None, told: dict[str, str]) -> None:
    """Print a line for each resize that waits for something else than before."""
    for name, state in (states or {}).items():
        line = progress_line(name, state)
        key = line.split(" (undone at ")[0]
        if line and told.get(name) != key:
            told[name] = key
            note(line)


def progress_line(name: str, state: TopicResize | None, now: datetime | None = None) -> str:
    """Return what a resize waits for, and when it is undone if that does not come; "" for none."""
    if state is None or state.plan is None:
        return ""
    plan = state.plan
    what = {"grow": "grows", "shrink": "shrinks", "undo": "goes back"}.get(plan.kind, "is fenced")
    line = f"{name} {what} from {plan.from_count} to {plan.to_count} partitions: "
    if plan.published:
        return line + "published, not every broker has been sent it"
    line += plan.why or "the controller writes its steps"
    if plan.undone_in_ms is None:
        return line
    now = now or datetime.now(UTC).astimezone()
    end = now + timedelta(milliseconds=plan.undone_in_ms)
    return f"{line} (undone at {end:%H:%M:%S} if that stays so)"
