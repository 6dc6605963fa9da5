"""The Python code of produce.md and of the README, run in its order against a server.

Runs against Apache Kafka too (`TIDELOG_TEST_TARGET=kafka`).
"""

from __future__ import annotations

import re

import pytest

from tests.support.clients import create_topic
from tests.support.repository import ROOT
from tests.support.target import TARGET, new_node

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_the_code_of_the_page_runs(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs" / "operating" / "produce.md").read_text(encoding="utf-8")
    # The lines about transactions are of a whole program, which `test_exactly_once_kills` runs.
    blocks = [block for block in BLOCK.findall(page) if "transactional_id" not in block]
    assert len(blocks) == 3
    with new_node(tmp_path_factory.mktemp("page")) as node:
        names: dict[str, object] = {}
        for block in blocks:
            exec(block.replace("localhost:9092", node.bootstrap), names)
    said = capsys.readouterr().out
    assert re.search(r"^partition \d, offset 0$", said, re.MULTILINE)
    assert re.search(r"^offset 1$", said, re.MULTILINE)
    assert f"100 8 {-1 if TARGET == 'kafka' else 1}\n" in said
    assert "topic 'baskets': TOPIC_ALREADY_EXISTS" in said
    assert "Producer has no setting 'lingerms': did you mean linger_ms?\n" in said


def test_the_python_code_of_the_readme_runs(
    tmp_path_factory: pytest.TempPathFactory, capsys: pytest.CaptureFixture[str]
) -> None:
    """After its commands, on the topic that they made; Spark's block is `examples/flights`."""
    stock, own, spark = BLOCK.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    assert "pyspark" in spark
    with new_node(tmp_path_factory.mktemp("readme")) as node:
        create_topic(node.bootstrap, "greetings", partitions=4)
        for block in (stock, own):
            code = block.replace("127.0.0.1:9092", node.bootstrap)
            exec(code.replace("consumer_timeout_ms=10_000", "consumer_timeout_ms=2_000"), {})
    said = capsys.readouterr().out.splitlines()
    assert sorted(line.split(" ", 2)[2] for line in said) == ["b'hello'"] * 2
