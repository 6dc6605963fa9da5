"""Ephemeral nodes at places of ours: they count as none (docs/decisions/0044).

Owns which ones do, and what the log says of them. That nodes of ours replace them is ``journal``.
"""

from __future__ import annotations

from tidelog.metadata import layout
from tidelog.metadata.store import Node


def counts_as_none(path: str, node: Node) -> bool:
    """Return whether a node at a place of ours is no state of a cluster: it goes with a session.

    Controllers write none such but the one that names the active; a note of a change is no state.
    """
    if not node.ephemeral or path == layout.CONTROLLER:
        return False
    return layout.is_place(path) and not path.startswith(f"{layout.CONFIG_CHANGES}/")


def why_none(path: str) -> str:
    """Return what to say of an ephemeral node at a place of ours."""
    return (
        f"The metadata node {path} is ephemeral and counts as none: it goes with the session that "
        "made it, and gives way where tidelog writes a node. Whoever wants it to stay must create "
        "it as a persistent one."
    )
