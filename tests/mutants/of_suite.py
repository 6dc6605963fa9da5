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
        "shown); order for consumers that are not ordered.\n\n**Tests:**\n\n"
        "- `tests/cluster/test_resizes.py::"
        "test_keys_keep_their_order_while_a_topic_grows_and_shrinks`\n"
        "- `tests/simulation/test_resizes.py`\n"
        "- the public clients: not yet (KIP-253, second part)\n",
        "shown); order for consumers that are not ordered.\n\n**Tests:**\n\n- soon\n",
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
