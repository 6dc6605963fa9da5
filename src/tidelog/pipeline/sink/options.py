"""The options of the sink: the stock Kafka sink's names and refusals, and our own.

Owns parsing and every refusal that needs neither rows nor a broker. Names are case-insensitive, as
Spark's. The table, with what each option does, is in docs/operating/pipeline.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeVar, cast

from tidelog.aio.producer import Producer
from tidelog.aio.producer_configs import ProducerConfigs, producer_settings
from tidelog.client.cluster import ClusterSettings
from tidelog.client.errors import ClientError
from tidelog.client.metadata import parse_bootstrap
from tidelog.client.producing.settings import SendSettings
from tidelog.model.topics import why_invalid
from tidelog.pipeline.errors import OptionRefused
from tidelog.pipeline.sink.protocol import OnLost, OnNewQuery

_KAFKA = "kafka."

SERVERS = "kafka.bootstrap.servers"
TOPIC = "topic"
ORDER_BY = "orderBy"
ORDERED_BYTES = "orderBytes"
SINK = "transactionalId"
ON_NEW_QUERY = "onNewQuery"
ON_LOST = "onLostBatch"
NAMES = (SERVERS, TOPIC, ORDER_BY, ORDERED_BYTES, SINK, ON_NEW_QUERY, ON_LOST)
_KNOWN = {name.lower(): name for name in NAMES}

# What Spark itself puts among the options of a stream.
_OF_SPARK = frozenset({"checkpointlocation", "queryname"})

DEFAULT_BATCH_BYTES = 256 << 10
"""Kafka's default of 16 KiB costs a request for some hundred rows; a topic takes 1 MiB."""

DEFAULT_ORDERED_BYTES = 512 << 20
"""How many bytes of rows a task sorts at most: it holds all of them."""

DEFAULT_TRANSACTION_MS = 900_000
"""The most that brokers allow by default: so long may a batch last, and no driver be there."""

LONGEST_SINK = 200
"""The most characters of a sink's id: those of tasks and of the ledger's group are longer."""

CLIENT_ID = "tidelog-spark"


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise OptionRefused(f"option {name} is {text!r}; it must be true or false")
    return text.lower() == "true"


def _number(name: str, text: str) -> int:
    if not text.strip().isdecimal() or len(text) > 18:
        raise OptionRefused(f"option {name} is {text!r}; it must be a number, 0 or larger")
    return int(text)


def _text(name: str, text: str) -> str:
    return text


# Properties of Kafka's producer that the sink honours, with the reader of each.
HONOURED = MappingProxyType(
    {
        "acks": _text,
        "batch.size": _number,
        "buffer.memory": _number,
        "client.id": _text,
        "compression.type": _text,
        "delivery.timeout.ms": _number,
        "enable.idempotence": _boolean,
        "linger.ms": _number,
        "max.block.ms": _number,
        "max.in.flight.requests.per.connection": _number,
        "max.request.size": _number,
        "metadata.max.age.ms": _number,
        "request.timeout.ms": _number,
        "retries": _number,
        "retry.backoff.max.ms": _number,
        "retry.backoff.ms": _number,
        "security.protocol": _text,
        "socket.connection.setup.timeout.ms": _number,
        "transaction.timeout.ms": _number,
    }
)
# Accepted so that a query can move over from the stock sink; the sink has no use for them.
WITHOUT_EFFECT = (
    "client.dns.lookup",
    "connections.max.idle.ms",
    "metadata.max.idle.ms",
    "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "send.buffer.bytes",
    "socket.connection.setup.timeout.max.ms",
)
REFUSED = MappingProxyType(
    {
        "key.serializer": "keys are strings or binary",
        "value.serializer": "values are strings or binary",
        "interceptor.classes": "interceptors are not supported",
        "partitioner.class": "use the column partition: keys are hashed as Kafka's default does",
        "partitioner.ignore.keys": "use the column partition: keys choose the partition",
        "transactional.id": "use the option transactionalId, which names the whole sink",
    }
)


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one write, checked. Picklable and hashable: it goes to the executors."""

    bootstrap_servers: str
    topic: str | None
    order_by: tuple[str, ...]
    order_bytes: int
    properties: tuple[tuple[str, str], ...]
    """Those of Kafka's producer, by their names without `kafka.`."""
    sink: str | None = None
    """The id of an exactly-once sink; None: at least once."""
    on_new_query: OnNewQuery = OnNewQuery.FAIL
    on_lost: OnLost = OnLost.FAIL


