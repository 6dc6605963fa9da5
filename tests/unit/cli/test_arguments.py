"""Arguments of the commands: what they mean and how a wrong one is refused."""

from __future__ import annotations

import io
import json
from pathlib import Path
from uuid import UUID

import click
import pytest

from tests.support.cli_arguments import CONSUME, PRODUCE, status_of
from tidelog.cli import asking, configs, consume, groups, main, produce, topics, up, up_child
from tidelog.cli.connecting import client_properties, exactly_one, key_values, settings_from
from tidelog.cli.failures import explain
from tidelog.cli.refusal import Failed, WrongUsage
from tidelog.cli.up_files import ClusterPlan, ClusterProcess, server_properties
from tidelog.client.errors import ClusterUnreachable, Refused
from tidelog.client.fetching.fetcher import OffsetReset
from tidelog.client.metadata import Topic
from tidelog.client.offsets import EARLIEST, LATEST
from tidelog.model.configs.server import ServerConfigs, load
from tidelog.model.errors import ErrorCode

SERVER = ["--bootstrap-server", "127.0.0.1:1"]


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["topics"],
        ["topics", *SERVER],
        ["topics", *SERVER, "--list", "--describe"],
        ["topics", *SERVER, "--create"],
        ["topics", *SERVER, "--create", "--topic", "t", "--config", "novalue"],
        ["topics", *SERVER, "--create", "--topic", "t", "--partitions", "many"],
        ["topics", *SERVER, "--alter", "--topic", "t", "--config", "a=b"],
        ["topics", "--bootstrap-server", "nowhere:port", "--list"],
        ["groups", *SERVER, "--describe"],
        ["groups", *SERVER, "--reset-offsets", "--group", "g", "--topic", "t"],
        ["groups", *SERVER, "--reset-offsets", "--group", "g", "--to-earliest"],
        ["groups", *SERVER, "--delete-offsets", "--group", "g"],
        ["configs", *SERVER, "--describe"],
        ["configs", *SERVER, "--alter", "--topic", "t"],
        ["configs", *SERVER, "--alter", "--topic", "t", "--add-config", "[a"],
        ["groups", *SERVER, "--list", "--timeout", "soon"],
        ["groups", *SERVER, "--list", "--state", "Sleepy"],
        ["groups", *SERVER, "--describe", "--group", "g", "--state", "Stable"],
        ["topics", *SERVER, "--list", "--yes"],
        ["topics", *SERVER, "--list", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAA"],
        ["topics", *SERVER, "--describe", "--topic", "t", "--topic-id", "AAAAAAAAAAAAAAAAAAAAAA"],
        ["produce", *SERVER],
        ["produce", *SERVER, "--topic", "t", "--property", "parse.key"],
        ["produce", *SERVER, "--topic", "t", "--compression-codec", "brotli"],
        ["consume", *SERVER],
        ["consume", *SERVER, "--topic", "t", "--offset", "5"],
        ["consume", *SERVER, "--topic", "t", "--partition", "0", "--offset", "-x"],
        ["consume", *SERVER, "--topic", "t", "--partition", "0,x"],
        ["consume", *SERVER, "--topic", "t", "--offset", "-5", "--from-beginning"],
        ["consume", *SERVER, "--topic", "t", "--offset", "-5", "--group", "g"],
        ["consume", *SERVER, "--topic", "t", "--from-datetime", "yesterday"],
        ["consume", *SERVER, "--topic", "t", "--from-datetime", "5", "--offset", "-5"],
        ["consume", *SERVER, "--topic", "t", "--format", "%x"],
        ["consume", *SERVER, "--topic", "t", "--format", "%"],
        ["consume", *SERVER, "--topic", "t", "--format", "%s", "--json"],
        ["up", "--controllers", "2"],
        ["up", "--brokers", "3", "--port", "65534"],
        ["up", "--brokers", "129"],
        ["up", "--workers", "1000"],
        ["up", "--store", "zookeeper:localhost:2181"],
        ["up", "--config", "novalue"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_one_line_and_status_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = status_of(arguments, capsys)
    assert status == 2
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ")


@pytest.mark.parametrize("name", [None, *main.COMMANDS])
def test_every_command_explains_itself(
    name: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = status_of([*([name] if name else []), "--help"], capsys)
    assert (status, err) == (0, "")
    assert "Usage" in out or "usage" in out


def test_added_configurations() -> None:
    assert configs.parse_add_config("a=1,b=[x,y],c=,d=e=f") == {
        "a": "1",
        "b": "x,y",
        "c": "",
        "d": "e=f",
    }
    assert configs.parse_add_config(None) == {}
    with pytest.raises(WrongUsage):
        configs.parse_add_config("a=[1,2")
    with pytest.raises(WrongUsage):
        configs.parse_add_config("=1")


def test_a_plain_topic_name_matches_itself_only() -> None:
    assert topics.topic_pattern("a.b").fullmatch("a.b")
    assert not topics.topic_pattern("a.b").fullmatch("axb")
    assert topics.topic_pattern("a.*").fullmatch("abc")
    assert topics.topic_pattern("a,b").fullmatch("b")
    assert not topics.topic_pattern("a,b").fullmatch("a,b")
    with pytest.raises(WrongUsage):
        topics.topic_pattern("a[")


def test_replica_assignments() -> None:
    assert topics.parse_assignment("1:2,2:3") == [[1, 2], [2, 3]]
    assert topics.parse_assignment(None) == []
    for text in ("1:1", "a", "1:2,", "1,,2"):
        with pytest.raises(WrongUsage):
            topics.parse_assignment(text)


def test_pairs_and_choices() -> None:
    assert key_values(("a=1", "b=x=y", "c="), "--config") == {"a": "1", "b": "x=y", "c": ""}
    assert exactly_one({"--a": False, "--b": True}) == "--b"
    for chosen in ({"--a": False}, {"--a": True, "--b": True}):
        with pytest.raises(WrongUsage):
            exactly_one(chosen)


def test_client_configurations() -> None:
    assert settings_from({"client.id": "me", "request.timeout.ms": "7"}).client_id == "me"
    for wrong in ({"nope": "1"}, {"request.timeout.ms": "x"}, {"security.protocol": "SASL_SSL"}):
        with pytest.raises(WrongUsage):
            settings_from(wrong)


def test_the_keys_of_a_command() -> None:
    """Without TLS they have no effect, as in Kafka; with it each name must be known."""
    ssl = {"security.protocol": "SSL"}
    assert settings_from({"ssl.ca.location": "/ca.pem"}).tls is None
    tls = settings_from({**ssl, "ssl.enabled.protocols": "TLSv1.3", "ssl.protocol": "TLS"}).tls
    assert tls is not None and tls.configs.versions == ("TLSv1.3",)
    for wrong in ({"ssl.ca.location": "/ca.pem"}, {"ssl.truststore.location": "/not/there"}):
        with pytest.raises(WrongUsage):
            settings_from({**ssl, **wrong})


def test_properties_of_the_line_go_before_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "consumer.properties"
    file.write_text("client.id=me\ngroup.id=g\nauto.offset.reset=earliest\n")
    common, own = client_properties(file, ("group.id=h", "request.timeout.ms=7"))
    assert common == {"client.id": "me", "request.timeout.ms": "7"}
    assert own == {"group.id": "h", "auto.offset.reset": "earliest"}
    plan = consume.plan_of({**CONSUME, "client_properties": own})
    assert (plan.group, plan.offset) == ("h", EARLIEST)
    assert client_properties(None, ()) == ({}, {})
    with pytest.raises(WrongUsage, match="isolation_level"):
        consume.plan_of({**CONSUME, "client_properties": {"isolation_level": "x"}})


@pytest.mark.parametrize(
    ("command", "older", "newer"),
    [
        ("consume", "--consumer.config", "--consumer-property"),
        ("produce", "--producer.config", "--producer-property"),
    ],
)
def test_older_names_of_the_console_clients_flags(
    command: str, older: str, newer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They reach the same place as the newer ones: it refuses what it does not know."""
    file = tmp_path / "client.properties"
    file.write_text("of.the.file=1\n")
    for given in (
        (older, str(file)),
        ("--command-config", str(file)),
        (newer, "of.the.file=1"),
        ("--command-property", "of.the.file=1"),
    ):
        with pytest.raises(SystemExit) as ended:
            main.main([command, *SERVER, "--topic", "t", *given])
        assert ended.value.code == 2
        assert "'of.the.file' is unknown" in capsys.readouterr().err


def test_producer_settings() -> None:
    assert produce.send_settings(PRODUCE).idempotent
    chosen = produce.send_settings(
        {
            **PRODUCE,
            "acks": "1",
            "client_properties": {"linger.ms": "7", "compression.type": "lz4", "acks": "all"},
            "batch_size": 99,
        }
    )
    assert (chosen.acks, chosen.idempotent, chosen.linger_ms) == (1, False, 7)
    assert (chosen.compression, chosen.batch_bytes) == ("lz4", 99)
    for wrong in ("acks=2", "linger.ms=x", "nope=1", "compression.type=zip"):
        name, value = wrong.split("=")
        with pytest.raises(WrongUsage):
            produce.send_settings({**PRODUCE, "client_properties": {name: value}})


def test_where_reading_begins() -> None:
    assert consume.plan_of(CONSUME).offset == LATEST
    assert consume.plan_of({**CONSUME, "from_beginning": True}).offset == EARLIEST
    for given, meant in ((None, None), (0, 0), (5, 5), (-1, None)):
        assert consume.plan_of({**CONSUME, "timeout_ms": given}).timeout_ms == meant
    named = consume.plan_of({**CONSUME, "partition": ("0",), "offset": "5"})
    assert (named.offset, named.reset) == (5, OffsetReset.NONE)
    back = consume.plan_of({**CONSUME, "partition": ("3,1", "1"), "offset": "-10"})
    assert (back.partitions, back.last, back.reset) == ((1, 3), 10, OffsetReset.EARLIEST)
    timed = consume.plan_of({**CONSUME, "from_datetime": "2024-06-01T00:00:00"})
    assert (timed.from_time_ms, timed.last) == (1_717_200_000_000, None)
    assert consume.plan_of({**CONSUME, "from_datetime": "7"}).from_time_ms == 7
    early = consume.plan_of({**CONSUME, "client_properties": {"auto.offset.reset": "earliest"}})
    assert (early.offset, early.reset) == (EARLIEST, OffsetReset.EARLIEST)
    grouped = consume.plan_of({**CONSUME, "client_properties": {"group.id": "g"}})
    assert grouped.group == "g"


def test_refusals_say_what_to_do() -> None:
    said = explain(Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "topic 't'", "Whatever."))
    assert said.startswith("topic 't' does not exist (UNKNOWN_TOPIC_OR_PARTITION); ")
    said = explain(Refused(ErrorCode.POLICY_VIOLATION, "t-0", "No."))
    assert said == "t-0: No (POLICY_VIOLATION)"
    assert "--bootstrap-server" in explain(ClusterUnreachable("no broker can be reached"))


def test_the_file_of_a_development_node_is_a_valid_one(tmp_path: Path) -> None:
    plan = ClusterPlan(tmp_path / "a b\\c", port=19092, configs={"num.partitions": "3"})
    (member,) = plan.members()
    configs_of = load(server_properties(plan, member))
    assert isinstance(configs_of, ServerConfigs), configs_of
    assert configs_of.process_roles == {"broker", "controller"}
    assert configs_of.log_dirs == (str(tmp_path / "a b\\c" / "broker-1"),)
    assert configs_of.num_partitions == 3
    assert configs_of.offsets_topic_replication_factor == 1


@pytest.mark.parametrize(("brokers", "replicas"), [(2, 2), (3, 3), (5, 3)])
def test_the_file_of_a_further_broker(tmp_path: Path, brokers: int, replicas: int) -> None:
    controller = ("127.0.0.1", 4711)
    plan = ClusterPlan(tmp_path, brokers, port=19092)
    configs_of = load(server_properties(plan, plan.members()[1], [controller]))
    assert isinstance(configs_of, ServerConfigs), configs_of
    assert configs_of.node_id == 2
    assert configs_of.listeners[0].port == 19093
    assert not configs_of.is_controller
    assert configs_of.controller_quorum_bootstrap_servers == (controller,)
    assert configs_of.default_replication_factor == replicas
    assert configs_of.offsets_topic_replication_factor == replicas


def test_the_files_of_controllers_on_zookeeper(tmp_path: Path) -> None:
    store = "zookeeper://127.0.0.1:2181/t"
    plan = ClusterPlan(tmp_path, brokers=2, controllers=2, port=19092, store=store)
    members = plan.members()
    words = ["controller 101", "controller 102", "broker 1", "broker 2"]
    assert [str(member) for member in members] == words
    found = [("127.0.0.1", 4711), ("127.0.0.1", 4712)]
    configs_of = load(server_properties(plan, members[1], (), 4712))
    assert isinstance(configs_of, ServerConfigs), configs_of
    assert (configs_of.node_id, configs_of.process_roles) == (102, {"controller"})
    assert configs_of.metadata_store == store
    assert configs_of.controller_listeners[0].port == 4712
    first = load(server_properties(plan, members[2], found))
    assert isinstance(first, ServerConfigs), first
    assert (first.node_id, first.process_roles) == (1, {"broker"})
    assert first.controller_quorum_bootstrap_servers == tuple(found)


@pytest.mark.parametrize(
    ("store", "controllers", "word"),
    [
        ("sqlite", 2, "--store zookeeper://"),
        ("sqlite:some.db", 1, "use sqlite"),
        ("zookeeper://", 1, "use sqlite"),
        ("etcd://127.0.0.1:1", 2, "use sqlite"),
    ],
)
def test_stores_that_up_refuses(store: str, controllers: int, word: str) -> None:
    with pytest.raises(WrongUsage, match=word):
        up.check_store(store, controllers)
    up.check_store("sqlite", 1)
    up.check_store("zookeeper://127.0.0.1:2181,127.0.0.1:2182/t", 3)


def test_ready_lines(tmp_path: Path) -> None:
    first = up_child.parse_ready(
        "ready node=1 roles=broker,controller PLAINTEXT=127.0.0.1:9092 CONTROLLER=127.0.0.1:1 "
        "metrics=127.0.0.1:7\n"
    )
    assert first == up_child.Ready(("127.0.0.1", 9092), ("127.0.0.1", 1), ("127.0.0.1", 7))
    second = up_child.parse_ready("ready node=2 roles=broker PLAINTEXT=127.0.0.1:9093\n")
    assert second == up_child.Ready(("127.0.0.1", 9093), None, None)
    third = up_child.parse_ready("ready node=101 roles=controller CONTROLLER=127.0.0.1:5\n")
    assert third == up_child.Ready(None, ("127.0.0.1", 5), None)
    untold = up_child.parse_ready("waiting node=2 roles=broker PLAINTEXT=127.0.0.1:9093\n")
    assert untold == up_child.Ready(("127.0.0.1", 9093), None, None, serves=False)
    assert up_child.parse_ready("something else") is None
    assert up_child.parse_ready("ready or not") is None
    children = [
        up_child.Child(ClusterPlan(tmp_path), ClusterProcess(number)) for number in (1, 2, 101)
    ]
    for child, ready in zip(children, (first, second, third), strict=True):
        child.ready = ready
    assert json.loads(json.dumps(up.cluster_json(children))) == {
        "bootstrap": "127.0.0.1:9092,127.0.0.1:9093",
        "brokers": [
            {"id": 1, "host": "127.0.0.1", "port": 9092, "pid": None, "metrics_port": None},
            {"id": 2, "host": "127.0.0.1", "port": 9093, "pid": None, "metrics_port": None},
        ],
        "controllers": [{"id": 1, "port": 1, "pid": None}, {"id": 101, "port": 5, "pid": None}],
    }


def test_states_are_named_as_in_kafkas_tool() -> None:
    assert groups.parse_states("stable, preparingrebalance") == ["Stable", "PreparingRebalance"]
    assert groups.parse_states("") == groups.parse_states(None) == []


def test_a_file_that_is_no_text_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "client.properties"
    file.write_bytes(b"client.id=\xf0\xff")
    status, out, err = status_of(
        ["topics", *SERVER, "--list", "--command-config", str(file)], capsys
    )
    assert (status, out) == (2, "")
    assert str(file) in err and len(err.splitlines()) == 1


def test_only_the_end_of_a_childs_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "node-1.log"
    assert up_child.error_in(log) is None
    log.write_text("error: of a former start\n" + "event=x\n" * up_child.LOG_LINES_SHOWN)
    assert up_child.error_in(log) is None
    with log.open("ab") as file:
        file.truncate(1 << 32)  # A hole: what is before it is never read.
        file.write(b"\nerror: the port is in use\n")
    assert up_child.error_in(log) == "the port is in use"


def test_what_a_childs_log_complained_of_last_is_found_among_other_lines(tmp_path: Path) -> None:
    log = tmp_path / "node-101.log"
    assert up_child.complaint_in(log) is None
    noise = 'ts=T level=warning logger=kazoo event="Connection dropped: level=error"\n' * 1000
    log.write_text(noise)
    assert up_child.complaint_in(log) is None
    said = 'ts=T level=error logger=a event="not active: \\"x\\" does not answer" partition=t-0\n'
    log.write_text('ts=T level=error logger=a event="earlier"\n' + said + noise)
    assert up_child.complaint_in(log) == 'not active: "x" does not answer'
    assert up_child.complaint_in(log, begin=log.stat().st_size - len(noise)) is None
    log.write_text('{"ts": "T", "level": "error", "event": "not active: \\"x\\""}\n' + noise)
    assert up_child.complaint_in(log) == 'not active: "x"'


@pytest.mark.parametrize(
    ("text", "deleted", "left_out", "by_pattern"),
    [
        ("a", ["a"], [], []),
        ("a,b", ["a", "b"], [], []),
        ("[ab]", ["a", "b"], [], ["a", "b"]),
        ("a,b.*", ["a", "b"], [], ["b"]),
        # U2: '.*' took __consumer_offsets along.
        (".*", ["a", "b"], ["__consumer_offsets"], ["a", "b"]),
        ("__.*", [], ["__consumer_offsets"], []),
        ("__consumer_offsets", ["__consumer_offsets"], [], []),
        ("__consumer_offsets,.*", ["__consumer_offsets", "a", "b"], [], ["a", "b"]),
    ],
)
def test_what_a_pattern_deletes(
    text: str, deleted: list[str], left_out: list[str], by_pattern: list[str]
) -> None:
    there = [
        Topic(name, topic_id=UUID(int=1), internal=name.startswith("__"), partitions={}, error=0)
        for name in ("__consumer_offsets", "a", "b")
    ]
    wanted = topics.topic_pattern(text)
    matching = [topic for topic in there if wanted.fullmatch(topic.name)]
    assert topics.topics_to_delete(matching, text) == (deleted, left_out, by_pattern)


class Terminal(io.StringIO):
    """A terminal where the text of a test is typed."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("typed", "agreed"), [("y\n", True), ("n\n", False), ("\n", False), ("", False)]
)
def test_at_a_terminal_the_listed_topics_are_confirmed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, agreed: bool
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(typed))
    if agreed:
        asking.ask_whether_to_delete(["a", "b"], "[ab]")
    else:
        with pytest.raises((Failed, click.Abort)):
            asking.ask_whether_to_delete(["a", "b"], "[ab]")
    said = capsys.readouterr().err
    assert "'[ab]' matches 2 topics:\n  a\n  b\n" in said


def test_a_cluster_of_machines_keeps_the_ids_of_their_first_workers(tmp_path: Path) -> None:
    alone = ClusterPlan(tmp_path, 3, port=9092).members()
    plan = ClusterPlan(tmp_path, 3, port=9092, workers=2)
    members = plan.members()
    assert [each.node_id for each in members] == [1, 2, 3, 4, 5, 6]
    assert [each.port for each in members] == [9092, 9093, 9094, 9095, 9096, 9097]
    assert [each.machine for each in members] == [1, 2, 3, 1, 2, 3]
    assert [(each.node_id, each.port) for each in alone] == [
        (each.node_id, each.port) for each in members[:3]
    ]
    assert "broker.rack=machine-2\n" in server_properties(plan, members[4])
    assert "default.replication.factor=3\n" in server_properties(plan, members[4])
    assert "broker.rack" not in server_properties(ClusterPlan(tmp_path, 3), alone[0])
