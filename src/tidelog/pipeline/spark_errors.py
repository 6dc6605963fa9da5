"""The one line that matters in an exception of Spark.

Owns the parsing of Spark's nested error texts: the exception of a Python source is wrapped in
Spark's own text and stack traces.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from tidelog.pipeline.errors import PipelineError

_OURS = re.compile(r"^tidelog\.[\w.]*?\.(?:\w+): (.+)$", re.MULTILINE)
# Errors of the operating system: a full disk, a folder without write permission.
_OUTSIDE = re.compile(
    r"^((?:OS|IO|\w*Permission|NotADirectory|FileNotFound)Error: .+)$", re.MULTILINE
)
_PYTHON = re.compile(r"^(?:\w+\.)*(\w+(?:Error|Exception): .+)$", re.MULTILINE)
_JAVA = re.compile(r"^: [\w.$]+(?:Exception|Error): (.+)$", re.MULTILINE)
_LONGEST = 500


def one_line(error: BaseException) -> str:
    """The line of the tidelog exception within, or the first line of Spark's own."""
    text = str(error)
    matches = _OURS.findall(text) or _OUTSIDE.findall(text) or _JAVA.findall(text)
    if not matches and "Traceback (most recent call last):" in text:
        matches = _PYTHON.findall(text)
    line = matches[-1] if matches else next((one for one in text.splitlines() if one.strip()), "")
    return (line.strip() or type(error).__name__)[:_LONGEST]


@contextmanager
def in_one_line() -> Iterator[None]:
    """A context in which an exception of Spark becomes a PipelineError of one line."""
    try:
        yield
    except (PySparkException, Py4JError) as error:
        raise PipelineError(one_line(error)) from error
