"""What tests fetch on first use, fetched at once: Kafka's jars and the venv of the stock Spark.

`run_all` starts it beside the first parts, which need little of it; a test that needs something
waits until that is there. What only the last parts need, PySpark's zip compiled among it, is made
in the time that others leave.
"""

from __future__ import annotations

import os
import sys

from tests.spark.stock import stock_python
from tests.support.compiled_pyspark import compile_pyspark
from tests.support.java import SET_ROOTS, JavaUnavailable, class_path

PATIENT = 10
"""Tests that compute get ten times as much of a core."""


def main() -> int:
    """Fetch everything; what cannot be had is said here, and again by the tests that need it.

    Returns the exit status: 1 when something is wanting.
    """
    status = 0
    try:
        for name in SET_ROOTS:
            class_path(name)
    except JavaUnavailable as error:
        print(f"no jars for the tests: {error}", file=sys.stderr)
        status = 1
    os.nice(PATIENT)
    compile_pyspark()
    stock_python()
    return status


if __name__ == "__main__":
    sys.exit(main())
