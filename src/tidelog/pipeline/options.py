"""The options of the source: the stock Kafka source's names, defaults and refusals, and our own.

Owns parsing and every refusal that needs no broker. Not the resolution of offsets: see
`planning.resolve`. Names are case-insensitive, as Spark's. The tables, with what each option does,
are in docs/operating/pipeline.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from types import MappingProxyType

from tidelog.client.errors import ClientError
from tidelog.client.metadata import parse_bootstrap
from tidelog.pipeline.errors import OptionRefused
from tidelog.pipeline.places import (
    Place,
    QuerySubscription,
    parse_ending,
    parse_starting,
    parse_subscription,
)
from tidelog.pipeline.planning.admission import AdmissionLimits
from tidelog.pipeline.schema import COLUMNS, choose_columns

_KAFKA = "kafka."

# Every option in the spelling of the documentation; looked up in lower case.
NAMES = (
    "kafka.bootstrap.servers",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsets",
    "startingOffsetsByTimestampStrategy",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "endingOffsets",
    "failOnDataLoss",
    "onOutage",
    "onBadRecord",
    "gates",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "maxRecordsPerPartition",
    "includeHeaders",
    "includeEpoch",
    "columns",
    "groupIdPrefix",
    "commitGroupOffsets",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
_KNOWN = {name.lower(): name for name in NAMES}

# Properties of Kafka's consumer that the source honours.
HONOURED = (
    "bootstrap.servers",
    "group.id",
    "client.id",
    "isolation.level",
    "check.crcs",
    "fetch.max.bytes",
    "max.partition.fetch.bytes",
    "fetch.max.wait.ms",
    "request.timeout.ms",
    "security.protocol",
)
_NUMBERS = (
    "fetch.max.bytes",
    "max.partition.fetch.bytes",
    "fetch.max.wait.ms",
    "request.timeout.ms",
)
# Accepted so that a query can move over from the stock source; the source has no use for them.
WITHOUT_EFFECT = (
    "allow.auto.create.topics",
    "client.dns.lookup",
    "client.rack",
    "connections.max.idle.ms",
    "fetch.min.bytes",
    "heartbeat.interval.ms",
    "max.poll.interval.ms",
    "max.poll.records",
    "metadata.max.age.ms",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "send.buffer.bytes",
    "session.timeout.ms",
)
# As in the stock source: the source decides these itself.
REFUSED = MappingProxyType(
    {
        "auto.offset.reset": "use startingOffsets: the checkpoint holds the positions",
        "key.deserializer": "keys are always binary",
        "value.deserializer": "values are always binary",
        "enable.auto.commit": "use commitGroupOffsets: offsets are committed after each batch",
        "interceptor.classes": "interceptors are not supported",
    }
)

# The stock source has none: its first batch is all of the history, however long that is.
DEFAULT_MAX_OFFSETS = 10_000_000
DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60 * 1000  # stock source: 15m
DEFAULT_POLL_TIMEOUT_MS = 120_000  # stock source: spark.network.timeout
_LARGEST_INT = 2**31 - 1  # these properties are of Kafka's type int
_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


class OnOutage(Enum):
    """What a stream does while a partition or a cluster cannot be reached."""

    WAIT = "wait"
    FAIL = "fail"


class OnBadRecord(Enum):
    """What a read does with records that it cannot decode, or Spark's types cannot hold."""

    FAIL = "fail"
    QUARANTINE = "quarantine"
    """Each has a row of its own, with its bytes and the reason; the others are read."""


class Gates(Enum):
    """Whether a stream keeps the order of keys over growth and shrinking of its topics."""

    BATCH = "batch"
    """Within a micro-batch all records of a key come from one partition."""
    OFF = "off"


