"""The table of a server's configurations: Kafka's names and defaults, and ours.

Owns the definitions of all but the log and its cleaner (`broker_log`) and replication
(`broker_replication`). Not the typed values of
a process: see `server`.

Defaults that are not Kafka's, each for a reason in docs/design: ``broker.session.timeout.ms``,
``broker.heartbeat.interval.ms`` (a dead leader is replaced in under a second),
``queued.max.request.bytes`` (a limit that holds), ``log.dir``, ``process.roles``,
``controller.listener.names`` (a one-line file starts a whole node).
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog.model.configs.addresses import Listener
from tidelog.model.configs.broker_log import CleanerRows, LogsRows
from tidelog.model.configs.broker_replication import ReplicationRows
from tidelog.model.configs.rows import (
    AT_LEAST_0,
    AT_LEAST_1,
    BOOLEAN,
    INT,
    LIST,
    LONG,
    SHORT,
    STRING,
    idle,
    idle_machinery,
    made,
    row,
    rows_of,
)
from tidelog.model.configs.tls import TlsRows
from tidelog.model.configs.topic import default_of_topics
from tidelog.model.configs.types import (
    MAX_INT32,
    Between,
    ConfigDefinition,
    NotEmpty,
    OneOf,
    StoreAddress,
    Update,
)
from tidelog.model.levels import LATEST, LEVEL_NAMES

_SHARES = "Of the topic of share groups (KIP-932), which this version has not."


@dataclass(frozen=True, kw_only=True)
class NodeRows:
    """What this process is, and what its cluster shares."""

    node_id: int = made(INT, None, "This node's id in the cluster.", AT_LEAST_0)
    broker_id: int | None = row(INT, None, "The older name of node.id.", AT_LEAST_0)
    process_roles: frozenset[str] = made(
        LIST,
        ("broker", "controller"),
        "What this process is: broker, controller or both.",
        OneOf(("broker", "controller")),
    )
    broker_rack: str | None = row(
        STRING,
        None,
        "The rack of this broker, or RACK/MACHINE, for the placement of replicas: in different "
        "racks first, then on different machines. --workers names the machine.",
    )
    metadata_store: str = made(
        STRING,
        None,
        "Where the controllers keep the metadata: a file for one controller, a ZooKeeper for "
        "several. The default is metadata.sqlite in the first log directory.",
        StoreAddress(),
    )
    cluster_secret_file: str | None = row(
        STRING,
        None,
        "The file with the secret that all processes of the cluster share, one line of at "
        "least 16 characters; two lines while it is changed. It is read again when it "
        "changes. A process with both roles and a SQLite store makes one of its own; any "
        "other without it listens on loopback addresses only.",
    )
    cluster_secret_optional: bool = row(
        BOOLEAN,
        False,
        "For the rolling restart that gives a cluster its secret: other processes may go "
        "without a proof. While it is true, whoever reaches a listener can command this "
        "process.",
    )
    inter_broker_protocol_version: str = row(
        STRING,
        LATEST.name,
        "The level of the requests between controllers and brokers. Raise it on controllers "
        "first, lower it on brokers first.",
        OneOf(LEVEL_NAMES, hint="leave Kafka's out: the newest is the default"),
    )
    logging_format: str = row(
        STRING,
        "logfmt",
        "How a line of this process's log is written: logfmt or json.",
        OneOf(("logfmt", "json")),
    )
    metrics_address: tuple[str, int] | None = made(
        STRING,
        None,
        "PORT or HOST:PORT on which metrics and health are served; none if not set.",
        name="metrics_port",
    )


@dataclass(frozen=True, kw_only=True)
class ListenersRows:
    """Where a process listens, and where it finds others."""

    listeners: tuple[Listener, ...] = made(
        LIST,
        None,
        "What to listen on: NAME://HOST:PORT, several with commas, each on a port of its own. The "
        "default is PLAINTEXT://:9092 for a broker and CONTROLLER://:9093 for a controller.",
    )
    advertised_listeners: tuple[Listener, ...] = made(
        LIST,
        None,
        "The addresses that clients connect to. The default is listeners, where every "
        "interface is this machine's host name.",
    )
    listener_security_protocol_map: tuple[str, ...] = row(
        LIST,
        ("PLAINTEXT:PLAINTEXT", "CONTROLLER:PLAINTEXT"),
        "The security protocol of each listener name.",
    )
    inter_broker_listener_name: str = made(
        STRING, None, "The listener that brokers use among themselves."
    )
    security_inter_broker_protocol: str = made(
        STRING,
        "PLAINTEXT",
        "Names that listener by its protocol.",
    )
    controller_listener_names: tuple[str, ...] = row(
        LIST, ("CONTROLLER",), "The listeners of the controller.", NotEmpty()
    )
    controller_quorum_bootstrap_servers: tuple[tuple[str, int], ...] = made(
        LIST,
        (),
        "Where brokers find the controllers: HOST:PORT, several with commas. A process with "
        "both roles needs none.",
    )


@dataclass(frozen=True, kw_only=True)
class NetworkRows:
    """Connections and their limits."""

    socket_request_max_bytes: int = row(
        INT, 104_857_600, "The largest request that is read, in bytes.", AT_LEAST_1
    )
    queued_max_request_bytes: int = row(
        LONG,
        268_435_456,
        "How many bytes a process holds at once of large requests and of answers that clients"
        " do not read; then it stops reading, but for addresses within their share. -1 is no "
        "limit.",
        Between(low=-1),
    )
    max_connections: int = row(
        INT,
        MAX_INT32,
        "How many connections a process accepts, beside those that prove the cluster secret. "
        "A change while it runs is for brokers.",
        AT_LEAST_1,
        update=Update.CLUSTER_WIDE,
    )
    max_connections_per_ip: int = row(
        INT,
        MAX_INT32,
        "How many connections one address may have. A change while it runs is for brokers.",
        # 0 is for files with exceptions (max.connections.per.ip.overrides), which do not exist
        # here.
        AT_LEAST_1,
        update=Update.CLUSTER_WIDE,
    )
    connections_max_idle_ms: int = row(
        LONG,
        600_000,
        "A connection that was idle for so long is closed, in ms; -1 is never.",
        Between(low=-1),
    )
    request_timeout_ms: int = row(
        INT,
        30_000,
        "How long a forwarded request waits, and how long a request that has begun may take "
        "to come whole, in ms.",
        # Kafka has no bound; below one second requests that are on their way would be closed.
        Between(low=1000),
    )
    max_incremental_fetch_session_cache_slots: int = row(
        INT,
        1000,
        "How many fetch sessions are kept, each for five minutes without use. Together they "
        "take at most 64 MiB (some 100,000 partitions) and a quarter of "
        "queued.max.request.bytes.",
        AT_LEAST_0,
    )
    fetch_max_bytes: int = row(
        INT, 57_671_680, "The most bytes of records in one Fetch answer.", Between(low=1024)
    )
    socket_listen_backlog_size: int = row(
        INT, 50, "How many connections may wait to be accepted.", AT_LEAST_1
    )
    num_network_threads: int = idle_machinery(INT, 3, "Threads for the network.", AT_LEAST_1)
    num_io_threads: int = idle_machinery(INT, 8, "Threads for requests.", AT_LEAST_1)
    background_threads: int = idle_machinery(INT, 10, "Threads for other work.", AT_LEAST_1)
    queued_max_requests: int = idle(INT, 500, "Requests that may wait for a thread.", AT_LEAST_1)
    socket_send_buffer_bytes: int = idle(INT, 102_400, "The system's send buffer, in bytes.")
    socket_receive_buffer_bytes: int = idle(INT, 102_400, "The system's receive buffer, in bytes.")


@dataclass(frozen=True, kw_only=True)
class TopicsRows:
    """Creation and removal of topics, and defaults of theirs."""

    auto_create_topics_enable: bool = row(
        BOOLEAN, True, "Whether a topic is created when a client asks for its metadata."
    )
    num_partitions: int = row(
        INT, 1, "The number of partitions of a topic that does not say.", AT_LEAST_1
    )
    default_replication_factor: int = row(
        INT, 1, "The number of replicas of a topic that does not say.", AT_LEAST_1
    )
    delete_topic_enable: bool = row(BOOLEAN, True, "Whether topics may be deleted.")
    delete_topic_retry_ms: int = row(
        LONG,
        5000,
        "After how long the deletion of a topic is tried again from its first step, in ms.",
        AT_LEAST_1,
    )
    stale_partition_delete_delay_ms: int = row(
        LONG,
        60_000,
        "How long the directory of a stale partition stays after it was renamed, in ms.",
        AT_LEAST_0,
    )
    min_insync_machines: int = default_of_topics()
    min_insync_replicas: int = default_of_topics()
    unclean_leader_election_enable: bool = default_of_topics()
    message_max_bytes: int = default_of_topics("The largest batch that is accepted.")
    compression_type: str = default_of_topics()
    compression_gzip_level: int = default_of_topics("The broker's gzip level.")
    compression_lz4_level: int = default_of_topics("The broker's lz4 level.")
    compression_zstd_level: int = default_of_topics("The broker's zstd level.")


@dataclass(frozen=True, kw_only=True)
class GroupsRows:
    """Consumer groups and ``__consumer_offsets``."""

    offsets_topic_num_partitions: int = row(
        INT, 50, "The number of partitions of __consumer_offsets.", AT_LEAST_1
    )
    offsets_topic_replication_factor: int = row(
        SHORT, 3, "The number of replicas of __consumer_offsets.", AT_LEAST_1
    )
    offsets_topic_segment_bytes: int = row(
        INT, 104_857_600, "The segment size of __consumer_offsets.", AT_LEAST_1
    )
    offsets_retention_minutes: int = row(
        INT, 10_080, "How long the offsets of an empty group are kept, in minutes.", AT_LEAST_1
    )
    offsets_retention_check_interval_ms: int = row(
        LONG, 600_000, "How often expired offsets are looked for, in ms.", AT_LEAST_1
    )
    offset_metadata_max_bytes: int = row(
        INT, 4096, "The longest text that a client may keep beside an offset, in bytes.", AT_LEAST_0
    )
    offsets_commit_timeout_ms: int = row(
        INT, 5000, "How long a commit waits for replication, in ms.", AT_LEAST_1
    )
    group_min_session_timeout_ms: int = row(
        INT, 6000, "The shortest session of a member.", AT_LEAST_0
    )
    group_max_session_timeout_ms: int = row(
        INT, 1_800_000, "The longest session of a member.", AT_LEAST_0
    )
    group_initial_rebalance_delay_ms: int = row(
        INT,
        3000,
        "How long the first rebalance of a group waits for more members, in ms.",
        AT_LEAST_0,
    )
    group_max_size: int = row(INT, MAX_INT32, "How many members a group may have.", AT_LEAST_1)
    offsets_topic_compression_codec: int = idle(INT, 0, "The compression of stored offsets.")
    offsets_load_buffer_size: int = idle(INT, 5_242_880, "The buffer for loading.", AT_LEAST_1)


@dataclass(frozen=True, kw_only=True)
class ControllerRows:
    """Sessions of brokers, leaders and resizes."""

    broker_session_timeout_ms: int = row(
        INT, 6000, "A broker that was silent for so long is dead, in ms.", AT_LEAST_1
    )
    broker_heartbeat_interval_ms: int = row(
        INT, 500, "The interval of a broker's heartbeats to the controller, in ms.", AT_LEAST_1
    )
    broker_silence_suspect_ms: int = row(
        INT,
        2000,
        "A broker that was silent for so long is suspected, in ms: others lead for it. At "
        "least three heartbeat intervals, below the session timeout; unset it follows these "
        "two.",
        AT_LEAST_1,
    )
    resize_timeout_ms: int = row(
        INT,
        10_000,
        "How long one step of a resize waits until the leaders have committed their fences, "
        "in ms; then the resize is undone (KIP-253).",
        AT_LEAST_1,
    )
    broker_session_grace_ms: int = row(
        INT, 200, "How long after its connection closed a broker is suspected, in ms.", AT_LEAST_0
    )
    controlled_shutdown_enable: bool = row(BOOLEAN, True, "Give up leadership before stopping.")
    controlled_shutdown_max_retries: int = idle(INT, 3, "How often that is tried.", AT_LEAST_0)
    controlled_shutdown_retry_backoff_ms: int = idle(
        LONG, 5000, "The pause between two tries, in ms.", AT_LEAST_0
    )
    controller_socket_timeout_ms: int = row(
        INT, 30_000, "How long a controller waits for a broker's answer, in ms.", AT_LEAST_1
    )
    auto_leader_rebalance_enable: bool = row(
        BOOLEAN, True, "Move leaders back to preferred replicas."
    )
    leader_imbalance_check_interval_seconds: int = row(LONG, 300, "How often, in s.", AT_LEAST_1)
    leader_imbalance_per_broker_percentage: int = row(INT, 10, "From which imbalance on.")
    retired_check_interval_ms: int = row(
        LONG,
        30_000,
        "How often the controller asks whether retired partitions are empty, in ms.",
        AT_LEAST_1,
    )
    retired_purge_delay_ms: int = row(
        LONG,
        120_000,
        "How long after its shrink a retired partition is kept at least, in ms: until then a "
        "producer may ask whether a batch was written. As long as delivery.timeout.ms by default.",
        AT_LEAST_0,
    )


@dataclass(frozen=True, kw_only=True)
class TransactionsRows:
    """Transactions: the topic of their coordinators, and their times."""

    transaction_state_log_num_partitions: int = row(
        INT, 50, "The number of partitions of __transaction_state.", AT_LEAST_1
    )
    transaction_state_log_replication_factor: int = row(
        SHORT, 3, "The number of replicas of __transaction_state.", AT_LEAST_1
    )
    transaction_state_log_min_isr: int = row(
        INT, 2, "The min.insync.replicas of __transaction_state.", AT_LEAST_1
    )
    transaction_state_log_segment_bytes: int = row(
        INT, 104_857_600, "The segment size of __transaction_state.", AT_LEAST_1
    )
    transaction_max_timeout_ms: int = row(
        INT,
        900_000,
        "The longest time-out of a transaction that a producer may have, in ms.",
        AT_LEAST_1,
    )
    transactional_id_expiration_ms: int = row(
        INT,
        604_800_000,
        "How long an unused transactional id without an open transaction is kept, in ms.",
        AT_LEAST_1,
    )
    transaction_partition_verification_enable: bool = row(
        BOOLEAN,
        True,
        "Whether a leader takes the first batch of a transaction only when its coordinator has "
        "confirmed it.",
        update=Update.CLUSTER_WIDE,
    )


@dataclass(frozen=True, kw_only=True)
class ShareGroupsRows:
    """Share groups (KIP-932), which this version has not."""

    share_coordinator_state_topic_replication_factor: int = idle(SHORT, 3, _SHARES, AT_LEAST_1)
    share_coordinator_state_topic_min_isr: int = idle(SHORT, 2, _SHARES, AT_LEAST_1)


SECTIONS: dict[str, tuple[ConfigDefinition, ...]] = {
    "Node": rows_of(NodeRows),
    "Listeners": rows_of(ListenersRows),
    "TLS": rows_of(TlsRows),
    "Network": rows_of(NetworkRows),
    "Topics": rows_of(TopicsRows),
    "Log": rows_of(LogsRows),
    "Cleaner": rows_of(CleanerRows),
    "Groups": rows_of(GroupsRows),
    "Replication": rows_of(ReplicationRows),
    "Controller": rows_of(ControllerRows),
    "Transactions": rows_of(TransactionsRows),
    "Share groups": rows_of(ShareGroupsRows),
}
"""The rows as the operator's page shows them."""

BROKER: dict[str, ConfigDefinition] = {row.name: row for rows in SECTIONS.values() for row in rows}
"""Every configuration of a server by name."""
