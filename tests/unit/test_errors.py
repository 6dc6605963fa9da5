"""Tests of the public exceptions: a class for each error code, and texts with advice."""

from __future__ import annotations

import pickle

import pytest

import tidelog.errors
from tidelog.client.errors import OffsetOutOfRange, Refused
from tidelog.errors import (
    BrokerResponseError,
    KafkaError,
    MessageSizeTooLargeError,
    UnknownTopicOrPartitionError,
)
from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition

PUBLIC = [getattr(tidelog.errors, name) for name in tidelog.errors.__all__]


@pytest.mark.parametrize("kind", PUBLIC, ids=lambda kind: str(kind.__name__))
def test_each_is_a_kafka_error(kind: type[KafkaError]) -> None:
    assert issubclass(kind, KafkaError)
    assert kind.__doc__


def test_a_refusal_has_the_class_of_its_code() -> None:
    refused = Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic 't'")
    assert type(refused) is UnknownTopicOrPartitionError
    assert isinstance(refused, BrokerResponseError)
    assert refused.retriable
    assert not Refused(ErrorCode.INVALID_CONFIG, "topic 't'").retriable


def test_a_code_without_a_class_is_an_ordinary_refusal() -> None:
    refused = Refused(ErrorCode.SNAPSHOT_NOT_FOUND, "x")
    assert type(refused) is BrokerResponseError
    assert str(refused) == "x: SNAPSHOT_NOT_FOUND"


def test_the_text_has_the_reason_of_the_broker_otherwise_the_advice() -> None:
    code = ErrorCode.MESSAGE_TOO_LARGE
    advised = str(Refused(code, "t-0"))
    assert advised == f"t-0: MESSAGE_TOO_LARGE: {MessageSizeTooLargeError.advice}"
    assert "max.message.bytes" in advised
    assert str(Refused(code, "t-0", "too large")) == "t-0: MESSAGE_TOO_LARGE: too large"


@pytest.mark.parametrize(
    "error",
    (
        Refused(ErrorCode.MESSAGE_TOO_LARGE, "t-0", "too large"),
        OffsetOutOfRange(TopicPartition("t", 0), 7),
    ),
)
def test_it_survives_pickling(error: Refused) -> None:
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), vars(found)) == (type(error), str(error), vars(error))
