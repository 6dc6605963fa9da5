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
        "        able &= set(command.isr)\n",
        "",
        UNIT,
    ),
    Mutant(
        "a member that restarted stays in the ISR of an acceptance",
        "src/tidelog/controller/decisions/newest_commands.py::successor",
        "if x in able & holders and",
        "if x in able and",
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
