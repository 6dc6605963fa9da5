"""Broken rules of offsets that transactions commit."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RULES = "tests/unit/groups/test_transactions.py"
RANDOM = "tests/unit/groups/test_transactions_random.py"
COSTS = "tests/unit/groups/test_pending_costs.py"
BROKER = "tests/broker/test_group_transactions.py"

MUTANTS = (
    Mutant(
        "an aborted commit for the next topic of a name leaves the position in the former one",
        "src/tidelog/broker/coordinator/group_partition.py::GroupPartition.decide",
        "            self._forget_before_commit(group_id)\n",
        "            pass\n",
        "tests/broker/test_group_transactions.py",
    ),
    Mutant(
        "pending offsets count before their marker",
        "src/tidelog/groups/replay.py::pend",
        "        group.flying.pend(producer_id, columns.topic, columns.partitions, values)\n",
        "        _put_offsets(group, record)\n",
        f"{RULES} {RANDOM}",
    ),
    Mutant(
        "the later marker wins, not the later offset",
        "src/tidelog/groups/pending_offsets.py::PendingOffsets.end",
        "list(takewhile(producer_id.__ne__, producers))\n",
        "[other for other in producers if other != producer_id]\n",
        f"{RULES} {RANDOM}",
    ),
    Mutant(
        "what is pending before an offset that counts stays pending",
        "src/tidelog/groups/pending_offsets.py::PendingOffsets.end",
        "                if committed and len(producers) > 1:\n",
        "                if False:\n",
        f"{RULES} {RANDOM}",
    ),
    Mutant(
        "an offset that a transaction replaces keeps its place in the log",
        "src/tidelog/groups/pending_offsets.py::PendingOffsets.add",
        "                del producers[producer_id]\n",
        "                pass\n",
        f"{RULES} {RANDOM}",
    ),
    Mutant(
        "a marker looks at all open transactions",
        "src/tidelog/groups/pending_offsets.py::PendingOffsets.end",
        "            self.count -= len(pending)\n",
        "            self.count -= len(pending) + sum(other < 0 for other in self._by_producer)\n",
        COSTS,
    ),
    Mutant(
        "a marker takes back a plain commit after the offset",
        "src/tidelog/groups/replay.py::apply",
        "    if group.flying.pending is not None:\n",
        "    if False:\n",
        f"{RULES} {RANDOM}",
    ),
    Mutant(
        "a stable fetch does not wait for offsets in flight",
        "src/tidelog/groups/pending_offsets.py::PendingOffsets.unstable",
        "self._flying.get(topic, {})\n",
        "dict[int, list[UUID]]()\n",
        f"{RULES} {RANDOM}",
    ),
    Mutant(
        "a removal of a group leaves what is pending",
        "src/tidelog/groups/offsets_in_flight.py::OffsetsInFlight.by_partition",
        "        return flying if self.pending is None else _NotCounted(self.pending, flying)\n",
        "        return flying\n",
        f"{RULES} {RANDOM}",
    ),
    Mutant(
        "the removal of a topic leaves what is pending",
        "src/tidelog/groups/offsets_in_flight.py::OffsetsInFlight.partitions_of",
        "{} if self.pending is None else dict.fromkeys(self.pending.of(topic))\n",
        "dict[int, None]()\n",
        f"{RULES} {RANDOM}",
    ),
    Mutant(
        "positions that a transaction keeps take the room of those that expire",
        "src/tidelog/groups/retention.py::check",
        "_expired(group, offset, wall_ms) and tp not in group.in_flight\n",
        "_expired(group, offset, wall_ms)\n",
        RULES,
    ),
    Mutant(
        "first sights that a transaction keeps take the room of those that expire",
        "src/tidelog/groups/retention.py::check",
        "            and not group.flying.has_topic(topic)\n",
        "",
        RULES,
    ),
    Mutant(
        "a group with pending offsets alone is forgotten",
        "src/tidelog/groups/group.py::Group.idle",
        "            and self.flying.pending is None\n",
        "",
        RULES,
    ),
    Mutant(
        "an aborted transaction counts",
        "src/tidelog/groups/pending_offsets.py::PendingOffsets.end",
        "        return ended if committed else {}\n",
        "        return ended\n",
        f"{RULES} {RANDOM}",
    ),
    Mutant(
        "a producer of a former epoch is not fenced",
        "src/tidelog/groups/committing_producers.py::CommittingProducers.why_no_commit",
        "        if event.producer_epoch < self.epochs(event.producer_id).producer:\n",
        "        if False:\n",
        RULES,
    ),
    Mutant(
        "the marker of a deposed coordinator is taken",
        "src/tidelog/groups/committing_producers.py::CommittingProducers.why_no_marker",
        "        if event.coordinator_epoch < max(highest.coordinator, 0):\n",
        "        if False:\n",
        RULES,
    ),
    Mutant(
        "a marker of no coordinator is taken",
        "src/tidelog/groups/committing_producers.py::CommittingProducers.why_no_marker",
        "max(highest.coordinator, 0)",
        "highest.coordinator",
        RULES,
    ),
    Mutant(
        "a marker of what has nothing open is not written",
        "src/tidelog/groups/committing_producers.py::CommittingProducers.end_transaction",
        "        if error is not ErrorCode.NONE:\n",
        "        if error is not ErrorCode.NONE or event.producer_id in self._ended:\n",
        f"{RULES} {BROKER}",
    ),
    Mutant(
        "the coordinator of a marker of what has nothing open is forgotten",
        "src/tidelog/groups/committing_producers.py::CommittingProducers.end",
        "        epochs = _higher(self._committed_epochs(producer_id), epochs)\n",
        "        epochs = self._ended.get(producer_id, epochs)\n",
        RULES,
    ),
    Mutant(
        "the last write in flight has the epoch, not the highest",
        "src/tidelog/groups/committing_producers.py::CommittingProducers.wrote",
        "_higher(flying[-1], epochs) if flying else epochs",
        "epochs",
        RULES,
    ),
    Mutant(
        "a producer whose transaction ends in flight is not counted",
        "src/tidelog/groups/committing_producers.py::CommittingProducers.end",
        "        self._beginning += producer_id in self._flying\n",
        "",
        RULES,
    ),
    Mutant(
        "the producer and coordinator of a load are not fenced",
        "src/tidelog/groups/table.py::GroupTable.replay_in_transaction",
        "        self.transactions.note(producer_id, producer_epoch, record.group_id)\n",
        "        self.transactions.note(producer_id, 0, record.group_id)\n",
        f"{RULES} {RANDOM} {BROKER}",
    ),
    Mutant(
        "a load skips markers",
        "src/tidelog/broker/coordinator/replaying.py::every_record",
        "            replay_control(header, batch)\n",
        "            pass\n",
        BROKER,
    ),
    Mutant(
        "a load takes offsets of transactions for plain ones",
        "src/tidelog/broker/coordinator/led_partition.py::LedPartition._replay",
        "        if header.transactional and transactions is not None:\n",
        "        if False:\n",
        BROKER,
    ),
    Mutant(
        "offsets of a transaction are written as plain ones",
        "src/tidelog/broker/coordinator/writes.py::_in_transaction",
        "header.attributes | TRANSACTIONAL_BIT",
        "header.attributes",
        BROKER,
    ),
    Mutant(
        "the fast path of OffsetFetch does not wait for transactions",
        "src/tidelog/broker/coordinator/committed_fast_path.py::answer",
        "    if asked.require_stable and group is not None and group.flying.pending is not None:\n",
        "    if False:\n",
        BROKER,
    ),
    Mutant(
        "pending offsets of a group have no limit",
        "src/tidelog/groups/offsets.py::_Judge.__init__",
        "group.offset_count if pending is None else group.offset_count + pending.count\n",
        "group.offset_count\n",
        RULES,
    ),
)
