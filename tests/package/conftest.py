"""The wheel, built once for each process of tests."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support.installed import BIN, ROOT, run


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    run(BIN / "uv", "build", "-q", "--wheel", "--no-build-isolation", "--python", sys.executable,
        "-o", folder, ROOT)  # fmt: skip
    (made,) = folder.glob("tidelog-*.whl")
    return made
