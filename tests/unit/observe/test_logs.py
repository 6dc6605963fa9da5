"""The logs of a process: one logfmt line an event, and nothing loaded that it does not need."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidelog.model.errors import ErrorCode
from tidelog.model.topics import TopicPartition
from tidelog.observe import logs

PROGRAM = """
import logging, sys
from tidelog.observe import logs
logs.configure()
logging.getLogger("some.where").info("it happened", extra={"topic": "t"})
assert "rich" not in sys.modules, "a fifth of a server's start"
import rich
logs.configure()
"""


TURNS = "".join(map(chr, (0x2028, 0x2029, *range(0x202A, 0x202F), *range(0x2066, 0x206A))))
"""What ends a line beside the control characters, or turns the direction of writing."""

HOSTILE = (
    "x\nts=2026 level=critical event=forged \x1b[2J\x00\r\x7f\x85\x9b31m\ttab \U0001f600" + TURNS
)

ESCAPED = """
import logging, sys
from tidelog.observe import logs
logs.configure()
hostile = eval(sys.argv[1])
log = logging.getLogger("some.where")
log.warning("closing %s", hostile, extra={"topic": hostile})
try:
    raise ValueError(hostile)
except ValueError:
    log.exception("failed")
"""


def test_control_characters_reach_no_log(tmp_path: Path) -> None:
    """N11: ESC reached the logs raw; a line stays one line, whatever a client is called."""
    command = [sys.executable, "-c", ESCAPED, ascii(HOSTILE)]
    done = subprocess.run(command, capture_output=True)
    assert done.returncode == 0, done.stderr
    text = done.stderr.decode()
    assert text.count("\n") == 2
    shown = text.replace("\n", "")
    assert not [c for c in shown if ord(c) < 32 or 127 <= ord(c) < 160 or c in TURNS]
    for part in (
        "\\u001b[2J",
        "\\u0000",
        "\\u000d",
        "\\u007f",
        "\\u009b31m",
        "\\u0085",
        *(f"\\u{ord(each):04x}" for each in TURNS),
        "\\u0009tab",
    ):
        assert part in text, part
    assert "\U0001f600" in text


def test_a_line_has_its_fields_and_rich_is_loaded_only_where_it_is_used() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert 'level=info logger=some.where event="it happened" topic=t' in line


def bounded() -> logs.BoundedHandler:
    """The handler of tidelog's; pytest has others."""
    handlers = logging.getLogger().handlers
    return next(each for each in handlers if isinstance(each, logs.BoundedHandler))


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def written() -> Iterator[tuple[io.StringIO, Clock]]:
    """What is logged, by a clock of the test's own."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    stream, clock = io.StringIO(), Clock()
    try:
        logs.configure(stream=stream)
        bounded()._now = clock
        yield stream, clock
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def test_a_client_that_causes_lines_without_end_fills_no_disk(
    written: tuple[io.StringIO, Clock],
) -> None:
    """InitProducerId with a transactional id wrote 7.8 MB of log a second."""
    stream, clock = written
    asked = logging.getLogger("tidelog.asked")
    for number in range(5_000):
        asked.info("%s asked for what comes later", f"{number:04d}" + "é" * 200)
    asked.info("another kind")
    logging.getLogger(logs.AUDIT).warning("topic t is deleted")
    text = stream.getvalue()
    assert len(text) < logs.KIND_CHARACTERS + 2 * logs.LINE_CHARACTERS
    assert text.count("comes later") > 500
    assert "another kind" in text and "topic t is deleted" in text
    left_out = 5_000 - text.count("comes later")
    clock.now += logs.KIND_S
    for _ in range(2):
        asked.info("%s asked for what comes later", "x")
    said, *lines = stream.getvalue()[len(text) :].splitlines()
    assert f"{left_out} more lines like the next one were left out" in said
    assert len(lines) == 2


def test_every_line_of_the_audit_is_written(written: tuple[io.StringIO, Clock]) -> None:
    stream, _ = written
    for number in range(3_000):
        logging.getLogger(logs.AUDIT).warning("topic %s is deleted", f"{number:0200d}")
    assert stream.getvalue().count("is deleted") == 3_000


def test_a_line_has_an_end(written: tuple[io.StringIO, Clock]) -> None:
    stream, _ = written
    logging.getLogger("tidelog.long").info("group %s", "\n" * 1_000_000)
    assert len(stream.getvalue()) < 6 * logs.LINE_CHARACTERS
    assert "characters more" in stream.getvalue()


def test_kinds_have_a_bound(written: tuple[io.StringIO, Clock]) -> None:
    stream, _ = written
    for number in range(3 * logs.MAX_KINDS):
        logging.getLogger("tidelog.kinds").info(f"{number} " + "x" * 1_000)
    assert len(bounded()._kinds) == logs.MAX_KINDS + 1
    assert len(stream.getvalue()) < 2 * 1_100 * logs.MAX_KINDS


NAMED = {
    "broker": 3,
    "partition": TopicPartition("t", 0),
    "isr": [3, 1],
    "away": {2, 1},
    "error": ErrorCode.NOT_CONTROLLER,
    "why": ValueError('a "reason"'),
    "rack": None,
}
SENTENCE = "%(partition)s: broker %(broker)d has the ISR %(isr)s: %(error)s"


def test_named_arguments_are_fields(written: tuple[io.StringIO, Clock]) -> None:
    """U11: fields were Python objects within the sentence."""
    stream, _ = written
    logging.getLogger("tidelog.x").info(SENTENCE, NAMED)
    line = stream.getvalue()
    assert 'event="t-0: broker 3 has the ISR 3,1: NOT_CONTROLLER"' in line
    for field in ("broker=3", "partition=t-0", "isr=3,1", "away=1,2", "error=NOT_CONTROLLER"):
        assert f" {field} " in line, line
    assert r'why="a \"reason\""' in line and line.endswith(" rack=\n")


def test_lines_of_json_have_typed_fields(written: tuple[io.StringIO, Clock]) -> None:
    stream, clock = written
    logs.configure(stream=stream, line_format=logs.JSON)
    bounded()._now = clock
    logging.getLogger("tidelog.x").warning(SENTENCE, NAMED)
    logging.getLogger("tidelog.x").info("closing %s", HOSTILE, extra={"name_of_a": HOSTILE})
    logging.getLogger("tidelog.x").info("long %(name)s", {"name": "x" * 100_000})
    try:
        raise ValueError("of old")
    except ValueError:
        logging.getLogger("tidelog.x").exception("failed")
    text = stream.getvalue()
    assert text.count("\n") == 4
    shown = text.replace("\n", "")
    assert not [c for c in shown if ord(c) < 32 or ord(c) >= 127]
    first, second, third, fourth = map(json.loads, text.splitlines())
    assert list(first)[:4] == ["ts", "level", "logger", "event"]
    assert first["event"] == "t-0: broker 3 has the ISR 3,1: NOT_CONTROLLER"
    expected = {
        "level": "warning",
        "broker": 3,
        "partition": "t-0",
        "isr": [3, 1],
        "away": [1, 2],
        "error": "NOT_CONTROLLER",
        "why": 'a "reason"',
        "rack": None,
    }
    assert {name: first[name] for name in expected} == expected
    assert second["event"] == f"closing {HOSTILE}" and second["name_of_a"] == HOSTILE
    assert len(third["event"]) < logs.LINE_CHARACTERS
    assert fourth["exception"].endswith("ValueError: of old")


def fields_of(line: str) -> dict[str, str]:
    """Read a line of logfmt as strictly as its readers do: a quoted value is a string of JSON."""
    found: dict[str, str] = {}
    while line:
        name, is_there, line = line.partition("=")
        assert is_there and name not in found and not set(name) & set(' "'), name
        if line.startswith('"'):
            value, end = json.JSONDecoder().raw_decode(line)
            found[name], line = value, line[end:]
        else:
            found[name], blank, line = line.partition(" ")
            assert not set(found[name]) & set('"='), found[name]
            line = blank + line
        assert line[:1] in ("", " ")
        line = line[1:]
    return found


CLIENT_IDS = [
    HOSTILE,
    'x" level=critical logger=forged event="y',
    '\\" level=critical',
    "\\",
    '"',
    "=",
    "",
    "\x1b[2J",
    "two words\x1b\t\\",
    "a b" * 10_000,
    '"' * 30_000,
    "\\ " * 15_000,
    "\x1b " * 15_000,
    "\n" * 30_000,
]
"""What a stranger may call itself, up to 32 kB."""


@pytest.mark.parametrize("line_format", [logs.LOGFMT, logs.JSON])
@pytest.mark.parametrize("client_id", CLIENT_IDS, ids=lambda each: ascii(each[:20]))
def test_whatever_a_client_is_called_a_line_has_its_fields(
    written: tuple[io.StringIO, Clock], line_format: str, client_id: str
) -> None:
    """An escape that readers of logfmt do not know, or a quote left open by a cut, made them give
    the line up, with all that came after it."""
    stream, clock = written
    logs.configure(stream=stream, line_format=line_format)
    bounded()._now = clock
    named = {"client_id": client_id, "request": "PRODUCE", "away": [2, 1]}
    logging.getLogger("tidelog.x").warning("%(client_id)s sent %(request)s", named)
    line = stream.getvalue()
    assert line.endswith("\n") and line.count("\n") == 1
    assert len(line) < 6 * logs.LINE_CHARACTERS + 1_000
    fields = json.loads(line) if line_format == logs.JSON else fields_of(line[:-1])
    assert list(fields) == ["ts", "level", "logger", "event", "client_id", "request", "away"]
    assert (fields["level"], fields["logger"]) == ("warning", "tidelog.x")
    assert fields["request"] == "PRODUCE"
    if len(client_id) > 1_000:
        assert fields["client_id"].endswith(" characters more")
    elif line_format == logs.JSON or set(client_id) & set(' ="'):
        assert fields["client_id"] == client_id
        assert fields["event"] == f"{client_id} sent PRODUCE"
