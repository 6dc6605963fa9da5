"""Finds the one line that matters in what Spark raises.

Owns the reading of Spark's nested error texts: a Python source's exception comes back wrapped in
Spark's words and traces.
"""

from __future__ import annotations

import re

_OURS = re.compile(r"^tidelog\.[\w.]*?\.(?:\w+): (.+)$", re.MULTILINE)
_JAVA = re.compile(r"^: [\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_LONGEST = 500


def one_line(error: BaseException) -> str:
    """The line of the tidelog exception within, or the first line of Spark's own."""
    text = str(error)
    found = _OURS.findall(text) or _JAVA.findall(text)
    line = found[-1] if found else next((each for each in text.splitlines() if each.strip()), "")
    return (line.strip() or type(error).__name__)[:_LONGEST]
