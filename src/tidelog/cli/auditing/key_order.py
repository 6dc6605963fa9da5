"""The order of each key, as far as a log alone says it. No I/O.

Owns what is remembered of each key, and its limit. The records of a key must come in their own
order: resize epoch after resize epoch, by offset within one. Then a step back of

- the timestamp of the producer, between two records of one key and one producer, says that they
  are in another order than they were created;
- a JSON field that the application counts up for each key says the same for all producers.

Timestamps of several producers are of several clocks, and LogAppendTime is the time of the append:
neither is compared.
"""

from __future__ import annotations

import json
from collections.abc import Hashable

from tidelog.cli.refusal import Failed
from tidelog.partitioning.audit_rules import Remembered


class TooManyKeys(Failed):
    """There are more keys than the audit may remember."""

    exit_code = 2


class LastOfKeys:
    """The last value of each key. Of a key it keeps a hash of 64 bits, and a ``Remembered``.

    Two keys of one hash would be compared as one: of a million keys that is one in 30 million
    audits. It remembers at most ``most`` keys, about 250 bytes each: TooManyKeys beyond.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._last: dict[int, Remembered] = {}

    def __len__(self) -> int:
        return len(self._last)

    def step_back(self, key: Hashable, now: Remembered) -> Remembered | None:
        """Take up the next record of a key; return the one before it if this is a step back."""
        number = hash(key)
        before = self._last.get(number)
        self._last[number] = now
        if before is None:
            if len(self._last) > self._most:
                raise TooManyKeys(
                    f"more than {self._most:,} keys (each counts once for each producer): allow "
                    "more with --most-keys, at about 250 bytes each; or leave the order of keys "
                    "out with --placement-only; or archive the topic, and use the audit of the "
                    "pipeline, which sorts on disk (python -m tidelog.pipeline audit --sequence)"
                )
            return None
        return before if now.is_back_from(before) else None


def number_in(value: bytes | None, field: str) -> float | None:
    """Return the number that a JSON value has in a field; None where it has none."""
    if value is None:
        return None
    try:
        content = json.loads(value)
    except ValueError:
        return None
    number = content.get(field) if isinstance(content, dict) else None
    return number if isinstance(number, int | float) and not isinstance(number, bool) else None
