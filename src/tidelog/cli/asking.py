"""Questions before a command deletes what only a pattern matches."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import click

from tidelog.cli.refusal import Failed
from tidelog.model.wording import counted

SHOWN = 20
"""The most topics that an error line names."""


def ask_whether_to_delete(names: Sequence[str], text: str) -> None:
    """List the topics that a pattern matches and ask for confirmation. Raises Failed."""
    many = counted(len(names), "topic")
    if not sys.stdin.isatty():
        shown = ", ".join(names[:SHOWN]) + (" …" if len(names) > SHOWN else "")
        raise Failed(f"{text!r} matches {many} ({shown}): add --yes to delete what it matches")
    click.echo(f"The pattern {text!r} matches {many}:", err=True)
    click.echo("\n".join(f"  {name}" for name in names), err=True)
    if not click.confirm("Delete what it matches, with all records?", err=True):
        raise Failed("nothing was deleted")
