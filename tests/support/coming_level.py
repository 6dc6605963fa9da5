"""The level that no configuration may name yet (`model.levels.COMING`), for tests of it.

A test of whole processes gives them the level by their files: `TidelogNode` runs them with this
module as their main one then. A test with a server of its own calls `offer()` first.
"""

from __future__ import annotations

from tidelog.model import levels

LEVEL = "inter.broker.protocol.version"


def offer() -> str:
    """Let configurations of this process name the level; return its name."""
    levels.COMING_IS_OFFERED = True
    return levels.COMING.name


def offered() -> dict[str, str]:
    """Return the lines of a file that give a process the level, offered in this one."""
    return {LEVEL: offer()}


if __name__ == "__main__":
    offer()
    from tidelog.cli.main import main

    main()
