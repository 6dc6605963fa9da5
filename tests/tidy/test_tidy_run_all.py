"""`make test` runs every folder of tests, within the time that it may take."""

from __future__ import annotations

import ast
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support import run_all
from tests.support.run_all import EVERY_TEST, LONG_FORM, LONG_FORMS, LONGEST_S, PARTS, Part

TESTS = Path(__file__).parent.parent
ELSEWHERE = {"tidy"}
"""What `make check` runs, which `make test` calls first."""


def test_the_budgets_stay_within_what_make_test_may_take() -> None:
    total_s = sum(part.budget_s for part in PARTS)
    said = ", ".join(f"{part.name} {part.budget_s}" for part in PARTS)
    assert total_s <= LONGEST_S, f"{total_s} s of {LONGEST_S}: {said}"


def test_every_folder_with_tests_is_a_part() -> None:
    folders = {path.parent.relative_to(TESTS).parts[0] for path in TESTS.rglob("test_*.py")}
    begun = {
        Path(argument).parts[1]
        for part in PARTS
        for argument in part.arguments
        if not argument.startswith("--")
    }
    assert folders - ELSEWHERE == begun


def test_what_ci_skips_is_named_and_has_a_short_form() -> None:
    """``make chaos`` has the long forms of what CI runs, and nothing that CI runs in no form."""
    skipping = {
        path.relative_to(TESTS.parent).as_posix()
        for path in TESTS.rglob("test_*.py")
        if f'reason="{LONG_FORM}"' in path.read_text() and path != Path(__file__)
    }
    assert skipping == set(LONG_FORMS)
    chaos = (TESTS.parent / "Makefile").read_text().partition("\nchaos:")[2].partition("\n\n")[0]
    assert "TIDELOG_CHAOS=long" in chaos and "tests/chaos" in chaos
    for short in LONG_FORMS.values():
        text = (TESTS.parent / short).read_text()
        functions = [x for x in text.split("\n\n\n") if "def test_" in x]
        assert any(LONG_FORM not in each for each in functions), f"{short} has no short form"


def test_a_test_is_skipped_for_what_the_machine_lacks_and_for_nothing_else() -> None:
    """A constant reason holds on every machine: such a case is left out of the parameters."""
    for path in TESTS.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.skip":
                place = f"{path.relative_to(TESTS)}:{call.lineno}"
                assert not isinstance(call.args[0], ast.Constant), f"{place}: CI never runs this"


SKIPS = (
    (f"SKIPPED [1] tests/chaos/test_kill_cluster.py:61: {LONG_FORM}", True),
    ("SKIPPED [2] tests/chaos/test_kill_cluster.py:61: no Maven", False),
    (f"SKIPPED [1] tests/cluster/test_ack_gap.py:20: {LONG_FORM}", False),
    ("SKIPPED [1] tests/conftest.py:125: Kafka's tools need Maven: mvn is not there", False),
    ("SKIPPED [1] tests/wire/test_codec_second_opinions.py: could not import 'kio'", False),
    ("12 passed, 3 skipped in 2.00s", True),
)


@pytest.mark.parametrize(("line", "is_fine"), SKIPS)
def test_a_skip_that_is_not_named_is_found(line: str, is_fine: bool) -> None:
    assert run_all.unnamed_skips([line + "\n"]) == ([] if is_fine else [line])


def test_in_ci_a_skip_fails_and_so_does_what_cannot_be_fetched(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["SKIPPED [1] tests/conftest.py:125: no Maven\n", "1 passed, 1 skipped in 1 s\n"]
    monkeypatch.setattr(run_all, "PARTS", (Part("package", ("tests/package",), 15),))
    monkeypatch.setattr(run_all, "run", lambda part: (0, lines, 1.0))
    monkeypatch.setattr(sys, "argv", ["run_all"])
    for fetched, strict, status in ((0, "", 0), (0, "1", 1), (1, "", 0), (1, "1", 1)):
        monkeypatch.setenv(EVERY_TEST, strict)
        preparing = SimpleNamespace(wait=lambda _, status=fetched: status)
        monkeypatch.setattr(run_all.subprocess, "Popen", lambda *_, found=preparing: found)
        assert run_all.main() == status
        said = capsys.readouterr().out
        assert ("no Maven" in said, "was fetched" in said) == (
            bool(strict),
            bool(strict and fetched),
        )


def test_ci_asks_for_every_test() -> None:
    assert f"export {EVERY_TEST}=1" in (TESTS.parent / ".ci" / "run").read_text()


def test_what_a_part_leaves_out_another_runs() -> None:
    """No file is left out of every part, and none is run twice."""
    for path in TESTS.rglob("test_*.py"):
        name = path.relative_to(TESTS.parent).as_posix()
        at = {name, *(each.as_posix() for each in path.relative_to(TESTS.parent).parents)}
        running = [
            part.name
            for part in PARTS
            if at.intersection(part.arguments)
            and not at.intersection(x.removeprefix("--ignore=") for x in part.arguments if "=" in x)
        ]
        expected = 0 if path.relative_to(TESTS).parts[0] in ELSEWHERE else 1
        assert len(running) == expected, f"{name}: {running}"


def test_a_part_that_hangs_still_says_what_failed_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "test_a.py").write_text("def test_wrong():\n    assert 0\n")
    (tmp_path / "test_b.py").write_text(
        "import threading\n\n\ndef test_hangs():\n    threading.Event().wait()\n"
    )
    # pytest itself starts slowly beside others.
    monkeypatch.setattr(run_all, "LEAST_PATIENCE_S", 30)
    part = Part("hangs", (str(tmp_path),), 1, 1)
    ignoring = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a job in the background has it
    try:
        status, lines, seconds = run_all.run(part)
    finally:
        signal.signal(signal.SIGINT, ignoring)
    assert status and seconds > part.patience_s
    assert any("test_wrong" in line for line in lines if line.startswith("FAILED "))
