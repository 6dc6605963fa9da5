"""The JSON output of a job: a file, or standard output without any other text.

Owns the two options --json and --json-file. With --json all output of Spark's JVM, its workers and
their libraries goes to standard error. Only the parent of this process could still write to
standard output: under spark-submit that is a JVM, so use --json-file there.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


@contextmanager
def json_output(as_json: bool, file: str | None) -> Iterator[TextIO | None]:
    """A context with the stream for JSON; None when no JSON was requested.

    Raises OSError for a file that cannot be written.
    """
    if file is not None:
        with Path(file).open("w", encoding="utf-8") as out:
            yield out
    elif as_json:
        with _own_standard_output() as out:
            yield out
    else:
        yield None


@contextmanager
def _own_standard_output() -> Iterator[TextIO]:
    """Standard output; all other writes to it, here or in a child, go to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(kept), "w", encoding="utf-8") as out:
            yield out
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
