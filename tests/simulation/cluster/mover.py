"""The mover: an administrator that reassigns partitions at random while faults strike (KIP-455).

Owns the requests (AlterPartitionReassignments and ListPartitionReassignments, to any broker), what
may be answered to them, and how the moves end when the faults are over: completed or cancelled. It
draws from a stream of its own, so a run without it keeps its course. What moves may write, and how
they leave the disks: see ``moves``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping
from typing import Any

from tests.simulation.cluster.clients import TEMPORARY, Outside
from tests.simulation.cluster.journal import Place
from tests.simulation.cluster.members import OFFSETS_TOPIC
from tidelog.client.errors import ClientError
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TRANSACTIONS_TOPIC
from tidelog.protocol import messages

TOPICS = ("plain", "loose", "pair", OFFSETS_TOPIC, TEMPORARY)
STEPS: Mapping[str, float] = {
    "move": 6,
    "cancel": 2,
    "cancel_a_topic": 0.5,
    "cancel_all": 0.3,
    "accept": 0.5,
    "empty_a_broker": 0.7,
    "look": 1,
}
"""How often each step comes, relative to the others."""

FEWEST = 2
"""Replicas of a target set: with fewer than ``min.insync.replicas`` promise 1 does not hold."""

NONE, NO_MOVE = ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
EXPECTED = frozenset({NONE, NO_MOVE, ErrorCode.REQUEST_TIMED_OUT})
ALTER = messages.AlterPartitionReassignmentsRequest
LIST = messages.ListPartitionReassignmentsRequest


class Mover:
    """Starts, changes and cancels moves; ``found`` is what should not have been answered."""

    def __init__(
        self,
        outside: Outside,
        rng: random.Random,
        say: Callable[[str], None],
        pause: tuple[float, float] = (0.3, 4.0),
        fewest: int = FEWEST,
    ) -> None:
        self.found: list[str] = []
        self.emptied = 0
        """How many times a broker was emptied, in part or whole."""
        self.topics: tuple[str, ...] = TOPICS
        self._outside = outside
        self._states = outside.states
        self._rng = rng
        self._say = say
        self._pause = pause
        self._fewest = fewest

    async def run(self) -> None:
        """Make a step now and then, for ever."""
        steps: dict[str, Callable[[], Any]] = {name: getattr(self, f"_{name}") for name in STEPS}
        while True:
            await asyncio.sleep(self._rng.uniform(*self._pause))
            name = self._rng.choices(list(STEPS), list(STEPS.values()))[0]
            # Without an answer it may have been done or not: both are fine.
            with contextlib.suppress(ClientError, OSError):
                await steps[name]()

    async def finish(self) -> None:
        """Let the moves complete that run, or cancel all of them: nothing strikes any more."""
        if self._rng.random() < 0.5:
            self._say("the mover waits for its moves")
            return
        self._say("the mover cancels all moves")
        await self._outside.until(
            ALTER(timeout_ms=10_000, topics=None),
            # Another attempt, whose answer was lost, may have cancelled them.
            lambda answer: answer.error_code in (NONE, NO_MOVE),
        )

    async def until_none_is_listed(self) -> None:
        """Wait until the cluster lists no move: a controller learns of its last write a bit late.

        The caller bounds the time.
        """
        await self._outside.until(
            LIST(timeout_ms=10_000, topics=None),
            lambda answer: answer.error_code == NONE and not answer.topics,
        )

    # --- steps -----------------------------------------------------------------------------------

    def _places(self) -> list[tuple[Place, list[int], list[int] | None]]:
        """Return the partitions that may move, with replicas and targets, as the store has them."""
        return [
            (place, list(self._states.topics[place.topic].partitions[place.partition]), targets)
            for place, known in self._states.places.items()
            if place.topic in self.topics
            and self._states.place(place.topic, place.partition) == place
            for targets in (known.state.target_replicas,)
        ]

    def _drawn(self) -> list[int]:
        brokers = [node.node_id for node in self._outside.cluster.brokers]
        return self._rng.sample(brokers, self._rng.randint(self._fewest, min(3, len(brokers))))

    async def _move(self) -> None:
        """Start or change the moves of some partitions: one, or all that there are."""
        places = self._places()
        some = places if self._rng.random() < 0.15 else self._rng.sample(places, 1)
        await self._alter({place: self._drawn() for place, _, _ in some})
        if self._rng.random() < 0.3:
            # Most moves are done in less time than it takes to think again.
            await asyncio.sleep(self._rng.uniform(0, 0.03))
            change = self._rng.random() < 0.5
            await self._alter({place: self._drawn() if change else None for place, _, _ in some})

    async def _accept(self) -> None:
        """Ask for the replicas that a partition has: a move ends where it stands."""
        place, replicas, _ = self._rng.choice(self._places())
        if len(replicas) >= self._fewest:
            await self._alter({place: replicas})

    async def _empty_a_broker(self) -> None:
        """Move everything away from one broker, to others where there are some."""
        gone = self._rng.choice(self._outside.cluster.brokers).node_id
        wanted: dict[Place, list[int] | None] = {}
        for place, replicas, targets in self._places():
            hosts = targets or replicas
            left = [broker for broker in hosts if broker != gone]
            others = [
                node.node_id
                for node in self._outside.cluster.brokers
                if node.node_id not in (*left, gone)
            ]
            if others and len(left) < len(hosts):
                left.append(self._rng.choice(others))
            if gone in hosts and len(left) >= self._fewest:
                wanted[place] = left
        if wanted:
            self._say(f"the mover empties broker {gone}")
            self.emptied += 1
            await self._alter(wanted)

    async def _cancel(self) -> None:
        places = self._places()
        moving = [place for place, _, targets in places if targets is not None]
        # Sometimes one that does not move.
        where = moving if moving and self._rng.random() < 0.9 else [place for place, _, _ in places]
        await self._alter({self._rng.choice(where): None})

    async def _cancel_a_topic(self) -> None:
        name = self._rng.choice(self.topics)
        await self._send([ALTER.ReassignableTopic(name, None)], f"cancels {name}")

    async def _cancel_all(self) -> None:
        await self._send(None, "cancels all moves")

    async def _look(self) -> None:
        answer = await self._outside.ask_anyone(LIST(timeout_ms=5_000, topics=None), 8_000)
        for topic in answer.topics:
            for part in topic.partitions:
                self._check_at(topic.name, part)

    def _check_at(self, topic: str, part: Any) -> None:
        replicas, adding, removing = part.replicas, part.adding_replicas, part.removing_replicas
        targets = [broker for broker in replicas if broker not in removing]
        in_order = [*targets, *(broker for broker in replicas if broker in removing)]
        if (
            not targets
            or len({*replicas}) < len(replicas)
            or not {*adding} <= {*targets}
            or list(replicas) != in_order
        ):
            self.found.append(
                f"a_move_is_answered: {topic}-{part.partition_index} is listed with replicas "
                f"{replicas}, adding {adding}, removing {removing}"
            )

    # --- requests --------------------------------------------------------------------------------

    async def _alter(self, wanted: Mapping[Place, list[int] | None]) -> None:
        by_topic: dict[str, list[Any]] = {}
        for place, targets in wanted.items():
            part = ALTER.ReassignablePartition(place.partition, targets)
            by_topic.setdefault(place.topic, []).append(part)
        what = ", ".join(
            f"{place} to {targets}" if targets else f"{place} back"
            for place, targets in wanted.items()
        )
        topics = [ALTER.ReassignableTopic(name, parts) for name, parts in by_topic.items()]
        await self._send(topics, f"moves {what}")

    async def _send(self, topics: list[Any] | None, what: str) -> None:
        self._say(f"the mover {what}")
        answer = await self._outside.ask_anyone(ALTER(timeout_ms=5_000, topics=topics), 8_000)
        self._judge("the request", answer.error_code, answer.error_message, TEMPORARY)
        for topic in answer.responses:
            for part in topic.partitions:
                where = f"{topic.name}-{part.partition_index}"
                self._judge(where, part.error_code, part.error_message, topic.name)

    def _judge(self, where: str, code: int, message: str | None, topic: str) -> None:
        """Note an error that is not due to a fault. A topic that is deleted, or made on first
        use, may be unknown."""
        gone = topic in (TEMPORARY, OFFSETS_TOPIC, TRANSACTIONS_TOPIC) and code in (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
            ErrorCode.UNKNOWN_SERVER_ERROR,
        )
        # A broker that is dead and hosts nothing is not known.
        away = code == ErrorCode.INVALID_REPLICA_ASSIGNMENT and "there is no broker" in str(message)
        if code not in EXPECTED and not gone and not away:
            self.found.append(f"a_move_is_answered: {where}: {ErrorCode(code).name}, {message}")
