"""How the commands are reached and find their cluster: completion, misspelled names, defaults."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.support.cli_arguments import CONSUME, PRODUCE, status_of
from tidelog.cli import connecting, consume, doctor, main, produce, server_arguments
from tidelog.cli.client_names import check_unused
from tidelog.cli.cluster_facts import Severity
from tidelog.cli.connecting import SERVER_VARIABLE, settings_from
from tidelog.cli.failures import explain
from tidelog.cli.refusal import WrongUsage
from tidelog.cli.up_files import DECIDED, ClusterPlan, server_properties, why_not_config
from tidelog.client.errors import Refused
from tidelog.model.errors import ErrorCode

SERVER = ["--bootstrap-server", "127.0.0.1:1"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["top"], ["topics"]),
        (["topics", "--un"], ["--unavailable-partitions", "--under-min-isr-partitions",
                              "--under-replicated-partitions", "--undo"]),
        (["doctor", "rep"], ["replicas"]),
        (["server", "--o"], ["--override"]),
        (["server", "--until"], ["--until-stdin-closes"]),
        (["consume", "--isolation-level", "read_c"], ["read_committed"]),
    ],
)  # fmt: skip
def test_a_shell_completes_words(
    words: list[str],
    offered: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COMP_WORDS", " ".join(["tidelog", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    monkeypatch.setenv(main.COMPLETE, "bash_complete")
    status, out, _ = status_of([], capsys)
    assert status == 0
    assert sorted(out.split()) == [f"plain,{word}" for word in offered]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["topcs", "--list"], "'topics'"),
        (["serve", "x.properties"], "'server'"),
        (["produce", *SERVER, "--compresion-codec", "lz4"], "'--compression-codec'"),
        (["doctor", "replcas"], "'replicas'"),
        (["server", "x.properties", "--overide", "a=b"], "--override"),
        (["server", "x.properties", "--until-stdin-close=1"], "--until-stdin-closes"),
    ],
)
def test_a_misspelled_name_gets_a_suggestion(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, err = status_of(words, capsys)
    assert (status, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("error: ") and f"id you mean {meant}" in err and "--help" in err


def test_the_servers_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    given = server_arguments.parse(["--override", "a=b", "f", "--override", "c=d"])
    assert (given.file, given.override, given.until_stdin_closes) == ("f", ["a=b", "c=d"], False)
    assert server_arguments.parse(["f", "--until-stdin-closes"]).until_stdin_closes
    status, _, err = status_of(["server"], capsys)
    assert (status, len(err.splitlines())) == (2, 1)
    named = {
        name for each in server_arguments.as_command(lambda _words: 0).params for name in each.opts
    }
    assert named == {"file", *server_arguments.HELP}


def test_where_the_cluster_is_comes_from_flag_properties_or_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(SERVER_VARIABLE, "environment:port")
    file = tmp_path / "client.properties"
    file.write_text("bootstrap.servers=properties:port\n")
    at = ["--command-config", str(file)]
    flag = ["--bootstrap-server", "flag:port"]
    for words, used in (
        (["topics", "--list"], SERVER_VARIABLE),
        (["doctor"], SERVER_VARIABLE),
        (["topics", "--list", *at], "bootstrap.servers"),
        (["consume", "--topic", "t", *at], "bootstrap.servers"),
        (["topics", "--list", *at, *flag], "--bootstrap-server"),
        (["topics", "--list", *at, "-b", "flag:port"], "--bootstrap-server"),
    ):
        status, _, err = status_of(words, capsys)
        assert (status, err.startswith(f"error: {used}: ")) == (2, True), err
    monkeypatch.setenv(SERVER_VARIABLE, "127.0.0.1:1")
    assert connecting._servers(None, {}) == "127.0.0.1:1"


def test_without_a_name_the_cluster_is_that_of_localhost(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(SERVER_VARIABLE, raising=False)
    assert connecting._servers(None, {}) is None
    assert connecting.DEFAULT_SERVERS == "localhost:9092"
    monkeypatch.setattr(connecting, "DEFAULT_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr(connecting, "OPEN_TIMEOUT_MS", 50)
    for words in (["topics", "--list"], ["consume", "-t", "t"], ["groups", "--list"]):
        status, _, err = status_of(words, capsys)
        assert (status, len(err.splitlines())) == (1, 1)
        assert "127.0.0.1:1 is the default" in err
        assert "--bootstrap-server" in err and SERVER_VARIABLE in err
        _, _, named = status_of([*words, "-b", "127.0.0.1:1"], capsys)
        assert "no broker can be reached" in named and "default" not in named


@pytest.mark.parametrize("name", ["num.partitions=x", "retention.ms=1"])
def test_up_blames_its_own_argument_for_a_bad_value(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It named a file that it had written itself, and left a data folder."""
    data = tmp_path / "data"
    status, _, err = status_of(["up", "--data", str(data), "--config", name], capsys)
    assert (status, len(err.splitlines())) == (2, 1)
    assert err.startswith(f"error: --config {name}: ") and "node-1" not in err
    assert not data.exists()


