"""How the parts of a broker are made: in order, each from the parts that it uses.

Owns that order and what connects parts that are made at different times: the steps when a role
changes (``role_steps``) and when configurations change. Not the start and the stop of the parts:
see ``process``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from tidelog.broker.broker import Broker
from tidelog.broker.control_plane.channel import ControlChannel
from tidelog.broker.control_plane.control_channel import Control
from tidelog.broker.control_plane.fence_reports import FenceReports
from tidelog.broker.control_plane.isr_changes import IsrChanges
from tidelog.broker.control_plane.producer_ids import ProducerIds
from tidelog.broker.control_plane.seen_epochs import SeenEpochsStore
from tidelog.broker.control_plane.session import ControllerSession
from tidelog.broker.control_plane.topic_creation import TopicCreation
from tidelog.broker.coordinator.first_offsets import FirstOffsets
from tidelog.broker.coordinator.group_coordinator import GroupCoordinator
from tidelog.broker.coordinator.group_lag import GroupLag
from tidelog.broker.data_loss.debts import Debts
from tidelog.broker.data_loss.handling import DataLoss
from tidelog.broker.data_loss.loss_reports import LossReports
from tidelog.broker.fetching.client_sessions import FetchSessions
from tidelog.broker.fetching.delayed_requests import Departures
from tidelog.broker.fetching.follower_sessions import FollowerSessions
from tidelog.broker.fetching.partition_reads import Reader
from tidelog.broker.following.copies import Copies
from tidelog.broker.following.followers import Followers
from tidelog.broker.following.source_fetcher import Shared
from tidelog.broker.metadata.cache import MetadataCache
from tidelog.broker.metadata.cluster_level import ClusterLevel
from tidelog.broker.metadata.configurations import ConfigCache
from tidelog.broker.metadata.leader_hints import LeaderHints
from tidelog.broker.metadata.other_brokers import OtherBrokers
from tidelog.broker.metadata.shown_epochs import ShownEpochs
from tidelog.broker.partitions.byte_rates import ByteRates
from tidelog.broker.partitions.delayed_produce import UnseenEpochs
from tidelog.broker.partitions.future_replicas import FutureReplicas
from tidelog.broker.partitions.group_commit import GroupCommit
from tidelog.broker.partitions.inspected_appends import InspectedAppends
from tidelog.broker.partitions.log_work import LogWork
from tidelog.broker.partitions.maintenance import Maintenance
from tidelog.broker.partitions.misplaced_records import MisplacedRecords
from tidelog.broker.partitions.older_values import OlderValues
from tidelog.broker.partitions.partition import HostedPartition
from tidelog.broker.partitions.refused_writes import RefusedWrites
from tidelog.broker.partitions.registry import Partitions
from tidelog.broker.partitions.repairs import Repairs
from tidelog.broker.partitions.resuming_producers import ResumingProducers
from tidelog.broker.partitions.shortages import Shortages
from tidelog.broker.partitions.throttles import FOLLOWER, LEADER, Throttles
from tidelog.broker.partitions.unaware_notes import UnawareNotes
from tidelog.broker.partitions.unaware_writers import UnawareWriters
from tidelog.broker.partitions.verifier import QUESTION_MS, Verifier
from tidelog.broker.role_steps import RoleSteps
from tidelog.broker.transactions.asked_markers import AskedMarkers
from tidelog.broker.transactions.hanging_checks import CHECK_MS, HangingChecks
from tidelog.broker.transactions.marker_sender import Connecting, MarkerSender
from tidelog.broker.transactions.marker_writer import MarkerWriter
from tidelog.broker.transactions.markers import Markers
from tidelog.broker.transactions.transaction_coordinator import TransactionCoordinator
from tidelog.model.configs.server import ServerConfigs
from tidelog.model.work import Work
from tidelog.runtime import pace
from tidelog.runtime.cluster_secret import ClusterSecret
from tidelog.runtime.seams import Seams
from tidelog.runtime.tls_files import TlsFiles
from tidelog.storage.directory.log_directory import LogDirectory


def _do_nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a broker is made from. ``directories`` are loaded, and at least one."""

    configs: ServerConfigs
    seams: Seams
    cluster_id: str
    directories: Sequence[LogDirectory]
    away: Sequence[str] = ()
    """A sentence for each log directory that cannot be used until the next start."""
    topic_configs: ConfigCache
    session: ControllerSession
    secret: ClusterSecret | None = None
    """What this broker proves to others; None where the cluster has no secret."""
    tls: TlsFiles | None = None
    """The keys for connections to other brokers; None where their listener has no TLS."""
    when_brokers_configured: Callable[[], None] = _do_nothing
    """Called when a configuration of this broker, or of all brokers, has changed."""


