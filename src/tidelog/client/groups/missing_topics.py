"""Topics that a reader waits for because they do not exist: one warning for each.

Owns which of them were named already. Not the wait: a reader looks for them again by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from tidelog.client.metadata import ClusterMetadata
from tidelog.model.errors import ErrorCode

logger = logging.getLogger(__name__)


class MissingTopics:
    """Those that one reader has named; one that was there meanwhile is named again."""

    def __init__(self) -> None:
        self._named: set[str] = set()

    def note(self, wanted: Iterable[str], view: ClusterMetadata) -> None:
        """Name the wanted topics of which metadata say that they do not exist, each once."""
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        listed = {name: view.topics[name] for name in wanted if name in view.topics}
        missing = {name for name, topic in listed.items() if topic.error == unknown}
        for name in sorted(missing - self._named):
            text = "topic %r does not exist: its records are read as soon as it is created"
            logger.warning(text, name)
        self._named = missing