class Mode(Enum):
    """How the source is read: `spark.read` or `spark.readStream`."""

    BATCH = "batch"
    STREAM = "stream"


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of one read, checked. Picklable: it goes to the executors."""

    bootstrap_servers: str
    subscription: QuerySubscription
    starting: Place
    ending: Place
    latest_if_no_match: bool
    fail_on_data_loss: bool
    on_outage: OnOutage
    on_bad_record: OnBadRecord
    gates: Gates
    limits: AdmissionLimits
    min_partitions: int | None
    max_records_per_partition: int | None
    columns: tuple[str, ...]
    group_id: str | None
    commit_group_offsets: bool
    poll_timeout_ms: int
    offset_retries: int
    offset_retry_interval_ms: int
    read_committed: bool
    check_crcs: bool
    client_properties: Mapping[str, str]


def check_names(raw: Mapping[str, str]) -> dict[str, str]:
    """The options under lower-case names. Raises OptionRefused for one that does not exist."""
    options: dict[str, str] = {}
    for name, value in raw.items():
        low = name.lower()
        if low == "path":
            raise OptionRefused("load() takes no path: name topics with the option subscribe")
        if low not in _KNOWN and low.startswith(_KAFKA):
            _check_property(name, low.removeprefix(_KAFKA))
        elif low not in _KNOWN:
            near = get_close_matches(low, _KNOWN, 1)
            hint = f"; did you mean {_KNOWN[near[0]]}?" if near else ""
            raise OptionRefused(f"option {name} does not exist{hint}")
        options[low] = str(value)
    return options


def _check_property(name: str, bare: str) -> None:
    if bare in REFUSED:
        raise OptionRefused(f"option {name} cannot be set: {REFUSED[bare]}")
    if bare not in HONOURED and bare not in WITHOUT_EFFECT:
        near = get_close_matches(bare, HONOURED + WITHOUT_EFFECT, 1)
        hint = f"; did you mean kafka.{near[0]}?" if near else ""
        raise OptionRefused(f"option {name} is not a supported consumer property{hint}")


def parse_columns(options: Mapping[str, str]) -> tuple[str, ...]:
    """The columns of the read. Raises OptionRefused."""
    headers = _boolean(options, "includeHeaders", False)
    epoch = _boolean(options, "includeEpoch", True)
    bad = _on_bad_record(options) is OnBadRecord.QUARANTINE
    listed = options.get("columns")
    if listed is None:
        return choose_columns(None, headers=headers, epoch=epoch, bad=bad)
    names = [name.strip() for name in listed.split(",") if name.strip()]
    for name in names:
        if name not in COLUMNS:
            raise OptionRefused(f"option columns names {name}; there are {', '.join(COLUMNS)}")
    if not names:
        raise OptionRefused("option columns names no column")
    return choose_columns(names, headers=headers, epoch=epoch, bad=bad)


def _on_bad_record(options: Mapping[str, str]) -> OnBadRecord:
    text = options.get("onbadrecord", OnBadRecord.FAIL.value).lower()
    if text not in [choice.value for choice in OnBadRecord]:
        raise OptionRefused("option onBadRecord must be fail or quarantine")
    return OnBadRecord(text)


def parse(raw: Mapping[str, str], mode: Mode) -> SourceOptions:
    """Check and read all options of one query. Raises OptionRefused, one line."""
    options = check_names(raw)
    servers = options.get("kafka.bootstrap.servers", "").strip()
    if not servers:
        raise OptionRefused("option kafka.bootstrap.servers is required")
    properties = {
        name.removeprefix(_KAFKA): value
        for name, value in options.items()
        if name.startswith(_KAFKA)
    }
    try:
        parse_bootstrap(servers)
    except ClientError as error:
        raise OptionRefused(f"option kafka.bootstrap.servers: {error}") from None
    if properties.get("security.protocol", "PLAINTEXT").upper() != "PLAINTEXT":
        raise OptionRefused("option kafka.security.protocol: only PLAINTEXT is supported so far")
    isolation = properties.get("isolation.level", "read_uncommitted")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise OptionRefused(
            f"option kafka.isolation.level is {isolation};"
            " it must be read_committed or read_uncommitted"
        )
    for name in _NUMBERS:
        if _number(options, _KAFKA + name, 0) > _LARGEST_INT:
            raise OptionRefused(f"option kafka.{name} is larger than {_LARGEST_INT}")
    strategy = options.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise OptionRefused("option startingOffsetsByTimestampStrategy must be error or latest")
    is_stream = mode is Mode.STREAM
    default = OnOutage.WAIT if is_stream else OnOutage.FAIL
    outage = options.get("onoutage", default.value).lower()
    if outage not in [choice.value for choice in OnOutage]:
        raise OptionRefused("option onOutage must be wait or fail")
    gates = options.get("gates", Gates.BATCH.value).lower()
    if gates not in [choice.value for choice in Gates]:
        raise OptionRefused("option gates must be batch or off")
    return SourceOptions(
        bootstrap_servers=servers,
        subscription=parse_subscription(options),
        starting=parse_starting(options, is_stream=is_stream),
        ending=parse_ending(options, is_stream=is_stream),
        latest_if_no_match=strategy == "latest",
        fail_on_data_loss=_boolean(options, "failOnDataLoss", True),
        on_outage=OnOutage(outage),
        on_bad_record=_on_bad_record(options),
        gates=Gates(gates),
        limits=_limits(options),
        min_partitions=_positive(options, "minPartitions"),
        max_records_per_partition=_positive(options, "maxRecordsPerPartition"),
        columns=parse_columns(options),
        group_id=properties.get("group.id"),
        commit_group_offsets=_boolean(options, "commitGroupOffsets", True),
        poll_timeout_ms=_positive(options, "kafkaConsumer.pollTimeoutMs")
        or DEFAULT_POLL_TIMEOUT_MS,
        offset_retries=_number(options, "fetchOffset.numRetries", 3),
        offset_retry_interval_ms=_number(options, "fetchOffset.retryIntervalMs", 1000),
        read_committed=isolation == "read_committed",
        check_crcs=_boolean(options, "kafka.check.crcs", True),
        client_properties=properties,
    )


def _limits(options: Mapping[str, str]) -> AdmissionLimits:
    most = _positive(options, "maxOffsetsPerTrigger")
    least = _positive(options, "minOffsetsPerTrigger")
    if most is None:
        most = max(DEFAULT_MAX_OFFSETS, least or 0)
    elif least is not None and least > most:
        raise OptionRefused("option minOffsetsPerTrigger is larger than maxOffsetsPerTrigger")
    delay = options.get("maxtriggerdelay")
    delay_ms = DEFAULT_MAX_TRIGGER_DELAY_MS
    if delay is not None:
        delay_ms = parse_duration_ms("maxTriggerDelay", delay)
    return AdmissionLimits(most, least, delay_ms)


def parse_duration_ms(name: str, text: str) -> int:
    """Spark's time strings: a number and a unit; milliseconds without a unit."""
    match = re.fullmatch(r"\s*(\d{1,12})\s*([a-z]*)\s*", text.lower())
    unit = (match[2] or "ms") if match else ""
    if match is None or unit not in _UNITS_MS:
        raise OptionRefused(f"option {name} is {text!r}; it must be a time such as 15m or 500ms")
    return int(match[1]) * _UNITS_MS[unit]


def _boolean(options: Mapping[str, str], name: str, default: bool) -> bool:
    text = options.get(name.lower())
    if text is None:
        return default
    if text.lower() not in ("true", "false"):
        raise OptionRefused(f"option {name} is {text!r}; it must be true or false")
    return text.lower() == "true"


def _number(options: Mapping[str, str], name: str, default: int) -> int:
    text = options.get(name.lower())
    if text is None:
        return default
    if not re.fullmatch(r"\d{1,18}", text.strip()):
        raise OptionRefused(f"option {name} is {text!r}; it must be a number, 0 or larger")
    return int(text)


def _positive(options: Mapping[str, str], name: str) -> int | None:
    if name.lower() not in options:
        return None
    value = _number(options, name, 0)
    if value < 1:
        raise OptionRefused(f"option {name} is {value}; it must be positive")
    return value
