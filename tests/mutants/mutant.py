"""A mutant: one rule of the product that is broken, and the tests that must find it."""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A small replacement of text in one file."""

    name: str
    """What goes wrong, in a few words; a number of the review in front of those that it named."""
    file: str
    """From the root of the checkout."""
    old: str
    """Stands there exactly once."""
    new: str
    tests: str
    """Those of its package, as pytest takes them, parted by blanks."""
