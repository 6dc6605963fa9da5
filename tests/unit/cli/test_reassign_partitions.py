"""What `tidelog reassign-partitions` takes: which flags go together, before any request."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli_arguments import status_of

BASE = ("reassign-partitions", "--bootstrap-server", "127.0.0.1:1")
PLAN = '{"partitions": [{"topic": "t", "partition": 0, "replicas": [1]}]}'
FILE = ("--reassignment-json-file", "FILE")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "none was given"),
        (("--execute", "--verify", *FILE), "not --execute and --verify together"),
        (("--cancel", "--cancel-all", *FILE), "together"),
        (("--execute",), "--execute needs --reassignment-json-file"),
        (("--dry-run",), "--dry-run needs --reassignment-json-file"),
        (("--verify",), "--verify needs"),
        (("--cancel",), "--cancel needs"),
        (("--list", *FILE), "--reassignment-json-file goes with --execute or"),
        (("--cancel-all", *FILE), "not with --cancel-all"),
        (("--generate",), "--generate needs --topics-to-move-json-file"),
        (("--generate", "--topics-to-move-json-file", "FILE"), "--generate needs --broker-list"),
        (("--list", "--broker-list", "1"), "--broker-list goes with --generate, not with --list"),
        (("--verify", *FILE, "--additional"), "--additional goes with --execute or --dry-run"),
        (("--watch", "--force"), "--force goes with --execute or --dry-run, not with --watch"),
        (("--execute", "--throttle", "0", *FILE), "'--throttle': 0 is not in the range 1<=x<="),
        (("--execute", "--throttle", "fast", *FILE), "'--throttle': 'fast' is not a whole number"),
        (("--cancel", "--throttle", "9", *FILE), "--throttle goes with --execute or --dry-run"),
        (("--execute", "--preserve-throttles", *FILE), "--preserve-throttles goes with --verify"),
        (("--execute", "--reassignment-json-file", "/no/such/file"), "does not exist"),
        (
            ("--generate", "--topics-to-move-json-file", "FILE", "--broker-list", "1,1"),
            "missing required field `topics`",
        ),
    ],
)
def test_what_is_wrong_usage(
    words: tuple[str, ...], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(PLAN)
    given = [str(file) if word == "FILE" else word for word in words]
    status, out, error = status_of([*BASE, *given], capsys)
    assert (status, out) == (2, ""), error
    assert said in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("--list",),
        ("--cancel-all", "--json"),
        ("--revert",),
        ("--revert", *FILE),
        ("--watch", *FILE),
        ("--cancel", *FILE),
        ("--verify", *FILE),
        ("--execute", "--additional", "--force", *FILE),
        ("--execute", "--dry-run", *FILE),
        ("--dry-run", "--force", *FILE),
    ],
)
def test_what_gets_as_far_as_the_cluster(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    file.write_text(PLAN)
    given = [str(file) if word == "FILE" else word for word in words]
    status, _, error = status_of([*BASE, *given], capsys)
    assert status == 1 and "127.0.0.1:1 cannot be reached" in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--rebalance", "--decommission", "1"), "together"),
        (("--rebalance", "--topic", "t"), "--rebalance is about all topics: leave --topic out"),
        (("--decommission", "1", "--topic", "t"), "--decommission is about all topics"),
        (("--decommission", "-1"), "'--decommission': -1 is not in the range x>=0"),
        (("--rebalance", "--exclude-brokers", "1,x"), "--exclude-brokers takes broker ids"),
        (("--list", "--execute"), "--execute goes with --rebalance or --decommission"),
        (("--describe", "--exclude-brokers", "1"), "--exclude-brokers goes with --rebalance"),
        (("--rebalance", "--undo"), "--undo goes with --decommission, not with --rebalance"),
        (("--list", "--undo"), "--undo goes with --decommission, not with --list"),
        (("--decommission", "1", "--undo", "--execute"), "--undo stands alone with"),
        (("--decommission", "1", "--undo", "--exclude-brokers", "2"), "--undo stands alone with"),
    ],
)
def test_what_is_wrong_usage_of_topics(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, out, error = status_of(["topics", *BASE[1:], *words], capsys)
    assert (status, out) == (2, ""), error
    assert said in error and len(error.splitlines()) == 1


def test_a_wrong_plan_is_refused_before_any_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "plan.json"
    file.write_text('{"version": 2, "partitions": []}')
    command = [*BASE, "--execute", "--reassignment-json-file", str(file)]
    status, _, error = status_of(command, capsys)
    assert status == 2
    assert "the file has version 2, and this tool reads up to 1" in error
