"""The sample project ``examples/shop``: its tests run with the wheel and confluent-kafka alone."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.installed import BIN, ROOT, constraints, environment, run

pytestmark = [pytest.mark.kill, pytest.mark.long(40)]

PROJECT_S = 240


def test_a_project_tests_against_a_real_broker(wheel: Path, tmp_path: Path) -> None:
    run(BIN / "uv", "venv", "-q", "--python", sys.executable, tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    # What its pyproject names: the application's and the tests' packages.
    run(BIN / "uv", "pip", "install", "-q", "--python", python, "--compile-bytecode",
        "-c", constraints(tmp_path), wheel, "pytest", "confluent-kafka")  # fmt: skip
    project = tmp_path / "shop"
    shutil.copytree(ROOT / "examples" / "shop", project)
    done = subprocess.run(
        [python, "-m", "pytest", "-v"], capture_output=True, text=True, timeout=PROJECT_S,
        cwd=project, env=environment(),
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "3 passed" in done.stdout


def test_the_plugin_is_typed_and_pytest_is_no_part_of_the_server(wheel: Path) -> None:
    """``py.typed`` is in the wheel, and so is the entry point; pytest is no dependency."""
    program = (
        "import sys, zipfile; z = zipfile.ZipFile(sys.argv[1]); names = z.namelist();"
        "meta, = (n for n in names if n.endswith('/METADATA'));"
        "points, = (n for n in names if n.endswith('/entry_points.txt'));"
        "print('tidelog/py.typed' in names); print(z.read(points).decode());"
        "print(z.read(meta).decode())"
    )
    said = run(Path(sys.executable), "-c", program, wheel)
    typed, _, rest = said.partition("\n")
    assert typed == "True"
    assert "tidelog = tidelog.testing.pytest_plugin" in rest
    required = [line for line in rest.splitlines() if line.startswith("Requires-Dist:")]
    assert required and not any("pytest" in line for line in required)
