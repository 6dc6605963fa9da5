"""What a change of configuration does to partition states, in the same write as the change.

Owns two effects, so that brokers never hear of the one before the other:

| change | partitions |
|---|---|
| ``min.insync.replicas`` is lowered to the ISR | ``eligible_replicas`` are cleared (KIP-966) |
| ``unclean.leader.election.enable`` | who has no leader and may get one so, gets it (as in Kafka) |

A raised minimum needs no write: it counts with the next change of an ISR.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.controller.decisions.cluster import NO_LEADER, Cluster, Write
from tidelog.controller.decisions.elections import Standing, put_state, settle_all, with_isr
from tidelog.metadata import layout
from tidelog.model.config_definitions import BrokerLayers, resolve_topic
from tidelog.model.topic_configs import TopicConfigs
from tidelog.model.topics import TopicPartition


def of_topic(cluster: Cluster, topic: str, configs: Mapping[str, str]) -> list[Write]:
    """Return what follows for a topic from a new set of its own configurations."""
    return _effects(cluster, topic, cluster.resolve(topic, configs).configs)


def of_defaults(cluster: Cluster, defaults: Mapping[str, str]) -> list[Write]:
    """Return what follows for all topics from new defaults of all brokers. O(partitions).

    Each configuration is resolved once (0.4 ms), however many topics have it.
    """
    layers = BrokerLayers(cluster.layers.static, {}, dict(defaults))
    writes: list[Write] = []
    resolved: dict[tuple[tuple[str, str], ...], tuple[TopicConfigs, TopicConfigs]] = {}
    for topic in cluster.topics:
        own = cluster.topic_configs.get(topic, {})
        key = tuple(sorted(own.items()))
        if key not in resolved:
            resolved[key] = cluster.resolve(topic).configs, resolve_topic(own, layers).configs
        before, after = resolved[key]
        if (after.min_insync_replicas, after.unclean_leader_election_enable) != (
            before.min_insync_replicas,
            before.unclean_leader_election_enable,
        ):
            writes += _effects(cluster, topic, after)
    return writes


def _effects(cluster: Cluster, topic: str, configs: TopicConfigs) -> list[Write]:
    places = [TopicPartition(topic, index) for index in cluster.topics[topic].partitions]
    writes: list[Write] = []
    if configs.unclean_leader_election_enable:
        leaderless = [
            where
            for where in places
            if where in cluster.states and cluster.states[where].leader == NO_LEADER
        ]
        writes += settle_all(cluster, leaderless, Standing.of(cluster), allow_unclean=True)
    settled = {write.path for write in writes}
    for where in places:
        state = cluster.states.get(where)
        if state is None or not state.eligible_replicas or layout.state(*where) in settled:
            continue
        minimum = min(configs.min_insync_replicas, len(cluster.replicas(where)))
        if len(state.isr) >= minimum:
            writes.append(put_state(cluster, where, with_isr(state, state.isr, minimum)))
    return writes
