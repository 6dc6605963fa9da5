"""Structured logs of a process: one line an event, in logfmt, on standard error.

Owns the format only. Modules log through ``logging.getLogger(__name__)``; what they pass as
``extra`` becomes fields of the line. No secret may be logged (promise 32).
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO


def configure(level: str = "INFO", stream: TextIO | None = None) -> None:
    """Send every log record of this process to ``stream`` (standard error) as one logfmt line."""
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
