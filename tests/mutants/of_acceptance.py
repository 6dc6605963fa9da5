"""Broken rules of the acceptance of a restored store: the newest commands (0125)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

UNIT = "tests/unit/controller/test_newest_commands.py"
STORIES = "tests/regressions/test_simulated_cluster.py"

MUTANTS = (
    Mutant(
        "an acceptance elects by the log ends of registrations",
        "src/tidelog/controller/decisions/newest_commands.py::newest_command",
        "    if cluster.went_back is None:\n",
        "    if True:\n",
        f"{UNIT} {STORIES}",
    ),
    Mutant(
        "a leader's ISR changes by a store that waits for its acceptance",
        "src/tidelog/controller/decisions/isr.py::_why_not",
        "    if cluster.went_back is not None:\n",
        "    if False:\n",
        f"{UNIT} tests/wire/test_controller_sessions.py",
    ),
    Mutant(
        "a replica outside the newest ISR leads after an acceptance",
        "src/tidelog/controller/decisions/newest_commands.py::successor",
        "        members = able & set(command.isr)\n",
        "        members = set(able)\n",
        UNIT,
    ),
    Mutant(
        "a member that restarted stays in the ISR of an acceptance",
        "src/tidelog/controller/decisions/newest_commands.py::successor",
        "if x in able & own.keys())",
        "if x in able)",
        UNIT,
    ),
    Mutant(
        "a command counts although a log has a later leader epoch",
        "src/tidelog/controller/decisions/newest_commands.py::newest_command",
        "    if any(end.leader_epoch > newest.leader_epoch for end in ends.values()):\n",
        "    if False:\n",
        UNIT,
    ),
    Mutant(
        "a store that waits for its acceptance elects leaders",
        "src/tidelog/controller/decisions/settlement.py::settle_all",
        "    if cluster.went_back is not None:\n",
        "    if False:\n",
        f"{UNIT} tests/wire/test_controller_sessions.py",
    ),
    Mutant(
        "after an acceptance a member that restarted leads in the place of one that runs on",
        "src/tidelog/controller/decisions/newest_commands.py::successor",
        "        among = members & own.keys()\n",
        "        among = set()\n",
        UNIT,
    ),
    Mutant(
        "an acceptance waits for a member that has lost its replica",
        "src/tidelog/controller/decisions/newest_commands.py::successor",
        "if x not in present or x in damaged",
        "if True",
        UNIT,
    ),
    Mutant(
        "an acceptance gives up a damaged replica of a topic that the store does not know",
        "src/tidelog/controller/decisions/newest_commands.py::successor",
        "        damaged = {*damaged, *own}\n",
        "",
        UNIT,
    ),
    Mutant(
        "an acceptance gives up a damaged replica of the last member",
        "src/tidelog/controller/decisions/newest_commands.py::successor",
        "if x not in present or x in damaged",
        "if x not in present",
        UNIT,
    ),
    Mutant(
        "after an acceptance a member of an ISR below the minimum leads with less than others",
        "src/tidelog/controller/decisions/newest_commands.py::successor",
        "len(command.isr) < minimum and",
        "False and",
        UNIT,
    ),
    Mutant(
        "an acceptance elects below the minimum though all that are complete may be away",
        "src/tidelog/controller/decisions/newest_commands.py::successor",
        " and len(away) < minimum",
        "",
        UNIT,
    ),
    Mutant(
        "after an acceptance a leader has an ISR that it does not count",
        "src/tidelog/controller/decisions/newest_commands.py::successor",
        "(x for x in own[command.leader].isr if",
        "(x for x in command.isr if",
        UNIT,
    ),
    Mutant(
        "the newest command is forgotten with the broker that reported it",
        "src/tidelog/controller/decisions/soft_state.py::take_report",
        "            if former is None or former.order < command.order:\n",
        "            if False:\n",
        UNIT,
    ),
    Mutant(
        "what a replica lost while a store waits is not noted",
        "src/tidelog/controller/decisions/registration.py::register",
        "        uncertain |= lost\n",
        "",
        UNIT,
    ),
    Mutant(
        "what a replica of an unknown topic lost while a store waits is not noted",
        "src/tidelog/controller/decisions/registration.py::register",
        "            uncertain |= _held_by_name(request).keys()\n",
        "            pass\n",
        UNIT,
    ),
    Mutant(
        "an acceptance forgets what members that are away had lost",
        "src/tidelog/controller/decisions/uncertain_replicas.py::accepted",
        "if tp in leaderless}",
        "if False}",
        UNIT,
    ),
    Mutant(
        "the minimum of a topic that comes back is that of the default",
        "src/tidelog/controller/decisions/restoration.py::_minimum",
        "None if kept is None else kept[1]",
        "None",
        UNIT,
    ),
    Mutant(
        "one state that was written by hand marks the whole store as an older copy",
        "src/tidelog/controller/decisions/registration.py::_why_newer_state",
        "    if layout.state(*tp) in cluster.damaged:\n",
        "    if False:\n",
        UNIT,
    ),
    Mutant(
        "a lost store gives running brokers lower epochs than they have",
        "src/tidelog/controller/decisions/registration.py::register",
        "    if epoch < request.broker_epoch:\n",
        "    if False:\n",
        f"{UNIT} {STORIES}",
    ),
    Mutant(
        "a restarted broker reports the command of its former life as its own",
        "src/tidelog/broker/partitions/inventory.py::_command_of",
        "    if not state.is_assigned:\n",
        "    if False:\n",
        "tests/broker/test_reported_commands.py",
    ),
)
