"""The control of the order checker: Apache Kafka keeps the order of keys until a topic grows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.order import stock_run
from tests.order.checks import violations_in
from tests.order.reference import Reference
from tests.order.timeline import report
from tests.support.kafka import KafkaNode

pytestmark = pytest.mark.long(30)


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaNode]:
    with KafkaNode(tmp_path / "kafka") as node:
        yield node


def test_without_growth_the_checker_finds_nothing_in_kafka(kafka: KafkaNode) -> None:
    reference = Reference(stock_run.run(kafka.bootstrap, 4, 4))
    found = violations_in(reference)
    assert not found, report(reference, found)


def test_growth_of_a_topic_in_kafka_breaks_order_and_skips(kafka: KafkaNode) -> None:
    found = violations_in(Reference(stock_run.run(kafka.bootstrap, 4, 8)))
    rules = {each.rule for each in found}
    assert {"C6", "C8", "C9"} <= rules, rules
    skipped = [each for each in found if each.rule == "C9"]
    assert all("to newest" in each.text for each in skipped), skipped[:3]
