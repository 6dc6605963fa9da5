"""Structured logs of a process: one line an event, in logfmt, on standard error.

Owns the format only. Modules log through ``logging.getLogger(__name__)``; what they pass as
``extra`` becomes fields of the line. No secret may be logged (promise 32).
"""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from typing import TextIO


def configure(level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send every log record of this process to ``stream`` (standard error) as one logfmt line."""
    with _no_rich():
        import structlog

    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="ts"),
            structlog.stdlib.add_log_level,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(),
        ],
        processors=[
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.LogfmtRenderer(key_order=["ts", "level", "logger", "event"]),
        ],
    )
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(formatter)
    root = logging.getLogger()
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level)
    logging.getLogger("asyncio").setLevel("WARNING")


@contextlib.contextmanager
def _no_rich() -> Iterator[None]:
    """structlog loads rich where it is installed, for its console output: a fifth of a start."""
    if "rich" in sys.modules:
        yield
        return
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["rich"]
