"""The tables of configurations: what parses, what is refused and how, and which value holds."""

from __future__ import annotations

from dataclasses import fields
from types import UnionType
from typing import get_args, get_origin, get_type_hints

import pytest

from tidelog.model.configs.broker import BROKER
from tidelog.model.configs.resolve import (
    BrokerLayers,
    check_dynamic_broker_configs,
    check_topic_configs,
    describe_broker,
    describe_brokers_default,
    resolve_topic,
)
from tidelog.model.configs.server import ServerConfigs
from tidelog.model.configs.topic import TOPIC, TimestampType, TopicConfigs
from tidelog.model.configs.types import (
    ConfigDefinition,
    ConfigSource,
    ConfigType,
    InvalidConfig,
    is_too_long,
    parse,
)

MADE_FROM_SEVERAL = {
    "node_id",
    "process_roles",
    "metadata_store",
    "metrics_address",
    "listeners",
    "advertised_listeners",
    "inter_broker_listener_name",
    "security_inter_broker_protocol",
    "controller_quorum_bootstrap_servers",
    "log_dirs",
}
PYTHON_TYPES: dict[ConfigType, type] = {
    ConfigType.BOOLEAN: bool,
    ConfigType.STRING: str,
    ConfigType.SHORT: int,
    ConfigType.INT: int,
    ConfigType.LONG: int,
    ConfigType.DOUBLE: float,
    ConfigType.LIST: tuple,
    ConfigType.PASSWORD: str,
}
REMOTE_STORAGE = {
    "local.retention.bytes",
    "local.retention.ms",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
}


def test_the_defaults_of_the_table_are_those_of_the_typed_values() -> None:
    resolved = resolve_topic({}, BrokerLayers())
    assert resolved.configs == TopicConfigs()
    assert resolved.problems == ()


@pytest.mark.parametrize(
    ("values", "table"), [(TopicConfigs, TOPIC), (ServerConfigs, BROKER)], ids=["topic", "server"]
)
def test_every_row_is_a_field_of_the_type_of_its_values(
    values: type, table: dict[str, ConfigDefinition]
) -> None:
    """Mypy takes a row for its default, which may be None, or made from others."""
    annotations = get_type_hints(values)
    assert set(annotations) - {"texts"} == {row.field for row in table.values()}
    assert {field.name for field in fields(values)} == set(annotations)
    for row in table.values():
        if row.field in MADE_FROM_SEVERAL:
            continue
        annotation = annotations[row.field]
        kinds = get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)
        expected = [row.kept_as or PYTHON_TYPES[row.type]]
        if row.default is None:
            expected.append(type(None))
        assert [get_origin(kind) or kind for kind in kinds] == expected, row.field


def test_a_default_of_what_has_no_effect_on_a_topic_has_none_either() -> None:
    asked = {synonym.name: row for row in TOPIC.values() for synonym in row.synonyms}
    wrong = [
        name
        for name, row in asked.items()
        if name not in TOPIC and BROKER[name].without_effect != row.without_effect
    ]
    assert wrong == []


def test_what_other_clusters_say_of_remote_storage_is_taken_unless_it_asks_for_it() -> None:
    """Tools that copy topics (MirrorMaker 2) set what they found elsewhere, defaults too."""
    check = check_topic_configs
    for name in REMOTE_STORAGE:
        assert check({name: TOPIC[name].default}) is None
        assert TOPIC[name].without_effect
    refused = check({"remote.storage.enable": "true"})
    assert refused is not None and "does not have it" in refused.sentence
    assert check({"local.retention.ms": "-3"}) is not None


@pytest.mark.parametrize("table", [TOPIC, BROKER], ids=["topic", "broker"])
def test_every_default_parses_and_every_row_is_documented(table: dict[str, object]) -> None:
    for name, row in table.items():
        assert isinstance(row, ConfigDefinition)
        assert row.name == name
        assert row.documentation.endswith("."), name
        if row.default is not None:
            assert not isinstance(parse(row, row.default), InvalidConfig), name


def test_every_synonym_is_a_brokers_configuration() -> None:
    for row in TOPIC.values():
        for synonym in row.synonyms:
            assert synonym.name in BROKER, row.name


