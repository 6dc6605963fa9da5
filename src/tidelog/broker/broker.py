"""One broker: what its handlers are given.

Owns nothing but the parts and how they are wired together; ``process`` starts and stops them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence

from tidelog.broker.control_plane.control_channel import Control
from tidelog.broker.control_plane.isr_changes import IsrChanges
from tidelog.broker.control_plane.producer_ids import ProducerIds
from tidelog.broker.control_plane.session import ControllerSession
from tidelog.broker.control_plane.topic_creation import TopicCreation
from tidelog.broker.coordinator.coordinator import Coordinator
from tidelog.broker.coordinator.group_lag import GroupLag
from tidelog.broker.data_loss.debts import Debts
from tidelog.broker.data_loss.handling import DataLoss
from tidelog.broker.data_loss.loss_reports import LossReports
from tidelog.broker.fetching.client_sessions import FetchSessions
from tidelog.broker.fetching.delayed_requests import Departures
from tidelog.broker.fetching.follower_sessions import Feeds
from tidelog.broker.following.followers import Followers
from tidelog.broker.metadata.cache import MetadataCache
from tidelog.broker.metadata.configurations import ConfigCache
from tidelog.broker.partitions.group_commit import GroupCommit
from tidelog.broker.partitions.inspected_appends import LookedAppends
from tidelog.broker.partitions.log_work import LogWork
from tidelog.broker.partitions.maintenance import Maintenance
from tidelog.broker.partitions.refused_writes import RefusedWrites
from tidelog.broker.partitions.registry import Partitions
from tidelog.broker.partitions.repairs import Repairs
from tidelog.model.configs.server import ServerConfigs
from tidelog.model.errors import ErrorCode
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.seams import Seams
from tidelog.runtime.turns import Pieces, Turns
from tidelog.storage.directory.log_directory import LogDirectory


class Broker:
    """The first argument of every handler."""

    def __init__(
        self,
        configs: ServerConfigs,
        seams: Seams,
        directories: Sequence[LogDirectory],
        topic_configs: ConfigCache,
        cluster_id: str,
        session: ControllerSession,
        secret: ClusterSecret | None = None,
    ) -> None:
        """``secret`` is proved to other brokers; None where the cluster has none."""
        self.session = session
        self.secret = secret
        self.configs = configs
        self.node_id = configs.node_id
        self.seams = seams
        self.clock = seams.clock
        self.loop = asyncio.get_running_loop()
        self.cluster_id = cluster_id
        self.metadata = MetadataCache()
        self.topic_configs = topic_configs
        self.turns = Turns(seams.threads)
        self.looked_appends = LookedAppends(self)
        self.log_work = LogWork(seams.threads)
        before_ack = configs.log_durability == "sync"
        self.commit = GroupCommit(seams.threads, seams.clock, before_ack=before_ack)
        self.partitions = Partitions(
            configs.node_id,
            directories,
            topic_configs,
            self.commit,
            configs.stale_partition_delete_delay_ms,
        )
        for directory in directories:
            directory.resources.on_refused = RefusedWrites(directory.path, seams.clock)
        topic_configs.when_changed = self._reconfigure
        self.when_brokers_configured: list[Callable[[], None]] = []
        """Called when a configuration of this broker, or of all, has changed."""
        self.fetch_sessions = FetchSessions(
            configs.max_incremental_fetch_session_cache_slots, seams.random
        )
        self.departures = Departures(seams.clock)
        self.feeds = Feeds(self, seams.random)
        self.debts = Debts(are_reported=configs.level.unclean_flag)
        self.isr_changes = IsrChanges(configs, seams.clock, session, self.partitions, self.debts)
        self.partitions.when_leader.append(self.isr_changes.began)
        self.loss_reports = LossReports(configs.node_id, session, self.partitions, self.log_work)
        self.partitions.when_leader.append(self.loss_reports.began)
        self.partitions.when_removed.append(self.loss_reports.removed)
        self.topic_creation = TopicCreation(session, self.metadata, configs.request_timeout_ms)
        self.coordinator = Coordinator(self)
        self.data_loss = DataLoss(
            self.debts, self.loss_reports, self.isr_changes, self.coordinator, seams.clock
        )
        self.partitions.when_applied.append(self.data_loss.applied)
        self.partitions.when_stopped.append(self.data_loss.stopped)
        self.followers = Followers(self)
        self.partitions.when_applied.append(self.followers.applied)
        self.partitions.when_stopped.append(self.followers.stopped)
        self.repairs = Repairs(self)
        self.maintenance = Maintenance(self)
        self.group_lag = GroupLag(self)
        self.producer_ids = ProducerIds(session, configs.node_id)
        self.control = Control(self, [each.path for each in directories])

    @property
    def directories(self) -> Sequence[LogDirectory]:
        """The log directories, in the order of ``log.dirs``."""
        return self.partitions.directories

    def _reconfigure(self, topics: Collection[str] | None) -> Pieces[None]:
        if topics is None:
            for told in self.when_brokers_configured:
                told()
        yield from self.partitions.reconfigure(topics)
        self.maintenance.configs_changed()

    def why_not_here(self, topic: str, partition: int) -> ErrorCode:
        """Return why a partition that is not led here cannot be asked here."""
        if self.metadata.partition(topic, partition) is not None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if self.partitions.get(topic, partition) is not None:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
