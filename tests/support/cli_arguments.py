"""Command lines of the commands, and the exit status that each gives."""

from __future__ import annotations

from typing import NamedTuple

import click
import pytest

from tidelog.cli import failures, main


class Ended(NamedTuple):
    """How a command ended: its exit status, its standard output, its standard error."""

    status: int
    out: str
    err: str


def run_command(
    command: click.Command, words: list[str], capsys: pytest.CaptureFixture[str]
) -> Ended:
    """Run one command as `tidelog` does, in this process."""
    return Ended(failures.run(command, words), *capsys.readouterr())


def status_of(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main.main(arguments)
    out, err = capsys.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


PRODUCE = {
    "client_properties": {},
    "acks": None,
    "compression_codec": None,
    "linger_ms": None,
    "batch_size": None,
    "max_memory_bytes": None,
    "create_topic": False,
}


CONSUME = {
    "client_properties": {},
    "topic": "t",
    "include": None,
    "group": None,
    "partition": (),
    "offset": None,
    "from_datetime": None,
    "format": None,
    "from_beginning": False,
    "isolation_level": None,
    "max_messages": None,
    "timeout_ms": None,
    "properties": (),
    "as_json": False,
}