def test_kafkas_defaults() -> None:
    """Defaults as Kafka 4 publishes them; tidelog's own are named in the module's docstring."""
    expected = {
        "num.partitions": "1",
        "default.replication.factor": "1",
        "message.max.bytes": "1048588",
        "log.segment.bytes": "1073741824",
        "log.retention.hours": "168",
        "log.retention.check.interval.ms": "300000",
        "offsets.topic.num.partitions": "50",
        "offsets.topic.replication.factor": "3",
        "offsets.retention.minutes": "10080",
        "group.initial.rebalance.delay.ms": "3000",
        "group.min.session.timeout.ms": "6000",
        "group.max.session.timeout.ms": "1800000",
        "replica.lag.time.max.ms": "30000",
        "socket.request.max.bytes": "104857600",
        "connections.max.idle.ms": "600000",
        "fetch.max.bytes": "57671680",
        "producer.id.expiration.ms": "86400000",
        "max.incremental.fetch.session.cache.slots": "1000",
    }
    assert {name: BROKER[name].default for name in expected} == expected


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", " -1 ", -1),
        ("retention.ms", "9223372036854775807", 2**63 - 1),
        ("min.cleanable.dirty.ratio", "0.25", 0.25),
        ("preallocate", "TRUE", True),
        ("cleanup.policy", "compact, delete", ("compact", "delete")),
        ("cleanup.policy", "", ()),
        # Kafka has no lower bound here, and none for log.retention.bytes.
        ("retention.bytes", "-2", -2),
        ("compression.type", "zstd", "zstd"),
        ("compression.gzip.level", "-1", -1),
        ("compression.gzip.level", "1", 1),
        ("compression.gzip.level", "9", 9),
        ("compression.lz4.level", "1", 1),
        ("compression.lz4.level", "17", 17),
        ("compression.zstd.level", "-131072", -131072),
        ("compression.zstd.level", "22", 22),
        ("leader.replication.throttled.replicas", "*", ("*",)),
        ("leader.replication.throttled.replicas", "0:1,1:2", ("0:1", "1:2")),
    ],
)
def test_values_that_parse(name: str, text: str, value: object) -> None:
    assert parse(TOPIC[name], text) == value


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("retention.ms", "soon"),
        ("retention.ms", "-2"),
        ("retention.ms", "9223372036854775808"),
        ("retention.ms", "1" * 5000),
        ("retention.ms", "1.5"),
        ("retention.ms", "١"),
        ("retention.ms", ""),
        ("segment.bytes", "2147483648"),
        ("segment.bytes", "13"),
        ("min.cleanable.dirty.ratio", "nan"),
        ("min.cleanable.dirty.ratio", "1.1"),
        ("preallocate", "yes"),
        ("cleanup.policy", "compact,forget"),
        ("compression.type", "zip"),
        ("compression.gzip.level", "0"),
        ("compression.gzip.level", "-2"),
        ("compression.gzip.level", "10"),
        ("compression.lz4.level", "0"),
        ("compression.lz4.level", "18"),
        ("compression.zstd.level", "-131073"),
        ("compression.zstd.level", "23"),
        ("min.insync.replicas", "0"),
        ("message.timestamp.type", "createtime"),
        ("leader.replication.throttled.replicas", "0-1"),
        ("leader.replication.throttled.replicas", ",".join(["1:1"] * 10_000)),
    ],
)
def test_values_that_are_refused_in_one_sentence_with_the_name(name: str, text: str) -> None:
    refused = parse(TOPIC[name], text)
    assert isinstance(refused, InvalidConfig)
    assert refused.name == name
    assert name in refused.sentence
    assert "\n" not in refused.sentence
    assert len(refused.sentence) < 500


def test_an_unknown_name_is_refused_with_the_nearest_known_one() -> None:
    refused = check_topic_configs({"retention.mss": "1"})
    assert refused is not None
    assert refused.sentence == (
        "Unknown topic configuration retention.mss (did you mean retention.ms?)."
    )


@pytest.mark.parametrize("longest", ["0:1," * 8_191 + "0:1", "0:1," * 8_190 + "00000:1"])
def test_a_value_is_at_most_as_long_as_a_string_of_the_protocol(longest: str) -> None:
    definition = TOPIC["leader.replication.throttled.replicas"]
    assert len(longest) == 32_767
    assert not isinstance(parse(definition, longest), InvalidConfig)
    assert isinstance(parse(definition, longest + "1"), InvalidConfig)
    assert is_too_long("ü" * 16_384)


def test_an_unknown_name_of_megabytes_is_cut_and_has_no_hint() -> None:
    refused = check_topic_configs({"retention.mss" * 500_000: "1"})
    assert refused is not None
    assert len(refused.sentence) < 500


def test_precedence_and_sources_of_retention() -> None:
    """retention.ms <- log.retention.ms <- .minutes <- .hours, at each of the broker's levels."""
    static = {"log.retention.hours": "2"}
    dynamic_default = {"log.retention.ms": "3000"}
    dynamic = {"log.retention.ms": "4000"}
    steps = [
        ({}, BrokerLayers(), "604800000", ConfigSource.DEFAULT_CONFIG),
        ({}, BrokerLayers(static), "7200000", ConfigSource.STATIC_BROKER_CONFIG),
        (
            {},
            BrokerLayers({**static, "log.retention.minutes": "3"}),
            "180000",
            ConfigSource.STATIC_BROKER_CONFIG,
        ),
        (
            {},
            BrokerLayers(static, {}, dynamic_default),
            "3000",
            ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG,
        ),
        (
            {},
            BrokerLayers(static, dynamic, dynamic_default),
            "4000",
            ConfigSource.DYNAMIC_BROKER_CONFIG,
        ),
        (
            {"retention.ms": "5000"},
            BrokerLayers(static, dynamic, dynamic_default),
            "5000",
            ConfigSource.DYNAMIC_TOPIC_CONFIG,
        ),
    ]
    for topic, layers, value, source in steps:
        resolved = resolve_topic(topic, layers)
        entry = next(e for e in resolved.entries if e.name == "retention.ms")
        assert (entry.value, entry.source) == (value, source)
        assert resolved.configs.retention_ms == int(value)
    last = [(s.name, s.value, s.source.name) for s in entry.synonyms]
    assert last == [
        ("retention.ms", "5000", "DYNAMIC_TOPIC_CONFIG"),
        ("log.retention.ms", "4000", "DYNAMIC_BROKER_CONFIG"),
        ("log.retention.ms", "3000", "DYNAMIC_DEFAULT_BROKER_CONFIG"),
        ("log.retention.hours", "2", "STATIC_BROKER_CONFIG"),
    ]
    # Kafka shows the default of the first synonym, if it has one, and no other.
    entries = {entry.name: entry for entry in resolve_topic({}, BrokerLayers()).entries}
    assert entries["retention.ms"].synonyms == ()
    assert [s.name for s in entries["segment.bytes"].synonyms] == ["log.segment.bytes"]


