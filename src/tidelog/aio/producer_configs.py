"""Arguments of a producer: Kafka's producer settings in snake case, their defaults and checks.

Owns the step from arguments to ``SendSettings``, and the serializers. Not what the settings do: see
``tidelog.client.producing``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tidelog.aio.arguments import is_text
from tidelog.aio.cluster_configs import (
    ClusterConfigs,
    check_names,
    cluster_settings,
    flag,
    function,
    text,
    whole,
)
from tidelog.aio.consumer_types import ConsumerGroupMetadata
from tidelog.client.cluster import ClusterSettings
from tidelog.client.errors import ConfigurationRefused
from tidelog.client.producing.settings import ALL, MOST_RETRIES, Partitioner, SendSettings
from tidelog.client.producing.transaction import PreparedTransaction
from tidelog.records.compression import CODEC_NAMES

MOST_IN_FLIGHT = 5
"""Requests in flight of an idempotent producer: brokers remember so many batches (KIP-98)."""

MAX_ID_BYTES = 32_767
"""The longest transactional id that brokers take: Kafka's strings have two bytes of length."""

_DEFAULTS = SendSettings()


class SerializerObject(Protocol):
    """A serializer as kafka-python has it."""

    def serialize(self, topic: str, data: Any, /) -> bytes | None:
        """Return the bytes of a key or a value."""


Serializer = Callable[[Any], bytes | None] | SerializerObject
"""A function of a key or a value, or an object with ``serialize(topic, data)``."""


class ProducerConfigs(ClusterConfigs, total=False):
    """What a producer accepts. Times are in milliseconds, sizes in bytes."""

    acks: int | str
    enable_idempotence: bool
    key_serializer: Serializer | None
    value_serializer: Serializer | None
    compression_type: str | None
    batch_size: int
    max_batch_size: int
    linger_ms: int
    buffer_memory: int
    max_block_ms: int
    max_request_size: int
    delivery_timeout_ms: int
    retries: int | float
    max_in_flight_requests_per_connection: int
    partitioner: Partitioner | None
    allow_auto_create_topics: bool
    transactional_id: str | None
    transaction_timeout_ms: int


@dataclass(frozen=True, slots=True)
class ProducerSettings:
    """The settings of a producer, checked."""

    cluster: ClusterSettings
    send: SendSettings
    key_serializer: Serializer | None
    value_serializer: Serializer | None


def producer_settings(configs: ProducerConfigs, kind: type[Any]) -> ProducerSettings:
    """Return the settings that arguments name. Raises ConfigurationRefused, as Kafka does.

    Without ``enable_idempotence`` a producer is idempotent where ``acks``, ``retries`` and the
    requests in flight permit it.
    """
    annotations = ProducerConfigs.__annotations__
    check_names(configs, kind, annotations)
    acks = _acks(configs.get("acks", ALL))
    retries = _retries(configs.get("retries", MOST_RETRIES))
    in_flight = whole(configs, "max_in_flight_requests_per_connection", MOST_IN_FLIGHT, 1)
    cluster = cluster_settings(configs, "producer")
    linger_ms = whole(configs, "linger_ms", _DEFAULTS.linger_ms)
    return ProducerSettings(
        cluster,
        SendSettings(
            acks=acks,
            idempotent=_is_idempotent(configs, acks, retries, in_flight),
            linger_ms=linger_ms,
            batch_bytes=_batch_bytes(configs),
            max_request_bytes=whole(configs, "max_request_size", _DEFAULTS.max_request_bytes, 1),
            buffer_bytes=whole(configs, "buffer_memory", _DEFAULTS.buffer_bytes, 1),
            compression=_compression(configs.get("compression_type")),
            max_in_flight=in_flight,
            retries=retries,
            delivery_timeout_ms=_delivery_ms(configs, linger_ms, cluster.request_timeout_ms),
            max_block_ms=whole(configs, "max_block_ms", _DEFAULTS.max_block_ms),
            create_topics=flag(configs, "allow_auto_create_topics", True),
            partitioner=function(configs, "partitioner"),
            transactional_id=_transactional_id(configs),
            transaction_timeout_ms=whole(
                configs, "transaction_timeout_ms", _DEFAULTS.transaction_timeout_ms, 1
            ),
        ),
        configs.get("key_serializer"),
        configs.get("value_serializer"),
    )


def _acks(value: Any) -> int:
    choices = {"all": ALL, "-1": ALL, -1: ALL, "0": 0, 0: 0, "1": 1, 1: 1}
    if isinstance(value, bool) or not isinstance(value, int | str) or value not in choices:
        raise ConfigurationRefused(f"acks must be 0, 1 or 'all', not {value!r}")
    return choices[value]


def _retries(value: Any) -> int:
    if value == float("inf"):
        return MOST_RETRIES
    return whole({"retries": value}, "retries", MOST_RETRIES)


