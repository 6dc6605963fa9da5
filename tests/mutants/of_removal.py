"""Rules of incarnations, of removal, and of restored counts, broken one at a time (KIP-253)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

UNIT = "tests/unit/controller"
RULES = "tests/unit/replication/test_command_rules.py tests/broker/test_stop_replica_scenarios.py"
RESTORED = f"{UNIT}/test_restored_counts.py {UNIT}/test_restored_resizes.py"

MUTANTS = (
    Mutant(
        "an incarnation: a replica without a partition epoch adopts that of a regrown partition",
        "src/tidelog/replication/command_rules.py::may_be_of",
        "        return partition_epoch == ANY_PARTITION_EPOCH or birth_epoch == 0\n",
        "        return True\n",
        RULES,
    ),
    Mutant(
        "an incarnation: a FULL keeps a replica of another partition epoch",
        "src/tidelog/replication/command_rules.py::stale_in_full",
        "        elif _other_incarnation(epoch, assigned.partition_epoch):\n",
        "        elif False:\n",
        RULES,
    ),
    Mutant(
        "an incarnation: a stop names none",
        "src/tidelog/controller/requests.py::_combined_stop",
        "                stop.partition, stop.leader_epoch, stop.delete, stop.partition_epoch\n",
        "                stop.partition, stop.leader_epoch, stop.delete\n",
        f"{UNIT}/test_stops.py",
    ),
    Mutant(
        "an incarnation: a missing node alone is proof of its removal",
        "src/tidelog/controller/decisions/stops.py::_is_former",
        "    return former is not None and former.partition_epoch >= partition_epoch\n",
        "    return node is None or former is not None\n",
        f"{UNIT}/test_stops.py",
    ),
    Mutant(
        "an incarnation: what a broker reported of a former one counts in elections",
        "src/tidelog/controller/decisions/cluster.py::ClusterState.log_end",
        "            if end.partition_epoch != node.partition_epoch and not (\n",
        "            if False and not (\n",
        f"{UNIT}/test_removal.py",
    ),
    Mutant(
        "levels: a controller below 1.5 is active on a store with resized topics",
        "src/tidelog/controller/decisions/levels.py::why_refused",
        "    return _why_resized(cluster) or _why_still_deleting(cluster)\n",
        "    return _why_still_deleting(cluster)\n",
        f"{UNIT}/test_levels.py",
    ),
    Mutant(
        "a removal: a retired partition goes while its topic has a plan",
        "src/tidelog/controller/decisions/removal.py::why_none_goes",
        "    if history.resize is not None:\n",
        "    if False:\n",
        f"{UNIT}/test_removal.py",
    ),
    Mutant(
        "a removal: a partition goes while a producer may ask for a batch of it",
        "src/tidelog/controller/decisions/removal.py::to_close",
        "            or index in open_until\n",
        "",
        f"{UNIT}/test_open_requests.py",
    ),
    Mutant(
        "a removal: data is purged while a producer may ask for a batch of it",
        "src/tidelog/controller/decisions/removal.py::to_purge",
        "        and index not in open_until\n",
        "",
        f"{UNIT}/test_open_requests.py",
    ),
    Mutant(
        "a removal: a shrink of unknown time counts as long ago",
        "src/tidelog/controller/decisions/open_requests.py::open_until",
        "        until_ms = (now_ms if at_ms is None else at_ms) + delay_ms\n",
        "        until_ms = (0 if at_ms is None else at_ms) + delay_ms\n",
        f"{UNIT}/test_open_requests.py",
    ),
    Mutant(
        "a removal: a retired partition goes while a transaction in it is open",
        "src/tidelog/controller/decisions/removal.py::Held.is_empty",
        "        return self.has_no_data and self.stable_end == self.log_end\n",
        "        return self.has_no_data\n",
        f"{UNIT}/test_removal.py",
    ),
    Mutant(
        "a removal: a marker may come after the end that the next incarnation begins at",
        "src/tidelog/controller/decisions/removal.py::remove_retired",
        " if held.is_closed}\n",
        "}\n",
        f"{UNIT}/test_removal.py",
    ),
    Mutant(
        "a removal: a partition is closed while a transaction is open whose records are deleted",
        "src/tidelog/broker/transactions/marker_writer.py::MarkerWriter.close",
        "        if len(log.producers.transactions) or last",
        "        if last",
        "tests/broker/test_markers.py",
    ),
    Mutant(
        "a removal: a closed partition takes markers",
        "src/tidelog/broker/transactions/marker_writer.py::MarkerWriter.write",
        "        if self._is_closed(hosted):\n",
        "        if False:\n",
        "tests/broker/test_markers.py",
    ),
    Mutant(
        "a removal: a lower partition goes before a higher one",
        "src/tidelog/controller/decisions/removal.py::to_close",
        "            break\n        gone.append(index)\n",
        "            continue\n        gone.append(index)\n",
        f"{UNIT}/test_removal.py",
    ),
    Mutant(
        "a removal: what a deposed leader says is believed",
        "src/tidelog/controller/decisions/removal.py::_may_go",
        "    return held.is_empty and (held.leader, held.leader_epoch) == "
        "(state.leader, state.leader_epoch)\n",
        "    return held.is_empty\n",
        f"{UNIT}/test_removal.py",
    ),
    Mutant(
        "a compacted topic shrinks unforced, and never grows again",
        "src/tidelog/controller/decisions/resize_requests.py::_why_not_unforced",
        "    if keeps_for_good(cluster, name):\n",
        "    if False:\n",
        f"{UNIT}/test_advice_of_resizes.py",
    ),
    Mutant(
        "a refused growth does not look at retired partitions",
        "src/tidelog/controller/handlers/create_partitions.py::_resize",
        "        await controller.retired_checks.one(controller.until, left_ms)\n",
        "        del left_ms\n",
        "tests/wire/test_controller_removal.py",
    ),
    Mutant(
        "the deletion of the last group that has committed is advised, and helps nothing",
        "src/tidelog/controller/decisions/retirees.py::_kept",
        "    is_enough = not count or all(retained[index].is_read for index in kept)\n",
        "    is_enough = True\n",
        f"{UNIT}/test_advice_of_resizes.py",
    ),
    Mutant(
        "a removal: it leaves no record of where a partition ended",
        "src/tidelog/controller/decisions/removal.py::_with_former",
        "        former=former,\n",
        "",
        f"{UNIT}/test_removal.py",
    ),
    Mutant(
        "a removal: data is purged that a group has not committed past",
        "src/tidelog/controller/decisions/removal.py::_groups_before",
        "        if (offsets and offsets.get(index, UNKNOWN) < held.data_end)\n",
        "        if (offsets and offsets.get(index, 0) < 0)\n",
        f"{UNIT}/test_removal.py",
    ),
    Mutant(
        "a removal: a coordinator that cannot be asked counts as one without groups",
        "src/tidelog/controller/decisions/removal.py::undrained",
        "        return set(answers)\n",
        "        return set()\n",
        f"{UNIT}/test_removal.py",
    ),
    Mutant(
        "a restored store: a growth counts as published without its birth fences",
        "src/tidelog/controller/decisions/restored_counts.py::ReportedPartition.has_birth",
        "        return self.birth_epoch == 0 or self.birth_epoch in self.fences\n",
        "        return True\n",
        RESTORED,
    ),
    Mutant(
        "a restored store: a lost partition counts as published without any proof",
        "src/tidelog/controller/decisions/restored_counts.py::_is_there",
        "    return facts.gives_up_brokers and _was_published(birth, facts)\n",
        "    return facts.gives_up_brokers\n",
        RESTORED,
    ),
    Mutant(
        "a restored store: a shrink counts as published before all its seals",
        "src/tidelog/controller/decisions/restored_counts.py::_is_published",
        "        one.birth_epoch > epoch or one.is_sealed_in(epoch)\n",
        "        True\n",
        RESTORED,
    ),
    Mutant(
        "a restored store: offsets of what was removed since the backup begin again",
        "src/tidelog/controller/decisions/restored_resizes.py::_Nodes._beyond",
        "        return max(ends) + OFFSET_JUMP\n",
        "        return max(ends)\n",
        RESTORED,
    ),
    Mutant(
        "a partition counts as retired before its node says so",
        "src/tidelog/controller/decisions/removal.py::retired_from_the_top",
        "stored is None or stored.retirement_epoch < 0 or least",
        "stored is None or least",
        f"{UNIT}/test_removal.py",
    ),
)
