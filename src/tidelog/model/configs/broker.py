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

from tidelog.model.configs.broker_log import CLEANER, LOG
from tidelog.model.configs.broker_replication import REPLICATION
from tidelog.model.configs.rows import (
    AT_LEAST_0,
    AT_LEAST_1,
    idle,
    idle_machinery,
    row,
    topic_default,
)
from tidelog.model.configs.topic import (
    COMPRESSIONS,
    LEVELS_GZIP,
    LEVELS_LZ4,
    LEVELS_ZSTD,
)
from tidelog.model.configs.types import (
    MAX_INT32,
    Between,
    ConfigDefinition,
    ConfigType,
    Importance,
    NotEmpty,
    OneOf,
    StoreAddress,
    Update,
)
from tidelog.model.levels import LATEST, LEVEL_NAMES

_B, _S, _I, _L = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG
_LIST, _SHORT = ConfigType.LIST, ConfigType.SHORT
_HIGH = Importance.HIGH

_NODE = (
    row("node.id", _I, None, "This node's id in the cluster.", AT_LEAST_0, _HIGH),
    row("broker.id", _I, None, "The older name of node.id.", AT_LEAST_0, _HIGH),
    row(
        "process.roles",
        _LIST,
        "broker,controller",
        "What this process is: broker, controller or both.",
        OneOf(("broker", "controller")),
        _HIGH,
    ),
    row("broker.rack", _S, None, "The rack of this broker, for the placement of replicas."),
    row(
        "metadata.store",
        _S,
        None,
        "Where the controllers keep the metadata: a file for one controller, a ZooKeeper for "
        "several. The default is metadata.sqlite in the first log directory.",
        StoreAddress(),
        _HIGH,
    ),
    row(
        "cluster.secret.file",
        _S,
        None,
        "The file with the secret that all processes of the cluster share, one line of at least 16 "
        "characters; two lines while it is changed. It is read again when it changes. A process "
        "with both roles and a SQLite store makes one of its own; any other without it listens on "
        "loopback addresses only.",
        importance=_HIGH,
    ),
    row(
        "cluster.secret.optional",
        _B,
        "false",
        "For the rolling restart that gives a cluster its secret: other processes may go without a "
        "proof. While it is true, whoever reaches a listener can command this process.",
    ),
    row(
        "inter.broker.protocol.version",
        _S,
        LATEST.name,
        "The level of the requests between controllers and brokers. Raise it on controllers first, "
        "lower it on brokers first.",
        OneOf(LEVEL_NAMES, hint="leave Kafka's out: the newest is the default"),
    ),
    row(
        "logging.format",
        _S,
        "logfmt",
        "How a line of this process's log is written: logfmt or json.",
        OneOf(("logfmt", "json")),
    ),
    row(
        "metrics_port",
        _S,
        None,
        "PORT or HOST:PORT on which metrics and health are served; none if not set.",
    ),
)

_LISTENERS = (
    row(
        "listeners",
        _LIST,
        None,
        "What to listen on: NAME://HOST:PORT, several with commas. The default is "
        "PLAINTEXT://:9092 for a broker and CONTROLLER://:9093 for a controller.",
        importance=_HIGH,
    ),
    row(
        "advertised.listeners",
        _LIST,
        None,
        "The addresses that clients connect to. The default is listeners, where every interface is "
        "this machine's host name.",
        importance=_HIGH,
    ),
    row(
        "listener.security.protocol.map",
        _LIST,
        "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "The security protocol of each listener name.",
    ),
    row("inter.broker.listener.name", _S, None, "The listener that brokers use among themselves."),
    row(
        "controller.listener.names",
        _LIST,
        "CONTROLLER",
        "The listeners of the controller.",
        NotEmpty(),
        _HIGH,
    ),
    row(
        "controller.quorum.bootstrap.servers",
        _LIST,
        "",
        "Where brokers find the controllers: HOST:PORT, several with commas. A process with both "
        "roles needs none.",
        importance=_HIGH,
    ),
)

