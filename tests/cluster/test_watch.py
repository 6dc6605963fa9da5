"""Metrics and health of a process: every metric is in the handbook and moves."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import clients
from tests.support.clients import Record
from tests.support.node import Node
from tests.support.processes import DEADLINE_S, wait_until
from tests.support.server import TidelogNode
from tests.support.target import TARGET

pytestmark = pytest.mark.skipif(TARGET == "kafka", reason="Kafka's metrics are JMX beans")

HANDBOOK = Path(__file__).resolve().parents[2] / "docs" / "operating" / "watch.md"


def fetched(node: Node, page: str) -> str:
    """A page of the node; its address opens when all else has."""
    assert isinstance(node, TidelogNode)
    url = f"http://127.0.0.1:{node.metrics_port}/{page}"
    found: list[str] = []

    def opened() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=DEADLINE_S) as answer:
                assert answer.status == 200
                found.append(answer.read().decode())
        except urllib.error.URLError as error:
            if isinstance(error, urllib.error.HTTPError):
                raise
        return bool(found)

    wait_until(opened, DEADLINE_S, f"{url} answers")
    return found[-1]


def value(page: str, name: str) -> float:
    found = re.search(rf"^{re.escape(name)} (\S+)$", page, re.MULTILINE)
    assert found, f"{name} is missing"
    return float(found[1])


def test_the_handbook_names_every_metric_and_no_other(node: Node) -> None:
    shown = set(re.findall(r"^# TYPE (\S+) \w+$", fetched(node, "metrics"), re.MULTILINE))
    written = set(re.findall(r"`((?:kafka|tidelog|process|jvm)_\w+[a-z])`", HANDBOOK.read_text()))
    assert shown == written


def test_metrics_move_with_what_happens(make_node: Callable[..., Node], topic_name: str) -> None:
    node = make_node()
    clients.create_topic(node.bootstrap, topic_name, 3)
    before = fetched(node, "metrics")
    clients.write_confluent(node.bootstrap, topic_name, [Record("k", "v" * 1000)] * 10, "none")
    assert len(clients.read_confluent(node.bootstrap, topic_name, 10)) == 10
    after = fetched(node, "metrics")

    def grown(name: str) -> float:
        return value(after, name) - value(before, name)

    place = f'{{partition="0",topic="{topic_name}"}}'
    assert value(after, f"kafka_log_log_logendoffset{place}") == 10
    assert value(after, f"kafka_cluster_partition_highwatermark{place}") == 10
    assert value(after, f"kafka_log_log_size{place}") > 10_000
    topic = f'{{topic="{topic_name}"}}'
    assert grown(f"kafka_server_brokertopicmetrics_bytesin_total{topic}") > 10_000
    assert grown(f"kafka_server_brokertopicmetrics_bytesout_total{topic}") > 10_000
    requests = 'kafka_network_requestmetrics_requests_total{request="Metadata"}'
    assert grown(requests) > 0
    assert grown("kafka_server_socketserver_bytes_in_total") > 10_000
    assert value(after, "kafka_server_replicamanager_leadercount") >= 3
    assert value(after, "kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert value(after, "kafka_controller_kafkacontroller_globaltopiccount") >= 1
    failures = re.findall(r"^kafka_network_requestmetrics_failures_total\S+ (\S+)$", after, re.M)
    assert failures and set(failures) == {"0.0"}
    health = json.loads(fetched(node, "health"))
    assert health["healthy"] and health["registered"] and health["controller_active"]
    assert health["replicas"] >= health["leaders"] >= 3 and health["offline_replicas"] == []
