"""The resizer: an administrator that grows and shrinks a topic at random while faults strike.

Owns the requests (CreatePartitions and, now and then, AlterPartitionReassignments, to any broker),
and how the resizes and moves end when the faults are over. It draws from a stream of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable

from tests.simulation.cluster.clients import Outside
from tests.simulation.cluster.elastic import INITIAL, MOST, NAME, Elastic
from tidelog.client.errors import ClientError
from tidelog.model.errors import ErrorCode
from tidelog.protocol import messages

CREATE = messages.CreatePartitionsRequest
ALTER = messages.AlterPartitionReassignmentsRequest

REPLICAS = 3


class Resizer:
    """Asks for other counts; ``answers`` and ``moves`` are the codes that came."""

    def __init__(
        self,
        elastic: Elastic,
        outside: Outside,
        rng: random.Random,
        say: Callable[[str], None],
        pause: tuple[float, float] = (0.3, 4.0),
        moves: float = 0.0,
    ) -> None:
        """``moves``: the share of its requests that move a partition."""
        self.answers: dict[str, int] = {}
        self.moves: dict[str, int] = {}
        self._elastic = elastic
        self._outside = outside
        self._rng = rng
        self._say = say
        self._pause = pause
        self._share = moves

    async def run(self) -> None:
        """Ask for another count now and then, for ever."""
        while True:
            await asyncio.sleep(self._rng.uniform(*self._pause))
            # Without an answer it may have been done or not: both are fine.
            with contextlib.suppress(ClientError, OSError):
                if self._share and self._rng.random() < self._share:
                    await self._move()
                else:
                    await self._ask(self._rng.randint(INITIAL, MOST))

    async def _move(self) -> None:
        """Move a partition, or cancel its move: refused while the topic is resized."""
        node = self._elastic.states.topics[NAME]
        index = self._rng.choice(sorted(node.partitions))
        brokers = [each.node_id for each in self._outside.cluster.brokers]
        is_end = self._rng.random() < 0.2
        replicas = None if is_end else self._rng.sample(brokers, REPLICAS)
        part = ALTER.ReassignablePartition(partition_index=index, replicas=replicas)
        topic = ALTER.ReassignableTopic(name=NAME, partitions=[part])
        answer = await self._outside.ask_anyone(ALTER(timeout_ms=4_000, topics=[topic]))
        codes = [part.error_code for each in answer.responses for part in each.partitions]
        code = ErrorCode(answer.error_code or max(codes, default=0)).name
        self.moves[code] = self.moves.get(code, 0) + 1
        self._say(f"move of {NAME}-{index} to {replicas}: {code}")

    async def _ask(self, count: int) -> None:
        topic = CREATE.CreatePartitionsTopic(name=NAME, count=count, assignments=None)
        request = CREATE(topics=[topic], timeout_ms=4_000, force=True)
        answer = await self._outside.ask_anyone(request)
        found = answer.results[0]
        code = ErrorCode(found.error_code).name
        self.answers[code] = self.answers.get(code, 0) + 1
        said = f": {found.error_message}" if found.error_message else ""
        self._say(f"resize to {count}: {code}{said}")

    async def why_unaware(self) -> str:
        """Return why a shrink without ``force`` is refused because of producers without a count,
        "" if it is not. Each broker and controller may have been killed at any time before."""
        topic = CREATE.CreatePartitionsTopic(name=NAME, count=INITIAL, assignments=None)
        request = CREATE(topics=[topic], timeout_ms=4_000, validate_only=True)
        settled = (ErrorCode.NONE, ErrorCode.INVALID_PARTITIONS, ErrorCode.POLICY_VIOLATION)
        answer = await self._outside.until(request, lambda x: x.results[0].error_code in settled)
        found = answer.results[0]
        is_refused = found.error_code == ErrorCode.POLICY_VIOLATION
        return str(found.error_message) if is_refused else ""

    @property
    def is_at_rest(self) -> bool:
        """Whether no resize and no move is under way, as the store has it."""
        stored = self._elastic.stored
        if stored is not None and stored.resize is not None:
            return False
        return not self._elastic.watch.moving
