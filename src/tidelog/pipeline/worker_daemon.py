"""The parent of Spark's Python workers, with PySpark from its package instead of from its zip.

Owns the order of the import path only. Spark puts `pyspark/python/lib/pyspark.zip` first, and every
worker compiles the modules of a zip again, which takes a second or more. When that zip is part of
an installed `pyspark` package, the package has the same modules, compiled.
"""

from __future__ import annotations

import sys
from pathlib import Path

_ZIP = "pyspark.zip"


def prefer_package(path: list[str]) -> list[str]:
    """The import path without the zip, if it holds the package that the zip was made from."""
    folders = set(path)

    def is_needless(entry: str) -> bool:
        place = Path(entry)
        return (
            place.name == _ZIP
            and place.parts[-4:-1] == ("pyspark", "python", "lib")
            and str(place.parents[3]) in folders
        )

    return [entry for entry in path if not is_needless(entry)]


if __name__ == "__main__":
    sys.path[:] = prefer_package(sys.path)
    from pyspark.daemon import manager

    manager()
