"""The paths of all nodes in the metadata store, and the record at each path.

Owns the paths and the conversion between bytes and records. What a record means: see ``records``.
A node that cannot be read becomes a value, ``Damaged``, with its path: the others stay usable.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from functools import lru_cache
from uuid import UUID

import msgspec

from tidelog.metadata import records
from tidelog.metadata.records import Record
from tidelog.metadata.soundness import (
    HIGHEST_COUNT,
    HIGHEST_EPOCH,
    HIGHEST_ID,
    why_impossible,
    why_no_counter,
)
from tidelog.model.topics import why_invalid

CLUSTER_ID = "/cluster/id"
CONTROLLER = "/controller"
CONTROLLER_EPOCH = "/controller_epoch"
PARTITION_EPOCH = "/partition_epoch"
PRODUCER_IDS = "/latest_producer_id_block"
BROKER_EPOCH = "/tidelog/broker_epoch"
REVISION = "/tidelog/revision"
WENT_BACK = "/tidelog/went_back"
ENDED_DATA = "/tidelog/ended_data"
UNCERTAIN_REPLICAS = "/tidelog/uncertain_replicas"
OFFERED_TRANSACTIONS = "/tidelog/transactions"
REASSIGN_PARTITIONS = "/admin/reassign_partitions"
BROKERS = "/brokers/ids"
TOPICS = "/brokers/topics"
TOPIC_HISTORIES = "/tidelog/topics"
DELETIONS = "/tidelog/deletions"
DELETE_TOPICS = "/admin/delete_topics"
TOPIC_CONFIGS = "/config/topics"
BROKER_CONFIGS = "/config/brokers"
CONFIG_CHANGES = "/config/changes"

MOST_PLAN_BYTES = 900_000
"""The largest ``REASSIGN_PARTITIONS`` that is taken up: with the other writes of a commit it fits
into a request of ZooKeeper. Some 12,000 partitions."""

ALL_BROKERS = "<default>"
"""The name of the node with the dynamic defaults of all brokers, as Kafka writes it."""

CONTAINERS = (
    "/admin",
    DELETE_TOPICS,
    "/brokers",
    BROKERS,
    TOPICS,
    "/cluster",
    "/config",
    BROKER_CONFIGS,
    CONFIG_CHANGES,
    TOPIC_CONFIGS,
    "/tidelog",
    DELETIONS,
    TOPIC_HISTORIES,
)
"""Nodes without content that every store has; parents first."""


@dataclass(frozen=True, slots=True)
class Damaged:
    """A node whose content cannot be read or cannot be, with one clause that says why.

    ``record`` is its content if that is sound by itself, and other nodes contradict it. ``former``
    is the content that a controller knows from before the damage. ``others`` are the nodes that may
    be the wrong ones instead: the repair of one of these ends the damage, too.
    """

    path: str
    why: str
    record: Record | None = None
    former: Record | None = field(default=None, compare=False)
    others: tuple[str, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        verb = "cannot be read" if self.record is None else "cannot be right"
        return f"The metadata node {self.path} {verb}: {self.why}."


def is_place(path: str) -> bool:
    """Return whether a node of tidelog's can stand at this path: a record, or a container."""
    above, _, name = path.rpartition("/")
    is_container = name == "partitions" and above.rpartition("/")[0] == TOPICS
    return is_container or path in CONTAINERS or kind_of(path) is not None


def broker(node_id: int) -> str:
    """Path of a registered broker."""
    return f"{BROKERS}/{node_id}"


def topic(name: str) -> str:
    """Path of a topic's assignment."""
    return f"{TOPICS}/{name}"


def partitions(name: str) -> str:
    """Path of the container of a topic's partitions."""
    return f"{TOPICS}/{name}/partitions"


def partition(name: str, index: int) -> str:
    """Path of a partition's own node."""
    return f"{TOPICS}/{name}/partitions/{index}"


def state(name: str, index: int) -> str:
    """Path of a partition's leader and ISR."""
    return f"{TOPICS}/{name}/partitions/{index}/state"


def topic_history(name: str) -> str:
    """Path of our own record of a topic."""
    return f"{TOPIC_HISTORIES}/{name}"


def deletion(topic_id: UUID) -> str:
    """Path of a deletion in progress."""
    return f"{DELETIONS}/{id_text(topic_id)}"


def deletion_mark(name: str) -> str:
    """Path of the mark of a topic that is to be deleted: Kafka's queue."""
    return f"{DELETE_TOPICS}/{name}"


def topic_configs(name: str) -> str:
    """Path of a topic's configuration."""
    return f"{TOPIC_CONFIGS}/{name}"


def broker_configs(name: str) -> str:
    """Path of a broker's dynamic configuration; ``ALL_BROKERS`` for the default of all."""
    return f"{BROKER_CONFIGS}/{name}"


def id_text(value: UUID) -> str:
    """Write an id as Kafka does: base64 for URLs, 22 characters, no padding."""
    return base64.urlsafe_b64encode(value.bytes).decode()[:22]


@lru_cache(maxsize=16_384)
def parse_id(text: str) -> UUID | None:
    """Read an id as Kafka writes it; None if it is none."""
    if len(text) != 22 or not text.isascii():
        return None
    if not all(character.isalnum() or character in "-_" for character in text):
        return None
    return UUID(bytes=base64.urlsafe_b64decode(text + "=="))


