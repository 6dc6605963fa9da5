"""Topic ids as text, in the form in which Kafka writes them: 22 characters of base64 for URLs.

Owns that form. Offsets and manifests of before have the hexadecimal form of the same ids; whoever
reads one calls `normal`.
"""

from __future__ import annotations

import base64
import re
from uuid import UUID

_HEXADECIMAL = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def text_of(topic_id: UUID) -> str:
    """The text of an id; empty for the id of a cluster that has none."""
    if not topic_id.int:
        return ""
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def normal(text: str) -> str:
    """The same id in Kafka's form."""
    return text_of(UUID(text)) if _HEXADECIMAL.fullmatch(text) else text
