"""The ``tidelog`` command: the table of its subcommands, each imported only when it runs.

Owns the table. Not what a command does: see its module. ``tidelog server`` imports neither click
nor rich: a server does not need them and would start later.
"""

from __future__ import annotations

import importlib
import os
import sys
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import click

COMMANDS = {
    "server": "Run one process (broker, controller or both) from a properties file.",
    "up": "Run a development cluster.",
    "topics": "Create, list, describe, change and delete topics.",
    "groups": "List, describe and delete groups; reset and delete their offsets.",
    "transactions": "List, describe and end transactions.",
    "configs": "Show and change dynamic configurations.",
    "autoscale": "Show what topics with partitions.auto would be resized to, and why.",
    "reassign-partitions": "Move partitions to other brokers.",
    "elect-leaders": "Elect preferred leaders, or unclean ones.",
    "delete-records": "Delete the records of partitions below an offset.",
    "produce": "Send records, one per line of standard input.",
    "consume": "Print the records of topics.",
    "audit": "Check where the keys of a topic lie, and their order, from its log alone.",
    "doctor": "Report problems and what to do about them; back up the metadata store.",
}
"""The commands, each in the module of its name (``-`` as ``_``), with the line of ``--help``."""


COMPLETE = "_TIDELOG_COMPLETE"
"""The environment variable that shell completion sets; click's convention."""


def main(arguments: list[str] | None = None) -> None:
    """Run ``tidelog ARGUMENTS`` (default: those of the process) and exit with its status."""
    words = sys.argv[1:] if arguments is None else arguments
    if instruction := os.environ.get(COMPLETE):
        from click.shell_completion import shell_complete

        sys.exit(shell_complete(_commands(), {}, "tidelog", COMPLETE, instruction))
    if words[:1] == ["server"]:
        sys.exit(_serve(words[1:]))
    from tidelog.cli import failures

    sys.exit(failures.run(_commands(), words))


def _serve(arguments: list[str]) -> int:
    from tidelog.cli.server import main as serve

    return serve(arguments)


def _commands() -> click.Group:
    import click

    class Lazy(click.Group):
        """A group that imports a command when it runs, and none for ``--help``."""

        def list_commands(self, ctx: click.Context) -> list[str]:
            return list(COMMANDS)

        def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
            if cmd_name not in COMMANDS:
                return None
            if cmd_name == "server":
                from tidelog.cli.server_arguments import as_command

                return as_command(_serve)
            module = importlib.import_module(f"tidelog.cli.{cmd_name.replace('-', '_')}")
            command: click.Command = module.command
            return command

        def resolve_command(
            self, ctx: click.Context, args: list[str]
        ) -> tuple[str | None, click.Command | None, list[str]]:
            name = args[0]
            if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
                near = get_close_matches(name, COMMANDS, 1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                ctx.fail(f"No such command {name!r}.{hint}")
            return super().resolve_command(ctx, args)

        def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
            with formatter.section("Commands"):
                formatter.write_dl(list(COMMANDS.items()))

    from tidelog.version import __version__

    group = Lazy(
        name="tidelog",
        help="A Kafka-compatible replicated log. `tidelog COMMAND --help` shows a command's flags.",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    return click.version_option(__version__, prog_name="tidelog", message="%(prog)s %(version)s")(
        group
    )


if __name__ == "__main__":
    main()
