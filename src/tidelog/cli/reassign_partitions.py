"""The ``tidelog reassign-partitions`` command: moves partitions, as kafka-reassign-partitions does.

Owns the options, and which of them go together. What an action does: see ``reassigning.actions``
and ``reassigning.watching``. Unlike Kafka's tool it cancels all moves at once, moves back, and
forecasts the cost of a plan.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import click

from tidelog.cli.connecting import (
    CONTROLLER,
    EXISTING_FILE,
    CommonOptions,
    check_goes_with,
    cluster_options,
    exactly_one_of,
    json_option,
    parameter_of,
    run,
)
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

ACTIONS = (
    *("--generate", "--execute", "--dry-run", "--verify", "--list", "--watch"),
    *("--cancel", "--cancel-all", "--revert"),
)

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
@click.option("--list", is_flag=True, help="Print the running moves as a plan.")
@click.option("--watch", is_flag=True, help="Show the progress of running moves until they end.")
@click.option("--cancel", is_flag=True, help="Stop the moves of a plan; nothing is reverted.")
@click.option("--cancel-all", is_flag=True, help="Stop all moves; nothing is reverted.")
@click.option("--revert", is_flag=True, help="Move back, also after --cancel: all, or a plan's.")
@click.option(
    "--reassignment-json-file",
    type=EXISTING_FILE,
    help='The plan: {"partitions": [{"topic": "t", "partition": 0, "replicas": [1, 2]}, …]}',
)
@click.option(
    "--topics-to-move-json-file",
    type=EXISTING_FILE,
    help='{"topics": [{"topic": "t"}, …]} (--generate)',
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
def command(asked: CommonOptions, **flags: Any) -> None:
    """Move partitions to other brokers, and show, stop and reverse such moves."""
    action = _action(flags)
    work, progress = _work(action, flags, _plan(action, flags))
    run(
        asked,
        work,
        awaited=CONTROLLER,
        progress=progress,
        says_once=lambda: True,
    )


def _action(flags: dict[str, Any]) -> str:
    """Return the one action. Raises WrongUsage for options that do not go with it."""
    # Both together: the dry run of what is then executed.
    executes = flags["execute"] and not flags["dry_run"]
    action = exactly_one_of({**flags, "execute": executes}, *ACTIONS)
    check_goes_with(flags, action, GOES_WITH)
    if action == "--generate":
        for option in ("--topics-to-move-json-file", "--broker-list"):
            if not flags[parameter_of(option)]:
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
) -> tuple[Callable[[Cluster], Awaitable[None]], Callable[[], str] | None]:
    """Return what the action does, and its progress line if it has one of its own."""
    as_json = flags["as_json"]
    targets = None if plan is None else plan.targets
    if action == "--generate":
        option = "--topics-to-move-json-file"
        topics = parse_topics(text_of_plan(flags["topics_to_move_json_file"], option), option)
        brokers = parse_brokers(flags["broker_list"])
        aware = not flags["disable_rack_aware"]
        return lambda cluster: actions.generate(cluster, topics, brokers, aware, as_json), None
    if action == "--watch":
        watched = watching.MovesWatch(targets, as_json)
        return watched.until_done, lambda: watched.waits_for
    if action == "--revert":
        return lambda cluster: actions.revert(cluster, targets, as_json), None
    if action == "--list":
        return actions.list_moves, None
    keeps = flags["preserve_throttles"]
    if action == "--cancel-all":
        return lambda cluster: actions.cancel(cluster, None, keeps, as_json), None
    assert plan is not None
    if action == "--execute":
        options = actions.Options(flags["additional"], flags["force"], flags["throttle"], as_json)
        return lambda cluster: actions.execute(cluster, plan, options), None
    if action == "--dry-run":
        return lambda cluster: actions.dry_run(cluster, plan, flags["force"], as_json), None
    if action == "--verify":
        return lambda cluster: actions.verify(cluster, plan, keeps, as_json), None
    return lambda cluster: actions.cancel(cluster, targets, keeps, as_json), None