_NETWORK = (
    row(
        "socket.request.max.bytes",
        _I,
        "104857600",
        "The largest request that is read, in bytes.",
        AT_LEAST_1,
    ),
    row(
        "queued.max.request.bytes",
        _L,
        "268435456",
        "How many bytes a process holds at once of large requests and of answers that clients do "
        "not read; then it stops reading, but for addresses within their share. -1 is no limit.",
        Between(low=-1),
    ),
    row(
        "max.connections",
        _I,
        str(MAX_INT32),
        "How many connections a process accepts, beside those that prove the cluster secret. A "
        "change while it runs is for brokers.",
        AT_LEAST_1,
        update=Update.CLUSTER_WIDE,
    ),
    row(
        "max.connections.per.ip",
        _I,
        str(MAX_INT32),
        "How many connections one address may have. A change while it runs is for brokers.",
        # 0 is for files with exceptions (max.connections.per.ip.overrides), which do not exist
        # here.
        AT_LEAST_1,
        update=Update.CLUSTER_WIDE,
    ),
    row(
        "connections.max.idle.ms",
        _L,
        "600000",
        "A connection that was idle for so long is closed, in ms; -1 is never.",
        Between(low=-1),
    ),
    row(
        "request.timeout.ms",
        _I,
        "30000",
        "How long a forwarded request waits, and how long a request that has begun may take to "
        "come whole, in ms.",
        # Kafka has no bound; below one second requests that are on their way would be closed.
        Between(low=1000),
    ),
    row(
        "max.incremental.fetch.session.cache.slots",
        _I,
        "1000",
        "How many fetch sessions are kept, each for five minutes without use. Together they take "
        "at most 64 MiB (some 120,000 partitions) and a quarter of queued.max.request.bytes.",
        AT_LEAST_0,
    ),
    row(
        "fetch.max.bytes",
        _I,
        "57671680",
        "The most bytes of records in one Fetch answer.",
        Between(low=1024),
    ),
    row(
        "socket.listen.backlog.size",
        _I,
        "50",
        "How many connections may wait to be accepted.",
        AT_LEAST_1,
    ),
    idle_machinery("num.network.threads", _I, "3", "Threads for the network.", AT_LEAST_1),
    idle_machinery("num.io.threads", _I, "8", "Threads for requests.", AT_LEAST_1),
    idle_machinery("background.threads", _I, "10", "Threads for other work.", AT_LEAST_1),
    idle("queued.max.requests", _I, "500", "Requests that may wait for a thread.", AT_LEAST_1),
    idle("socket.send.buffer.bytes", _I, "102400", "The system's send buffer, in bytes."),
    idle("socket.receive.buffer.bytes", _I, "102400", "The system's receive buffer, in bytes."),
)

_TOPICS = (
    row(
        "auto.create.topics.enable",
        _B,
        "true",
        "Whether a topic is created when a client asks for its metadata.",
        importance=_HIGH,
    ),
    row(
        "num.partitions",
        _I,
        "1",
        "The number of partitions of a topic that does not say.",
        AT_LEAST_1,
    ),
    row(
        "default.replication.factor",
        _I,
        "1",
        "The number of replicas of a topic that does not say.",
        AT_LEAST_1,
    ),
    row("delete.topic.enable", _B, "true", "Whether topics may be deleted.", importance=_HIGH),
    row(
        "delete.topic.retry.ms",
        _L,
        "5000",
        "After how long the deletion of a topic is tried again from its first step, in ms.",
        AT_LEAST_1,
    ),
    row(
        "stale.partition.delete.delay.ms",
        _L,
        "60000",
        "How long the directory of a stale partition stays after it was renamed, in ms.",
        AT_LEAST_0,
    ),
    topic_default(
        "min.insync.replicas",
        _I,
        "1",
        "How many replicas must have a record before acks=all is answered.",
        AT_LEAST_1,
    ),
    topic_default(
        "unclean.leader.election.enable",
        _B,
        "false",
        "Whether a replica that is not in sync may lead when no other can: data may be lost.",
    ),
    topic_default(
        "message.max.bytes", _I, "1048588", "The largest batch that is accepted.", AT_LEAST_0
    ),
    topic_default(
        "compression.type",
        _S,
        "producer",
        "How batches are stored: producer keeps what the producer chose.",
        COMPRESSIONS,
    ),
    topic_default("compression.gzip.level", _I, "-1", "The broker's gzip level.", LEVELS_GZIP),
    topic_default("compression.lz4.level", _I, "9", "The broker's lz4 level.", LEVELS_LZ4),
    topic_default("compression.zstd.level", _I, "3", "The broker's zstd level.", LEVELS_ZSTD),
)

_GROUPS = (
    row(
        "offsets.topic.num.partitions",
        _I,
        "50",
        "The number of partitions of __consumer_offsets.",
        AT_LEAST_1,
        _HIGH,
    ),
    row(
        "offsets.topic.replication.factor",
        _SHORT,
        "3",
        "The number of replicas of __consumer_offsets.",
        AT_LEAST_1,
        _HIGH,
    ),
    row(
        "offsets.topic.segment.bytes",
        _I,
        "104857600",
        "The segment size of __consumer_offsets.",
        AT_LEAST_1,
    ),
    row(
        "offsets.retention.minutes",
        _I,
        "10080",
        "How long the offsets of an empty group are kept, in minutes.",
        AT_LEAST_1,
        _HIGH,
    ),
    row(
        "offsets.retention.check.interval.ms",
        _L,
        "600000",
        "How often expired offsets are looked for, in ms.",
        AT_LEAST_1,
    ),
    row(
        "offset.metadata.max.bytes",
        _I,
        "4096",
        "The longest text that a client may keep beside an offset, in bytes.",
        AT_LEAST_0,
    ),
    row(
        "offsets.commit.timeout.ms",
        _I,
        "5000",
        "How long a commit waits for replication, in ms.",
        AT_LEAST_1,
    ),
    row(
        "group.min.session.timeout.ms", _I, "6000", "The shortest session of a member.", AT_LEAST_0
    ),
    row(
        "group.max.session.timeout.ms",
        _I,
        "1800000",
        "The longest session of a member.",
        AT_LEAST_0,
    ),
    row(
        "group.initial.rebalance.delay.ms",
        _I,
        "3000",
        "How long the first rebalance of a group waits for more members, in ms.",
        AT_LEAST_0,
    ),
    row("group.max.size", _I, str(MAX_INT32), "How many members a group may have.", AT_LEAST_1),
    idle("offsets.topic.compression.codec", _I, "0", "The compression of stored offsets."),
    idle("offsets.load.buffer.size", _I, "5242880", "The buffer for loading.", AT_LEAST_1),
)

