"""The resizes under way: one commit after another, as their plans allow (KIP-253).

Owns when a plan goes on (a commit, a report, a time-out) and the time that it has waited in a step,
which begins again with each controller. What a plan does next: see ``decisions.resizing``. Other
decisions come between the commits of a large step; several topics take turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Set
from functools import partial
from typing import Protocol
from uuid import UUID

from tidelog.controller.channels import Channels
from tidelog.controller.consequences import ControllerEvent
from tidelog.controller.decisions import resizing, soft_state
from tidelog.controller.decisions.closed_plans import can_spare, holders_up, is_closed
from tidelog.controller.decisions.decision import RequestRefusal
from tidelog.controller.decisions.resize_beginnings import is_unbegun
from tidelog.controller.decisions.resize_sentences import why_undone
from tidelog.controller.decisions.resizing import Advanced, Progress
from tidelog.controller.decisions.sessions import Proofs
from tidelog.controller.performing import NotActive, Performer
from tidelog.metadata.records import ResizeKind, ResizePlan
from tidelog.model.configs.server import ServerConfigs
from tidelog.model.errors import ErrorCode
from tidelog.runtime.seams import Seams

logger = logging.getLogger(__name__)

STUCK_CHECK_MS = 250
"""The shortest time between two checks whether the partitions that a plan waits for can commit
their fences: each reads all of them, and every report is an event."""

CHECK_S = STUCK_CHECK_MS / 1000
"""The longest time between two checks of the plans that wait: what a broker's session changes in
memory alone may be what one waits for, and all producers of the topic wait with the plan."""

PROBE_AFTER_MS = 200
"""How long a plan that has closed partitions waits before brokers are asked for a sign of life, and
how long until they are asked again."""

PROVED_WITHIN_S = 0.4
"""How long they have for it; a loaded machine takes a tenth of that."""

CLOSED_CHECK_S = 0.05
"""The pause between two checks meanwhile: all producers of the topic wait."""

MOST_REASONS = 1_000
"""The most topics whose last undo is remembered for requests that wait for it."""


class SilenceJudge(Protocol):
    """The sessions of brokers, as resizes see them."""

    async def hurry(
        self, proofs: Callable[[], Proofs], can_spare: Callable[[Set[int]], bool]
    ) -> bool:
        """Suspect brokers that are silent, if that is safe; return whether any is."""


class ResizeOwner(Performer, Protocol):
    """A controller, as its resizes see it."""

    configs: ServerConfigs
    seams: Seams
    channels: Channels

    @property
    def session_watch(self) -> SilenceJudge:
        """The sessions of brokers."""

    async def until(self, holds: Callable[[], bool], limit_ms: float) -> bool:
        """Wait until a condition of the state holds; False if it took too long."""


class Resizes:
    """The resizes of one controller, while it is active."""

    def __init__(self, controller: ResizeOwner) -> None:
        self._controller = controller
        self._awake = asyncio.Event()
        self._waiting: dict[str, tuple[ResizePlan, int]] = {}
        """The plan of each topic that waits, as it stood then, and the time of that, in ms."""
        self._stuck_checked_ms: dict[str, int] = {}
        """When it was checked whether a plan is stuck, by topic, in ms."""
        self._published: dict[str, int] = {}
        """The revision of the publication, by topic."""
        self._written: dict[str, tuple[int, int]] = {}
        """The resize epoch of an unbegun plan and a revision that has it, by topic."""
        self._undone: dict[str, tuple[int, RequestRefusal]] = {}
        """The resize epoch of the last undone resize of a topic, and why."""
        self._probed_s: float | None = None
        """When brokers were first asked for a sign of life, because a plan waits that has closed
        partitions; None: no such plan waits, or all have given one."""
        self._asked_s = 0.0
        """When brokers were last asked."""

    def begin(self) -> None:
        """Begin with the plans of a state that was just loaded: their time begins too."""
        self._waiting.clear()
        self._stuck_checked_ms.clear()
        self._published.clear()
        self._written.clear()
        self._undone.clear()
        self._probed_s = None
        self.check_soon()

    def check_soon(self) -> None:
        """Check the plans soon: something happened that one may wait for. Cheap."""
        if self._controller.cluster.resizing:
            self._awake.set()

    def waited_ms(self) -> dict[str, int]:
        """Return how long each plan that waits has waited in its step, by topic."""
        now_ms = self._now_ms()
        return {name: now_ms - since for name, (_, since) in self._waiting.items()}

    def silent(self, name: str) -> set[int]:
        """Return the brokers that have not responded since a topic's plan was written."""
        history = self._controller.cluster.topic_histories.get(name)
        plan = None if history is None else history.resize
        return set() if plan is None else self._silent(name, plan)

    async def run(self) -> None:
        """Carry out the steps of all plans, again and again."""
        while True:
            await self._until_due()
            # Before the round: a change that comes while it runs begins another one.
            self._awake.clear()
            try:
                while self._controller.active and await self._round():
                    pass
                self._forget()
                await self._hurry()
            except NotActive:
                logger.debug("another controller carries out the resizes now")
            except Exception:
                logger.exception("the brokers that hold resizes up could not be judged")

    async def finished(
        self, name: str, resize_epoch: int, limit_ms: float
    ) -> RequestRefusal | None:
        """Wait until a resize is published everywhere; return why it is not, or None.

        Raises TimeoutError after ``limit_ms``, and NotActive if the controller resigns meanwhile.
        """
        controller = self._controller
        topic_id = controller.cluster.topic_id(name)
        ends = await controller.until(
            lambda: self._has_ended(name, topic_id, resize_epoch), limit_ms
        )
        if not controller.active:
            raise NotActive
        if not ends:
            raise TimeoutError
        undone = self._undone.get(name)
        if undone is not None and undone[0] == resize_epoch:
            return undone[1]
        if self._is_gone(name, topic_id):
            # Its deletion ends the plan, wherever that stood.
            sentence = f"The topic {name} was deleted meanwhile."
            return RequestRefusal(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, sentence)
        return None

    def undone_in_ms(self, name: str) -> int | None:
        """Return in what time a plan that waits now is late; None: it does not wait."""
        plan, since_ms = self._waiting.get(name, (None, 0))
        history = self._controller.cluster.topic_histories.get(name)
        if plan is None or history is None or history.resize != plan:
            return None
        return max(0, since_ms + self._controller.configs.resize_timeout_ms - self._now_ms())

    def last_undo(self, name: str) -> tuple[int, str] | None:
        """Return the resize epoch of the last resize of a topic that this controller has undone,
        and why; None: there is none, or it is not remembered."""
        epoch, why = self._undone.get(name, (-1, None))
        return None if why is None else (epoch, why.sentence)

    def _has_ended(self, name: str, topic_id: UUID, resize_epoch: int) -> bool:
        cluster = self._controller.cluster
        history = cluster.topic_histories.get(name)
        if history is None or self._is_gone(name, topic_id):
            return True
        is_its_undo = history.resize is not None and history.resize_epoch <= resize_epoch + 1
        return not is_its_undo

    def _is_gone(self, name: str, topic_id: UUID) -> bool:
        """Whether a topic was deleted, or is marked for deletion: then its plan rests."""
        cluster = self._controller.cluster
        return cluster.topic_id(name) != topic_id or name in cluster.marked

    async def _until_due(self) -> None:
        """Wait for a change, or for the time at which a plan is late."""
        now_ms, limit_ms = self._now_ms(), self._controller.configs.resize_timeout_ms
        pauses = [since + limit_ms - now_ms for _, since in self._waiting.values()]
        pause_s: float | None = None
        if pauses:
            check_s = CHECK_S if self._probed_s is None else CLOSED_CHECK_S
            pause_s = min(check_s, *(pause / 1000 for pause in pauses if pause > 0), check_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause_s):
                await self._awake.wait()

    async def _hurry(self) -> None:
        """Suspect a broker that is silent, without the usual wait, if a plan that has closed
        partitions waits for it (docs/decisions/0136)."""
        controller, now_ms = self._controller, self._now_ms()
        closed = [
            (name, plan)
            for name, (plan, since_ms) in self._waiting.items()
            if now_ms - since_ms >= PROBE_AFTER_MS and is_closed(controller.cluster, name, plan)
        ]
        if not closed:
            self._probed_s = None
            return
        now_s = asyncio.get_running_loop().time()
        if self._probed_s is None or now_s - self._asked_s >= PROBE_AFTER_MS / 1000:
            # Again and again: an old response does not show that the controller receives now.
            self._asked_s = now_s
            controller.channels.probe()
        if self._probed_s is None:
            self._probed_s = now_s
        if now_s - self._probed_s < PROVED_WITHIN_S:
            return
        proofs = partial(controller.channels.proofs, self._probed_s)
        silent = proofs().missing
        if not silent:
            # One may fall silent later.
            self._probed_s = None
            return
        if all(silent.isdisjoint(holders_up(controller.cluster, *topic)) for topic in closed):
            return
        if await controller.session_watch.hurry(proofs, lambda x: can_spare(controller.cluster, x)):
            self.check_soon()

    async def _round(self) -> bool:
        """Make one commit for each plan that can go on; return whether there was one."""
        moved = False
        for name in sorted(self._controller.cluster.resizing):
            try:
                moved |= await self._advance(name)
            except NotActive:
                raise
            except Exception:
                # A bug, or a write that is too large, must not end the other resizes.
                logger.exception("the resize of topic %(topic)s could not go on", {"topic": name})
                self._note_failure(name)
        return moved

    async def _advance(self, name: str) -> bool:
        controller = self._controller
        history = controller.cluster.topic_histories.get(name)
        plan = None if history is None else history.resize
        if plan is None:
            return False
        is_late = self._is_late(name, plan)
        is_known = plan.published and (is_late or self._is_known(name))
        silent = self._silent(name, plan)
        waits = resizing.waits(
            controller.cluster, name, is_late=is_late, is_known=is_known, silent=silent
        )
        if waits and not self._is_stuck(name):
            self._note_wait(name, plan)
            return False
        decide = partial(
            resizing.advance, name=name, is_late=is_late, is_known=is_known, silent=silent
        )
        advanced, revision = await controller.perform(decide)
        return self._took(name, plan, advanced, revision)

    def _silent(self, name: str, plan: ResizePlan) -> set[int]:
        """Return the live brokers that have responded to nothing since an unbegun plan came.

        The request that tells them of it is the first one after its revision (``pending``), or
        everything, if their channel opened later.
        """
        if not is_unbegun(plan):
            return set()
        epoch, revision = self._written.get(name, (None, 0))
        if epoch != plan.resize_epoch:
            revision = self._controller.cluster.revision
            self._written[name] = plan.resize_epoch, revision
        return self._controller.channels.silent_since(revision)

    def _is_stuck(self, name: str) -> bool:
        now_ms = self._now_ms()
        if now_ms - self._stuck_checked_ms.get(name, -STUCK_CHECK_MS) < STUCK_CHECK_MS:
            return False
        self._stuck_checked_ms[name] = now_ms
        return resizing.is_stuck(self._controller.cluster, name)

    def _took(self, name: str, plan: ResizePlan, advanced: Advanced, revision: int) -> bool:
        """Note what a decision did; return whether it wrote something."""
        match advanced.progress:
            case Progress.NONE | Progress.WAITS:
                self._note_wait(name, plan)
                return False
            case Progress.PUBLISHED:
                self._published[name] = revision
                if plan.kind is ResizeKind.SHRINK:
                    self._controller.changed(ControllerEvent.SHRINK_PUBLISHED)
            case Progress.UNDONE:
                self._note_undo(name, plan, advanced)
            case _:
                pass
        self._waiting.pop(name, None)
        self._controller.changed(ControllerEvent.RESIZE_MOVED)
        return True

    def _note_wait(self, name: str, plan: ResizePlan) -> None:
        waiting = self._waiting.get(name)
        if waiting is None or waiting[0] != plan:
            self._waiting[name] = plan, self._now_ms()

    def _note_failure(self, name: str) -> None:
        history = self._controller.cluster.topic_histories.get(name)
        if history is not None and history.resize is not None:
            self._note_wait(name, history.resize)

    def _note_undo(self, name: str, plan: ResizePlan, advanced: Advanced) -> None:
        limit_ms = self._controller.configs.resize_timeout_ms
        refusal = why_undone(name, plan, advanced, limit_ms)
        logger.warning("%(why)s", {"topic": name, "why": refusal.sentence})
        while len(self._undone) >= MOST_REASONS:
            del self._undone[next(iter(self._undone))]
        self._undone[name] = plan.resize_epoch, refusal

    def _is_late(self, name: str, plan: ResizePlan) -> bool:
        waiting = self._waiting.get(name)
        if waiting is None or waiting[0] != plan:
            return False
        return self._now_ms() - waiting[1] >= self._controller.configs.resize_timeout_ms

    def _is_known(self, name: str) -> bool:
        # A controller that found the plan published opens its channels with everything.
        revision = self._published.setdefault(name, self._controller.cluster.revision)
        return self._controller.channels.all_reached(revision)

    def _forget(self) -> None:
        """Forget what was known of plans that have ended."""
        cluster = self._controller.cluster
        soft_state.forget_fences(cluster)
        for kept in (self._waiting, self._stuck_checked_ms, self._published, self._written):
            for name in kept.keys() - cluster.resizing:
                del kept[name]

    def _now_ms(self) -> int:
        return self._controller.seams.clock.monotonic_ms()
