"""Tests of a producer's arguments: Kafka's defaults, what contradicts itself, serializers."""

from __future__ import annotations

from typing import Any

import pytest

from tidelog.aio.producer import Producer
from tidelog.aio.producer_configs import (
    ProducerSettings,
    checked_headers,
    producer_settings,
    serializer_of,
)
from tidelog.errors import KafkaConfigurationError


def settings(**configs: Any) -> ProducerSettings:
    return producer_settings(configs, Producer)  # type: ignore[arg-type]


def test_the_defaults_are_those_of_kafka_4() -> None:
    found = settings().send
    assert (found.acks, found.idempotent, found.linger_ms, found.batch_bytes) == (
        -1,
        True,
        5,
        16384,
    )
    assert (found.buffer_bytes, found.max_request_bytes) == (33_554_432, 1_048_576)
    assert (found.max_in_flight, found.retries, found.delivery_timeout_ms) == (
        5,
        2**31 - 1,
        120_000,
    )
    assert settings().cluster.request_timeout_ms == 30_000
    assert settings().cluster.client_id.startswith("tidelog-producer-")


@pytest.mark.parametrize(
    ("configs", "idempotent"),
    (
        ({"acks": 1}, False),
        ({"acks": "0"}, False),
        ({"acks": "all"}, True),
        ({"acks": -1, "enable_idempotence": False}, False),
        ({"retries": 0}, False),
        ({"retries": 1}, True),
        ({"enable_idempotence": True}, True),
        ({"enable_idempotence": None}, True),
        ({"retries": float("inf")}, True),
        ({"max_in_flight_requests_per_connection": 6}, False),
    ),
)
def test_a_producer_is_idempotent_where_its_settings_permit_it(
    configs: dict[str, Any], idempotent: bool
) -> None:
    assert settings(**configs).send.idempotent is idempotent


@pytest.mark.parametrize(
    ("configs", "said"),
    (
        ({"acks": 2}, "acks must be 0, 1 or 'all', not 2"),
        ({"acks": True}, "acks must be"),
        ({"acks": 1.0}, "acks must be"),
        ({"acks": []}, "acks must be"),
        ({"enable_idempotence": "no"}, "enable_idempotence must be True or False, not 'no'"),
        ({"acks": 1, "enable_idempotence": True}, "needs acks='all'"),
        ({"retries": 0, "enable_idempotence": True}, "retries of at least 1"),
        ({"lingerms": 1}, "Producer has no setting 'lingerms': did you mean linger_ms?"),
        ({"colour": 1}, "Producer has no setting 'colour'"),
        ({"linger_ms": -1}, "linger_ms must be an integer of at least 0, not -1"),
        ({"linger_ms": 1.5}, "linger_ms must be an integer of at least 0, not 1.5"),
        ({"linger_ms": "5"}, "linger_ms must be an integer"),
        ({"batch_size": 1, "max_batch_size": 1}, "one setting"),
        ({"compression_type": "rar"}, "'rar' is unknown: use one of none,"),
        ({"delivery_timeout_ms": 30_000}, "below linger_ms + request_timeout_ms (30005)"),
        ({"security_protocol": "SASL_SSL"}, "use PLAINTEXT or SSL"),
        ({"security_protocol": "SSL", "ssl_keystore_type": "X"}, "must be one of JKS, PKCS12"),
        ({"ssl_cafile": "/ca.pem"}, "say ssl_truststore_location"),
        ({"transactional_id": "t", "enable_idempotence": False}, "needs enable_idempotence"),
        ({"transactional_id": "t", "acks": 1}, "needs acks='all'"),
        ({"transactional_id": ""}, "transactional_id must not be empty"),
        ({"transactional_id": "ä" * 16_384}, "at most 32767 bytes in UTF-8, not 32768"),
        ({"transactional_id": b"t"}, "transactional_id must be a str"),
        ({"transaction_timeout_ms": 0}, "transaction_timeout_ms must be an integer of at least 1"),
        ({"sasl_mechanism": "PLAIN"}, "sasl_mechanism is not supported"),
        ({"bootstrap_servers": "host:port"}, "'host:port' is not an address"),
    ),
)
def test_what_is_refused_and_how(configs: dict[str, Any], said: str) -> None:
    with pytest.raises(KafkaConfigurationError) as refused:
        Producer(**configs)
    assert said in str(refused.value)


def first(*_: Any) -> int:
    return 0