@pytest.mark.parametrize(
    "words",
    [
        ["consume", "-t", "t", "--max-messages", "ten"],
        ["topics", "--create", "-t", "t", "--partitions", "ten"],
        ["up", "--brokers", "ten"],
    ],
)
def test_what_is_no_number_is_called_that(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status, _, err = status_of(words, capsys)
    assert status == 2 and "'ten' is not a whole number" in err and "range" not in err


def test_an_advice_is_not_given_twice() -> None:
    code = ErrorCode.INVALID_REPLICATION_FACTOR
    said = "A replication factor of 5 needs as many brokers; 1 are there."
    assert explain(Refused(code, "topic 't'", said)).endswith(
        "1 are there (INVALID_REPLICATION_FACTOR)"
    )
    assert "use at most as many replicas" in explain(Refused(code, "topic 't'"))


@pytest.mark.parametrize("in_colour", [True, False])
def test_what_is_bad_is_red_on_a_terminal(in_colour: bool) -> None:
    red = "\x1b[31m" in doctor.mark_of(Severity.BAD, in_colour=in_colour)
    assert red == in_colour
    assert doctor.mark_of(Severity.GOOD, in_colour=in_colour) == "ok  "


def test_every_command_with_a_topic_or_a_cluster_has_the_short_names() -> None:
    """The kind: one command with -t, another without."""
    seen = set()
    for name in main.COMMANDS:
        command = main._commands().get_command(click.Context(click.Command("t")), name)
        assert command is not None
        children = command.commands.values() if isinstance(command, click.Group) else ()
        for each in (command, *children):
            for option in each.params:
                for short, long in (("-t", "--topic"), ("-b", "--bootstrap-server")):
                    if long in option.opts:
                        seen.add(long)
                        assert short in option.opts, f"{name}: {long} without {short}"
    assert seen == {"--topic", "--bootstrap-server"}


def test_properties_of_stock_clients_are_accepted() -> None:
    """U10: a file with max.poll.records was refused."""
    ours = {"max.poll.records": "5", "fetch.min.bytes": "1", "ssl.truststore.location": "x"}
    plan = consume.plan_of({**CONSUME, "client_properties": {**ours, "group.id": "g"}})
    assert (plan.group, plan.commits) == ("g", True)
    uncommitted = {"group.id": "g", "enable.auto.commit": "false", "group.protocol": "classic"}
    assert not consume.plan_of({**CONSUME, "client_properties": uncommitted}).commits
    serializers = {"key.serializer": "x", "partitioner.class": "y", "retries": "7"}
    chosen = {**serializers, "linger.ms": "9"}
    assert produce.send_settings({**PRODUCE, "client_properties": chosen}).linger_ms == 9
    assert settings_from({"retry.backoff.ms": "5", "client.id": "me"}).client_id == "me"


@pytest.mark.parametrize(
    ("kind", "name", "value", "said"),
    [
        ("consumer", "max.pol.records", "5", "did you mean 'max.poll.records'?"),
        ("consumer", "group.protocol", "consumer", "only the classic protocol"),
        ("producer", "transactional.id", "x", "this command writes outside of transactions"),
        ("producer", "max.poll.records", "5", "is unknown"),
        ("client", "max.poll.records", "5", "is unknown"),
    ],
)
def test_properties_that_are_unknown_or_would_change_what_is_done_are_refused(
    kind: str, name: str, value: str, said: str
) -> None:
    with pytest.raises(WrongUsage) as refused:
        check_unused(name, value, kind, ("client.id",))
    assert said in str(refused.value)


def test_up_refuses_what_each_process_has_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """U18: `--config log.dirs=…` was taken in silence, and all brokers had the same."""
    data = tmp_path / "data"
    status, _, err = status_of(
        ["up", "--data", str(data), "--config", "log.dirs=/somewhere"], capsys
    )
    assert (status, len(err.splitlines()), data.exists()) == (2, 1, False)
    assert "log.dirs" in err and "--data" in err
    assert why_not_config(["num.partitions", "log.retention.ms", "broker.rack"]) is None
    plan = ClusterPlan(tmp_path, brokers=2, controllers=2, store="zookeeper://127.0.0.1:1/t")
    written: dict[str, set[str]] = {}
    for member in plan.members():
        for line in server_properties(plan, member, [("127.0.0.1", 1)]).splitlines():
            name, _, value = line.partition("=")
            written.setdefault(name, set()).add(value)
    different = {name for name, values in written.items() if len(values) > 1}
    assert different - set(DECIDED) == set()


def test_the_rack_of_a_machine_is_not_configured_by_up() -> None:
    configs = ["broker.rack", "node.id"]
    said = [why_not_config([name], workers=2) or "" for name in configs]
    assert all("`tidelog up` sets it for each process" in text for text in said), said
    assert "(see --workers)" in said[0] and "(see --brokers)" in said[1]


def test_up_names_every_configuration_that_its_processes_would_refuse(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It named the first one, and at the next start the next."""
    wrong = ("num.partitions=ten", "log.segment.bytes=-1", "log.retention.ms=5")
    words = [word for pair in wrong for word in ("--config", pair)]
    status, _, err = status_of(["up", "--data", str(tmp_path / "data"), *words], capsys)
    lines = err.splitlines()
    assert (status, len(lines)) == (2, 2), err
    assert all(line.startswith("error: --config ") for line in lines), err
    assert {pair for pair in wrong if f"--config {pair}: " in err} == set(wrong[:2])


def test_only_sqlite_stores_are_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """U18: it looked for a file of that name."""
    at = ["--store", "zookeeper://127.0.0.1:2181/tidelog"]
    status, _, err = status_of(["doctor", "backup", str(tmp_path / "copy"), *at], capsys)
    assert (status, len(err.splitlines())) == (2, 1)
    assert "only a SQLite store can be copied" in err


def test_a_copy_into_a_folder_that_is_not_there_names_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It said that SQLite cannot open a database file, of the store that was there."""
    store = tmp_path / "metadata.sqlite"
    store.touch()
    words = [str(tmp_path / "nowhere" / "copy"), "--store", f"sqlite:{store}", "--json"]
    status, out, err = status_of(["doctor", "backup", *words], capsys)
    assert (status, out, len(err.splitlines())) == (1, "", 1)
    assert f"There is no folder {tmp_path}/nowhere: make it" in err
