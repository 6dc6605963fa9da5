"""What ``tidelog topics --describe`` adds of moves, by what a cluster answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidelog.cli import many_requests
from tidelog.cli.reassigning.described import add_moves
from tidelog.client.admin.nodes import Placements
from tidelog.client.errors import VersionUnsupported


def described() -> list[dict[str, Any]]:
    """A topic of three replicas."""
    return [
        {
            "topic": "t",
            "replication_factor": 3,
            "partitions": [{"partition": 0, "replicas": [1, 2, 3]}],
        }
    ]


def test_the_replication_factor_is_that_without_the_targets_of_moves() -> None:
    """A topic of two replicas was shown with three or four while it moved."""

    class NoMoves:
        """A server without ListPartitionReassignments."""

        async def controller(self, *_: object, **__: object) -> None:
            raise VersionUnsupported("it is old")

        request = send = send_to_any = retry = controller

    placements = Placements.of(
        {
            "brokers": {},
            "reassignments": [{"topic": "t", "partition": 0, "original_replicas": [1, 2]}],
        }
    )
    shown = described()
    asyncio.run(add_moves(NoMoves(), shown, placements))  # type: ignore[arg-type]
    assert shown[0]["replication_factor"] == 2


def test_a_controller_that_does_not_respond_holds_the_description_up_for_a_moment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(many_requests, "PATIENCE_S", 0.01)

    class Silent:
        """A cluster whose controller is stopped."""

        async def controller(self, *_: object, **__: object) -> None:
            await asyncio.Event().wait()

        request = send = send_to_any = retry = controller

    shown = described()
    asyncio.run(add_moves(Silent(), shown))  # type: ignore[arg-type]
    assert shown[0]["partitions"][0]["target_replicas"] is None
    assert "moves are not shown, the controller does not respond" in capsys.readouterr().err
