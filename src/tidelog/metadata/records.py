"""Node records: one frozen class per kind of node, with its JSON exactly as specified.

Owns the content. The path of each record: see ``layout``. A reader ignores fields that it does not
know, as in Kafka. Maps from partitions have string keys in JSON.
Sources: Kafka's published node formats; KIP-253 (counts, partition nodes), KIP-455
(``targetReplicas``), KIP-516 (``topic_id``), KIP-704 (``isUncleanLeader``),
docs/design/metadata-store.md.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class BrokerNode(msgspec.Struct, frozen=True, omit_defaults=True):
    """``/brokers/ids/N``: Kafka's JSON (version 5), the broker epoch, directory and incarnation.

    ``log_dirs`` are its log directories, empty if an older version registered it;
    ``cordoned_log_dirs`` is the value of ``cordoned.log.dirs`` in its file.
    """

    endpoints: list[str]
    listener_security_protocol_map: dict[str, str]
    host: str | None
    port: int
    jmx_port: int
    timestamp: str
    version: int = msgspec.field(default_factory=lambda: 5)
    rack: str | None = None
    features: dict[str, dict[str, int]] = {}
    broker_epoch: int = -1
    directory_id: str | None = None
    incarnation_id: str | None = None
    log_dirs: list[str] = []
    cordoned_log_dirs: list[str] = []


class TopicNode(msgspec.Struct, frozen=True):
    """``/brokers/topics/T``: the assignment. Counts and id are None in a node of an old tool."""

    partitions: dict[int, list[int]]
    version: int = 3
    topic_id: str | None = None
    adding_replicas: dict[int, list[int]] = {}
    removing_replicas: dict[int, list[int]] = {}
    initial_partition_count: int | None = None
    undeleted_partition_count: int | None = None


class PartitionNode(msgspec.Struct, frozen=True, rename="camel"):
    """``/brokers/topics/T/partitions/P``: one incarnation of a partition (KIP-253).

    The maps have one entry at most: the blocking parent, the survivor. ``birth_epoch`` is the
    resize epoch of the growth that made it, 0 for a partition that its topic was created with; its
    log begins at ``birth_offset``. ``retirement_epoch`` is that of the shrink that retired it, -1
    while it takes records.
    """

    partition_epoch: int = msgspec.field(name="partition_epoch")
    version: int = 1
    leader_epoch_after_creation: dict[int, int] = {}
    leader_epoch_before_deletion: dict[int, int] = {}
    birth_epoch: int = 0
    birth_offset: int = 0
    retirement_epoch: int = -1


class PartitionState(msgspec.Struct, frozen=True, omit_defaults=True):
    """``/brokers/topics/T/partitions/P/state``. Its node version is the ``isr_version``.

    Leader -1 is none. ``unclean_members`` left the ISR or the eligible replicas because they came
    back and may lack committed records, and no leader changed the ISR since: when no other replica
    is left, one of them leads. The last one is in both lists while the comparison waits for another
    of them. Fields that change the meaning of the state are always written.
    """

    leader: int
    leader_epoch: int
    controller_epoch: int
    isr: list[int]
    version: int = msgspec.field(default_factory=lambda: 1)
    target_replicas: list[int] | None = msgspec.field(default=None, name="targetReplicas")
    is_unclean_leader: bool = msgspec.field(default=False, name="isUncleanLeader")
    eligible_replicas: list[int] = []
    unclean_members: list[int] = []


class LostRange(msgspec.Struct, frozen=True, omit_defaults=True):
    """Committed offsets [first, end) that one replica had to cut, with their leader epochs."""

    broker: int
    first: int
    end: int
    epochs: list[int] = []


class UncleanDebt(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an unclean election left to do, and what it lost (KIP-704; the debt record).

    ``end_offset`` and ``end_epoch`` say where the unclean leader's log ended and of which epoch its
    last record is; -1 until that leader reported it. ``lost`` has the reports of replicas that had
    to cut.
    """

    leader: int
    leader_epoch: int
    end_offset: int = -1
    end_epoch: int = -1
    lost: list[LostRange] = []


