"""Names of topics and groups in the commands: what is suggested, and what a shell completes.

Runs against Apache Kafka too (`TIDELOG_TEST_TARGET=kafka`).
"""

from __future__ import annotations

from collections.abc import Callable

import confluent_kafka
import pytest

from tests.support.cli_arguments import status_of
from tests.support.clients import create_topic
from tests.support.command_runs import Said, said_by
from tidelog.cli import main

Tide = Callable[..., Said]


@pytest.fixture
def tide(bootstrap: str, capfd: pytest.CaptureFixture[str]) -> Tide:
    return lambda *arguments: said_by(bootstrap, capfd, *arguments)


def commit(bootstrap: str, group: str, topic: str) -> None:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    where = confluent_kafka.TopicPartition(topic, 0, 0)
    consumer.commit(offsets=[where], asynchronous=False)
    consumer.close()


def completed(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    monkeypatch.setenv("COMP_WORDS", " ".join(["tidelog", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    monkeypatch.setenv(main.COMPLETE, "bash_complete")
    status, out, err = status_of([], capsys)
    assert (status, err) == (0, "")
    return [line.removeprefix("plain,") for line in out.splitlines() if line]


def test_every_command_suggests_the_name_that_was_meant(
    tide: Tide, bootstrap: str, topic_name: str
) -> None:
    """The kind: one command says "did you mean", another only that the topic does not exist."""
    group = f"{topic_name}-readers"
    create_topic(bootstrap, topic_name)
    commit(bootstrap, group, topic_name)
    wrong = f"{topic_name}x"
    told = (f"topic {wrong!r}", f"did you mean {topic_name!r}?")
    tide("topics", "--describe", "-t", wrong).failed(*told)
    tide("topics", "--alter", "-t", wrong, "--partitions", "9").failed(*told)
    tide("topics", "--delete", "-t", wrong).failed(*told)
    tide("configs", "--describe", "-t", wrong).failed(*told)
    tide("configs", "--alter", "-t", wrong, "--add-config", "retention.ms=1").failed(*told)
    tide("consume", "-t", wrong, "--timeout-ms", "1").failed(*told)
    tide("doctor", "replicas", "-t", wrong).failed(*told)
    reset = ("groups", "--reset-offsets", "--group", group, "--to-earliest", "--dry-run")
    tide(*reset, "-t", wrong).failed(*told)
    misspelled = f"{topic_name}-reader"
    tide("groups", "--describe", "--group", misspelled).failed(
        f"group {misspelled!r}", f"did you mean {group!r}?"
    )
    tide("groups", "--delete", "--group", misspelled).failed(f"did you mean {group!r}?")
    # Nothing is like it: the advice stays.
    tide("topics", "--describe", "-t", "qqqqqqqq").failed("`tidelog topics --list`")


def test_a_pattern_that_is_no_regular_expression_gets_the_one_that_matches(
    tide: Tide, bootstrap: str, topic_name: str
) -> None:
    create_topic(bootstrap, topic_name)
    pattern = f"{topic_name[:-2]}*"
    told = ("regular expression", topic_name, repr(f"{topic_name[:-2]}.*"))
    tide("topics", "--describe", "-t", pattern).failed(*told)
    tide("doctor", "replicas", "-t", pattern).failed(*told)
    tide("consume", "--include", pattern, "--timeout-ms", "1").failed(*told)


def test_a_shell_completes_the_names_of_topics_and_groups(
    bootstrap: str,
    topic_name: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    group = f"{topic_name}-readers"
    create_topic(bootstrap, topic_name)
    commit(bootstrap, group, topic_name)
    begun = topic_name[:-1]
    at = ["-b", bootstrap]
    for words, offered in (
        (["topics", *at, "--describe", "-t", begun], [topic_name]),
        (["consume", *at, "--topic", f"other,{begun}"], [f"other,{topic_name}"]),
        (["consume", *at, "--group", begun], [group]),
        (["groups", *at, "--describe", "--group", begun], [group]),
        (["doctor", *at, "replicas", "-t", begun], [topic_name]),
        (["topics", "-b", "127.0.0.1:1", "-t", begun], []),
    ):
        assert completed(words, monkeypatch, capsys) == offered, words
    monkeypatch.setenv("TIDELOG_BOOTSTRAP_SERVER", bootstrap)
    assert completed(["produce", "-t", begun], monkeypatch, capsys) == [topic_name]
