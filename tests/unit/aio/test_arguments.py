"""Arguments of the public clients: what is wrong is said at once, in one line, by its kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tidelog.aio
from tidelog.aio import arguments as given
from tidelog.aio.admin_types import position_of, topics_to_create
from tidelog.aio.consumer_commits import checked
from tidelog.aio.consumer_settings import LEAST, ConsumerSettings
from tidelog.aio.consumer_types import ConsumerRebalanceListener, OffsetAndMetadata
from tidelog.aio.producer_configs import checked_headers, producer_settings, serializer_of
from tidelog.errors import InvalidTopicError, KafkaConfigurationError
from tidelog.model.topics import TopicPartition

WHERE = TopicPartition("t", 0)

WRONG: list[tuple[Callable[[Any], Any], Any, type[Exception], str]] = [
    (given.topic_name, 5, TypeError, "named by a str, not int"),
    (given.topic_name, "a b", InvalidTopicError, "other than ASCII letters"),
    (given.topic_name, "\udc80", InvalidTopicError, "other than ASCII letters"),
    (given.topic_name, "x" * 40_000, InvalidTopicError, "longer than 249"),
    (given.topic_names, "t", TypeError, "a list of names, not str"),
    (given.topic_names, b"t", TypeError, "a list of names, not bytes"),
    (given.topic_names, 5, TypeError, "a list of names, not int"),
    (given.topic_names, ["t", None], TypeError, "named by a str, not NoneType"),
    (given.group_names, "g", TypeError, "a list of ids, not str"),
    (given.group_names, b"g", TypeError, "a list of ids, not bytes"),
    (given.group_names, 5, TypeError, "a list of ids, not int"),
    (given.group_names, ["\udc80"], KafkaConfigurationError, "the id of a group is not Unicode"),
    (given.group_names, [5], TypeError, "named by a str, not int"),
    (given.place, "t", TypeError, r"TopicPartition\(topic, partition\), not 't'"),
    (given.place, ("t",), TypeError, "TopicPartition"),
    (given.place, ["t", 0], TypeError, "TopicPartition"),
    (given.place, ("t", "0"), TypeError, "a partition must be an int, not '0'"),
    (given.place, ("t", True), TypeError, "a partition must be an int, not True"),
    (given.place, ("t", -1), KafkaConfigurationError, "from 0 to 2147483647, not -1"),
    (given.place, ("t", 2**31), KafkaConfigurationError, "from 0 to 2147483647"),
    (given.places, "t", TypeError, "a list of TopicPartition, not str"),
    (given.places, b"t", TypeError, "a list of TopicPartition, not bytes"),
    (given.places, None, TypeError, "a list of TopicPartition, not NoneType"),
    (given.offset_number, 1.0, TypeError, "an offset must be an int, not 1.0"),
    (given.offset_number, 2**63, KafkaConfigurationError, "an offset must be from 0"),
    (given.timestamp_ms, "now", TypeError, "a time in ms must be an int"),
    (given.seconds, "1", TypeError, "a number of seconds, not '1'"),
    (given.seconds, True, TypeError, "a number of seconds, not True"),
    (given.seconds, float("nan"), KafkaConfigurationError, "not nan"),
    (given.milliseconds, None, TypeError, "a number of milliseconds, not None"),
    (given.most_records, 0, KafkaConfigurationError, "at least 1, not 0"),
    (given.most_records, True, TypeError, "must be an int, not True"),
    (given.most_records, 1.5, TypeError, "must be an int, not 1.5"),
    (given.compiled, "(", KafkaConfigurationError, "not a regular expression"),
    (checked, [5], TypeError, "a dict by TopicPartition, not list"),
    (checked, {WHERE: "5"}, TypeError, "an offset must be an int, not '5'"),
    (checked, {WHERE: -1}, KafkaConfigurationError, "an offset must be from 0"),
    (checked, {WHERE: OffsetAndMetadata(-1)}, KafkaConfigurationError, "an offset must be from 0"),
    (checked, {WHERE: OffsetAndMetadata(1, 5)}, TypeError, "metadata of a commit must be a str"),  # type: ignore[arg-type]
    (checked, {WHERE: OffsetAndMetadata(1, "\udc80")}, KafkaConfigurationError, "not Unicode"),
    (checked_headers, 7, TypeError, "headers must be a list of tuples"),
    (checked_headers, [("\udc80", b"")], KafkaConfigurationError, "not Unicode text"),
    (topics_to_create, "topic", TypeError, "a list of names or NewTopic, not str"),
    (topics_to_create, [5], TypeError, "named by a str, not int"),
    (lambda value: serializer_of(value, "key"), 5, KafkaConfigurationError, "key_serializer must"),
    (lambda value: given.check_listeners(value, None), 5, TypeError, "on_partitions_revoked"),
    (
        lambda value: given.check_listeners(None, value),
        ConsumerRebalanceListener(),
        TypeError,
        "a partition_key_listener needs on_partition_key_maybe_revoked",
    ),
]


@pytest.mark.parametrize(("check", "value", "kind", "said"), WRONG)
def test_a_wrong_argument_is_said_in_one_line(
    check: Callable[[Any], Any], value: Any, kind: type[Exception], said: str
) -> None:
    with pytest.raises(kind, match=said) as raised:
        check(value)
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 500


def test_right_arguments_stay_as_they_are() -> None:
    assert given.topic_names({"a"}) == ["a"] and given.topic_names(None) == []
    assert given.places([("t", 0), WHERE]) == [WHERE, WHERE]
    assert given.group_names({"g": 1}) == ["g"]
    assert given.offset_number(2**63 - 1) == 2**63 - 1
    assert [given.most_records(each) for each in (None, 1, 7)] == [None, 1, 7]
    assert checked({("t", 0): 3}) == {WHERE: OffsetAndMetadata(3)}
    assert checked({WHERE: OffsetAndMetadata(3, "n", 2)}) == {WHERE: OffsetAndMetadata(3, "n", 2)}
    given.check_listeners(None, None)
    given.check_listeners(ConsumerRebalanceListener(), None)


@pytest.mark.parametrize(
    ("value", "found"), [(None, None), (-1, 0.0), (1.5, 1.5), (float("inf"), 1e9), (1e300, 1e9)]
)
def test_time_outs_are_cut_to_what_clocks_can_wait_for(
    value: float | None, found: float | None
) -> None:
    assert given.seconds(value) == found
    if value is not None and found is not None:
        assert given.milliseconds(value * 1000) == found * 1000


@pytest.mark.parametrize("name", LEAST)
def test_whole_numbers_of_a_consumer_are_checked(name: str) -> None:
    for value in (LEAST[name] - 1, "5", True, 2**70):
        with pytest.raises(KafkaConfigurationError, match=name):
            ConsumerSettings(**{name: value})


@pytest.mark.parametrize("kind", [tidelog.Consumer, tidelog.aio.Consumer])
def test_an_unknown_setting_of_a_consumer_is_refused_with_the_nearest_one(kind: Any) -> None:
    with pytest.raises(KafkaConfigurationError, match="no setting 'group': did you mean group_id"):
        kind("t", group="g")
    with pytest.raises(KafkaConfigurationError, match="sasl_mechanism is not supported"):
        kind("t", sasl_mechanism="PLAIN")


def test_committed_offsets_and_partition_counts_are_named_in_refusals() -> None:
    for value in (-5, OffsetAndMetadata(-5)):
        with pytest.raises(KafkaConfigurationError, match="an offset must be from 0"):
            position_of(value)
    with pytest.raises(KafkaConfigurationError, match="a partition count must be from 0"):
        given.partition_count(-1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bootstrap_servers", 5),
        ("client_id", 5),
        ("group_id", 5),
        ("group_id", ""),
        ("key_deserializer", 5),
        ("enable_auto_commit", "no"),
        ("auto_offset_reset", 5),
    ],
)
def test_other_settings_of_a_consumer_are_checked(name: str, value: Any) -> None:
    with pytest.raises(KafkaConfigurationError, match=name):
        ConsumerSettings(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("client_id", 5),
        ("partitioner", 5),
        ("allow_auto_create_topics", "no"),
        ("linger_ms", 2**40),
        ("buffer_memory", 2**70),
    ],
)
def test_settings_of_a_producer_are_checked(name: str, value: Any) -> None:
    with pytest.raises(KafkaConfigurationError, match=name):
        producer_settings({name: value}, object)  # type: ignore[misc]