@pytest.mark.parametrize(
    ("name", "value", "field", "found"),
    [
        *(("acks", each, "acks", 0) for each in (0, "0")),
        *(("acks", each, "acks", 1) for each in (1, "1")),
        *(("acks", each, "acks", -1) for each in (-1, "-1", "all")),
        ("linger_ms", 0, "linger_ms", 0),
        ("linger_ms", 9.0, "linger_ms", 9),
        ("max_request_size", 1, "max_request_bytes", 1),
        ("buffer_memory", 1, "buffer_bytes", 1),
        ("buffer_memory", 2**40, "buffer_bytes", 2**40),
        ("compression_type", "gzip", "compression", "gzip"),
        ("compression_type", None, "compression", "none"),
        ("max_in_flight_requests_per_connection", 1, "max_in_flight", 1),
        ("retries", 3, "retries", 3),
        ("delivery_timeout_ms", 30_005, "delivery_timeout_ms", 30_005),
        ("max_block_ms", 0, "max_block_ms", 0),
        ("max_block_ms", 2**31 - 1, "max_block_ms", 2**31 - 1),
        ("allow_auto_create_topics", False, "create_topics", False),
        ("partitioner", first, "partitioner", first),
        ("transactional_id", "t", "transactional_id", "t"),
        ("transaction_timeout_ms", 7, "transaction_timeout_ms", 7),
    ],
)
def test_each_setting_of_sending_arrives(name: str, value: Any, field: str, found: Any) -> None:
    assert getattr(settings(**{name: value}).send, field) == found
    assert settings().send.create_topics and settings().send.partitioner is None


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("client_id", "client_id"),
        ("request_timeout_ms", "request_timeout_ms"),
        ("socket_connection_setup_timeout_ms", "connect_timeout_ms"),
        ("default_api_timeout_ms", "default_api_timeout_ms"),
        ("metadata_max_age_ms", "metadata_max_age_ms"),
    ],
)
def test_each_setting_of_connections_arrives(name: str, field: str) -> None:
    value = "c" if name == "client_id" else 1
    assert getattr(settings(**{name: value}).cluster, field) == value


def test_the_first_pause_is_at_most_the_longest_one() -> None:
    def pauses(**configs: int) -> tuple[float, float]:
        found = settings(**configs).cluster.backoff
        return found.first_ms, found.max_ms

    assert pauses() == (100, 1_000)
    assert pauses(retry_backoff_ms=7, retry_backoff_max_ms=8) == (7, 8)
    assert pauses(retry_backoff_ms=9, retry_backoff_max_ms=8) == (8, 8)
    assert pauses(retry_backoff_ms=0, retry_backoff_max_ms=0) == (0, 0)


def test_settings_that_are_known_and_not_supported_may_be_none() -> None:
    assert settings(sasl_mechanism=None, transactional_id=None).send.idempotent


def test_clients_without_an_id_have_different_ones() -> None:
    assert settings().cluster.client_id != settings().cluster.client_id


def test_a_longer_request_timeout_raises_the_default_of_the_delivery_timeout() -> None:
    found = settings(request_timeout_ms=200_000, linger_ms=10).send
    assert found.delivery_timeout_ms == 200_010


@pytest.mark.parametrize("name", ("batch_size", "max_batch_size"))
def test_both_names_of_the_batch_size(name: str) -> None:
    assert settings(**{name: 100}).send.batch_bytes == 100
    assert settings(**{name: 0}).send.batch_bytes == 1


class Reversing:
    """A serializer as an object."""

    def serialize(self, topic: str, data: str) -> bytes:
        return f"{topic}:{data[::-1]}".encode()


def test_serializers_are_functions_or_objects_and_see_no_none() -> None:
    encode = serializer_of(str.encode, "key")
    assert encode("t", "ä") == "ä".encode()
    assert encode("t", None) is None
    reverse = serializer_of(Reversing(), "value")
    assert reverse("t", "ab") == b"t:ba" and reverse("t", None) is None
    plain = serializer_of(None, "value")
    assert plain("t", None) is None
    assert plain("t", bytearray(b"x")) == plain("t", memoryview(b"x")) == b"x"


def test_what_is_no_bytes_says_which_serializer_is_missing() -> None:
    with pytest.raises(TypeError, match=r"the value of a record must be bytes, not str.*value_ser"):
        serializer_of(None, "value")("t", "text")
    with pytest.raises(TypeError, match=r"the key of a record must be bytes, not int.*key_ser"):
        serializer_of(int, "key")("t", "7")


def test_headers_are_tuples_or_a_mapping() -> None:
    assert checked_headers({"a": b"1"}) == checked_headers([("a", b"1")]) == [("a", b"1")]
    assert checked_headers([("a", None)]) == [("a", None)]
    for wrong in ([("a", "1")], [(b"a", b"1")], [("a",)], ["ab"]):
        with pytest.raises(TypeError, match="a header must be a tuple of a str and bytes"):
            checked_headers(wrong)
