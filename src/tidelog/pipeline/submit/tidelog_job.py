"""The jobs for spark-submit: `spark-submit "$(python -m tidelog.pipeline file)" JOB ...`.

A file in a folder of its own: Spark puts the folder of what it runs on the import path.
"""

from __future__ import annotations

import sys

from tidelog.pipeline.__main__ import run

if __name__ == "__main__":
    sys.exit(run())
