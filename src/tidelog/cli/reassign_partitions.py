"""The ``tidelog reassign-partitions`` command: moves partitions, as kafka-reassign-partitions does.

Owns the options, and which of them go together. What an action does: see ``reassigning.actions``
and ``reassigning.watching``. Unlike Kafka's tool it cancels all moves at once, moves back, and
forecasts the cost of a plan.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click

from tidelog.cli.connecting import CONTROLLER, cluster_options, exactly_one, json_option, run
from tidelog.cli.reassigning import actions, watching
from tidelog.cli.reassigning.plan_file import (
    PlanFile,
    parse_brokers,
    parse_plan,
    parse_topics,
    text_of_plan,
)
from tidelog.cli.refusal import WrongUsage
from tidelog.client.cluster import Cluster

_file = click.Path(exists=True, dir_okay=False, path_type=Path)

NEEDS_PLAN = ("--execute", "--dry-run", "--verify", "--cancel")
TAKES_PLAN = (*NEEDS_PLAN, "--revert", "--watch")

GOES_WITH = {
    "--reassignment-json-file": TAKES_PLAN,
    "--topics-to-move-json-file": ("--generate",),
    "--broker-list": ("--generate",),
    "--disable-rack-aware": ("--generate",),
    "--additional": ("--execute", "--dry-run"),
    "--throttle": ("--execute", "--dry-run"),
    "--preserve-throttles": ("--verify", "--cancel", "--cancel-all"),
    "--force": ("--execute", "--dry-run"),
}
"""The actions with which an option goes."""


@click.command("reassign-partitions")
@cluster_options
@click.option("--generate", is_flag=True, help="Propose replicas of topics on --broker-list.")
@click.option("--execute", is_flag=True, help="Print the rollback, and start the moves of a plan.")
@click.option("--dry-run", is_flag=True, help="Show what a plan would copy, and change nothing.")
@click.option("--verify", is_flag=True, help="Show which partitions of a plan have moved.")
@click.option("--list", "list_", is_flag=True, help="Print the running moves as a plan.")
@click.option("--watch", is_flag=True, help="Show the progress of running moves until they end.")
@click.option("--cancel", is_flag=True, help="Stop the moves of a plan; nothing is reverted.")
@click.option("--cancel-all", is_flag=True, help="Stop all moves; nothing is reverted.")
@click.option("--revert", is_flag=True, help="Move back, also after --cancel: all, or a plan's.")
@click.option(
    "--reassignment-json-file",
    type=_file,
    help='The plan: {"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}, …]}',
)
@click.option(
    "--topics-to-move-json-file", type=_file, help='{"topics": [{"topic": "t"}, …]} (--generate)'
)
@click.option("--broker-list", metavar="1,2,3", help="The brokers of the proposal (--generate).")
@click.option("--disable-rack-aware", is_flag=True, help="Ignore racks in the proposal.")
@click.option("--additional", is_flag=True, help="With --execute: while other moves run, too.")
@click.option(
    "--throttle",
    type=click.IntRange(1, 2**63 - 1),
    metavar="BYTES",
    help="With --execute: the bytes per second that a broker copies for moves, all together.",
)
@click.option("--preserve-throttles", is_flag=True, help="With --verify or --cancel: keep them.")
@click.option("--force", is_flag=True, help="Start although a target lacks room for copies.")
@json_option
def command(bootstrap_server: str | None, command_config: Path | None, **flags: Any) -> None:
    """Move partitions to other brokers, and show, stop and reverse such moves."""
    action = _action(flags)
    work, shows_itself = _work(action, flags, _plan(action, flags))
    run(
        bootstrap_server,
        work,
        command_config=command_config,
        awaited=CONTROLLER,
        progress=(lambda: "") if shows_itself else None,
    )


def _action(flags: dict[str, Any]) -> str:
    """Return the one action. Raises WrongUsage for options that do not go with it."""
    action = exactly_one(
        {
            "--generate": flags["generate"],
            # Both together: the dry run of what is then executed.
            "--execute": flags["execute"] and not flags["dry_run"],
            "--dry-run": flags["dry_run"],
            "--verify": flags["verify"],
            "--list": flags["list_"],
            "--watch": flags["watch"],
            "--cancel": flags["cancel"],
            "--cancel-all": flags["cancel_all"],
            "--revert": flags["revert"],
        }
    )
    for option, actions_of in GOES_WITH.items():
        given = flags[option.removeprefix("--").replace("-", "_")]
        if given and action not in actions_of:
            raise WrongUsage(f"{option} goes with {' or '.join(actions_of)}, not with {action}")
    if action == "--generate":
        for option in ("--topics-to-move-json-file", "--broker-list"):
            if not flags[option.removeprefix("--").replace("-", "_")]:
                raise WrongUsage(f"--generate needs {option}")
    return action


def _plan(action: str, flags: dict[str, Any]) -> PlanFile | None:
    """Return the plan of the file, read before any request; None without a file."""
    file, option = flags["reassignment_json_file"], "--reassignment-json-file"
    if file is None:
        if action in NEEDS_PLAN:
            raise WrongUsage(f"{action} needs {option}")
        return None
    return parse_plan(text_of_plan(file, option), option)


def _work(
    action: str, flags: dict[str, Any], plan: PlanFile | None
) -> tuple[Callable[[Cluster], Awaitable[None]], bool]:
    """Return what the action does, and whether it shows its progress itself."""
    as_json = flags["as_json"]
    targets = None if plan is None else plan.targets
    if action == "--generate":
        option = "--topics-to-move-json-file"
        topics = parse_topics(text_of_plan(flags["topics_to_move_json_file"], option), option)
        brokers = parse_brokers(flags["broker_list"])
        aware = not flags["disable_rack_aware"]
        return lambda cluster: actions.generate(cluster, topics, brokers, aware, as_json), False
    if action == "--watch":
        return lambda cluster: watching.watch(cluster, targets, as_json), True
    if action == "--revert":
        return lambda cluster: actions.revert(cluster, targets, as_json), False
    if action == "--list":
        return actions.list_moves, False
    keeps = flags["preserve_throttles"]
    if action == "--cancel-all":
        return lambda cluster: actions.cancel(cluster, None, keeps, as_json), False
    assert plan is not None
    if action == "--execute":
        options = actions.Options(flags["additional"], flags["force"], flags["throttle"], as_json)
        return lambda cluster: actions.execute(cluster, plan, options), False
    if action == "--dry-run":
        return lambda cluster: actions.dry_run(cluster, plan, flags["force"], as_json), False
    if action == "--verify":
        return lambda cluster: actions.verify(cluster, plan, keeps, as_json), False
    return lambda cluster: actions.cancel(cluster, targets, keeps, as_json), False
