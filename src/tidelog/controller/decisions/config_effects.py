"""Effects of a configuration change on partition states, in the same write as the change.

Owns two effects; one write, so that no broker receives the one before the other:

| change | partitions |
|---|---|
| ``min.insync.replicas`` is lowered to the ISR | ``eligible_replicas`` are cleared (KIP-966) |
| the same, while no controller was active | they are cleared when one becomes active |
| ``unclean.leader.election.enable`` | leaderless ones get an unclean leader (as in Kafka) |

A raised minimum needs no write: it takes effect with the next change of an ISR.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog.controller.decisions.cluster import NO_LEADER, ClusterState
from tidelog.controller.decisions.decision import Decision, Write
from tidelog.controller.decisions.elections import Standing, with_isr
from tidelog.controller.decisions.settlement import put_state, settle_all
from tidelog.metadata import layout
from tidelog.model.configs.resolve import BrokerLayers, TopicResolver
from tidelog.model.configs.topic import TopicConfigs
from tidelog.model.topics import TopicPartition

WITH_EFFECTS = ("min.insync.replicas", "unclean.leader.election.enable")


def of_topic(cluster: ClusterState, topic: str, configs: Mapping[str, str]) -> list[Write]:
    """Return the writes for a topic that follow from its new configuration."""
    return _effects(cluster, topic, cluster.resolve(topic, _with_effects(configs)).configs)


def of_defaults(cluster: ClusterState, defaults: Mapping[str, str]) -> list[Write]:
    """Return the writes that follow from new defaults of all brokers. O(partitions).

    Each configuration is resolved once for all topics that have it.
    """
    resolver = TopicResolver(BrokerLayers(cluster.layers.static, {}, dict(defaults)))
    writes: list[Write] = []
    resolved: dict[tuple[tuple[str, str], ...], tuple[TopicConfigs, TopicConfigs]] = {}
    for topic in cluster.topics:
        own = _with_effects(cluster.topic_configs.get(topic, {}))
        key = tuple(own.items())
        if key not in resolved:
            resolved[key] = cluster.resolve(topic, own).configs, resolver.resolve(own).configs
        before, after = resolved[key]
        if (after.min_insync_replicas, after.unclean_leader_election_enable) != (
            before.min_insync_replicas,
            before.unclean_leader_election_enable,
        ):
            writes += _effects(cluster, topic, after)
    return writes


def _with_effects(configs: Mapping[str, str]) -> dict[str, str]:
    """Return the configurations that have effects: most topics share these few."""
    return {name: configs[name] for name in WITH_EFFECTS if name in configs}


def of_a_start(cluster: ClusterState) -> Decision[None]:
    """Return the writes for minimums that were lowered while no controller was active.

    They must be durable before any broker is commanded: its leaders acknowledge by the lower
    minimum, without replicas that the state still has as eligible. O(partitions).
    """
    if (
        cluster.went_back is not None
        or layout.broker_configs(layout.ALL_BROKERS) in cluster.damaged
    ):
        return Decision(None)
    writes: list[Write] = []
    for tp, state in cluster.states.items():
        replicas = cluster.replicas(tp)
        if not state.eligible_replicas or not replicas or layout.state(*tp) in cluster.damaged:
            continue
        if cluster.damaged and layout.topic_configs(tp.topic) in cluster.damaged:
            # A minimum that cannot be read was not lowered.
            continue
        minimum = cluster.min_insync(tp.topic, len(replicas))
        if len(state.isr) >= minimum:
            writes.append(put_state(cluster, tp, with_isr(state, state.isr, minimum)))
    return Decision(None, tuple(writes), splits=True)


def _effects(cluster: ClusterState, topic: str, configs: TopicConfigs) -> list[Write]:
    places = [TopicPartition(topic, index) for index in cluster.topics[topic].partitions]
    writes: list[Write] = []
    if configs.unclean_leader_election_enable:
        leaderless = [
            tp for tp in places if tp in cluster.states and cluster.states[tp].leader == NO_LEADER
        ]
        writes += settle_all(cluster, leaderless, Standing.of(cluster), allow_unclean=True)
    settled = {write.path for write in writes}
    for tp in places:
        state = cluster.states.get(tp)
        if state is None or not state.eligible_replicas or layout.state(*tp) in settled:
            continue
        minimum = min(configs.min_insync_replicas, len(cluster.replicas(tp)))
        if len(state.isr) >= minimum:
            writes.append(put_state(cluster, tp, with_isr(state, state.isr, minimum)))
    return writes
