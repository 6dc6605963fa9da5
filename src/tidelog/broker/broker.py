"""One broker: the finished parts that its handlers use.

Owns the record only. Not how the parts are made: see ``assembly``; not when they start and stop:
see ``process``. No part takes this record.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tidelog.broker.control_plane.channel import ControlChannel
from tidelog.broker.control_plane.control_channel import Control
from tidelog.broker.control_plane.fence_reports import FenceReports
from tidelog.broker.control_plane.isr_changes import IsrChanges
from tidelog.broker.control_plane.producer_ids import ProducerIds
from tidelog.broker.control_plane.session import ControllerSession
from tidelog.broker.control_plane.topic_creation import TopicCreation
from tidelog.broker.coordinator.coordinator import Coordinator
from tidelog.broker.coordinator.first_offsets import FirstOffsets
from tidelog.broker.coordinator.group_coordinator import GroupCoordinator
from tidelog.broker.coordinator.group_lag import GroupLag
from tidelog.broker.data_loss.handling import DataLoss
from tidelog.broker.data_loss.loss_reports import LossReports
from tidelog.broker.fetching.client_sessions import FetchSessions
from tidelog.broker.fetching.delayed_requests import Departures
from tidelog.broker.fetching.follower_sessions import FollowerSessions
from tidelog.broker.fetching.partition_reads import Reader
from tidelog.broker.following.followers import Followers
from tidelog.broker.metadata.cache import MetadataCache
from tidelog.broker.metadata.cluster_level import ClusterLevel
from tidelog.broker.metadata.configurations import ConfigCache
from tidelog.broker.metadata.leader_hints import LeaderHints
from tidelog.broker.metadata.other_brokers import OtherBrokers
from tidelog.broker.partitions.byte_rates import ByteRates, led_topics
from tidelog.broker.partitions.delayed_produce import UnseenEpochs
from tidelog.broker.partitions.future_replicas import FutureReplicas
from tidelog.broker.partitions.group_commit import GroupCommit
from tidelog.broker.partitions.inspected_appends import InspectedAppends
from tidelog.broker.partitions.log_work import LogWork
from tidelog.broker.partitions.maintenance import Maintenance
from tidelog.broker.partitions.registry import Partitions
from tidelog.broker.partitions.resuming_producers import ResumingProducers
from tidelog.broker.partitions.unaware_writers import UnawareWriters
from tidelog.broker.transactions.markers import Markers
from tidelog.broker.transactions.transaction_coordinator import TransactionCoordinator
from tidelog.groups.table import GroupTable
from tidelog.model.configs.server import ServerConfigs
from tidelog.runtime import pace
from tidelog.runtime.clock import Clock
from tidelog.runtime.seams import Seams
from tidelog.storage.directory.log_directory import LogDirectory


@dataclass(slots=True, kw_only=True, eq=False)
class Broker:
    """The first argument of every handler."""

    configs: ServerConfigs
    node_id: int
    seams: Seams
    clock: Clock
    loop: asyncio.AbstractEventLoop
    background: pace.Background

    session: ControllerSession
    channel: ControlChannel
    control: Control
    producer_ids: ProducerIds
    topic_creation: TopicCreation
    isr_changes: IsrChanges

    metadata: MetadataCache
    cluster_level: ClusterLevel
    other_brokers: OtherBrokers
    topic_configs: ConfigCache
    leader_hints: LeaderHints
    unseen_epochs: UnseenEpochs

    partitions: Partitions
    byte_rates: ByteRates
    commit: GroupCommit
    log_work: LogWork
    future_replicas: FutureReplicas
    inspected_appends: InspectedAppends
    unaware_writers: UnawareWriters
    resuming_producers: ResumingProducers
    maintenance: Maintenance

    reader: Reader
    fetch_sessions: FetchSessions
    departures: Departures
    follower_sessions: FollowerSessions

    followers: Followers
    loss_reports: LossReports
    fence_reports: FenceReports
    data_loss: DataLoss
    coordinator: Coordinator[GroupTable]
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    group_lag: GroupLag
    first_offsets: FirstOffsets
    markers: Markers

    @property
    def offered_transactions(self) -> bool:
        """Whether clients may use transactions now."""
        return self.cluster_level.offers_transactions is True

    @property
    def refused_transactions(self) -> bool:
        """Whether every request with a transactional id is refused for good. While the level of
        the cluster is not known, they get errors that clients retry."""
        return self.cluster_level.offers_transactions is False

    @property
    def cluster_id(self) -> str:
        """The id of the cluster that this broker belongs to."""
        return self.metadata.cluster_id

    def led_topics(self, registration: int) -> list[Any]:
        """Return the topics of a heartbeat (tag 10001)."""
        return led_topics(registration, self.unaware_writers, self.byte_rates, self.partitions)

    @property
    def directories(self) -> Sequence[LogDirectory]:
        """The log directories, in the order of ``log.dirs``."""
        return self.partitions.directories