class FormerPartition(msgspec.Struct, frozen=True, array_like=True):
    """Where a removed partition's log ended: the next partition of this index continues there.

    ``data_end`` is the end of the data before its seal, ``resize_epoch`` that of the topic when the
    partition was removed. An array in JSON: a topic may have removed thousands of partitions, and
    its record has to fit into one write.
    """

    end_offset: int
    leader_epoch: int
    data_end: int = -1
    partition_epoch: int = -1
    resize_epoch: int = 0


class ResizeKind(StrEnum):
    """What a resize does to the partition count of its topic."""

    GROW = "grow"
    SHRINK = "shrink"
    UNDO = "undo"
    """It takes back a resize that could not close every partition in time."""
    SAME = "same"
    """The count stays: only a resize epoch begins, with a fence in each partition."""


class ResizeStep(StrEnum):
    """What a resize is writing, or what it waits for when all of that is written."""

    FENCE = "fence"
    """New leader epochs and counts: of all partitions, or of the survivors of a shrink."""
    BIRTH = "birth"
    """The nodes of new partitions."""
    SEAL = "seal"
    """Retirement marks and new leader epochs of the partitions that retire."""
    REOPEN = "reopen"
    """New leader epochs of all partitions: an undo."""


class ResizePlan(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of the partition count that is under way (KIP-253; docs/design/elastic.md).

    ``cursor`` says how much of the step is written: each multi-write of a large step moves it.
    ``leader_epochs`` are those before the raise of partitions 0, 1 and so on, written with the
    raise. An undo has the step and the cursor of the resize that it undoes.
    """

    kind: ResizeKind
    from_count: int
    to_count: int
    resize_epoch: int
    step: ResizeStep
    published: bool = False
    cursor: int = 0
    leader_epochs: list[int] = []
    undone_step: ResizeStep | None = None
    undone_cursor: int = 0


class TopicHistory(msgspec.Struct, frozen=True, omit_defaults=True):
    """``/tidelog/topics/T``: a copy of the fields that an old tool may drop, and work in progress.

    ``pending_stops`` maps a partition to the brokers that owe a stop, each with the leader epoch of
    that decision; ``stop_partition_epochs`` has the partition epoch of the replica to stop, absent
    in a note from below level 1.5. ``unclean`` has the debts, which only a finished handling
    removes; ``unclean_past`` the handled ones, newest last: replicas that return later still report
    what they had to cut. ``grow_after_ms`` and ``shrink_after_ms`` are the cool-downs of
    autoscaling: the times of day before which the topic does not grow or shrink by itself.
    ``unaware_ms``: until when writers without a partition count may have written, as brokers
    reported it since the first resize; 0: none did. ``retired_ms`` maps the resize epoch of a
    shrink to the time of day from which on its retired partitions are known to be published.
    """

    topic_id: str
    initial_partition_count: int
    version: int = msgspec.field(default_factory=lambda: 1)
    resize_epoch: int = 0
    migrated: bool = False
    original_replicas: dict[int, list[int]] = {}
    pending_stops: dict[int, dict[int, int]] = {}
    stop_partition_epochs: dict[int, dict[int, int]] = {}
    resize: ResizePlan | None = None
    former: dict[int, FormerPartition] = {}
    unclean: dict[int, UncleanDebt] = {}
    unclean_past: dict[int, list[UncleanDebt]] = {}
    grow_after_ms: int = 0
    shrink_after_ms: int = 0
    unaware_ms: int = 0
    retired_ms: dict[int, int] = {}


class DeletionNode(msgspec.Struct, frozen=True):
    """``/tidelog/deletions/ID``: a deleted topic, and the brokers that still hold replicas.

    ``partitions`` maps a partition to the brokers that have not confirmed yet, ``leader_epochs`` to
    its last leader epoch: a new topic of this name begins above that (decision 0016).
    """

    name: str
    partitions: dict[int, list[int]]
    leader_epochs: dict[int, int] = {}
    version: int = 1


class DeletionMark(msgspec.Struct, frozen=True):
    """``/admin/delete_topics/T``: Kafka's node, empty: the topic T is to be deleted."""


class ReassignmentRow(msgspec.Struct, frozen=True):
    """One row of ``/admin/reassign_partitions``."""

    topic: str
    partition: int
    replicas: list[int]


class ReassignPartitionsNode(msgspec.Struct, frozen=True):
    """``/admin/reassign_partitions``: Kafka's JSON, version 1.

    Each row is to be a ``ReassignmentRow``; an invalid one does not make the others unreadable.
    """

    partitions: list[Any]
    version: int = 1


class ConfigNode(msgspec.Struct, frozen=True):
    """``/config/topics/T``, ``/config/brokers/N`` and ``/config/brokers/<default>``."""

    config: dict[str, str]
    version: int = 1


class ConfigChange(msgspec.Struct, frozen=True, omit_defaults=True):
    """``/config/changes/config_change_N``: Kafka's note that an entity's node was changed.

    Version 1, of older tools, has the type and the name instead of the path.
    """

    entity_path: str = ""
    version: int = msgspec.field(default_factory=lambda: 2)
    entity_type: str = ""
    entity_name: str = ""


class ControllerNode(msgspec.Struct, frozen=True):
    """``/controller`` (ephemeral): the node id of the active controller."""

    brokerid: int
    timestamp: str
    version: int = 1


class ClusterId(msgspec.Struct, frozen=True):
    """``/cluster/id``."""

    id: str
    version: str = "1"


class ProducerIdBlock(msgspec.Struct, frozen=True):
    """``/latest_producer_id_block``: the newest block given out, first and last id included."""

    broker: int
    block_start: str
    block_end: str
    version: int = 1


class WentBack(msgspec.Struct, frozen=True):
    """``/tidelog/went_back``: this store is an older copy of itself, not accepted yet.

    ``founded_as``: the cluster id that brokers on empty disks got before it was known.
    """

    sentence: str
    founded_as: str = ""
    version: int = 1


class EndedData(msgspec.Struct, frozen=True):
    """``/tidelog/ended_data``: what ended in a store since it was accepted as a restored one.

    ``topics`` has the ids of topics that were deleted or given up, the oldest first. An empty list
    stands for the whole topic, any other names replicas, each as partition and broker.
    """

    topics: dict[str, list[tuple[int, int]]] = {}
    version: int = 1


class UncertainReplicas(msgspec.Struct, frozen=True):
    """``/tidelog/uncertain_replicas``: replicas that may lack acknowledged records, of partitions
    whose states could not be read when their brokers registered.

    ``topics`` maps a topic to its partitions, and each of these to the brokers.
    """

    topics: dict[str, dict[int, list[int]]] = {}
    version: int = 1


class OfferedTransactions(msgspec.Struct, frozen=True):
    """``/tidelog/transactions``: a controller was active on this store whose level has transactions
    (KIP-98), so some may be open. ``level`` is that of the controller that wrote it."""

    level: str
    version: int = 1


class Counter(msgspec.Struct, frozen=True):
    """A node that holds one whole number as text."""

    value: int


Record = (
    BrokerNode
    | TopicNode
    | PartitionNode
    | PartitionState
    | TopicHistory
    | DeletionNode
    | DeletionMark
    | ReassignPartitionsNode
    | ConfigNode
    | ConfigChange
    | ControllerNode
    | ClusterId
    | ProducerIdBlock
    | WentBack
    | EndedData
    | UncertainReplicas
    | OfferedTransactions
    | Counter
)
