"""Broken rules of the suite itself: what it must notice of its own pages and parts."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "T10: a folder of tests is no part of make test",
        "tests/support/run_all.py",
        '    Part("package", ("tests/package",), 60, 2),\n',
        "",
        "tests/tidy/test_tidy_run_all.py",
    ),
    Mutant(
        "T14: a promise has neither tests nor not yet",
        "docs/promises.md",
        "has the newest metadata.\n\n**Tests:**\n\n"
        "- cluster seeds\n- `tests/broker/test_stray_commands.py`\n",
        "has the newest metadata.\n\n**Tests:**\n\n- soon\n",
        "tests/tidy/test_tidy_promises.py",
    ),
    Mutant(
        "T14: a promise names a test that is not there",
        "docs/promises.md",
        "`tests/broker/test_stray_commands.py`",
        "`tests/unit/test_broker_strange_orders.py`",
        "tests/tidy/test_tidy_promises.py",
    ),
)
