"""Where a job's JSON goes: a file, or standard output, which it then has for itself.

Owns the two options --json and --json-file. Spark's JVM, its workers and their libraries write
where they like; with --json all that goes to standard error. Only what started this process could
still write beside it: under spark-submit that is a JVM, and --json-file is for that.
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
    """Within, what takes JSON and nothing else; None when no JSON is asked for.

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
    """Standard output; who else writes there, here or in a child, reaches standard error."""
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