def parse(raw: Mapping[str, str]) -> SinkOptions:
    """Check and read all options of one write. Raises OptionRefused, one line."""
    options = _check_names(raw)
    servers = options.get(SERVERS, "").strip()
    if not servers:
        raise OptionRefused(f"option {SERVERS} is required")
    try:
        parse_bootstrap(servers)
    except ClientError as error:
        raise OptionRefused(f"option {SERVERS}: {error}") from None
    topic = options.get(TOPIC)
    if topic is not None and (why := why_invalid(topic)) is not None:
        raise OptionRefused(f"option topic is {topic!r}: {why}")
    order_by = tuple(name.strip() for name in options.get(ORDER_BY.lower(), "").split(","))
    order_bytes = options.get(ORDERED_BYTES.lower(), str(DEFAULT_ORDERED_BYTES))
    properties = {
        name.removeprefix(_KAFKA): text
        for name, text in options.items()
        if name.startswith(_KAFKA) and name != SERVERS
    }
    made = SinkOptions(
        servers,
        topic,
        tuple(name for name in order_by if name),
        _number(ORDERED_BYTES, order_bytes),
        tuple(sorted(properties.items())),
        _sink_id(options),
        _choice(options, ON_NEW_QUERY, OnNewQuery),
        _choice(options, ON_LOST, OnLost),
    )
    settings_of(made)
    return made


def _sink_id(options: Mapping[str, str]) -> str | None:
    name = options.get(SINK.lower())
    if name is None:
        for other in (ON_NEW_QUERY, ON_LOST):
            if other.lower() in options:
                raise OptionRefused(f"option {other} needs {SINK}: it is about exactly-once writes")
        return None
    if not name.isprintable() or not name.strip() or len(name) > LONGEST_SINK:
        raise OptionRefused(
            f"option {SINK} is {name!r}; it must be a name of at most {LONGEST_SINK} characters"
        )
    return name


_Choice = TypeVar("_Choice", bound=Enum)


def _choice(options: Mapping[str, str], name: str, kind: type[_Choice]) -> _Choice:
    choices = [str(choice.value) for choice in kind]
    text = options.get(name.lower(), choices[0])
    if text not in choices:
        raise OptionRefused(f"option {name} is {text!r}; it must be {' or '.join(choices)}")
    return kind(text)


def _check_names(raw: Mapping[str, str]) -> dict[str, str]:
    """The options under lower-case names. Raises OptionRefused for one that does not exist."""
    options: dict[str, str] = {}
    for name, value in raw.items():
        low = name.lower()
        if low == "path":
            raise OptionRefused("save() and start() take no path: name the topic with option topic")
        if low not in _KNOWN and low.startswith(_KAFKA):
            _check_property(name, low.removeprefix(_KAFKA))
        elif low not in _KNOWN and low not in _OF_SPARK:
            near = get_close_matches(low, _KNOWN, 1)
            hint = f"; did you mean {_KNOWN[near[0]]}?" if near else ""
            raise OptionRefused(f"option {name} does not exist for a write{hint}")
        options[low] = str(value)
    return options


def _check_property(name: str, bare: str) -> None:
    if bare in REFUSED:
        raise OptionRefused(f"option {name} cannot be set: {REFUSED[bare]}")
    if bare not in HONOURED and bare not in WITHOUT_EFFECT:
        near = get_close_matches(bare, [*HONOURED, *WITHOUT_EFFECT], 1)
        hint = f"; did you mean kafka.{near[0]}?" if near else ""
        raise OptionRefused(f"option {name} is not a supported producer property{hint}")


@lru_cache(8)
def settings_of(options: SinkOptions) -> tuple[ClusterSettings, SendSettings]:
    """The settings of the producers of a write, made once per process. Raises OptionRefused.

    They have a source of randomness, which processes must not share.
    """
    configs: dict[str, Any] = {"client_id": CLIENT_ID, "batch_size": DEFAULT_BATCH_BYTES}
    if options.sink is not None:
        # Each attempt of a task has an id of its own, which takes the place of this one.
        configs["transactional_id"] = options.sink
        configs["transaction_timeout_ms"] = DEFAULT_TRANSACTION_MS
    for bare, text in options.properties:
        if bare in HONOURED:
            configs[bare.replace(".", "_")] = HONOURED[bare](_KAFKA + bare, text)
    try:
        made = producer_settings(cast("ProducerConfigs", configs), Producer)
    except ClientError as error:
        raise OptionRefused(f"the kafka. options: {error}") from None
    return made.cluster, made.send
