"""`tidelog` that logs everything that any part of it would ever say, below what it says at all."""

from __future__ import annotations

import logging

from tidelog.cli.main import main
from tidelog.observe import logs

_configure = logs.configure


def configure(*, line_format: str = logs.LOGFMT, worker: int | None = None) -> None:
    """Log the words for debugging, too, of each library."""
    _configure("DEBUG", line_format=line_format, worker=worker)
    for library in ("asyncio", "kazoo"):
        logging.getLogger(library).setLevel("DEBUG")
    logging.getLogger(__name__).debug("everything is said")


logs.configure = configure  # type: ignore[assignment]
if __name__ == "__main__":
    main()
