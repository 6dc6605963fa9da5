"""An environment with tidelog's wheel, and the shell of whoever uses it: no way to the sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements.lock"
BIN = Path(sys.executable).parent
LENT = Path(pyspark.__file__).parents[1]
"""The packages of this environment, Spark's among them: lent instead of copied, 400 MB."""


def environment(*folders: Path, **more: str) -> dict[str, str]:
    """What a shell of a user has: nothing that leads to the sources of the checkout."""
    ours = ("PYTHONPATH", "VIRTUAL_ENV", "PYSPARK_PYTHON", "TIDELOG_BOOTSTRAP_SERVER")
    kept = {name: value for name, value in os.environ.items() if name not in ours}
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
    return {**kept, "PATH": path, **more}


def run(*command: str | Path, timeout: float = 150) -> str:
    done = subprocess.run(
        [str(c) for c in command],
        capture_output=True,
        text=True,
        timeout=timeout,
        cwd="/",
        env=environment(),
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def lend(python: Path) -> None:
    """Let an interpreter that has the wheel find Spark and the rest here, after its own packages.

    A folder that a ``.pth`` file names is searched, but its own ``.pth`` files are not read: that
    of this environment would lead to the sources.
    """
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    Path(run(python, "-c", program).strip(), "lent.pth").write_text(f"{LENT}\n")
    program = "import tidelog, pyspark_tidelog as t; print(tidelog.__file__, t.__file__)"
    found = run(python, "-c", program)
    assert found.count(str(python.parents[1])) == 2, f"tidelog is not that of the wheel: {found}"


def constraints(folder: Path) -> Path:
    """The lock's versions without its hashes, which do not go with a constraint file.

    A marker stays: a package has another version for another Python.
    """
    pins = [line.rstrip(" \\") for line in LOCK.read_text().splitlines()
            if line and not line.startswith((" ", "#"))]  # fmt: skip
    made = folder / "constraints.txt"
    made.write_text("\n".join(pins) + "\n")
    return made