_FIXED: dict[str, type[Record]] = {
    CLUSTER_ID: records.ClusterId,
    CONTROLLER: records.ControllerNode,
    CONTROLLER_EPOCH: records.Counter,
    PARTITION_EPOCH: records.Counter,
    PRODUCER_IDS: records.ProducerIdBlock,
    BROKER_EPOCH: records.Counter,
    REVISION: records.Counter,
    WENT_BACK: records.WentBack,
    ENDED_DATA: records.EndedData,
    UNCERTAIN_REPLICAS: records.UncertainReplicas,
    OFFERED_TRANSACTIONS: records.OfferedTransactions,
    REASSIGN_PARTITIONS: records.ReassignPartitionsNode,
}

_BELOW: dict[str, type[Record]] = {
    BROKERS: records.BrokerNode,
    TOPICS: records.TopicNode,
    TOPIC_HISTORIES: records.TopicHistory,
    DELETIONS: records.DeletionNode,
    DELETE_TOPICS: records.DeletionMark,
    TOPIC_CONFIGS: records.ConfigNode,
    BROKER_CONFIGS: records.ConfigNode,
    CONFIG_CHANGES: records.ConfigChange,
}


def kind_of(path: str) -> type[Record] | None:
    """Return the class of the record at ``path``; None for containers and unknown nodes."""
    fixed = _FIXED.get(path)
    if fixed is not None:
        return fixed
    above, _, name = path.rpartition("/")
    if above in _BELOW and name:
        return _BELOW[above] if _may_be_named(above, name) else None
    place = partition_of(path)
    if place is None:
        return None
    return records.PartitionState if path.endswith("/state") else records.PartitionNode


def _may_be_named(above: str, name: str) -> bool:
    """Return whether a node can have its name: of a broker, of a topic, or a topic id.

    A node with another name is not tidelog's: it must not prevent a store from loading.
    """
    if above == BROKERS:
        return _number(name) is not None
    if above == BROKER_CONFIGS:
        return name == ALL_BROKERS or _number(name) is not None
    if above in (TOPICS, TOPIC_HISTORIES, TOPIC_CONFIGS):
        return why_invalid(name) is None
    return above != DELETIONS or parse_id(name) is not None


def _number(text: str) -> int | None:
    """Return the broker or partition that a name stands for: each has one name, in decimal."""
    if not (text.isascii() and text.isdigit()) or len(text) > 10:
        return None
    value = int(text)
    return value if value <= HIGHEST_ID and (text[0] != "0" or text == "0") else None


_TOPICS_BELOW = f"{TOPICS}/"


def partition_of(path: str) -> tuple[str, int] | None:
    """Return (topic, partition) of a partition's node or state node; None for other paths."""
    # Called for every node of a store and for every write: most are nodes of partitions.
    if not path.startswith(_TOPICS_BELOW):
        return None
    name, _, rest = path[len(_TOPICS_BELOW) :].partition("/partitions/")
    index = _number(rest.removesuffix("/state"))
    return None if index is None or not name or "/" in name else (name, index)


_OF_TOPICS = tuple(f"{x}/" for x in (TOPICS, TOPIC_HISTORIES, TOPIC_CONFIGS, DELETE_TOPICS))


def topic_of(path: str) -> str | None:
    """Return the topic that a node belongs to; None for other paths."""
    for above in _OF_TOPICS:
        if path.startswith(above):
            return path[len(above) :].partition("/")[0]
    return None


def decode(path: str, data: bytes) -> Record | Damaged | None:
    """Read a node's content; None if it has no record (containers, Kafka's empty nodes)."""
    kind = kind_of(path)
    if kind is None:
        return None
    if kind is records.PartitionNode and not data:
        # Kafka's own partition nodes are empty: a partition from before its epochs were counted.
        return None
    if kind is records.ReassignPartitionsNode and len(data) > MOST_PLAN_BYTES:
        return Damaged(path, f"it has {len(data)} bytes, more than {MOST_PLAN_BYTES}")
    if kind is records.ReassignPartitionsNode and not data.strip():
        # KIP-455: "empty and waiting for a write".
        return None
    if kind is records.Counter:
        return _counter(path, data)
    if kind is records.DeletionMark:
        return records.DeletionMark()
    try:
        record: Record = _DECODERS[kind].decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        return Damaged(path, str(error))
    except RecursionError:
        # Other programs write nodes: no content may end a load of the store.
        return Damaged(path, "it is nested too deeply")
    why = _why_no_id(record) or why_impossible(record)
    return record if why is None else Damaged(path, why)


def encode(record: Record) -> bytes:
    """Write a node's content."""
    if isinstance(record, records.Counter):
        return str(record.value).encode()
    if isinstance(record, records.DeletionMark):
        return b""
    return msgspec.json.encode(record)


_DECODERS = {
    kind: msgspec.json.Decoder(kind)
    for kind in {*_FIXED.values(), *_BELOW.values(), records.PartitionState, records.PartitionNode}
}


def _counter(path: str, data: bytes) -> records.Counter | Damaged:
    text = data.decode("ascii", "replace").strip()
    digits = text[1:] if text.startswith("-") else text
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 19:
        return Damaged(path, "it is not a whole number")
    highest = HIGHEST_EPOCH if path in (CONTROLLER_EPOCH, PARTITION_EPOCH) else HIGHEST_COUNT
    why = why_no_counter(int(text), highest)
    return records.Counter(int(text)) if why is None else Damaged(path, why)


def _why_no_id(record: Record) -> str | None:
    ids: tuple[str | None, ...] = ()
    if isinstance(record, records.TopicNode | records.TopicHistory):
        ids = (record.topic_id,)
    elif isinstance(record, records.BrokerNode):
        ids = (record.directory_id, record.incarnation_id)
    return next((f"{x} is no id" for x in ids if x is not None and parse_id(x) is None), None)
