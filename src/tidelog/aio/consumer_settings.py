"""The configurations of a consumer, by kafka-python's names and with Kafka's defaults.

Owns names, defaults and checks. Not their effect: see ``consumer`` and ``client.groups``. All times
are in ms, all sizes in bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any

from tidelog.aio.arguments import milliseconds
from tidelog.aio.cluster_configs import SECURITY, check_names, flag, function, keys, text, whole
from tidelog.client.cluster import ClusterSettings
from tidelog.client.errors import ConfigurationRefused
from tidelog.client.fetching.consumer_record import Deserializer
from tidelog.client.fetching.fetch_requests import FetchOptions
from tidelog.client.fetching.resets import OffsetReset
from tidelog.client.groups.assignors import ASSIGNORS, RANGE
from tidelog.client.groups.consumer_protocol import COOPERATIVE_STICKY
from tidelog.client.metadata import parse_bootstrap
from tidelog.client.offsets import IsolationLevel
from tidelog.runtime.backoff import Backoff

if TYPE_CHECKING:
    from tidelog.runtime.tls_files import TlsFiles

MIB = 1024 * 1024

LEAST = {
    "auto_commit_interval_ms": 0,
    "fetch_min_bytes": 0,
    "fetch_max_wait_ms": 0,
    "fetch_max_bytes": 1,
    "max_partition_fetch_bytes": 1,
    "fetch_buffer_bytes": 1,
    "max_poll_records": 1,
    "max_poll_interval_ms": 1,
    "session_timeout_ms": 1,
    "heartbeat_interval_ms": 1,
    "request_timeout_ms": 1,
    "default_api_timeout_ms": 1,
    "retry_backoff_ms": 0,
    "retry_backoff_max_ms": 0,
    "metadata_max_age_ms": 0,
}
"""The whole numbers among the settings, and the least value of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Raises KafkaConfigurationError, a ValueError, for a value that Kafka refuses, with the name
    and what is allowed."""

    bootstrap_servers: str | Sequence[str] = "localhost:9092"
    client_id: str = "tidelog"
    group_id: str | None = None
    group_instance_id: str | None = None
    key_deserializer: Deserializer | None = None
    value_deserializer: Deserializer | None = None
    auto_offset_reset: str = "latest"
    enable_auto_commit: bool = True
    auto_commit_interval_ms: int = 5_000
    enable_ordered_delivery: bool = True
    """False: as a stock consumer, which reads all partitions of a resized topic side by side."""
    partition_assignment_strategy: Sequence[str] = (RANGE, COOPERATIVE_STICKY)
    isolation_level: str = "read_uncommitted"
    check_crcs: bool = True
    fetch_min_bytes: int = 1
    fetch_max_wait_ms: int = 500
    fetch_max_bytes: int = 50 * MIB
    max_partition_fetch_bytes: int = MIB
    fetch_buffer_bytes: int = 64 * MIB
    """How much may be fetched and not returned yet; half of it of partitions with a shut gate. What
    the application waits for comes above it, one response of each partition, where all of that is
    paused, or not asked for."""
    max_poll_records: int = 500
    max_poll_interval_ms: int = 300_000
    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 3_000
    request_timeout_ms: int = 30_000
    default_api_timeout_ms: int = 60_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 1_000
    metadata_max_age_ms: int = 300_000
    exclude_internal_topics: bool = True
    consumer_timeout_ms: float | None = None
    """``for record in consumer`` ends when no record has come for so long; None: never."""
    tls: TlsFiles | None = None
    """Made from ``security_protocol`` and the settings of TLS."""

    def __post_init__(self) -> None:
        self._check_types()
        self._check_choice("auto_offset_reset", [choice.value for choice in OffsetReset])
        self._check_choice("isolation_level", [choice.name.lower() for choice in IsolationLevel])
        names = self.assignors
        unknown = [name for name in names if name not in ASSIGNORS]
        if unknown or not names:
            raise ConfigurationRefused(
                f"partition_assignment_strategy must name some of {', '.join(ASSIGNORS)}, "
                f"not {self.partition_assignment_strategy!r}"
            )
        if not 0 < self.heartbeat_interval_ms < self.session_timeout_ms:
            raise ConfigurationRefused(
                "heartbeat_interval_ms must be positive and less than session_timeout_ms, "
                f"not {self.heartbeat_interval_ms!r}"
            )
        if self.group_instance_id is not None and self.group_id is None:
            raise ConfigurationRefused("group_instance_id needs a group_id")
        for name in ("group_id", "group_instance_id"):
            if getattr(self, name) == "":
                raise ConfigurationRefused(f"{name} must not be empty: None means none")
        parse_bootstrap(self.bootstrap_servers)

    def _check_types(self) -> None:
        given = {name: getattr(self, name) for name in self.__slots__}
        for name in ("client_id", "group_id", "group_instance_id"):
            text(given, name)
        for name in ("key_deserializer", "value_deserializer"):
            function(given, name)
        for name in ("enable_auto_commit", "enable_ordered_delivery", "check_crcs"):
            flag(given, name, True)
        for name, least in LEAST.items():
            whole(given, name, least, least)
        if self.consumer_timeout_ms is not None:
            milliseconds(self.consumer_timeout_ms)

    def _check_choice(self, name: str, choices: list[str]) -> None:
        value: Any = getattr(self, name)
        if value not in choices:
            raise ConfigurationRefused(f"{name} must be one of {', '.join(choices)}, not {value!r}")

    @property
    def assignors(self) -> tuple[str, ...]:
        """The assignors by preference."""
        given = self.partition_assignment_strategy
        return (given,) if isinstance(given, str) else tuple(given)

    @property
    def auto_commit_ms(self) -> int | None:
        """The interval of automatic commits; None: there are none."""
        is_on = self.enable_auto_commit and self.group_id is not None
        return self.auto_commit_interval_ms if is_on else None

    @property
    def idle_limit_ms(self) -> float:
        """How long an iteration waits for a record; infinite: for ever."""
        limit_ms = self.consumer_timeout_ms
        return inf if limit_ms is None else max(float(limit_ms), 0.0)

    @property
    def isolation(self) -> IsolationLevel:
        """The isolation level of fetches and of the ends of logs."""
        return IsolationLevel[self.isolation_level.upper()]

    def of_cluster(self) -> ClusterSettings:
        """Return the settings of connections and metadata."""
        return ClusterSettings(
            client_id=self.client_id,
            request_timeout_ms=self.request_timeout_ms,
            default_api_timeout_ms=self.default_api_timeout_ms,
            metadata_max_age_ms=self.metadata_max_age_ms,
            backoff=Backoff(self.retry_backoff_ms, self.retry_backoff_max_ms),
            tls=self.tls,
        )

    def of_fetches(self) -> FetchOptions:
        """Return the limits of one Fetch."""
        return FetchOptions(
            self.fetch_max_wait_ms,
            self.fetch_min_bytes,
            self.fetch_max_bytes,
            self.max_partition_fetch_bytes,
        )

    def of_member(self) -> dict[str, Any]:
        """Return the options of a member of the group."""
        return {
            "instance_id": self.group_instance_id,
            "session_timeout_ms": self.session_timeout_ms,
            "rebalance_timeout_ms": self.max_poll_interval_ms,
            "max_poll_interval_ms": self.max_poll_interval_ms,
            "heartbeat_interval_ms": self.heartbeat_interval_ms,
            "partition_check_ms": min(30_000, self.metadata_max_age_ms),
            "assignors": self.assignors,
            "is_aware": self.enable_ordered_delivery,
        }


def settings_of(kind: type[Any], given: Mapping[str, Any]) -> ConsumerSettings:
    """Return the settings of a client of this class. Raises ConfigurationRefused."""
    fields = ConsumerSettings.__dataclass_fields__.keys() - {"tls"}
    check_names(given, kind, (*fields, *SECURITY))
    own = {name: value for name, value in given.items() if name in fields}
    return ConsumerSettings(**own, tls=keys(given))
