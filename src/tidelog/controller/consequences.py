"""What follows from each change: the parts of the controller that are checked after it.

Owns the table. Whoever changes something says only what has changed (``Controller.changed`` and
``Controller.settle``). Not what brokers are sent of a commit: see ``pending``. Not what a part does
when it is checked, nor how it waits for its turn.

A part of ``WOKEN`` is checked soon, in a task of its own or by requests that wait. The others
decide something before the caller goes on: what it does next rests on that.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from enum import Enum, auto

from tidelog.metadata.records import (
    BrokerNode,
    ClusterId,
    ConfigChange,
    ConfigNode,
    ControllerNode,
    Counter,
    DeletionMark,
    DeletionNode,
    EndedData,
    OfferedTransactions,
    PartitionNode,
    PartitionState,
    ProducerIdBlock,
    ReassignPartitionsNode,
    Record,
    TopicHistory,
    TopicNode,
    UncertainReplicas,
    WentBack,
)


class ControllerPart(Enum):
    """A part of the controller that a change may concern; checked in this order."""

    REQUESTS = auto()
    """Requests that wait for a condition, most for brokers that have not been sent their change."""
    RESIZES = auto()
    """The plans of resizes: a step may go on."""
    RETIRED = auto()
    """Retired partitions: some may be purged or removed."""
    MOVES = auto()
    """Moves of partitions whose targets are all in sync: they are completed."""
    WRITTEN_PLAN = auto()
    """``/admin/reassign_partitions``, which names the moves that are left of it."""
    TOPICS = auto()
    """Ids, counts and nodes that topics lack, and marks of topics that are to be deleted."""


WOKEN = frozenset({ControllerPart.REQUESTS, ControllerPart.RESIZES, ControllerPart.RETIRED})


class ControllerEvent(Enum):
    """A change that is no write of a node, or more than one."""

    DECIDED = auto()
    """A decision was made, perhaps without a write; its turn is not over."""
    LOADED = auto()
    """A controller has become active with the nodes of the store."""
    MARKED = auto()
    """Another program has marked topics for deletion, or their ids are known only now."""
    ALTERED = auto()
    """A request has changed configurations: all its slices are done."""
    REGISTERED = auto()
    """The session of a broker has begun, and its elections are made."""
    SUSPECTED = auto()
    """Brokers no longer count as live, and lead nothing that others can lead."""
    EXPIRED = auto()
    """Brokers are dead, and their registrations removed."""
    SENT = auto()
    """A broker has responded to everything up to a newer revision."""
    FENCES_REPORTED = auto()
    """A leader has reported fences or seals that a plan waits for."""
    SHORTAGES_REPORTED = auto()
    """A broker has reported other log directories without room than before."""
    WRITERS_REPORTED = auto()
    """A broker has reported what it knows of writers without a partition count."""
    RESIZE_MOVED = auto()
    """A plan was carried on by a step, published, ended or undone."""
    SHRINK_PUBLISHED = auto()
    """The partitions of a shrink are retired: their time begins."""
    RETIRED_CHECKED = auto()
    """A check of the retired partitions is over."""


Kind = ControllerEvent | type[Record]
"""A change, or the record of the nodes that a commit has written or removed."""

CONSEQUENCES: Mapping[Kind, tuple[ControllerPart, ...]] = {
    # What a plan reads: placement, leaders and their epochs, its own node, the minimum of the ISR.
    BrokerNode: (ControllerPart.RESIZES,),
    ConfigNode: (ControllerPart.RESIZES,),
    DeletionMark: (ControllerPart.RESIZES,),
    DeletionNode: (ControllerPart.RESIZES,),
    PartitionNode: (ControllerPart.RESIZES,),
    PartitionState: (ControllerPart.RESIZES,),
    TopicHistory: (ControllerPart.RESIZES,),
    TopicNode: (ControllerPart.RESIZES,),
    WentBack: (ControllerPart.RESIZES,),
    # Nothing waits for these: a counter comes with every commit, beside what it counts.
    ClusterId: (),
    ConfigChange: (),
    ControllerNode: (),
    Counter: (),
    EndedData: (),
    OfferedTransactions: (),
    ProducerIdBlock: (),
    ReassignPartitionsNode: (),
    UncertainReplicas: (),
    # After each decision, also one without writes: so the first registration after a start
    # completes what the former controller left.
    ControllerEvent.DECIDED: (ControllerPart.MOVES, ControllerPart.WRITTEN_PLAN),
    ControllerEvent.LOADED: (ControllerPart.TOPICS,),
    ControllerEvent.MARKED: (ControllerPart.TOPICS,),
    # With another retired.purge or cleanup.policy retired partitions may go now.
    ControllerEvent.ALTERED: (ControllerPart.RETIRED,),
    # A topic without an id waits until no broker is away that may know it: this one has reported.
    ControllerEvent.REGISTERED: (ControllerPart.TOPICS,),
    # A revision counts as sent when the live brokers have it.
    ControllerEvent.SUSPECTED: (ControllerPart.REQUESTS, ControllerPart.RESIZES),
    # A dead broker is no longer waited for, neither with a revision nor with an id.
    ControllerEvent.EXPIRED: (
        ControllerPart.REQUESTS,
        ControllerPart.RESIZES,
        ControllerPart.TOPICS,
    ),
    ControllerEvent.SENT: (ControllerPart.REQUESTS, ControllerPart.RESIZES),
    ControllerEvent.FENCES_REPORTED: (ControllerPart.RESIZES,),
    # A plan is undone when a leader that it waits for has no room for its fence.
    ControllerEvent.SHORTAGES_REPORTED: (ControllerPart.RESIZES,),
    # A shrink waits for the leaders that have not said whether they see such writers.
    ControllerEvent.WRITERS_REPORTED: (ControllerPart.REQUESTS,),
    # Requests wait for the end of a plan; the next step of another may wait for it too.
    ControllerEvent.RESIZE_MOVED: (ControllerPart.REQUESTS, ControllerPart.RESIZES),
    # That check writes down when retired.purge.delay.ms begins.
    ControllerEvent.SHRINK_PUBLISHED: (ControllerPart.RETIRED,),
    # A growth over retired partitions waits for one.
    ControllerEvent.RETIRED_CHECKED: (ControllerPart.REQUESTS,),
}
"""The parts that are checked after each kind of change."""


def woken(kinds: Iterable[Kind]) -> tuple[ControllerPart, ...]:
    """Return the parts that are checked soon after these changes, in their order, each once."""
    concerned = {part for kind in kinds for part in CONSEQUENCES[kind]}
    return tuple(part for part in ControllerPart if part in concerned & WOKEN)


def decided(kind: Kind) -> tuple[ControllerPart, ...]:
    """Return the parts that decide before the caller goes on, in their order."""
    return tuple(part for part in ControllerPart if part in set(CONSEQUENCES[kind]) - WOKEN)


class Consequences:
    """The parts of one controller, each with the function that checks it."""

    def __init__(
        self,
        wake: Mapping[ControllerPart, Callable[[], None]],
        decide: Mapping[ControllerPart, Callable[[], Awaitable[None]]],
    ) -> None:
        self._wake, self._decide = wake, decide

    def changed(self, kinds: Iterable[Kind]) -> None:
        """Have the parts checked soon that these changes concern."""
        for part in woken(kinds):
            self._wake[part]()

    async def settle(self, kind: Kind) -> None:
        """Do the same, then make the decisions that follow. Raises NotActive."""
        self.changed((kind,))
        for part in decided(kind):
            await self._decide[part]()
