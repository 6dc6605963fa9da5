"""Produce requests with batches that the broker must inspect, and their error codes."""

from __future__ import annotations

from typing import Any

from tidelog.protocol import messages


def produce(*parts: tuple[int, bytes], acks: int = -1, timeout_ms: int = 30_000) -> Any:
    request = messages.ProduceRequest
    data = [request.PartitionProduceData(index=at, records=records) for at, records in parts]
    topic = request.TopicProduceData(name="t", partition_data=data)
    return request(transactional_id=None, acks=acks, timeout_ms=timeout_ms, topic_data=[topic])


def codes(answer: Any) -> list[int]:
    return [part.error_code for part in answer.responses[0].partition_responses]
