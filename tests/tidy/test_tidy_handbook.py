"""What README.md and the operator's pages name is there: links, flags, configurations, tests, the
doctor's kinds of findings; and the numbers of limits.md are those of the code.

`tests/cluster/test_watch.py` does the same for the metrics,
`tests/tidy/test_tidy_configuration_page.py` for the page of configurations.
"""

from __future__ import annotations

import re
import shlex
from functools import cache
from pathlib import Path

import click
import pytest

from tests.support.repository import ROOT, text_of, tracked
from tidelog.broker.fetching import aborted_reads, client_sessions
from tidelog.broker.handlers import metadata
from tidelog.broker.partitions import inspected_appends
from tidelog.cli import main, server_arguments
from tidelog.controller.decisions import losses, new_partitions
from tidelog.groups import limits as group_limits
from tidelog.metadata import zookeeper
from tidelog.model.configs.broker import BROKER, SECTIONS
from tidelog.model.configs.kafka_names import IGNORED, REFUSED, UNUSED
from tidelog.model.configs.topic import TOPIC
from tidelog.network import forwarded, places, router
from tidelog.network.buffer import FIRST_BYTES, SMALL_BYTES
from tidelog.network.limits import Limits
from tidelog.storage.log import inspecting, producers, time_lookup

PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "README.md",
    *sorted((ROOT / "docs" / "operating").glob("*.md")),
]
LIMITS = ROOT / "docs" / "operating" / "limits.md"
MIB = 1 << 20

OF_OTHERS = {
    "--archives", "--wheel", "--no-build-isolation", "--out-dir", "--no-cache-dir", "--system",
    "--stop-timeout",
}  # fmt: skip
"""Flags of spark-submit, uv, pip, useradd and docker."""

MADE_OF_PARTS = {"--producer-property"}
"""Flags that the source makes: `producer` or `consumer` in front of a word."""

FILES = (".html", ".json", ".lock", ".properties", ".reserve", ".secret", ".sqlite", ".txt")
OF_CLIENTS = {
    "auto.offset.reset", "key.serializer", "group.protocol", "metadata.recovery.strategy",
    "transaction.timeout.ms",
}  # fmt: skip
OF_KAFKA = {"max.connections.per.ip.overrides"}
"""Named because it is not here."""


@cache
def source() -> str:
    return "\n".join(text_of(path) for path in tracked("src/*.py"))


def quoted(page: Path) -> list[str]:
    """What stands in backticks."""
    return re.findall(r"`([^`\n]+)`", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors of a page (after `#` in a link), as GitHub makes them of headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.strip().lower()).replace(" ", "-") for each in headings}


