"""`make test` runs every folder of tests, within the time that it may take."""

from __future__ import annotations

from pathlib import Path

from tests.support.run_all import LONGEST_S, PARTS

TESTS = Path(__file__).parent.parent
ELSEWHERE = {"tidy"}
"""What `make check` runs, which `make test` calls first."""


def test_the_budgets_stay_within_what_make_test_may_take() -> None:
    total_s = sum(part.budget_s for part in PARTS)
    said = ", ".join(f"{part.name} {part.budget_s}" for part in PARTS)
    assert total_s <= LONGEST_S, f"{total_s} s of {LONGEST_S}: {said}"


def test_every_folder_with_tests_is_a_part() -> None:
    folders = {path.parent.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    begun = {Path(argument).parts[1] for part in PARTS for argument in part.arguments[:1]}
    assert folders - ELSEWHERE == begun


def test_what_a_part_leaves_out_another_runs() -> None:
    """No file is left out of every part, and none is run twice."""
    for path in TESTS.rglob("test_*.py"):
        name = path.relative_to(TESTS.parent).as_posix()
        running = [
            part.name
            for part in PARTS
            if any(name == x or name.startswith(f"{x}/") for x in part.arguments)
            and f"--ignore={name}" not in part.arguments
        ]
        expected = 0 if path.relative_to(TESTS).parts[0] in ELSEWHERE else 1
        assert len(running) == expected, f"{name}: {running}"