def assemble(given: Given) -> Broker:
    """Make the parts of a broker, on its loop; none is started. Raises DamagedFile."""
    configs, seams, session = given.configs, given.seams, given.session
    metadata, level = MetadataCache(given.cluster_id), ClusterLevel()
    clock, node_id, topic_configs = seams.clock, configs.node_id, given.topic_configs
    log_work, background = LogWork(clock, seams.threads), pace.Background(clock, seams.threads)
    commit = GroupCommit(seams.threads, clock, before_ack=configs.log_durability == "sync")
    partitions, others = _partitions(given, commit), _other_brokers(given, metadata)
    metadata.when_brokers_changed.append(_machines_following(given, metadata, partitions))
    hints, resuming = LeaderHints(node_id, metadata, partitions.get), ResumingProducers(clock)
    unaware = _unaware_writers(given, partitions, metadata, background, log_work)
    # What leads, and follows: the changes of the ISR, the groups, the handling of lost data.
    debts = Debts(are_reported=configs.level.unclean_flag)
    isr_changes = IsrChanges(configs, clock, session, partitions, debts)
    reports = loss_reports, fence_reports = _reports(given, partitions, log_work)
    asking = topic_creation, producer_ids = _asking_controller(given, metadata)
    groups, transactions = _coordinators(given, metadata, asking, level, partitions)
    data_loss = DataLoss(debts, loss_reports, isr_changes, groups.coordinator, transactions, clock)
    followers = _followers(given, metadata, others, commit, log_work, loss_reports)
    leading = groups.coordinator, transactions
    partitions.steps = RoleSteps(isr_changes, *reports, leading, data_loss, followers)
    # What reads, and what is done by the clock.
    reader, channel = _reader(given, metadata, isr_changes), _channel(given, log_work)
    fetch_sessions, departures = _fetch_sessions(given), Departures(clock)
    repairs = Repairs(node_id, partitions, metadata, configs.stale_partition_delete_delay_ms)
    maintenance = _maintenance(given, partitions, log_work, repairs, fetch_sessions.expire)
    maintenance.cleaning.older_values = OlderValues(metadata, others, clock).may_exist
    return Broker(
        configs=configs,
        node_id=node_id,
        seams=seams,
        clock=clock,
        loop=asyncio.get_running_loop(),
        background=background,
        session=session,
        channel=channel,
        control=_control(channel, given, partitions, repairs, log_work, loss_reports, maintenance),
        producer_ids=producer_ids,
        topic_creation=topic_creation,
        isr_changes=isr_changes,
        metadata=metadata,
        cluster_level=level,
        other_brokers=others,
        topic_configs=topic_configs,
        leader_hints=hints,
        unseen_epochs=UnseenEpochs(reader.shown),
        partitions=partitions,
        byte_rates=ByteRates(partitions, topic_configs, clock),
        commit=commit,
        log_work=log_work,
        future_replicas=_future_replicas(given, partitions, log_work, commit),
        inspected_appends=_appends(given, background, unaware, resuming, metadata),
        unaware_writers=unaware,
        resuming_producers=resuming,
        maintenance=maintenance,
        reader=reader,
        fetch_sessions=fetch_sessions,
        departures=departures,
        follower_sessions=_sessions(given, reader, partitions, hints, departures),
        followers=followers,
        loss_reports=loss_reports,
        fence_reports=fence_reports,
        data_loss=data_loss,
        coordinator=groups.coordinator,
        groups=groups,
        transactions=transactions,
        group_lag=GroupLag(groups.coordinator, partitions, metadata, others, clock),
        first_offsets=FirstOffsets(partitions, metadata, others, session),
        markers=_markers(given, metadata, others, partitions, (groups, transactions), hints),
    )


def _reports(
    given: Given, partitions: Partitions, log_work: LogWork
) -> tuple[LossReports, FenceReports]:
    node_id, session = given.configs.node_id, given.session
    clock, random = given.seams.clock, given.seams.random
    losses = LossReports(node_id, session, partitions, log_work, random)
    return losses, FenceReports(node_id, session, partitions, clock, random)