@pytest.mark.parametrize("page", tracked("*.md"), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_flags_are_there(page: Path) -> None:
    flags = set(re.findall(r"(?<![\w-])--[a-z][a-z.-]+[a-z]", page.read_text()))
    there = set(re.findall(r"--[a-z][a-z.-]+[a-z]", source()))
    assert flags - there - OF_OTHERS - MADE_OF_PARTS == set()


def command_lines(page: Path) -> list[list[str]]:
    """The words after `tidelog` of each command line in the blocks of a page."""
    found = []
    for block in re.findall(r"^```\w*\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            match = re.match(r"(?:echo .*\| )?(?:\S*/)?tidelog (.*)", line)
            if match is not None:
                found.append(shlex.split(match[1].partition(" | ")[0].removesuffix(" &")))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_command_lines_are_understood(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of `docs/operating` are run as well: `tests/package/test_package_handbook.py`."""
    monkeypatch.chdir(tmp_path)
    for words in command_lines(page):
        for word in words:
            if word.endswith((".secret", ".json")):
                # The file is looked for as soon as the flag is read.
                (tmp_path / word).parent.mkdir(exist_ok=True)
                (tmp_path / word).touch()
        if words[0] == "server":
            assert server_arguments.parse(words[1:]).file
            continue
        command: click.Command = main._commands()
        context = click.Context(command)
        rest = words
        while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
            name, *rest = rest
            found = command.get_command(context, name)
            assert found is not None, words
            command = found
        try:
            command.make_context(words[0], list(rest), parent=context)
        except click.UsageError as error:
            pytest.fail(f"tidelog {' '.join(words)}: {error.format_message()}")


def test_there_are_command_lines() -> None:
    assert sum(len(command_lines(page)) for page in PAGES) > 25


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_configurations_are_there(page: Path) -> None:
    """Of servers, of topics, and of the clients of this repository."""
    names = {word.partition("=")[0] for word in quoted(page)}
    names = {name for name in names if re.fullmatch(r"[a-z]+(?:\.[a-z]+)+", name)}
    files = {name for name in names if name.endswith(FILES)}
    of_spark = {name for name in names if name.startswith(("kafka.", "spark."))}
    there = set(re.findall(r'"([a-z.]+)"', source())) | set(BROKER) | set(TOPIC)
    of_kafka = OF_KAFKA | set(IGNORED) | set(REFUSED) | set(UNUSED)
    assert names - files - of_spark - there - OF_CLIENTS - of_kafka == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_are_there(page: Path) -> None:
    named = re.findall(r"\btests/[\w/]+\.py", page.read_text())
    assert [path for path in named if not (ROOT / path).is_file()] == []


def test_the_kinds_of_findings_are_those_of_the_page() -> None:
    text = (ROOT / "docs" / "operating" / "commands.md").read_text()
    table = text.partition("| kind | what |\n")[2].partition("\n\n")[0]
    written = {
        kind for row in table.splitlines() for kind in re.findall(r"`(\w+)`", row.split("|")[1])
    }
    findings = text_of(ROOT / "src" / "tidelog" / "cli" / "findings.py")
    decisions = ROOT / "src" / "tidelog" / "controller" / "decisions"
    condition = text_of(decisions / "condition.py") + text_of(decisions / "resizes_condition.py")
    concerns = r"(?:,\s+(?:brokers|groups)=[^()]*)?"
    made = set(re.findall(rf'Finding\([^()]*"([a-z_]+)"{concerns},?\s*\)', findings))
    made |= set(re.findall(r'_of_places\(what, advice, "([a-z_]+)"', findings))
    made |= set(re.findall(r'^ +kind = "([a-z_]+)"', findings, re.MULTILINE))
    assert {"strays", "set_aside", "disk_full", "brokers_dead", "group_unreadable"} <= made
    made |= set(re.findall(r'^ {8}\(\s*"([a-z_]+)",', findings, re.MULTILINE))
    made |= set(re.findall(r'\bproblem\(\s*"([a-z_]+)"', condition))
    moves = text_of(decisions / "moves_condition.py")
    made |= set(re.findall(r'MoveFinding\(\s*"([a-z_]+)"', moves))
    made |= set(re.findall(r'^ {8}\(\s*"([a-z_]+)",', condition, re.MULTILINE))
    decisions = ROOT / "src" / "tidelog" / "controller" / "decisions"
    resizes = text_of(decisions / "resizes_condition.py")
    made |= set(re.findall(r'^ {8}"([a-z_]+)",', resizes, re.MULTILINE))
    assert made - written == set()
    all_text = findings + condition + moves + resizes
    assert {kind for kind in written if f'"{kind}"' not in all_text} == set()


def test_the_numbers_of_the_limits_are_those_of_the_code() -> None:
    text = " ".join(LIMITS.read_text().split())
    defaults = Limits()
    assert time_lookup.MOST_SEARCHED_BYTES == inspecting.INSPECTED_BYTES
    for said in (
        f"at most {losses.most_debts(3):,} partitions with three replicas "
        f"({losses.most_debts(2):,} with two)",
        f"a partition keeps the last {losses.KEPT_ELECTIONS} that are handled",
        f"{losses.KEPT_WITHOUT_LOSS:,} without a known loss",
        f"session ends after {zookeeper.SESSION_TIMEOUT_S:.0f} s",
        f"| any, if not below | {router.MOST_ELEMENTS:,} names",
        f"| what a controller decides | {forwarded.MOST_FORWARDED:,} |",
        f"| AlterConfigs, IncrementalAlterConfigs to a broker | {forwarded.MOST_SETTINGS:,} |",
        f"| {router.MOST_MOVED:,}, where {router.NUMBERS_OF_MOVES} broker ids or",
        f"it creates {metadata.CREATED_AT_ONCE} missing topics",
        f"| a topic | {new_partitions.MOST_AT_ONCE:,} partitions at once, "
        f"{new_partitions.MAX_PARTITIONS:,} in all |",
        "| a connection that has sent no whole request | is closed after "
        f"{defaults.first_request_s:.0f} s |",
        f"`request.timeout.ms` ({defaults.frame_s:.0f} s)",
        f"neither sends nor reads | is closed after {defaults.max_stall_s:.0f} s |",
        f"at `read_committed` | {aborted_reads.MOST_OF_REQUEST:,}; a read of more",
        f"| fetch sessions | at most {client_sessions.MAX_BYTES // MIB} MiB",
        f"up to {FIRST_BYTES >> 10} KiB of requests and {FIRST_BYTES >> 10} KiB of responses",
        f"({SMALL_BYTES >> 10} KiB before its first whole request)",
        f"| {inspecting.INSPECTED_BYTES // MIB} MiB decompressed, "
        f"{inspecting.REQUEST_BYTES // MIB} MiB and {inspecting.REQUEST_RATIO} times its bytes for "
        f"a request, {inspecting.INSPECTED_RECORDS:,} records |",
        f"| such batches that wait | {inspected_appends.MOST_BYTES // MIB} MiB;",
        f"larger than {time_lookup.MOST_SEARCHED_BYTES // MIB} MiB decompressed, or after "
        f"{time_lookup.REQUEST_BYTES // MIB} MiB, {time_lookup.REQUEST_RECORDS:,} records or "
        f"{time_lookup.REQUEST_BATCHES:,} batches in vain",
        f"| idempotent producers | {producers.MAX_PRODUCERS:,} of one partition, "
        f"{producers.MAX_PRODUCERS_OF_ALL:,} of all replicas;",
        f"of one coordinator | {group_limits.MAX_HELD_BYTES // MIB} MiB;",
        f"| groups of one coordinator | {group_limits.MAX_GROUPS:,} |",
        f"| one group | {group_limits.MAX_MEMBERS:,} members, each with "
        f"{group_limits.MAX_METADATA_BYTES // MIB} MiB of subscription and "
        f"{group_limits.MAX_PROTOCOLS} assignors; "
        f"{group_limits.MAX_GROUP_METADATA_BYTES // MIB} MiB of all its members",
        f"| committed offsets of a group | {group_limits.MAX_OFFSETS:,} partitions",
        f"prove the cluster secret within {places.PROVE_S:.0f} s",
    ):
        assert said in text, f"limits.md does not say: {said}"
    assert places.KEPT_PLACES == 10
    assert "ten places beyond the limit" in text


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broker.session.timeout.ms", "`broker.session.timeout.ms` (6 s)"),
        ("broker.silence.suspect.ms", "`broker.silence.suspect.ms` (2 s)"),
    ],
)
def test_the_defaults_that_the_limits_name_are_those_of_the_code(name: str, said: str) -> None:
    assert said in " ".join(LIMITS.read_text().split())
    defaults = {row.name: row.default for rows in SECTIONS.values() for row in rows}
    assert defaults[name] == f"{said.partition('(')[2][:-3]}000"