def _is_idempotent(configs: ProducerConfigs, acks: int, retries: int, in_flight: int) -> bool:
    name = "enable_idempotence"
    wanted = None if configs.get(name) is None else flag(configs, name, True)
    if configs.get("transactional_id") is not None:
        if wanted is False:
            raise ConfigurationRefused("transactional_id needs enable_idempotence")
        wanted = True
    if wanted is False:
        return False
    against = [
        reason
        for reason, applies in (
            ("acks='all'", acks != ALL),
            ("retries of at least 1", retries < 1),
            (
                f"max_in_flight_requests_per_connection <= {MOST_IN_FLIGHT}",
                in_flight > MOST_IN_FLIGHT,
            ),
        )
        if applies
    ]
    if against and wanted:
        raise ConfigurationRefused(f"an idempotent producer needs {', '.join(against)}")
    return not against


def _transactional_id(configs: ProducerConfigs) -> str | None:
    given = text(configs, "transactional_id")
    if given == "":
        raise ConfigurationRefused("transactional_id must not be empty: None means none")
    length = len((given or "").encode(errors="surrogatepass"))
    if length > MAX_ID_BYTES:
        # Brokers refuse it, and their refusal would repeat all of it.
        raise ConfigurationRefused(
            f"transactional_id must have at most {MAX_ID_BYTES} bytes in UTF-8, not {length}"
        )
    return given


def _batch_bytes(configs: ProducerConfigs) -> int:
    if "batch_size" in configs and "max_batch_size" in configs:
        raise ConfigurationRefused("batch_size and max_batch_size are one setting: give one")
    name = "max_batch_size" if "max_batch_size" in configs else "batch_size"
    # Kafka's 0 means batches of one record.
    return max(1, whole(configs, name, _DEFAULTS.batch_bytes))


def _compression(value: str | None) -> str:
    name = value or "none"
    if name not in CODEC_NAMES:
        names = ", ".join(CODEC_NAMES)
        raise ConfigurationRefused(f"compression_type {value!r} is unknown: use one of {names}")
    return name


def _delivery_ms(configs: ProducerConfigs, linger_ms: int, request_timeout_ms: int) -> int:
    least = linger_ms + request_timeout_ms
    if "delivery_timeout_ms" not in configs:
        return max(_DEFAULTS.delivery_timeout_ms, least)
    value = whole(configs, "delivery_timeout_ms", least)
    if value < least:
        raise ConfigurationRefused(
            f"delivery_timeout_ms {value} is below linger_ms + request_timeout_ms ({least}): "
            "a record could not be sent once within it"
        )
    return value


def serializer_of(given: Serializer | None, what: str) -> Callable[[str, Any], bytes | None]:
    """Return the function that turns a key or a value (``what``) of a topic into bytes.

    None stays None, a tombstone. The function raises TypeError for what does not become bytes.
    """

    def checked(data: Any) -> bytes | None:
        if isinstance(data, bytes) or data is None:
            return data
        if isinstance(data, bytearray | memoryview):
            return bytes(data)
        raise TypeError(
            f"the {what} of a record must be bytes, not {type(data).__name__}: "
            f"encode it, or give {what}_serializer"
        )

    if given is None:
        return lambda topic, data: checked(data)
    if not callable(given) and not callable(getattr(given, "serialize", None)):
        reason = f"{what}_serializer must be a function or have serialize(), which {given!r} lacks"
        raise ConfigurationRefused(reason)
    if callable(given):
        return lambda topic, data: None if data is None else checked(given(data))
    return lambda topic, data: None if data is None else checked(given.serialize(topic, data))


def checked_headers(headers: Any) -> list[tuple[str, bytes | None]]:
    """Return the headers of a record as a list. Raises TypeError."""
    if not isinstance(headers, Iterable):
        raise TypeError(f"headers must be a list of tuples of a str and bytes, not {headers!r}")
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers)
    for header in pairs:
        if not (
            isinstance(header, tuple)
            and len(header) == 2
            and isinstance(header[0], str)
            and (header[1] is None or isinstance(header[1], bytes))
        ):
            raise TypeError(f"a header must be a tuple of a str and bytes, not {header!r}")
        is_text(header[0], "the name of a header")
    return pairs


def group_of(given: Any) -> ConsumerGroupMetadata:
    """Return the member, or the group alone, whose offsets a transaction commits."""
    if isinstance(given, str):
        given = ConsumerGroupMetadata(given)
    if not isinstance(given, ConsumerGroupMetadata):
        raise TypeError(
            "group_metadata must be what consumer.group_metadata() returns, or the name of a group,"
            f" not {given!r}"
        )
    is_text(given.group_id, "the id of a group")
    return given


def prepared_by(given: Any) -> PreparedTransaction:
    """Return what names a prepared transaction. A tuple that was stored is as good."""
    fields = tuple(given) if isinstance(given, tuple | list) else ()
    if [type(field) for field in fields] != [str, int, int]:
        raise TypeError(f"prepared must be what prepare() returns, not {given!r}")
    is_text(fields[0], "a transactional id")
    return PreparedTransaction(*fields)
