"""Tests of the shop against real brokers."""

from __future__ import annotations

import pytest
from shop import Totals, publish

from tidelog.testing import Cluster

CUSTOMERS = [f"customer-{number}" for number in range(20)]


def test_orders_are_added_up(tidelog_cluster: Cluster, tidelog_topic: str) -> None:
    servers = tidelog_cluster.bootstrap_servers
    publish(servers, tidelog_topic, [("ada", 3), ("bob", 4), ("ada", 5)])
    with Totals(servers, tidelog_topic, group=tidelog_topic) as totals:
        totals.read(3)
    assert totals.of == {"ada": 8, "bob": 4}


@pytest.mark.tidelog_topic(partitions=2)
def test_a_topic_that_grows_loses_no_order(tidelog_cluster: Cluster, tidelog_topic: str) -> None:
    servers = tidelog_cluster.bootstrap_servers
    with Totals(servers, tidelog_topic, group=tidelog_topic) as totals:
        publish(servers, tidelog_topic, [(customer, 1) for customer in CUSTOMERS])
        totals.read(len(CUSTOMERS))
        tidelog_cluster.resize(tidelog_topic, 4)
        publish(servers, tidelog_topic, [(customer, 2) for customer in CUSTOMERS])
        totals.read(2 * len(CUSTOMERS))
    assert totals.of == dict.fromkeys(CUSTOMERS, 3)


def test_orders_outlive_a_broker() -> None:
    """One of three brokers is killed while orders are published, and comes back."""
    with Cluster(brokers=3, config={"min.insync.replicas": "2"}) as cluster:
        servers = cluster.bootstrap_servers
        cluster.create_topic("orders", partitions=3)
        publish(servers, "orders", [(customer, 1) for customer in CUSTOMERS])
        cluster.kill(3)
        publish(servers, "orders", [(customer, 1) for customer in CUSTOMERS])
        cluster.restart(3)
        with Totals(servers, "orders") as totals:
            totals.read(2 * len(CUSTOMERS))
    assert totals.of == dict.fromkeys(CUSTOMERS, 2)
