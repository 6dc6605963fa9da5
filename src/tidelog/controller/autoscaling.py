"""The timer of autoscaling: topics are resized by their load while the controller is active.

Owns when a controller decides, how long each topic's rate has been low, and the log: one line for
each decision and for each change of its cause, with everything that it was made from. Not the rule:
see ``decisions.autoscaling``.

The field ``observation`` of these lines is a line of the file that ``tidelog autoscale --replay``
reads.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, Protocol

from tidelog.controller.decisions import soft_state
from tidelog.controller.decisions.autoscaled_topics import (
    Autoscaled,
    Times,
    autoscale,
    autoscaled_names,
    is_able,
    judged,
)
from tidelog.controller.decisions.autoscaling import Cause, Observation, Settings, Verdict
from tidelog.controller.decisions.autoscaling_settings import settings_of
from tidelog.controller.decisions.entropy import Entropy
from tidelog.controller.performing import NotActive, Performer
from tidelog.metadata.store import WriteTooLarge
from tidelog.model.configs.server import ServerConfigs
from tidelog.model.work import Work
from tidelog.runtime import pace
from tidelog.runtime.seams import Seams

logger = logging.getLogger(__name__)

CHECK_S = 2.0
"""The time between two decisions about a topic: that between two reports of a leader."""


class AutoscalingOwner(Performer, Protocol):
    """A controller, as autoscaling sees it."""

    configs: ServerConfigs
    seams: Seams
    entropy: Entropy


class Autoscaling:
    """Decides every ``CHECK_S`` about each topic with ``partitions.auto=true``."""

    def __init__(self, controller: AutoscalingOwner) -> None:
        self._controller = controller
        self._low_since_ms: dict[str, int] = {}
        self._said: dict[str, tuple[Cause, int, object]] = {}

    def begin(self) -> None:
        """Begin with a state that was just loaded: how long rates have been low is not known."""
        self._low_since_ms.clear()
        self._said.clear()

    async def run(self) -> None:
        """Decide again and again; return at once below level 1.5."""
        while self._controller.configs.level.resizes:
            await asyncio.sleep(CHECK_S)
            try:
                await self.check()
            except NotActive:
                logger.debug("another controller decides about partition counts now")
            except Exception:
                # A bug must not end the checks.
                logger.exception("partition counts could not be decided")

    async def check(self) -> None:
        """Decide once about each topic."""
        controller = self._controller
        if not controller.active:
            return
        names = autoscaled_names(controller.cluster)
        turn = pace.Turn(controller.seams.clock)
        for name in names:
            # Other tasks run between two topics, and may resize or delete this one.
            await turn.pause()
            if not is_able(controller.cluster, name):
                continue
            since = self._low_since_ms.get(name)
            seen, verdict = judged(controller.cluster, name, self._times(), since)
            autoscaled: Autoscaled | None = Autoscaled(seen, verdict, None)
            if verdict.count != seen.count:
                autoscaled = await self._resize(name)
            if autoscaled is not None:
                self._note(name, autoscaled)
        self._forget(names)

    def on_record(self) -> Work[list[dict[str, Any]]]:
        """Return what would be decided now about each topic, as plain data for JSON; in steps."""
        cluster = self._controller.cluster
        rows = []
        for name in autoscaled_names(cluster):
            yield None
            if not is_able(cluster, name):
                continue
            seen, verdict = judged(cluster, name, self._times(), self._low_since_ms.get(name))
            rows.append(row_of(name, settings_of(cluster, name), seen, verdict))
        return rows

    async def _resize(self, name: str) -> Autoscaled | None:
        decide = partial(
            autoscale,
            name=name,
            times=self._times(),
            low_since_ms=self._low_since_ms.get(name),
            entropy=self._controller.entropy,
        )
        try:
            autoscaled, _ = await self._controller.perform(decide)
        except WriteTooLarge as error:
            logger.error(
                "topic %(topic)s cannot be resized: %(error)s", {"topic": name, "error": error}
            )
            return None
        return autoscaled

    def _note(self, name: str, autoscaled: Autoscaled) -> None:
        """Remember what a decision leaves to the next, and log it if it is another one."""
        seen, verdict, refusal = autoscaled
        since = verdict.state.low_since_ms
        if since is None:
            self._low_since_ms.pop(name, None)
        else:
            self._low_since_ms[name] = since
        reported = verdict.cause, seen.count, None if refusal is None else refusal.error
        if self._said.get(name) == reported:
            return
        self._said[name] = reported
        row = row_of(name, settings_of(self._controller.cluster, name), seen, verdict)
        fields: dict[str, Any] = {
            "topic": name,
            "count": seen.count,
            "decided": verdict.count,
            "cause": verdict.cause.value,
            "why": verdict.reason,
            "observation": json.dumps(row),
        }
        if refusal is not None:
            logger.warning(
                "autoscaling of topic %(topic)s: %(why)s; the resize is refused: %(refusal)s",
                {**fields, "refusal": refusal.sentence},
            )
        elif verdict.count == seen.count:
            logger.info(
                "autoscaling of topic %(topic)s: it keeps its %(count)d partitions: %(why)s", fields
            )
        else:
            logger.info(
                "autoscaling of topic %(topic)s: from %(count)d to %(decided)d partitions: %(why)s",
                fields,
            )

    def _forget(self, names: list[str]) -> None:
        """Forget the topics that are not resized by their load any longer.

        A topic that is being resized is not in ``names``: it begins again after that.
        """
        cluster = self._controller.cluster
        there = set(names)
        for by_name in (self._low_since_ms, self._said):
            for name in by_name.keys() - there:
                if by_name is self._low_since_ms or settings_of(cluster, name) is None:
                    by_name.pop(name)
        kept = [cluster.topic_id(x) for x in cluster.topic_configs if settings_of(cluster, x)]
        soft_state.forget_rates(cluster, kept)

    def _times(self) -> Times:
        clock = self._controller.seams.clock
        return Times(clock.wall_ms(), clock.monotonic_ms())


def row_of(
    name: str, settings: Settings | None, seen: Observation, verdict: Verdict
) -> dict[str, Any]:
    """Return one decision with everything that it was made from, as plain data for JSON."""
    given: Mapping[str, Any] = {} if settings is None else asdict(settings)
    return {
        "topic": name,
        **asdict(seen),
        "rates": list(seen.rates),
        "decided": verdict.count,
        "cause": verdict.cause.value,
        "reason": verdict.reason,
        "settings": dict(given),
    }
