"""The names of deleted topics that a broker may not know to be free.

Owns the names, each with the revision of its deletion. If one broker did not know of it, its group
coordinator could take an offset that was committed in a new topic of the name for one in the former
topic, and remove it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

MANY = 1_000
"""Above this number of names, those are forgotten that every live broker knows."""


class DeletedNames:
    """The names of one controller; an earlier active controller's too, until replicas are gone."""

    def __init__(self, all_know: Callable[[int], bool]) -> None:
        """``all_know`` says whether every live broker has been sent a revision."""
        self._all_know = all_know
        self._revisions: dict[str, int] = {}

    def begin(self, names: Iterable[str], revision: int) -> None:
        """Begin with the topics that are being deleted in a state that was just loaded.

        The channels are new: a broker that has been sent everything knows every earlier deletion.
        """
        self.note({*self._revisions, *names}, revision)

    def note(self, names: Iterable[str], revision: int) -> None:
        """Note that topics were deleted with a revision."""
        self._revisions.update(dict.fromkeys(names, revision))
        if len(self._revisions) > MANY:
            self._revisions = {
                x: noted for x, noted in self._revisions.items() if not self._all_know(noted)
            }

    def is_free(self, name: str) -> bool:
        """Return whether every live broker knows that the former topic of this name is gone."""
        return name not in self._revisions or self._all_know(self._revisions[name])
