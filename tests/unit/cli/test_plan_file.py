"""The plan file of reassignments: what is read, and how a wrong one is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidelog.cli.reassigning import plan_file
from tidelog.cli.reassigning.plan_file import (
    PlanFile,
    parse_brokers,
    parse_plan,
    parse_topics,
    plan_data,
    plan_text,
    text_of_plan,
)
from tidelog.cli.refusal import WrongUsage
from tidelog.client.admin.log_dirs import Replica
from tidelog.model.topics import TopicPartition

T0 = TopicPartition("t", 0)


def plan(*rows: dict[str, object], **more: object) -> str:
    return json.dumps({"partitions": list(rows), **more})


def row(**changes: object) -> dict[str, object]:
    return {"topic": "t", "partition": 0, "replicas": [1, 2], **changes}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("  \n", "the file is empty"),
        ("{", "truncated"),
        ("[]", "Expected `object`, got `array`"),
        ("Current partition replica assignment\n{}", "keep the JSON of the proposal only"),
        ("null", "Expected `object`, got `null`"),
        ("{}", "missing required field `partitions`"),
        ("[" * 100_000, "this is not the JSON"),
        ('{"partitions": {}}', "Expected `array`, got `object` - at `$.partitions`"),
        (plan(), "names no partition"),
        (plan(row(), version=2), "has version 2, and this tool reads up to 1"),
        (plan(row(), version=0), "there is no version 0"),
        (plan(row(), version="1"), "Expected `int`, got `str` - at `$.version`"),
        (plan(row(), {"topic": "t"}), "missing required field `partition` - at `$.partitions[1]`"),
        (plan(row(topic=None)), "Expected `str`, got `null` - at `$.partitions[0].topic`"),
        (plan(row(partition=1.5)), "at `$.partitions[0].partition`"),
        (plan(row(partition=True)), "at `$.partitions[0].partition`"),
        (plan(row(partition=-1)), "t--1 (partitions[0]): a partition is numbered from 0"),
        (plan(row(replicas=None)), "Expected `array`, got `null`"),
        (plan(row(replicas=[])), 'its "replicas" are empty; --cancel ends a move'),
        (plan(row(replicas=["1"])), "at `$.partitions[0].replicas[0]`"),
        (plan(row(replicas=[1, -2])), "-2 is no broker id"),
        (plan(row(replicas=[2, 1, 2])), "broker 2 is named more than once"),
        (plan(row(), row(replicas=[3])), "t-0 (partitions[1]): it is named more than once"),
        (
            plan(row(log_dirs=["any"])),
            "t-0 (partitions[0]): Size of replicas list [1, 2] is different from size of log dirs "
            "list [any]",
        ),
        (plan(row(log_dirs=[])), "is different from size of log dirs list []"),
        (plan(row(log_dirs=["any", "d"])), "log directory 'd' is neither \"any\" nor an absolute"),
        (plan(row(log_dirs=["", "any"])), "log directory '' is neither"),
        (plan(row(log_dirs=["any", None])), "at `$.partitions[0].log_dirs[1]`"),
    ],
)
def test_a_plan_that_is_refused(text: str, said: str) -> None:
    with pytest.raises(WrongUsage) as refused:
        parse_plan(text)
    assert said in str(refused.value)
    assert str(refused.value).startswith("--reassignment-json-file: ")
    assert len(str(refused.value).splitlines()) == 1


def test_plans_that_are_read() -> None:
    both = parse_plan(plan(row(), row(partition=1, log_dirs=["any", "any"]), version=1))
    assert both == PlanFile({T0: (1, 2), TopicPartition("t", 1): (1, 2)}, {})
    # Fields that this tool does not know are left out, as in Kafka.
    assert parse_plan(plan(row(note="x"), comment=[1])).targets == {T0: (1, 2)}
    assert parse_plan(plan(row(log_dirs=["any", "/d"]))).log_dirs == {Replica(T0, 2): "/d"}


@given(
    st.dictionaries(
        st.builds(TopicPartition, st.text(min_size=1), st.integers(0, 99)),
        st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5, unique=True).map(tuple),
        min_size=1,
    )
)
def test_what_is_written_is_read(targets: plan_file.Targets) -> None:
    text = plan_text(targets)
    assert len(text.splitlines()) == 1 or "\n" not in text
    assert parse_plan(text) == PlanFile(targets, {})
    assert json.loads(text) == plan_data(targets)
    chosen = {Replica(where, some[-1]): "/d" for where, some in targets.items()}
    assert parse_plan(plan_text(targets, chosen)) == PlanFile(targets, chosen)


def test_the_written_form_is_kafkas() -> None:
    assert plan_text({T0: (2, 1)}) == (
        '{"version":1,"partitions":[{"topic":"t","partition":0,"replicas":[2,1],'
        '"log_dirs":["any","any"]}]}'
    )


def test_a_file_of_50_mb_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    with file.open("wb") as out:
        out.truncate(50_000_000)
    with pytest.raises(WrongUsage, match="has 50000000 bytes, and a plan may have 33554432"):
        text_of_plan(file, "--reassignment-json-file")
    file.write_text("{}")
    assert text_of_plan(file, "--reassignment-json-file") == "{}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "the file is empty"),
        ("{}", "missing required field `topics`"),
        ('{"topics": []}', "names no topic"),
        ('{"topics": ["t"]}', "Expected `object`, got `str` - at `$.topics[0]`"),
        ('{"topics": [{"topic": "t"}, {"topic": "t"}]}', "topic 't' is named more than once"),
        ('{"topics": [{"topic": "t"}], "version": 3}', "has version 3"),
    ],
)
def test_topics_to_move_that_are_refused(text: str, said: str) -> None:
    with pytest.raises(WrongUsage) as refused:
        parse_topics(text)
    assert said in str(refused.value)


def test_topics_to_move() -> None:
    assert parse_topics('{"topics": [{"topic": "t"}, {"topic": "u"}], "version": 1}') == ["t", "u"]


@pytest.mark.parametrize("text", ["", "1,", "a", "1,-2", "1.5", "²", "1,1"])
def test_broker_lists_that_are_refused(text: str) -> None:
    with pytest.raises(WrongUsage, match="--broker-list"):
        parse_brokers(text)


def test_a_broker_list() -> None:
    assert parse_brokers("3, 1,2") == [3, 1, 2]


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(b"\xef\xbb\xbf" + plan(row()).encode())
    assert parse_plan(text_of_plan(file, "--x")).targets == {T0: (1, 2)}
