"""The arguments of ``tidelog server``: parsed without click, described to click for completion.

Owns their names and help. Wrong usage prints one line and exits with status 2, as for the other
commands.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from difflib import get_close_matches
from typing import TYPE_CHECKING, NoReturn

from tidelog.cli.refusal import WRONG_USAGE

if TYPE_CHECKING:
    import click

OVERRIDE, UNTIL, NEW = "--override", "--until-stdin-closes", "--new-cluster"
CHECK = "--check"
WORKERS, WORKER = "--workers", "--worker"
MOST_WORKERS = 128
"""More than any machine has cores for."""

FILE_HELP = "properties file, in the syntax of Kafka's servers"
HELP = {
    OVERRIDE: "a configuration that overrides the file; may be repeated",
    UNTIL: "also stop when standard input ends, that is, when the parent process is gone",
    WORKERS: "run so many brokers of this machine from the file, and keep them running",
    WORKER: "run only this one of the workers, from 0: for a service of its own",
    NEW: "no process of this cluster ever ran: an empty store needs no further proof of that",
    CHECK: "start nothing: exit 0 if the file is accepted, or say why it is not",
}


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return ``file``, ``override`` and the flags by name; exits for ``--help`` and errors."""
    parser = _Parser(
        prog="tidelog server",
        description="Run one process (broker, controller or both) until SIGTERM or Ctrl-C.",
    )
    parser.words = arguments
    parser.add_argument("file", metavar="FILE", help=FILE_HELP)
    parser.add_argument(
        OVERRIDE, action="append", default=[], metavar="NAME=VALUE", help=HELP[OVERRIDE]
    )
    parser.add_argument(WORKERS, type=_workers, metavar="N", help=HELP[WORKERS])
    parser.add_argument(WORKER, type=int, metavar="K", help=HELP[WORKER])
    parser.add_argument(UNTIL, action="store_true", help=HELP[UNTIL])
    parser.add_argument(NEW, action="store_true", help=HELP[NEW])
    parser.add_argument(CHECK, action="store_true", help=HELP[CHECK])
    options = parser.parse_args(arguments)
    if options.worker is not None and not 0 <= options.worker < (options.workers or 0):
        parser.error(f"{WORKER} {options.worker}: say {WORKERS} N, and a worker from 0 to N - 1")
    return options


def _workers(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if not 1 <= number <= MOST_WORKERS:
        raise argparse.ArgumentTypeError(f"{text} is not from 1 to {MOST_WORKERS}")
    return number


class _Parser(argparse.ArgumentParser):
    """Reports wrong usage in one line, with the nearest option."""

    words: list[str]

    def error(self, message: str) -> NoReturn:
        names = [*HELP, "--help"]
        meant = [
            f"; did you mean {near[0]}?"
            for word in self.words
            if word.startswith("--") and (option := word.partition("=")[0]) not in names
            for near in [get_close_matches(option, names, 1)]
            if near
        ]
        line = f"error: {message}{''.join(meant[:1])}; see `tidelog server --help`"
        print(line, file=sys.stderr)
        sys.exit(WRONG_USAGE)


def as_command(serve: Callable[[list[str]], int]) -> click.Command:
    """Return the command for click, which completes its words and then calls ``serve``."""
    import click

    def callback(
        file: str,
        override: tuple[str, ...],
        workers: int | None,
        worker: int | None,
        until_stdin_closes: bool,
        new_cluster: bool,
        check: bool,
    ) -> int:
        words = [word for pair in override for word in (OVERRIDE, pair)]
        numbers = ((WORKERS, workers), (WORKER, worker))
        words += [x for name, n in numbers if n is not None for x in (name, str(n))]
        flags = ((UNTIL, until_stdin_closes), (NEW, new_cluster), (CHECK, check))
        words += [word for word, on in flags if on]
        return serve([file, *words])

    return click.Command(
        "server",
        callback=callback,
        help="Run one process (broker, controller or both) from a properties file.",
        params=[
            click.Argument(["file"], type=click.Path()),
            click.Option([OVERRIDE], multiple=True, metavar="NAME=VALUE", help=HELP[OVERRIDE]),
            click.Option([WORKERS], type=int, metavar="N", help=HELP[WORKERS]),
            click.Option([WORKER], type=int, metavar="K", help=HELP[WORKER]),
            click.Option([UNTIL], is_flag=True, help=HELP[UNTIL]),
            click.Option([NEW], is_flag=True, help=HELP[NEW]),
            click.Option([CHECK], is_flag=True, help=HELP[CHECK]),
        ],
    )
