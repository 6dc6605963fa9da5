"""The commands that sentences of servers name, with the options that they need."""

from __future__ import annotations

import re
from pathlib import Path

from tidelog.model.ways_out import RESTORED

SOURCES = Path(__file__).parents[3] / "src" / "tidelog"


def test_no_server_names_a_command_that_would_be_refused_as_it_is_written() -> None:
    """`doctor restored` without the cluster secret is refused."""
    assert "--cluster-secret-file" in RESTORED
    named = re.compile(r"tidelog doctor restored(?! --cluster-secret-file)")
    servers = ("broker", "controller", "metadata", "model", "network", "storage")
    found = [
        str(path)
        for folder in servers
        for path in (SOURCES / folder).rglob("*.py")
        if named.search(path.read_text())
    ]
    assert found == []