def test_for_ever_is_for_ever_in_every_unit() -> None:
    resolved = resolve_topic({}, BrokerLayers({"log.retention.hours": "-1"}))
    assert resolved.configs.retention_ms == -1


def test_typed_values_of_words_and_lists() -> None:
    configs = resolve_topic(
        {"cleanup.policy": "compact,delete", "message.timestamp.type": "LogAppendTime"},
        BrokerLayers(),
    ).configs
    assert configs.cleanup_policy == {"compact", "delete"}
    assert configs.message_timestamp_type is TimestampType.LOG_APPEND_TIME


def test_a_stored_value_that_cannot_be_read_is_passed_over_and_named() -> None:
    resolved = resolve_topic({"retention.ms": "soon", "no.such": "1"}, BrokerLayers())
    assert resolved.configs.retention_ms == 604_800_000
    assert [problem.name for problem in resolved.problems] == ["retention.ms", "no.such"]


def test_checks_between_configurations() -> None:
    refused = check_topic_configs({"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "5"})
    assert refused is not None
    assert "min.compaction.lag.ms" in refused.sentence
    refused = check_topic_configs({"retention.ms": None})
    assert refused is not None
    assert "null" in refused.sentence


def test_which_configurations_of_a_broker_are_dynamic() -> None:
    check = check_dynamic_broker_configs
    assert check({"log.retention.ms": "1", "message.max.bytes": "5"}) is None
    assert check({"follower.replication.throttled.rate": "1"}) is None
    # As in Kafka; ours is no second way to stop all moves for ever.
    assert check({"follower.replication.throttled.rate": "0"}) is None
    assert check({"reassignment.throttled.rate": "1"}) is None
    assert check({"reassignment.throttled.rate": "0"}) is not None
    # Without effect here, but for the cleaner's; Kafka's tools change them on running brokers.
    threads = {"num.io.threads": "9", "log.cleaner.threads": "2", "num.replica.fetchers": "2"}
    assert check(threads) is None
    for bad in (
        {"node.id": "2"},
        {"queued.max.requests": "9"},
        {"num.io.threads": "0"},
        {"log.cleaner.threads": "-1"},
        {"log.cleaner.io.max.bytes.per.second": "0"},
        {"log.cleaner.io.buffer.load.factor": "1.5"},
        {"log.retention.ms": "x"},
        {"no.such": "1"},
    ):
        refused = check(bad)
        assert refused is not None
        assert refused.name == next(iter(bad))


def test_rows_of_a_broker() -> None:
    layers = BrokerLayers({"node.id": "1", "num.partitions": "4"}, {"log.retention.ms": "9"})
    rows = {entry.name: entry for entry in describe_broker(layers)}
    assert set(rows) == set(BROKER)
    partitions = rows["num.partitions"]
    assert (partitions.value, partitions.source) == ("4", ConfigSource.STATIC_BROKER_CONFIG)
    assert [s.value for s in partitions.synonyms] == ["4", "1"]
    assert partitions.read_only
    retention = rows["log.retention.ms"]
    assert (retention.value, retention.read_only) == ("9", False)
    assert rows["broker.rack"].value is None
    assert rows["num.io.threads"].documentation.endswith("(Without effect in this version.)")
    assert rows["num.io.threads"].type is ConfigType.INT
    default = describe_brokers_default({"log.retention.ms": "9"})
    assert [(x.name, x.source) for x in default] == [
        ("log.retention.ms", ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    ]


def test_a_secret_is_shown_neither_as_value_nor_as_synonym(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "a.password"
    secret = ConfigDefinition(name, ConfigType.PASSWORD, None, "One.")
    monkeypatch.setitem(BROKER, name, secret)
    layers = BrokerLayers(static={name: "hush"}, dynamic={name: "whisper"})
    (row,) = [each for each in describe_broker(layers) if each.name == name]
    assert (row.value, row.sensitive, row.source) == (
        None,
        True,
        ConfigSource.DYNAMIC_BROKER_CONFIG,
    )
    assert [(each.value, each.source) for each in row.synonyms] == [
        (None, ConfigSource.DYNAMIC_BROKER_CONFIG),
        (None, ConfigSource.STATIC_BROKER_CONFIG),
    ]
