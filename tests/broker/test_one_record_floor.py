"""The server without work, which `benchmarks.one_record_floor` compares the brokers with."""

from __future__ import annotations

import os

import confluent_kafka
from benchmarks.one_record_floor import TOPIC, Floor

from tests.support.processes import DEADLINE_S


def test_it_answers_each_request_of_a_stock_producer() -> None:
    answered: list[object] = []
    with Floor(frozenset(os.sched_getaffinity(0))) as floor:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": floor.bootstrap, "batch.num.messages": 1, "linger.ms": 0}
        )
        for number in range(200):
            producer.produce(
                TOPIC, str(number), partition=0, on_delivery=lambda error, _: answered.append(error)
            )
        assert producer.flush(DEADLINE_S) == 0
        assert answered == [None] * 200
        assert floor.cpu_s() >= 0
