"""The timer of retired partitions: it asks their leaders what they hold, purges and removes.

Owns when the active controller checks, its connections to leaders and coordinators, and the order:
the leaders are asked, then the coordinators; what is drained is purged and asked for again; what is
empty is closed by its leaders, and removed. Which partitions go: see ``decisions.removal``; the
content of the requests: see ``retired_requests``.

A leader or coordinator that does not answer only delays its partitions: the next check asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

from tidelog.client.connecting.connection import ClientConnection, connect
from tidelog.client.errors import ClientError, ConnectionLost, Refused
from tidelog.controller import retired_requests as build
from tidelog.controller.consequences import ControllerEvent
from tidelog.controller.controller import Controller
from tidelog.controller.decisions import soft_state
from tidelog.controller.decisions.cluster import ClusterState
from tidelog.controller.decisions.decision import Decision
from tidelog.controller.decisions.open_requests import note_retirements, open_until
from tidelog.controller.decisions.removal import (
    UNKNOWN,
    Commits,
    Held,
    is_drained_first,
    offsets_leaders,
    remove_retired,
    retained,
    to_close,
    to_purge,
    topics_with_retired,
    undrained,
    why_none_goes,
)
from tidelog.controller.performing import NotActive
from tidelog.controller.requests import inter_broker_address, tls_for
from tidelog.controller.retired_commits import LeftToRead
from tidelog.groups.consumer_protocol import PROTOCOL_TYPE
from tidelog.groups.group import GroupState
from tidelog.metadata.store import WriteTooLarge
from tidelog.model.topics import TopicPartition
from tidelog.protocol import messages

logger = logging.getLogger(__name__)

ANSWER_MS = 5_000
"""How long a leader or coordinator may take for one answer."""

ASKED_AT_ONCE = 1_000
"""The most partitions of one request."""

CLOSED_MS = 20_000
"""How long after the request the closing of a partition counts: its leader keeps it for 60 s."""

GROUPS_AT_ONCE = 50
"""The most groups of one OffsetFetch or DescribeGroups."""

MEMBERLESS = (GroupState.EMPTY, GroupState.DEAD)
"""The states of groups that read nothing now."""

Answers = dict[str, dict[int, Held]]


class RetiredPartitions:
    """Checks every ``retired.check.interval.ms`` while the controller is active, and on request."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    async def run(self) -> None:
        """Check again and again; return at once below level 1.5, where nothing retires."""
        configs = self._controller.configs
        while configs.level.resizes:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(configs.retired_check_interval_ms / 1000):
                    await self._controller.retired_checks.wanted.wait()
            self._controller.retired_checks.begin()
            try:
                await self.check()
            except NotActive:
                logger.debug("another controller checks retired partitions now")
            except Exception:
                # A bug must not end the checks.
                logger.exception("retired partitions could not be checked")
            finally:
                self._controller.retired_checks.end()
                self._controller.changed(ControllerEvent.RETIRED_CHECKED)

    async def check(self) -> None:
        """Ask leaders and coordinators once, purge what is drained, and remove what is empty."""
        cluster = self._controller.cluster
        if not self._controller.active:
            return
        listed = topics_with_retired(cluster)
        soft_state.forget_retained(cluster, listed)
        # Before anything goes: the time from which the delay counts has to be on record (0092).
        await self._note_retirements(listed)
        names = [x for x in listed if why_none_goes(cluster, x) is None]
        if names:
            purged = await self._check_topics(names, purges=True)
            if purged:
                await self._check_topics(purged, purges=False)

    async def _note_retirements(self, listed: Collection[str]) -> None:
        now_ms = self._now_ms()
        # Mostly all are noted: then this is no turn among the decisions.
        if note_retirements(self._controller.cluster, listed, now_ms).writes:
            await self._controller.perform(lambda x: note_retirements(x, listed, now_ms))

    async def _check_topics(self, names: Sequence[str], *, purges: bool) -> list[str]:
        """Remove what may go of these topics; return those that were purged instead."""
        async with LeftToRead(self._connected) as questions:
            return await self._check_with(questions, names, purges=purges)

    async def _check_with(
        self, questions: LeftToRead, names: Sequence[str], *, purges: bool
    ) -> list[str]:
        controller = self._controller
        answers = await self._answers(names)
        names = [name for name in names if answers.get(name)]
        drained = {name for name in names if is_drained_first(controller.cluster, name)}
        committed = await self._commits(drained) if drained else None
        purged = []
        for name in names:
            held = answers[name]
            waited: set[int] = set()
            of_topic: Commits | None = {}
            if name in drained:
                of_topic = None if committed is None else committed.offsets.get(name, {})
            if of_topic:
                of_topic = await questions.as_read(name, held, of_topic)
            expiries = {} if committed is None else committed.expiries.get(name, {})
            kept = open_until(
                controller.cluster, name, self._now_ms(), controller.configs.retired_purge_delay_ms
            )
            holds = retained(controller.cluster, name, held, of_topic, expiries, kept)
            soft_state.note_retained(controller.cluster, name, holds)
            if name in drained:
                waited = undrained(controller.cluster, name, held, of_topic)
                wanted = to_purge(controller.cluster, name, held, waited, kept)
                if wanted and purges:
                    await self._purge({TopicPartition(name, x): y for x, y in wanted.items()})
                    purged.append(name)
                    continue
            await self._remove(name, held, waited, kept)
        return purged

    async def _remove(
        self,
        name: str,
        held: dict[int, Held],
        waited: Collection[int],
        kept: Mapping[int, int],
    ) -> None:
        removed = [UNKNOWN]
        while removed:
            wanted = to_close(self._controller.cluster, name, held, waited, kept)
            if not wanted:
                return
            until_ms = self._controller.seams.clock.monotonic_ms() + CLOSED_MS
            closed = await self._close(name, {x: held[x] for x in wanted})

            def remove(
                cluster: ClusterState,
                closed: dict[int, Held] = closed,
                until_ms: int = until_ms,
            ) -> Decision[list[int]]:
                # This waits for other decisions; after that time a marker may come again.
                is_late = self._controller.seams.clock.monotonic_ms() > until_ms
                return remove_retired(cluster, name, {} if is_late else closed, waited, kept)

            try:
                removed, _ = await self._controller.perform(remove)
            except WriteTooLarge as error:
                logger.error(
                    "retired partitions of %(topic)s cannot be removed: %(error)s",
                    {"topic": name, "error": error},
                )
                return

    async def _close(self, name: str, wanted: Mapping[int, Held]) -> dict[int, Held]:
        """Have leaders close partitions of a topic; return what they hold of those that are."""
        by_leader: dict[int, dict[TopicPartition, Held]] = {}
        for index, held in wanted.items():
            by_leader.setdefault(held.leader, {})[TopicPartition(name, index)] = held
        closed: dict[int, Held] = {}
        for leader, places in by_leader.items():
            try:
                async with self._connected(leader) as connection:
                    answer = await connection.send(build.closing(places), None, ANSWER_MS)
            except ClientError as error:
                logger.info(
                    "broker %(broker)s did not close its retired partitions: %(error)s",
                    {"broker": leader, "error": error},
                )
                continue
            of_leader = build.closed(places, answer)
            open_yet = [tp for tp in places if tp not in of_leader]
            if open_yet:
                logger.info(
                    "broker %(broker)s did not close %(first)s and %(more)d other retired "
                    "partitions, so they stay: a marker is on its way, another broker leads, or "
                    "its version knows no closing and has to be upgraded",
                    {"broker": leader, "first": open_yet[0], "more": len(open_yet) - 1},
                )
            closed |= {tp.partition: x for tp, x in of_leader.items()}
        return closed

    async def _answers(self, names: Collection[str]) -> Answers:
        """Ask all leaders at once; those that do not answer are left out."""
        asked = build.by_leader(self._controller.cluster, names)
        by_topic: Answers = {}
        for of_leader in await asyncio.gather(*(self._ask(x, asked[x]) for x in sorted(asked))):
            for tp, held in of_leader.items():
                by_topic.setdefault(tp.topic, {})[tp.partition] = held
        return by_topic

    async def _ask(self, leader: int, asked: Sequence[build.Retired]) -> dict[TopicPartition, Held]:
        held: dict[TopicPartition, Held] = {}
        try:
            async with self._connected(leader) as connection:
                for start in range(0, len(asked), ASKED_AT_ONCE):
                    some = asked[start : start + ASKED_AT_ONCE]
                    questions = (
                        build.describe_fences(some),
                        build.list_offsets(some, build.EARLIEST),
                        # Before the log's end: if both are equal, nothing came between.
                        build.list_offsets(some, build.LATEST),
                        build.log_ends(some),
                    )
                    answers = [await connection.send(x, None, ANSWER_MS) for x in questions]
                    held.update(build.held(some, leader, *answers))
        except ClientError as error:
            logger.info(
                "broker %(broker)s was not asked what its retired partitions hold: %(error)s",
                {"broker": leader, "error": error},
            )
        return held

    async def _purge(self, wanted: dict[TopicPartition, Held]) -> None:
        """Have leaders delete the records before the seals."""
        by_leader: dict[int, dict[TopicPartition, int]] = {}
        for tp, held in wanted.items():
            by_leader.setdefault(held.leader, {})[tp] = held.data_end
        for leader, ends in by_leader.items():
            request = build.delete_records(ends, ANSWER_MS)
            try:
                async with self._connected(leader) as connection:
                    await connection.send(request, None, 2 * ANSWER_MS)
            except ClientError as error:
                logger.info(
                    "broker %(broker)s did not purge its retired partitions: %(error)s",
                    {"broker": leader, "error": error},
                )
        logger.info(
            "every live group has committed past the data of %(partitions)s: it is purged "
            "(retired.purge=drained)",
            {"partitions": ", ".join(map(str, sorted(wanted)))},
        )

    async def _commits(self, names: Collection[str]) -> build.Committed | None:
        """Ask all coordinators for the committed offsets of topics; None: not all can be asked.

        The groups of a coordinator that moves meanwhile may be in no answer.
        """
        before = offsets_leaders(self._controller.cluster)
        if before is None:
            logger.info("not all groups can be asked: a coordinator has no leader")
            return None
        committed = build.Committed({}, {})
        try:
            for broker in sorted({leader for leader, _ in before.values()}):
                await self._ask_coordinator(broker, names, committed)
        except ClientError as error:
            logger.info("not all groups can be asked: %(error)s", {"error": error})
            return None
        if offsets_leaders(self._controller.cluster) != before:
            return None
        return committed

    async def _ask_coordinator(
        self, broker: int, names: Collection[str], committed: build.Committed
    ) -> None:
        offsets = committed.offsets
        async with self._connected(broker) as connection:
            listed = await connection.send(messages.ListGroupsRequest(), None, ANSWER_MS)
            if listed.error_code:
                raise Refused(listed.error_code, f"the groups of broker {broker}")
            groups = [group.group_id for group in listed.groups]
            joined = {
                group.group_id
                for group in listed.groups
                if group.protocol_type == PROTOCOL_TYPE and group.group_state not in MEMBERLESS
            }
            for start in range(0, len(groups), GROUPS_AT_ONCE):
                request = build.offset_fetch(groups[start : start + GROUPS_AT_ONCE])
                answer = await connection.send(request, None, ANSWER_MS)
                error = build.take_commits(answer, names, committed)
                if error:
                    raise Refused(error, f"the offsets of groups of broker {broker}")
                lacking = [
                    group
                    for group in groups[start : start + GROUPS_AT_ONCE]
                    if group in joined and any(group not in offsets.get(x, {}) for x in names)
                ]
                if not lacking:
                    continue
                described = await connection.send(build.describe_groups(lacking), None, ANSWER_MS)
                error = build.take_readers(described, names, offsets)
                if error:
                    raise Refused(error, f"the members of groups of broker {broker}")

    def _now_ms(self) -> int:
        return self._controller.seams.clock.wall_ms()

    @contextlib.asynccontextmanager
    async def _connected(self, broker: int) -> AsyncIterator[ClientConnection]:
        """A connection to a broker, as a client of its listener. Raises ClientError."""
        controller = self._controller
        listener = controller.channels.sender.inter_broker_listener
        address = inter_broker_address(controller.cluster, broker, listener)
        if address is None:
            raise ConnectionLost(f"broker {broker} is not registered with a listener")
        connection = await connect(
            address.host,
            address.port,
            client_id="controller",
            connect_timeout_ms=ANSWER_MS,
            secret=controller.channels.secret,
            tls=tls_for(address, controller.channels.tls),
        )
        try:
            yield connection
        finally:
            connection.close("the controller has its answers")
