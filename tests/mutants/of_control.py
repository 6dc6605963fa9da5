"""Broken rules of replication, of a broker's partitions, and of the controller."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BROKER = "src/tidelog/broker"
DECISIONS = "src/tidelog/controller/decisions"
REPLICATION = "src/tidelog/replication"

MUTANTS = (
    Mutant(
        "T11: a follower throws its log away when the leader refuses an offset within its own",
        "src/tidelog/broker/following/follower_log.py",
        "    if leader_start < 0 or (log.end_offset >= leader_start and not is_empty):\n",
        "    if leader_start < 0:\n",
        "tests/broker/test_following.py",
    ),
    Mutant(
        "T11: a shrunk ISR counts before it is committed",
        f"{REPLICATION}/isr.py",
        "    return frozenset(committed) | frozenset(proposed or ())\n",
        "    return frozenset(proposed or committed)\n",
        "tests/unit/replication/test_isr.py tests/broker/test_leading.py",
    ),
    Mutant(
        "T11: a FULL is not looked at once more before it is sent",
        "src/tidelog/controller/outbox.py",
        "if kind == requests.FULL and (why := requests.why_no_full(cluster)) is not None:",
        "if (why := None) is not None:",
        "tests/component/controller/test_outbox.py",
    ),
    Mutant(
        "T11: an election of an eligible replica keeps the unclean flag",
        f"{DECISIONS}/elections.py",
        "                leader=member,\n                leader_epoch=epoch,\n"
        "                is_unclean_leader=False,\n",
        "                leader=member,\n                leader_epoch=epoch,\n",
        "tests/unit/controller/test_elections.py",
    ),
    Mutant(
        "T11: a preferred election keeps the unclean flag",
        f"{DECISIONS}/requested_elections.py",
        "            leader_epoch=state.leader_epoch + 1,\n            is_unclean_leader=False,\n",
        "            leader_epoch=state.leader_epoch + 1,\n",
        "tests/unit/controller/test_elections.py",
    ),
    Mutant(
        "T11: a stale replica is removed at once",
        "src/tidelog/broker/partitions/registry.py",
        "        delay_ms = self._quarantine_ms\n",
        "        delay_ms = 0\n",
        "tests/broker/test_control_channel.py",
    ),
    Mutant(
        "T11: a replica without an id adopts that of a topic that was created with one",
        f"{REPLICATION}/command_rules.py",
        "            if not command.migrated:\n",
        "            if False:\n",
        "tests/unit/replication/test_command_rules.py",
    ),
    Mutant(
        "T11: no order says that a topic is older than topic ids",
        "src/tidelog/controller/requests.py",
        "                migrated=history is not None and history.migrated,\n",
        "                migrated=False,\n",
        "tests/unit/controller/test_commands.py tests/unit/controller/test_levels.py",
    ),
    Mutant(
        "a follower below the start of the leader epoch joins the ISR",
        f"{REPLICATION}/isr.py",
        "    return follower.end_offset >= high_watermark and follower.end_offset >= epoch_start\n",
        "    return follower.end_offset >= high_watermark\n",
        "tests/unit/replication/test_isr.py",
    ),
    Mutant(
        "what a former life of a follower held counts for the next",
        f"{REPLICATION}/isr.py",
        "            self.leader_end_then = self.start_offset = UNKNOWN\n",
        "            self.start_offset = UNKNOWN\n",
        "tests/unit/replication/test_isr.py",
    ),
    Mutant(
        "the watermark moves below min.insync.replicas",
        f"{REPLICATION}/watermark.py",
        "    if committed_isr_size < required:\n        return current\n",
        "",
        "tests/unit/replication/test_watermark.py tests/unit/replication/test_isr.py",
    ),
    Mutant(
        "the watermark steps back",
        f"{REPLICATION}/watermark.py",
        "    return max(current, lowest)\n",
        "    return lowest\n",
        "tests/unit/replication/test_watermark.py tests/unit/replication/test_isr.py",
    ),
    Mutant(
        "a follower that knows no epoch so old cuts to where the leader's ends",
        f"{REPLICATION}/truncation.py",
        "        common_end = own_start if own_epoch == NO_EPOCH else own_epoch_end\n",
        "        common_end = leader_end_offset if own_epoch == NO_EPOCH else own_epoch_end\n",
        "tests/unit/replication/test_isr.py tests/unit/replication/test_watermark.py",
    ),
    Mutant(
        "a StopReplica of an older leader epoch is applied",
        f"{REPLICATION}/command_rules.py",
        "    if not unchecked and command.leader_epoch < local.leader_epoch:\n",
        "    if False:\n",
        "tests/unit/replication/test_command_rules.py tests/broker/test_stop_replica_scenarios.py",
    ),
    Mutant(
        "a StopReplica for another topic id is applied",
        f"{REPLICATION}/command_rules.py",
        "    if command.checks_topic_id and local.topic_id != command.topic_id:\n",
        "    if False:\n",
        "tests/unit/replication/test_command_rules.py tests/broker/test_stop_replica_scenarios.py",
    ),
    Mutant(
        "a request of type UNSPECIFIED makes a replica stale",
        f"{REPLICATION}/command_rules.py",
        "    if command.kind == LeaderAndIsrType.UNSPECIFIED:\n",
        "    if False:\n",
        "tests/unit/replication/test_command_rules.py tests/broker/test_stop_replica_scenarios.py",
    ),
    Mutant(
        "commands of a former control channel are applied",
        "src/tidelog/broker/control_plane/control_channel.py",
        "            or channel.connection is not connection\n",
        "",
        "tests/broker/test_control_channel.py tests/broker/test_stray_commands.py",
    ),
    Mutant(
        "commands for a former broker epoch are applied",
        "src/tidelog/broker/control_plane/control_channel.py",
        "if request.broker_epoch not in (UNKNOWN_EPOCH, self._session.broker_epoch):",
        "if False:",
        "tests/broker/test_control_channel.py tests/broker/test_stray_commands.py",
    ),
    Mutant(
        "a controller of an older epoch opens a channel",
        "src/tidelog/broker/control_plane/control_channel.py",
        "        if request.controller_epoch < self.seen_epochs.controller_epoch:\n",
        "        if False:\n",
        "tests/broker/test_control_channel.py tests/broker/test_stray_commands.py",
    ),
    Mutant(
        "a controller without the channel key opens a channel",
        "src/tidelog/broker/control_plane/channel.py",
        "    if not hmac.compare_digest(expected.bytes, key.bytes):\n",
        "    if False:\n",
        "tests/broker/test_control_channel.py",
    ),
    Mutant(
        "a client of an older leader epoch is served",
        "src/tidelog/broker/partitions/partition.py",
        "        if current_leader_epoch >= 0 and current_leader_epoch != self.leader_epoch:\n",
        "        if False:\n",
        "tests/broker/test_produce_fetch.py tests/broker/test_leading.py",
    ),
    Mutant(
        "a proposal of a former ISR version is taken",
        f"{DECISIONS}/isr.py",
        "    if proposal.isr_version != cluster.isr_version(where):\n",
        "    if False:\n",
        "tests/unit/controller/test_isr.py",
    ),
    Mutant(
        "a member that fetched in a former life joins the ISR",
        f"{DECISIONS}/isr.py",
        "            if proposed != node.broker_epoch and not "
        "(proposed == -1 and member in state.isr):\n",
        "            if False:\n",
        "tests/unit/controller/test_isr.py",
    ),
    Mutant(
        "a replica that was eligible by a higher minimum is elected",
        f"{DECISIONS}/elections.py",
        "    return [] if len(state.isr) >= min_insync else state.eligible_replicas\n",
        "    return state.eligible_replicas\n",
        "tests/unit/controller/test_elections.py tests/unit/controller/test_starts.py",
    ),
    Mutant(
        "an unclean election does not wait for a suspected replica",
        f"{DECISIONS}/elections.py",
        "    if not waiting and unclean_allowed:\n",
        "    if unclean_allowed:\n",
        "tests/unit/controller/test_elections.py",
    ),
    Mutant(
        "an unclean election leaves no debt record",
        f"{DECISIONS}/settlement.py",
        "    return [*_put_debts(cluster, debts), *writes]\n",
        "    return writes\n",
        "tests/unit/controller/test_elections.py tests/unit/controller/test_debts.py",
    ),
    Mutant(
        "a broker that is silent is dead before its session ends",
        f"{DECISIONS}/sessions.py",
        "        if now_ms - self.heard_ms >= patience.timeout_ms:\n",
        "        if now_ms - self.heard_ms >= patience.silence_ms:\n",
        "tests/unit/controller/test_sessions.py",
    ),
    Mutant(
        "a topic being deleted is not stopped over a higher leader epoch",
        f"{DECISIONS}/stops.py",
        "DELETED_EPOCH = -2\n",
        "DELETED_EPOCH = 0\n",
        "tests/unit/controller/test_topics.py tests/unit/controller/test_commands.py",
    ),
    Mutant(
        "a store that has gone back in time is not noticed by its revision",
        f"{DECISIONS}/registration.py",
        "    if epoch > cluster.controller_epoch or revision > highest:\n",
        "    if epoch > cluster.controller_epoch:\n",
        "tests/unit/controller/test_restoration.py",
    ),
)
