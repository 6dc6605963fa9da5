"""The operator's page of configurations is what the tables say."""

from __future__ import annotations

import runpy
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "docs" / "operating"


def test_the_page_is_up_to_date() -> None:
    written = runpy.run_path(str(FOLDER / "write_configuration.py"))["page"]()
    assert (FOLDER / "configuration.md").read_text(encoding="utf-8") == written, (
        "run python docs/operating/write_configuration.py"
    )