_CONTROL = (
    row(
        "broker.session.timeout.ms",
        _I,
        "6000",
        "A broker that was silent for so long is dead, in ms.",
        AT_LEAST_1,
    ),
    row(
        "broker.heartbeat.interval.ms",
        _I,
        "500",
        "The interval of a broker's heartbeats to the controller, in ms.",
        AT_LEAST_1,
    ),
    row(
        "broker.silence.suspect.ms",
        _I,
        "2000",
        "A broker that was silent for so long is suspected, in ms: others lead for it. At least "
        "three heartbeat intervals, below the session timeout; unset it follows these two.",
        AT_LEAST_1,
    ),
    row(
        "resize.timeout.ms",
        _I,
        "10000",
        "How long one step of a resize waits until the leaders have committed their fences, in ms; "
        "then the resize is undone (KIP-253).",
        AT_LEAST_1,
    ),
    row(
        "broker.session.grace.ms",
        _I,
        "200",
        "How long after its connection closed a broker is suspected, in ms.",
        AT_LEAST_0,
    ),
    row("controlled.shutdown.enable", _B, "true", "Give up leadership before stopping."),
    idle("controlled.shutdown.max.retries", _I, "3", "How often that is tried.", AT_LEAST_0),
    idle(
        "controlled.shutdown.retry.backoff.ms",
        _L,
        "5000",
        "The pause between two tries, in ms.",
        AT_LEAST_0,
    ),
    row(
        "controller.socket.timeout.ms",
        _I,
        "30000",
        "How long a controller waits for a broker's answer, in ms.",
        AT_LEAST_1,
    ),
    row("auto.leader.rebalance.enable", _B, "true", "Move leaders back to preferred replicas."),
    row("leader.imbalance.check.interval.seconds", _L, "300", "How often, in s.", AT_LEAST_1),
    row("leader.imbalance.per.broker.percentage", _I, "10", "From which imbalance on."),
    row(
        "retired.check.interval.ms",
        _L,
        "30000",
        "How often the controller asks whether retired partitions are empty, in ms.",
        AT_LEAST_1,
    ),
    row(
        "retired.purge.delay.ms",
        _L,
        "120000",
        "How long after its shrink a retired partition is purged or removed at the earliest, in "
        "ms: until then a producer may ask again whether a batch was written there. The default is "
        "the delivery.timeout.ms of producers; one with a longer time may still "
        "fail because its partition was removed before a leader could say so.",
        AT_LEAST_0,
    ),
)

_TRANSACTIONS = (
    idle("transaction.state.log.num.partitions", _I, "50", "Partitions of it.", AT_LEAST_1),
    idle("transaction.state.log.replication.factor", _SHORT, "3", "Replicas of it.", AT_LEAST_1),
    idle("transaction.state.log.min.isr", _I, "2", "Its min.insync.replicas.", AT_LEAST_1),
    idle("transaction.state.log.segment.bytes", _I, "104857600", "Its segments.", AT_LEAST_1),
    idle("transaction.max.timeout.ms", _I, "900000", "The longest transaction.", AT_LEAST_1),
    idle("transactional.id.expiration.ms", _I, "604800000", "When it is forgotten.", AT_LEAST_1),
)

_SHARES = "Of the topic of share groups (KIP-932), which this version has not."

_SHARE_GROUPS = (
    idle("share.coordinator.state.topic.replication.factor", _SHORT, "3", _SHARES, AT_LEAST_1),
    idle("share.coordinator.state.topic.min.isr", _SHORT, "2", _SHARES, AT_LEAST_1),
)

SECTIONS: dict[str, tuple[ConfigDefinition, ...]] = {
    "Node": _NODE,
    "Listeners": _LISTENERS,
    "Network": _NETWORK,
    "Topics": _TOPICS,
    "Log": LOG,
    "Cleaner": CLEANER,
    "Groups": _GROUPS,
    "Replication": REPLICATION,
    "Controller": _CONTROL,
    "Transactions": _TRANSACTIONS,
    "Share groups": _SHARE_GROUPS,
}
"""The rows as the operator's page shows them."""

BROKER: dict[str, ConfigDefinition] = {row.name: row for rows in SECTIONS.values() for row in rows}
"""Every configuration of a server by name."""
