"""`tidelog topics --delete`: which topics a name or a pattern deletes, without a terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from tests.support.cli_arguments import Ended, run_command
from tidelog.cli import topics
from tidelog.client.metadata import Topic


def delete(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: list[str]
) -> tuple[Ended, list[str]]:
    """Run ``tidelog topics`` where a, b and an internal topic are; return what was deleted."""
    there = {
        name: Topic(
            name, topic_id=UUID(int=1), internal=name.startswith("__"), partitions={}, error=0
        )
        for name in ("__consumer_offsets", "a", "b")
    }
    deleted: list[str] = []

    class There:
        async def all_topics(self) -> Any:
            return SimpleNamespace(topics=there)

    async def delete_topics(_: There, names: list[str]) -> dict[str, None]:
        deleted.extend(names)
        return dict.fromkeys(names)

    def run(_server: str, work: Callable[[Any], Coroutine[Any, Any, None]], **_: Any) -> None:
        asyncio.run(work(There()))

    monkeypatch.setattr(topics, "run", run)
    monkeypatch.setattr("tidelog.client.admin.topics.delete_topics", delete_topics)
    words = ["--bootstrap-server", "localhost:1", "--delete", *words]
    return run_command(topics.command, words, capsys), deleted


@pytest.mark.parametrize(
    ("words", "status", "deleted", "said"),
    [
        (["--topic", ".*"], 1, [], "matches 2 topics (a, b): add --yes"),
        (["--topic", "[ab]"], 1, [], "add --yes"),
        (["--topic", ".*", "--yes"], 0, ["a", "b"], "internal topics are skipped"),
        (["--topic", "a,b"], 0, ["a", "b"], "Deleted topic b."),
        # One match had been deleted at once.
        (["--topic", "[a]"], 1, [], "matches 1 topic (a): add --yes"),
        (["--topic", "a.*,b"], 1, [], "matches 1 topic (a): add --yes"),
        (["--topic", "a.*,b", "--yes"], 0, ["a", "b"], "Deleted topic a."),
        # Its deletion takes all committed offsets.
        (["--topic", "__consumer_offsets"], 1, [], "the offsets of all groups): add --force"),
        (["--topic", "__consumer_offsets,.*", "--yes"], 1, [], "add --force"),
        (["--topic", "__consumer_offsets", "--yes"], 1, [], "add --force"),
        (["--topic", "__consumer_offsets", "--force"], 0, ["__consumer_offsets"], "Deleted topic"),
        (["--topic", ".*", "--yes", "--force"], 0, ["a", "b"], "internal topics are skipped"),
        (["--topic", "__.*"], 0, [], "unless they are named: __consumer_offsets"),
        (["--topic", "c.*"], 1, [], "UNKNOWN_TOPIC_OR_PARTITION"),
    ],
)
def test_what_is_deleted_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    status: int,
    deleted: list[str],
    said: str,
) -> None:
    """U2: a pattern deleted all that it matched at once."""
    ended, found = delete(monkeypatch, capsys, words)
    assert (ended.status, found) == (status, deleted), ended
    assert said in ended.out + ended.err
