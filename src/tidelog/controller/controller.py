"""The state of one controller, and ``perform``: the only way to change that state.

Owns the order of a change: **decide** (a pure function of ``cluster``), **persist** (one
multi-write that is conditional on the controller epoch), **apply**, then send the change to the
brokers and respond. ``perform`` makes one change at a time: it holds a lock from the decision to
its application, so no decision sees half of another. Not when a controller becomes active, nor its
server: see ``process``.

While ``active`` is false every request gets NOT_CONTROLLER. Sessions of brokers and control
channels last only while this controller is active.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tidelog.controller.activity import Activity
from tidelog.controller.audit_lines import audit_lines, say
from tidelog.controller.autoscaling import Autoscaling
from tidelog.controller.channels import Channels
from tidelog.controller.consequences import Consequences, ControllerEvent, ControllerPart, Kind
from tidelog.controller.decisions import (
    config_effects,
    deletion,
    moves,
    reassignment_node,
    soft_state,
    uncertain_replicas,
)
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.completion import complete
from tidelog.controller.decisions.decision import Decision, Write
from tidelog.controller.decisions.entropy import Entropy
from tidelog.controller.decisions.journal import committed, operations, parts, with_revision
from tidelog.controller.deleted_names import DeletedNames
from tidelog.controller.founding import Founding
from tidelog.controller.pending import Changes, changes_of, unclean_elections
from tidelog.controller.performing import NotActive
from tidelog.controller.resizes import Resizes
from tidelog.controller.retired_checks import RetiredChecks
from tidelog.controller.session_watch import SessionWatch
from tidelog.controller.store_watches import NodeChanged, StoreWatches
from tidelog.controller.waiting import WaitingRequests
from tidelog.metadata import layout
from tidelog.metadata.store import MetadataStore, StoreUnavailable, WriteTooLarge
from tidelog.model.configs.server import ServerConfigs
from tidelog.runtime import pace
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.seams import Seams
from tidelog.runtime.tls_files import TlsFiles

logger = logging.getLogger(__name__)

A = TypeVar("A")

MOST_TRIES = 5
"""How often ``carry_out`` decides again because another program changed a node of the decision."""


class Controller:
    """One controller over one metadata store."""

    def __init__(
        self,
        configs: ServerConfigs,
        seams: Seams,
        store: MetadataStore,
        secret: ClusterSecret | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        """``secret`` is what control channels prove to brokers; ``tls`` has the keys for brokers
        whose listener has TLS."""
        self.configs = configs
        self.seams = seams
        self.store = store
        self.entropy: Entropy = seams
        self.cluster = ClusterState()
        self.unclean_elections = 0
        """How many this controller has decided since its start."""
        self.session_watch = SessionWatch(self)
        self.store_watches = StoreWatches(self)
        self.resizes = Resizes(self)
        self.autoscaling = Autoscaling(self)
        self.founding = Founding(self, seams.clock, self.lose)
        self.retired_checks = RetiredChecks()
        self.channels = Channels(self, secret, tls)
        self._waiting = WaitingRequests()
        self._consequences = Consequences(
            wake={
                ControllerPart.REQUESTS: self._waiting.check,
                ControllerPart.RESIZES: self.resizes.check_soon,
                ControllerPart.RETIRED: self.retired_checks.soon,
            },
            decide={
                ControllerPart.MOVES: self._complete_moves,
                ControllerPart.WRITTEN_PLAN: self._update_plan,
                ControllerPart.TOPICS: self._complete_topics,
            },
        )
        self.activity = Activity(configs.node_id)
        self.turn = asyncio.Lock()
        """Held from a decision to its application."""
        self._deleted = DeletedNames(self.channels.all_know)

    @property
    def active(self) -> bool:
        """Whether this controller owns the metadata now; ``activity`` has its event."""
        return self.activity.activated.is_set()

    # -- active and inactive

    async def begin(self, cluster: ClusterState) -> None:
        """Become active with a state that ``activation`` has just loaded; called in a turn.

        Raises NotActive, or what the store raised: then this controller has resigned.
        """
        self.cluster = cluster
        # Before any decision: no broker has registered here yet, and none may be elected.
        soft_state.presume_all(cluster)
        self.channels.begin()
        going = {node.name for node in cluster.deletions.values()}
        self._deleted.begin(going, cluster.revision)
        try:
            # Before any channel opens: the next leaders acknowledge by these minimums.
            await self.carry_out(config_effects.of_a_start)
            # What lost power while a state could not be read leads nothing before it is compared.
            await self.carry_out(uncertain_replicas.settle_noted)
            # Marks of topics to be deleted, from a controller of a lower level or from a tool.
            await self.carry_out(self._act_on_marks)
            self.session_watch.begin()
            self.store_watches.begin()
            self.resizes.begin()
            self.autoscaling.begin()
            self.founding.begin(cluster)
            if self.activity.lost.is_set():
                raise NotActive("its session with the store ended meanwhile")
        except BaseException:
            # Watches belong to this session of the store: they must not outlive this attempt.
            await self.resign()
            raise
        self.activity.activated.set()

    async def resign(self) -> None:
        """Stop being active: end sessions, watches and channels, and let waiting requests fail."""
        # First: whatever runs between the steps below finds it inactive and writes nothing.
        self.activity.activated.clear()
        self.session_watch.end()
        self.store_watches.end()
        await self.channels.close()
        self._waiting.give_up()

    def lose(self, why: str, level: int = logging.ERROR) -> None:
        """Step down; ``process`` then reloads from the store and tries to become active again."""
        self.activity.lose(why, level)

    # -- decide, persist, apply

    async def perform(
        self,
        decide: Callable[[ClusterState], Decision[A]],
        applied: Callable[[A], None] = lambda _: None,
    ) -> tuple[A, int]:
        """Decide, persist, apply; return the decision's answer and the revision that has it.

        ``decide`` gets the state and must not wait or keep it; ``applied`` gets the answer before
        any other decision. Raises NotActive: then the outcome is unknown.
        """
        # A caller that goes away must not leave a write that is durable and not applied.
        work = asyncio.get_running_loop().create_task(self._perform(decide, applied))
        work.add_done_callback(_retrieve_exception)
        return await asyncio.shield(work)

    async def _perform(
        self, decide: Callable[[ClusterState], Decision[A]], applied: Callable[[A], None]
    ) -> tuple[A, int]:
        async with self.turn:
            # It may have resigned while this waited for its turn.
            if not self.active:
                raise NotActive
            answer = await self.carry_out(decide)
            applied(answer)
            await self.settle(ControllerEvent.DECIDED)
            return answer, self.cluster.revision

    async def _complete_moves(self) -> None:
        """Complete reassignments whose targets are all in sync; called in the turn of a change."""
        while self.cluster.arrived:
            try:
                if not await self.carry_out(moves.complete):
                    return
            except WriteTooLarge as error:
                # They wait: the change that this follows is durable.
                logger.error("moves of partitions cannot be completed: %(error)s", {"error": error})
                return

    async def _update_plan(self) -> None:
        """Bring ``/admin/reassign_partitions`` up to date; called in the turn of a change."""
        if reassignment_node.is_outdated(self.cluster):
            for line in await self.carry_out(reassignment_node.brought_up_to_date):
                logger.info("%s", line)

    async def carry_out(self, decide: Callable[[ClusterState], Decision[A]]) -> A:
        """Decide and persist; called in the turn of a change.

        If another program changed a node of the decision, this takes that change up and decides
        again. A decision of which a part is durable is not decided again: this controller steps
        down, and the next activation finishes what is left. Raises NotActive: then the outcome is
        unknown.
        """
        for _ in range(MOST_TRIES):
            decision = decide(self.cluster)
            try:
                for position, part in enumerate(parts(decision, self.store.max_write_bytes)):
                    if part:
                        self.send(await self.commit(part, self.cluster, first=not position))
            except NodeChanged as changed:
                await self.store_watches.resolve(changed)
            else:
                return decision.answer
        self.lose(f"other programs wrote the same nodes, {MOST_TRIES} times in a row")
        raise NotActive

    async def commit(
        self, decided: Sequence[Write], cluster: ClusterState, *, first: bool = True
    ) -> Changes:
        """Make writes durable and apply them to ``cluster``; return what brokers must be sent.

        Called in the turn of a change. Raises NotActive when the outcome is unknown, or when this
        controller's epoch is gone: then it reloads everything. Raises NodeChanged when the commit
        did nothing because another program has written a node; only for a ``first`` part of a
        decision.
        """
        # A change of a topic with many partitions is long; no other decision comes between.
        turn = pace.Turn(self.seams.clock)
        writes = with_revision(cluster, decided)
        await turn.pause()
        multi_write = operations(cluster, writes)
        await turn.pause()
        # From the state before the writes: it stays as it is until they are applied.
        changes, lines = changes_of(cluster, writes), audit_lines(cluster, writes)
        unclean = unclean_elections(cluster, writes)
        await turn.pause()
        try:
            conflict = await self.store.multi(multi_write)
        except WriteTooLarge:
            # The store did nothing and its session is intact: the caller gets the error.
            raise
        except StoreUnavailable as error:
            self.lose(str(error))
            raise NotActive from error
        if conflict is not None and conflict.path != layout.CONTROLLER_EPOCH and first:
            raise NodeChanged(conflict, multi_write)
        if conflict is not None:
            self.lose(f"another program wrote: {conflict}")
            raise NotActive
        say(lines)
        self.unclean_elections += unclean
        committed(cluster, multi_write, writes)
        return changes

    async def _complete_topics(self) -> None:
        """Fill in what topics' nodes lack, as far as it is known now. Raises NotActive.

        A topic that is marked for deletion and had no id until now moves to the queue with ids.
        """
        if self.active:
            lines, _ = await self.perform(lambda cluster: complete(cluster, self.entropy))
            for line in lines:
                logger.warning("%s", line)
        if self.active and self.cluster.marked and self.cluster.went_back is None:
            await self.perform(self._act_on_marks)

    def _act_on_marks(self, cluster: ClusterState) -> Decision[list[str]]:
        if cluster.went_back is not None:
            return Decision([])
        return deletion.take_up(cluster, self.configs.delete_topic_enable)

    # -- which brokers have been sent a change

    def send(self, changes: Changes) -> None:
        """Have every control channel send a change that the state has now."""
        deleted = [name for name, gone in changes.gone.items() if gone.is_whole]
        self._deleted.note(deleted, self.cluster.revision)
        self.channels.send(changes)
        self.changed(*changes.kinds)

    # -- what follows from a change

    def changed(self, *kinds: Kind) -> None:
        """Have the parts checked soon that a change concerns: ``consequences`` has the table."""
        self._consequences.changed(kinds)

    async def settle(self, change: ControllerEvent) -> None:
        """Do the same, and make the decisions that follow from the change. Raises NotActive."""
        await self._consequences.settle(change)

    async def reached(self, revision: int, limit_ms: float) -> bool:
        """Wait until every live broker has been sent ``revision``; False if it took too long."""
        return await self._waiting.until(lambda: self.channels.all_reached(revision), limit_ms)

    async def until(self, holds: Callable[[], bool], limit_ms: float) -> bool:
        """Wait until a condition of the state holds; False if it took too long."""
        return await self._waiting.until(holds, limit_ms)

    async def until_free(self, names: Sequence[str], limit_ms: float) -> None:
        """Wait until all of these names are free for new topics, at most ``limit_ms``."""
        await self._waiting.until(lambda: all(map(self._deleted.is_free, names)), limit_ms)


def _retrieve_exception(work: asyncio.Task[Any]) -> None:
    """Retrieve what a task raised whose caller may be gone: asyncio logs it otherwise."""
    if not work.cancelled():
        work.exception()
