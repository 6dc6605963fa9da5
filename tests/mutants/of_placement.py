"""Broken rules of placement: racks, and machines within them."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

OF_PLANS = "tests/unit/planning"

MUTANTS = (
    Mutant(
        "two replicas of a new partition are on one machine, while its rack has others",
        "src/tidelog/planning/placement.py::_spread",
        "    for kinds in (2, 1, 0):\n",
        "    for kinds in (2, 0):\n",
        f"{OF_PLANS}/test_placement.py",
    ),
    Mutant(
        "a plan takes a replica to a machine that has one",
        "src/tidelog/planning/plan.py::span",
        "    return len(_racks(known, racks)) * ONE_RACK + len(_machines(known, racks))\n",
        "    return len(_racks(known, racks)) * ONE_RACK + len(known)\n",
        f"{OF_PLANS}/test_placement.py {OF_PLANS}/test_rebalancing.py",
    ),
    Mutant(
        "a machine counts as much as a rack",
        "src/tidelog/planning/plan.py::span",
        "    return len(_racks(known, racks)) * ONE_RACK + len(_machines(known, racks))\n",
        "    return len(_racks(known, racks)) + len(_machines(known, racks))\n",
        OF_PLANS,
    ),
)
