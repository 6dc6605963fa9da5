"""The figures of a producer since its start, by Kafka's metric names. Pure.

Owns the counters and what follows from them. Counted per batch and per request, never per record.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class SendFigures:
    """Counters of one producer."""

    records_sent: int = 0
    records_failed: int = 0
    records_retried: int = 0
    records_rehashed: int = 0
    """Records that were taken back because their topic was resized."""
    batches: int = 0
    batch_bytes: int = 0
    requests: int = 0
    latency_s: float = 0.0
    most_latency_s: float = 0.0

    def sent(self, batches: int, size: int) -> None:
        """Count a request with so many batches and bytes of batches."""
        self.requests += 1
        self.batches += batches
        self.batch_bytes += size

    def answered(self, took_s: float) -> None:
        """Count the time from a request to its response."""
        self.latency_s += took_s
        self.most_latency_s = max(self.most_latency_s, took_s)

    def shown(self, buffer_bytes: int, buffered: int, in_flight: int) -> dict[str, float]:
        """Return the figures by Kafka's names of ``producer-metrics``; times in ms."""
        requests = max(1, self.requests)
        return {
            "record-send-total": self.records_sent,
            "record-error-total": self.records_failed,
            "record-retry-total": self.records_retried,
            "record-rehash-total": self.records_rehashed,
            "batch-size-avg": self.batch_bytes / max(1, self.batches),
            "records-per-request-avg": self.records_sent / requests,
            "request-total": self.requests,
            "request-latency-avg": self.latency_s * 1000 / requests,
            "request-latency-max": self.most_latency_s * 1000,
            "requests-in-flight": in_flight,
            "buffer-total-bytes": buffer_bytes,
            "buffer-available-bytes": max(0, buffer_bytes - buffered),
        }
