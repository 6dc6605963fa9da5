"""What ``tidelog doctor`` has seen of a cluster, and the form of what it finds.

Owns the two values. Not the requests: see ``doctor``; not the rules: see ``findings``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tidelog.client.admin.groups import GroupListing
from tidelog.client.admin.nodes import LogDir
from tidelog.client.admin.transactions import TransactionDescription
from tidelog.client.errors import ClientError
from tidelog.client.groups.committed_offsets import Position
from tidelog.client.metadata import BrokerAddress, Topic
from tidelog.model.topics import TopicPartition

NAMES_LISTED = 1_000
"""Names that a finding lists apart from its sentence, as the controller does."""


class Severity(Enum):
    """How bad a finding is."""

    GOOD = "good"
    NOTICE = "notice"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line, and what to do about it."""

    level: Severity
    what: str
    advice: str = ""
    kind: str = ""
    """A short name for scripts; "" for a good finding."""
    partitions: Sequence[str] = ()
    brokers: Sequence[int] = ()
    groups: Sequence[str] = ()
    """The partitions, brokers and groups concerned, for scripts; at most ``NAMES_LISTED`` each."""


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """The state of the cluster. A value that could not be read is the error instead."""

    cluster_id: str
    controller_id: int
    """The controller that clients see: a forwarding broker when controllers have no broker role."""
    brokers: Sequence[BrokerAddress]
    topics: Mapping[str, Topic]
    minimum_isr: Mapping[str, int] = field(default_factory=dict)
    log_dirs: Mapping[int, list[LogDir] | ClientError] = field(default_factory=dict)
    groups: Sequence[GroupListing] = ()
    groups_unknown: Mapping[int, ClientError] = field(default_factory=dict)
    """Brokers that did not list the groups they coordinate."""
    committed: Mapping[str, Mapping[TopicPartition, Position] | ClientError] = field(
        default_factory=dict
    )
    own: Mapping[int, Mapping[str, Any] | ClientError | None] = field(default_factory=dict)
    """Each broker's description of itself; None when it does not serve that request."""
    condition: Mapping[str, Any] | ClientError | None = None
    """The active controller's report; None when that request is not served."""
    controllers: Sequence[Mapping[str, Any]] = ()
    """What each configured controller says of itself; empty when that is not served."""
    topics_later: Mapping[str, Topic] | None = None
    """The topics after the log directories were read; None when not read again."""
    transactions: Sequence[tuple[TransactionDescription, int]] = ()
    """Transactions that are open for long, and for how many ms."""
    offsets_replicas: Mapping[int, int] = field(default_factory=dict)
    """``offsets.topic.replication.factor`` of each broker that said it."""
    transactions_replicas: Mapping[int, int] = field(default_factory=dict)
    """``transaction.state.log.replication.factor`` of each broker that said it."""

    @property
    def reported(self) -> Mapping[str, Any] | None:
        """The controller's report, if it responded."""
        return None if isinstance(self.condition, ClientError) else self.condition

    @property
    def is_current(self) -> bool:
        """Whether a controller that commands the brokers confirms what they say."""
        if isinstance(self.condition, ClientError):
            return False
        problems = () if self.condition is None else self.condition.get("problems", ())
        return all(problem.get("kind") != "store_went_back" for problem in problems)

    @property
    def controller(self) -> int:
        """The active controller by its own report, otherwise the one clients see; -1 for none."""
        reported = {} if self.reported is None else self.reported
        return int(reported.get("controller_id", self.controller_id))