def _asking_controller(given: Given, metadata: MetadataCache) -> tuple[TopicCreation, ProducerIds]:
    creation = TopicCreation(given.session, metadata, given.configs)
    return creation, ProducerIds(given.session, given.configs.node_id)


def _markers(
    given: Given,
    metadata: MetadataCache,
    others: OtherBrokers,
    partitions: Partitions,
    coordinators: tuple[GroupCoordinator, TransactionCoordinator],
    leader_hints: LeaderHints,
) -> Markers:
    configs, seams = given.configs, given.seams
    groups, transactions = coordinators
    # Beside those of OffsetFetch: neither waits for a question of the other.
    questions = FirstOffsets(partitions, metadata, others, given.session)
    connecting = Connecting.of(configs, metadata, given.secret, seams, given.tls)
    writer = MarkerWriter(partitions, groups, leader_hints, seams.clock)
    sender = MarkerSender(configs.node_id, connecting, writer, questions.exist, seams)
    transactions.send_with(sender)
    dynamic, name = given.topic_configs, "transaction.max.timeout.ms"
    limit_ms = partial(dynamic.number, name, configs.transaction_max_timeout_ms)
    own = _asking_of_transactions(given, metadata, CHECK_MS)
    checks = HangingChecks(partitions, metadata, own, writer, limit_ms, seams.clock)
    return Markers(writer, sender, checks, AskedMarkers(partitions, checks))


def _coordinators(
    given: Given,
    metadata: MetadataCache,
    asking: tuple[TopicCreation, ProducerIds],
    level: ClusterLevel,
    partitions: Partitions,
) -> tuple[GroupCoordinator, TransactionCoordinator]:
    def hosted(topic: str) -> list[HostedPartition]:
        return list(partitions.by_topic.get(topic, {}).values())

    creation, producer_ids = asking
    ends = given.configs, given.seams, metadata, creation
    groups = GroupCoordinator(*ends)
    metadata.when_gone = groups.topic_gone
    return groups, TransactionCoordinator(*ends, producer_ids, level, hosted)


def _unaware_writers(
    given: Given,
    partitions: Partitions,
    metadata: MetadataCache,
    background: pace.Background,
    log_work: LogWork,
) -> UnawareWriters:
    clock = given.seams.clock
    notes = UnawareNotes(given.directories, clock, log_work)
    search = MisplacedRecords(metadata, clock, background)
    return UnawareWriters(partitions, clock, search, notes)


def _other_brokers(given: Given, metadata: MetadataCache) -> OtherBrokers:
    ends = metadata, given.configs, given.secret, given.seams.random
    made = OtherBrokers(*ends, tls=given.tls)
    metadata.when_brokers_changed.append(made.brokers_changed)
    return made


def _machines_following(
    given: Given, metadata: MetadataCache, partitions: Partitions
) -> Callable[[], None]:
    """Return what follows a change of the live brokers in the count of machines in sync."""
    one_by_one = pace.OneByOne(given.seams.clock)

    def brokers_changed() -> None:
        listener = given.configs.inter_broker_listener_name
        if partitions.machines.take(metadata.brokers.values(), listener):
            one_by_one.add(partitions.machines_changed())

    return brokers_changed


def _appends(
    given: Given,
    background: pace.Background,
    unaware: UnawareWriters,
    resuming: ResumingProducers,
    metadata: MetadataCache,
) -> InspectedAppends:
    """Verifications have connections of their own: no other question holds them up."""
    configs, clock = given.configs, given.seams.clock
    own = _asking_of_transactions(given, metadata, min(QUESTION_MS, configs.request_timeout_ms))
    verifier = Verifier(metadata, own, given.topic_configs)
    return InspectedAppends(clock, background, unaware, resuming, verifier)


def _asking_of_transactions(given: Given, metadata: MetadataCache, limit_ms: int) -> OtherBrokers:
    """Return connections of one asker's own: coordinators serve their APIs once the level of the
    cluster has come, so connections of an earlier time must not stay."""
    ends = metadata, given.configs, given.secret, given.seams.random, limit_ms
    made = OtherBrokers(*ends, may_serve_later=True, tls=given.tls)
    metadata.when_brokers_changed.append(made.brokers_changed)
    return made


