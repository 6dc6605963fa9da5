"""The logs of a process: one logfmt line an event, and nothing loaded that it does not need."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import logging, sys
from tidelog.observe import logs
logs.configure()
logging.getLogger("some.where").info("it happened", extra={"topic": "t"})
assert "rich" not in sys.modules, "a fifth of a server's start"
import rich
logs.configure()
"""


def test_a_line_has_its_fields_and_rich_is_loaded_by_who_wants_it() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert 'level=info logger=some.where event="it happened" topic=t' in line
