"""Broken rules of replication, of a broker's partitions, and of the controller."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BROKER = "src/tidelog/broker"
DECISIONS = "src/tidelog/controller/decisions"
REPLICATION = "src/tidelog/replication"

MUTANTS = (
    Mutant(
        "T11: a follower throws its log away when the leader refuses an offset within its own",
        f"{BROKER}/follower_log.py",
        "    if leader_start < 0 or (log.end_offset >= leader_start and not is_empty):\n",
        "    if leader_start < 0:\n",
        "tests/unit/test_broker_following.py",
    ),
    Mutant(
        "T11: a shrunk ISR counts before it is committed",
        f"{REPLICATION}/isr.py",
        "    return frozenset(committed) | frozenset(proposed or ())\n",
        "    return frozenset(proposed or committed)\n",
        "tests/unit/test_replication_isr.py tests/unit/test_broker_leading.py",
    ),
    Mutant(
        "T11: a FULL is not looked at once more before it is sent",
        "src/tidelog/controller/outbox.py",
        "if kind == requests.FULL and (why := requests.why_no_full(cluster)) is not None:",
        "if (why := None) is not None:",
        "tests/unit/test_controller_outbox.py",
    ),
    Mutant(
        "T11: an election of an eligible replica keeps the unclean flag",
        f"{DECISIONS}/elections.py",
        "                leader=member,\n                leader_epoch=epoch,\n"
        "                is_unclean_leader=False,\n",
        "                leader=member,\n                leader_epoch=epoch,\n",
        "tests/unit/test_controller_elections.py",
    ),
    Mutant(
        "T11: a preferred election keeps the unclean flag",
        f"{DECISIONS}/elections.py",
        "            leader_epoch=state.leader_epoch + 1,\n            is_unclean_leader=False,\n",
        "            leader_epoch=state.leader_epoch + 1,\n",
        "tests/unit/test_controller_elections.py",
    ),
    Mutant(
        "T11: a stale replica is removed at once",
        f"{BROKER}/partitions.py",
        "        delay_ms = self._stale_delay_ms\n"
        '        logger.warning("%s: set aside, removed in %d ms: %s", hosted.key, delay_ms,',
        "        delay_ms = 0\n"
        '        logger.warning("%s: set aside, removed in %d ms: %s", hosted.key, delay_ms,',
        "tests/unit/test_broker_control.py",
    ),
    Mutant(
        "T11: a replica without an id adopts that of a topic that was created with one",
        f"{REPLICATION}/control.py",
        "            if not order.migrated:\n",
        "            if False:\n",
        "tests/unit/test_replication_control.py",
    ),
    Mutant(
        "T11: no order says that a topic is older than topic ids",
        "src/tidelog/controller/requests.py",
        "                migrated=memory is not None and memory.migrated,\n",
        "                migrated=False,\n",
        "tests/unit/test_controller_orders.py tests/unit/test_controller_levels.py",
    ),
    Mutant(
        "who is not at the start of the leader epoch joins the ISR",
        f"{REPLICATION}/isr.py",
        "    return follower.end_offset >= high_watermark and follower.end_offset >= epoch_start\n",
        "    return follower.end_offset >= high_watermark\n",
        "tests/unit/test_replication_isr.py",
    ),
    Mutant(
        "what a former life of a follower held counts for the next",
        f"{REPLICATION}/isr.py",
        "            self.leader_end_then = self.start_offset = UNKNOWN\n",
        "            self.start_offset = UNKNOWN\n",
        "tests/unit/test_replication_isr.py",
    ),
    Mutant(
        "the watermark moves below min.insync.replicas",
        f"{REPLICATION}/watermark.py",
        "    if committed_isr_size < required:\n        return current\n",
        "",
        "tests/unit/test_replication_rules.py tests/unit/test_replication_isr.py",
    ),
    Mutant(
        "the watermark steps back",
        f"{REPLICATION}/watermark.py",
        "    return max(current, lowest)\n",
        "    return lowest\n",
        "tests/unit/test_replication_rules.py tests/unit/test_replication_isr.py",
    ),
    Mutant(
        "a follower that knows no epoch so old cuts to where the leader's ends",
        f"{REPLICATION}/truncation.py",
        "        common_end = own_start if own_epoch == NO_EPOCH else own_epoch_end\n",
        "        common_end = leader_end_offset if own_epoch == NO_EPOCH else own_epoch_end\n",
        "tests/unit/test_replication_isr.py tests/unit/test_replication_rules.py",
    ),
    Mutant(
        "a StopReplica of an older leader epoch is obeyed",
        f"{REPLICATION}/control.py",
        "    if not unchecked and order.leader_epoch < local.leader_epoch:\n",
        "    if False:\n",
        "tests/unit/test_replication_control.py tests/unit/test_stop_replica_scenarios.py",
    ),
    Mutant(
        "a StopReplica for another topic id is obeyed",
        f"{REPLICATION}/control.py",
        "    if order.checks_topic_id and local.topic_id != order.topic_id:\n",
        "    if False:\n",
        "tests/unit/test_replication_control.py tests/unit/test_stop_replica_scenarios.py",
    ),
    Mutant(
        "a request of type UNSPECIFIED makes a replica stale",
        f"{REPLICATION}/control.py",
        "    if order.kind == LeaderAndIsrType.UNSPECIFIED:\n",
        "    if False:\n",
        "tests/unit/test_replication_control.py tests/unit/test_stop_replica_scenarios.py",
    ),
    Mutant(
        "orders of a former control channel are obeyed",
        f"{BROKER}/control.py",
        "            or channel.connection is not connection\n",
        "",
        "tests/unit/test_broker_control.py tests/unit/test_broker_stray_orders.py",
    ),
    Mutant(
        "orders for a former life of the broker are obeyed",
        f"{BROKER}/control.py",
        "if request.broker_epoch not in (UNKNOWN_EPOCH, self._broker.session.broker_epoch):",
        "if False:",
        "tests/unit/test_broker_control.py tests/unit/test_broker_stray_orders.py",
    ),
    Mutant(
        "a controller of an older epoch opens a channel",
        f"{BROKER}/control.py",
        "        if request.controller_epoch < self.seen.controller_epoch:\n",
        "        if False:\n",
        "tests/unit/test_broker_control.py tests/unit/test_broker_stray_orders.py",
    ),
    Mutant(
        "a controller without the channel key opens a channel",
        f"{BROKER}/control.py",
        "        if not hmac.compare_digest(expected.bytes, key.bytes):\n",
        "        if False:\n",
        "tests/unit/test_broker_control.py",
    ),
    Mutant(
        "a client of an older leader epoch is served",
        f"{BROKER}/partition.py",
        "        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:\n",
        "        if False:\n",
        "tests/unit/test_broker_produce_fetch.py tests/unit/test_broker_leading.py",
    ),
    Mutant(
        "a proposal of a former ISR version is taken",
        f"{DECISIONS}/isr.py",
        "    if proposal.isr_version != cluster.isr_version(where):\n",
        "    if False:\n",
        "tests/unit/test_controller_isr.py",
    ),
    Mutant(
        "a member that fetched in a former life joins the ISR",
        f"{DECISIONS}/isr.py",
        "            if told != node.broker_epoch and not (told == -1 and member in state.isr):\n",
        "            if False:\n",
        "tests/unit/test_controller_isr.py",
    ),
    Mutant(
        "who was eligible by a higher minimum is elected",
        f"{DECISIONS}/elections.py",
        "    return [] if len(state.isr) >= min_insync else state.eligible_replicas\n",
        "    return state.eligible_replicas\n",
        "tests/unit/test_controller_elections.py tests/unit/test_controller_starts.py",
    ),
    Mutant(
        "an unclean election does not wait for who is only suspected",
        f"{DECISIONS}/elections.py",
        "    if not waiting and unclean_allowed:\n",
        "    if unclean_allowed:\n",
        "tests/unit/test_controller_elections.py",
    ),
    Mutant(
        "an unclean election leaves no debt record",
        f"{DECISIONS}/elections.py",
        "    return [*_put_debts(cluster, debts), *writes]\n",
        "    return writes\n",
        "tests/unit/test_controller_elections.py tests/unit/test_controller_debts.py",
    ),
    Mutant(
        "a broker that is silent is dead before its session ends",
        f"{DECISIONS}/sessions.py",
        "        if now_ms - self.heard_ms >= patience.timeout_ms:\n",
        "        if now_ms - self.heard_ms >= patience.silence_ms:\n",
        "tests/unit/test_controller_sessions.py",
    ),
    Mutant(
        "a topic being deleted is not stopped over a higher leader epoch",
        f"{DECISIONS}/stops.py",
        "DELETED_EPOCH = -2\n",
        "DELETED_EPOCH = 0\n",
        "tests/unit/test_controller_topics.py tests/unit/test_controller_orders.py",
    ),
    Mutant(
        "a store that has gone back in time is not noticed by its revision",
        f"{DECISIONS}/registration.py",
        "    if epoch > cluster.controller_epoch or revision > told:\n",
        "    if epoch > cluster.controller_epoch:\n",
        "tests/unit/test_controller_restoration.py",
    ),
)
