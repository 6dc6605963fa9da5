"""Structured logs of a process: one line for each event, in logfmt or JSON, on standard error.

Owns the format (one line for an event, whatever characters it contains) and the volume: clients
cannot fill a disk. A line has at most ``LINE_CHARACTERS``. Lines of one kind (the same text before
its arguments are inserted) have at most ``KIND_CHARACTERS`` in ``KIND_S``, and the next one says
how many were left out. No line of the audit is left out: its code bounds its lines, or each is a
change that was committed. Modules log through
``logging.getLogger(__name__)`` with named arguments, ``info("broker %(broker)s left", {"broker":
1})``: each is part of the sentence and a field of the line. No secret may be logged
(promise 32).
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Set
from enum import Enum
from typing import Any, TextIO

LINE_CHARACTERS = 8_192
"""Most characters of all values of a line, before escapes; a traceback fits."""

KIND_CHARACTERS, KIND_S = 262_144, 5.0
"""Some 1,500 lines: a failover of so many partitions leaves no line out."""

MAX_KINDS = 1_000
"""Kinds that are counted separately: there are fewer texts in the code."""

VALUE_CHARACTERS = LINE_CHARACTERS // 2
"""The longest text in a line of JSON, which a cut of the line would break."""

AUDIT = "tidelog.audit"

LOGFMT, JSON = "logfmt", "json"


def configure(
    level: str = "INFO",
    stream: TextIO | None = None,
    *,
    line_format: str = LOGFMT,
    worker: int | None = None,
) -> None:
    """Send every log record of this process to ``stream`` (standard error) as one line of
    ``LOGFMT`` or ``JSON``; with ``worker`` each line names this broker among those of a stream."""
    with _no_rich():
        import structlog

    # The order for a reader; JSON has it, too.
    first = ["ts", "level", "logger", *(("worker",) if worker is not None else ()), "event"]
    as_text = structlog.processors.LogfmtRenderer(key_order=first)
    formatter = structlog.stdlib.ProcessorFormatter(
        pass_foreign_args=True,
        foreign_pre_chain=[
            _named_arguments,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            *([_of_worker(worker)] if worker is not None else []),
            structlog.stdlib.ExtraAdder(),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            *([_as_json] if line_format == JSON else [_as_texts, as_text, _escape]),
        ],
    )
    handler = BoundedHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    logging.getLogger("asyncio").setLevel("WARNING")
    # It logs each attempt, 60 kB a minute; ``metadata.zookeeper`` logs the outcomes.
    logging.getLogger("kazoo").setLevel("ERROR")


def _of_worker(worker: int) -> Callable[[Any, str, Any], Any]:
    def name(_logger: Any, _method: str, line: Any) -> Any:
        line["worker"] = worker
        return line

    return name


def _named_arguments(_logger: Any, _method: str, line: Any) -> Any:
    """Make fields of the named arguments of a record, and put their plain forms into its
    sentence."""
    named = line.pop("positional_args", None)
    if isinstance(named, Mapping):
        fields = {name: _plain(value) for name, value in named.items()}
        line["event"] = str(line["_record"].msg) % {
            x: _as_text(argument) for x, argument in fields.items()
        }
        for name, value in fields.items():
            line.setdefault(name, value)
    return line


def _plain(value: Any) -> Any:
    """Return a value as JSON has it: no Python object is written as Python writes it."""
    if value is None or isinstance(value, bool | int | float | str):
        return value.name if isinstance(value, Enum) else value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, Set):
        return [_plain(item) for item in sorted(value)]
    # A named tuple, such as a partition, has its own text form.
    if isinstance(value, list) or type(value) is tuple:
        return [_plain(item) for item in value]
    return str(value)


def _as_text(value: Any) -> Any:
    """Return a plain value for a sentence, or for a field of logfmt."""
    if isinstance(value, list):
        return ",".join(str(_as_text(item)) for item in value)
    if isinstance(value, Mapping):
        return ",".join(f"{name}={_as_text(item)}" for name, item in value.items())
    return value


def _as_texts(_logger: Any, _method: str, line: Any) -> Any:
    """Return the values for logfmt, the long ones cut: a cut of the line would leave a quote open,
    and take the fields after it."""
    values = {name: _as_text(value) for name, value in line.items()}
    texts = [name for name, value in values.items() if isinstance(value, str)]
    left = LINE_CHARACTERS
    # The shortest first: what they leave is for the longer ones.
    for position, name in enumerate(sorted(texts, key=lambda name: len(values[name]))):
        share = left // (len(texts) - position)
        left -= min(share, len(values[name]))
        values[name] = _cut(values[name], share)
    return values


def _cut(text: str, most: int) -> str:
    if len(text) <= most:
        return text
    return f"{text[:most]}... and {len(text) - most} characters more"


def _as_json(_logger: Any, _method: str, line: Any) -> str:
    """Return one line of JSON, which escapes characters that end a line or command a terminal."""
    ordered = {name: line[name] for name in ("ts", "level", "logger", "event")}
    ordered |= {name: _plain(value) for name, value in line.items()}
    for name, value in ordered.items():
        if isinstance(value, str):
            ordered[name] = _cut(value, VALUE_CHARACTERS)
    # Delete is ASCII, and no control character for JSON.
    return json.dumps(ordered).replace("\x7f", "\\u007f")


_CONTROLS = {
    code: f"\\u{code:04x}"
    for code in (
        *range(32),
        *range(127, 160),
        *range(0x2028, 0x202F),
        *range(0x2066, 0x206A),
    )
}
"""Characters that end a line, command a terminal or reverse its text -> their escapes: as in JSON,
for readers of logfmt reject a quoted value with another escape."""


def _escape(_logger: Any, _method: str, line: Any) -> str:
    """Return a line without control characters: it has names that clients choose (N11)."""
    return str(line).translate(_CONTROLS)


class _Kind:
    # Lines of one kind: since when they are counted, their characters, how many were left out.
    __slots__ = ("characters", "left_out", "since")

    def __init__(self, now: float) -> None:
        self.since = now
        self.characters = 0
        self.left_out = 0


class BoundedHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream, of each kind at most its bound."""

    def __init__(self, stream: TextIO, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(stream)
        self._now = now
        self._kinds: dict[tuple[str, str], _Kind] = {}

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or count it. Called with the handler's lock held."""
        if record.name == AUDIT:
            super().emit(record)
            return
        kind = self._kind(record)
        now = self._now()
        left_out = 0
        if now - kind.since >= KIND_S:
            kind.since, kind.characters = now, 0
            left_out, kind.left_out = kind.left_out, 0
        if kind.characters > KIND_CHARACTERS:
            kind.left_out += 1
            return
        if left_out:
            line = "%d more lines like the next one were left out"
            more = logging.LogRecord(
                record.name,
                logging.WARNING,
                record.pathname,
                record.lineno,
                line,
                (left_out,),
                None,
            )
            super().emit(more)
        super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line after counting it."""
        line = super().format(record)
        self._kind(record).characters += len(line)
        return line

    def _kind(self, record: logging.LogRecord) -> _Kind:
        key = (record.name, str(record.msg))
        kind = self._kinds.get(key)
        if kind is None:
            if len(self._kinds) >= MAX_KINDS:
                key = ("", "")
            kind = self._kinds.setdefault(key, _Kind(self._now()))
        return kind


@contextlib.contextmanager
def _no_rich() -> Iterator[None]:
    """structlog loads rich where it is installed, for its console output: a fifth of a start."""
    if "rich" in sys.modules:
        yield
        return
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["rich"]
