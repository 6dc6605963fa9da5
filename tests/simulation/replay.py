"""Runs a program that simulates in processes of its own: a seed must replay byte for byte in each.

Owns the processes; what is compared is the tests'.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEADLINE_S = 600
"""It only ends a hang: on a busy machine a run takes many times its seconds."""


def in_other_processes(program: str, *hash_seeds: int) -> set[str]:
    """What a Python program prints, run once with each seed of Python's hashes.

    AssertionError with its standard error when it fails.
    """
    said = set()
    for hash_seed in hash_seeds:
        done = subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": str(hash_seed), "PYTHONPATH": str(ROOT)},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        said.add(done.stdout.strip())
    return said