def _partitions(given: Given, commit: GroupCommit) -> Partitions:
    configs, directories = given.configs, given.directories
    delay_ms = configs.stale_partition_delete_delay_ms
    made = Partitions(configs.node_id, directories, given.topic_configs, commit, delay_ms)
    made.away = given.away
    return made


def _fetch_sessions(given: Given) -> FetchSessions:
    slots = given.configs.max_incremental_fetch_session_cache_slots
    return FetchSessions(slots, given.seams.random)


def _future_replicas(
    given: Given, partitions: Partitions, log_work: LogWork, commit: GroupCommit
) -> FutureReplicas:
    made = FutureReplicas(
        given.configs, given.topic_configs, partitions, log_work, commit, given.seams
    )
    partitions.when_unhosted = made.unhosted
    return made


def _channel(given: Given, log_work: LogWork) -> ControlChannel:
    directories = given.directories
    folders = [directory.path for directory in directories]
    seen_epochs = SeenEpochsStore(given.seams.disk, folders, directories)
    return ControlChannel(given.session, seen_epochs, directories, log_work)


def _control(
    channel: ControlChannel,
    given: Given,
    partitions: Partitions,
    repairs: Repairs,
    log_work: LogWork,
    loss_reports: LossReports,
    maintenance: Maintenance,
) -> Control:
    return Control(
        channel,
        partitions,
        repairs,
        log_work,
        loss_reports.forgetting,
        maintenance.checkpoint,
        given.seams.clock,
    )


def _maintenance(
    given: Given,
    partitions: Partitions,
    log_work: LogWork,
    repairs: Repairs,
    expire: Callable[[int], None],
) -> Maintenance:
    configs, seams = given.configs, given.seams
    shortages = Shortages(given.directories, seams.clock)
    for directory in given.directories:
        line = RefusedWrites(directory.path, seams.clock)
        directory.resources.on_refused = partial(_refused, shortages, directory, line)
    made = Maintenance(partitions, log_work, repairs, shortages, configs, seams, expire)
    given.topic_configs.when_changed = _reconfiguring(given, partitions, made)
    return made


def _refused(
    shortages: Shortages, directory: LogDirectory, line: RefusedWrites, reason: str
) -> None:
    line(reason)
    shortages.refused(directory, reason)


def _sessions(
    given: Given,
    reader: Reader,
    partitions: Partitions,
    leader_hints: LeaderHints,
    departures: Departures,
) -> FollowerSessions:
    clock, random = given.seams.clock, given.seams.random
    why_not_here = leader_hints.why_not_here
    return FollowerSessions(reader, partitions, why_not_here, departures, clock, random)


def _followers(
    given: Given,
    metadata: MetadataCache,
    others: OtherBrokers,
    commit: GroupCommit,
    log_work: LogWork,
    loss_reports: LossReports,
) -> Followers:
    configs, clock, dynamic = given.configs, given.seams.clock, given.topic_configs
    fetched = Throttles(dynamic, clock, FOLLOWER)
    copies = Copies(configs, dynamic, clock, others)
    ends = configs, clock, metadata, given.session, given.secret
    return Followers(Shared(*ends, commit, log_work, loss_reports, fetched, copies, given.tls))


def _reader(given: Given, metadata: MetadataCache, isr_changes: IsrChanges) -> Reader:
    configs, seams = given.configs, given.seams
    shown = ShownEpochs(metadata)
    metadata.when_resized = shown.resized
    return Reader(
        node_id=configs.node_id,
        rack=configs.broker_rack,
        most_bytes=configs.fetch_max_bytes,
        reads_from_closest=configs.reads_from_closest,
        threads=seams.threads,
        addresses=metadata.addresses,
        throttles=Throttles(given.topic_configs, seams.clock, LEADER),
        shown=shown,
        fetched=isr_changes.fetched,
    )


def _reconfiguring(
    given: Given, partitions: Partitions, maintenance: Maintenance
) -> Callable[[Collection[str] | None], Work[None]]:
    """Return what follows a change of configurations, in pieces: of topics, or (None) of all."""

    def reconfigure(topics: Collection[str] | None) -> Work[None]:
        if topics is None:
            given.when_brokers_configured()
        yield from partitions.reconfigure(topics)
        maintenance.configs_changed()

    return reconfigure
