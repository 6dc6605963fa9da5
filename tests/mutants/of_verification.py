"""Broken rules of the verification of transactions (KIP-890).

Each mutant names a function, a statement of it and what replaces it, and the tests that must find
it.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

PARTITIONS = "src/tidelog/broker/partitions"
OF_WIRE = "tests/broker/test_verification.py"
OF_RULES = "tests/unit/broker/test_verification.py"
OF_RANDOM = "tests/broker/test_verified_random.py"
OF_OFFSETS = "tests/broker/test_verified_offsets.py"
OF_LOG = "tests/unit/storage/test_joining.py"

MUTANTS = (
    Mutant(
        "the first batch of a transaction is not verified",
        f"{PARTITIONS}/confirmation.py::Confirmation.is_needed",
        "        if not self._verifier.is_enabled:\n",
        "        if True:\n",
        f"{OF_WIRE} {OF_RANDOM}",
    ),
    Mutant(
        "offsets of a transaction are not verified",
        "src/tidelog/broker/handlers/txn_offset_commit.py::handle",
        "    if confirmation.is_needed:\n",
        "    if confirmation is None:\n",
        OF_OFFSETS,
    ),
    Mutant(
        "offsets that wait are not judged again before they are written",
        "src/tidelog/broker/coordinator/group_partition.py::GroupPartition._decide_now",
        "(late := event.why_late()):\n",
        "(late := ErrorCode.NONE):\n",
        OF_OFFSETS,
    ),
    Mutant(
        "a coordinator that does not answer confirms",
        f"{PARTITIONS}/verification.py::verification_of",
        "    return Verification.UNANSWERED\n",
        "    return Verification.CONFIRMED\n",
        OF_RULES,
    ),
    Mutant(
        "a coordinator older than the last marker is asked",
        f"{PARTITIONS}/verifier.py::Verifier._coordinator_of",
        "        if partition is None or partition.leader_epoch < not_before:\n",
        "        if partition is None:\n",
        OF_WIRE,
    ),
    Mutant(
        "what is open in an older epoch confirms a batch",
        "src/tidelog/storage/log/joining.py::is_open",
        "        and entry.last_offset >= entry.open_since\n",
        "",
        OF_LOG,
    ),
    Mutant(
        "the verification guard is ignored",
        f"{PARTITIONS}/confirmation.py::Confirmation.why_not",
        "        dropped = why_dropped(self.claim, self._guard, self._present_guard())\n",
        "        dropped: Verification | None = None\n",
        f"{OF_WIRE} {OF_RANDOM}",
    ),
    Mutant(
        "a marker does not drop the answer of a coordinator",
        f"{PARTITIONS}/verification.py::why_dropped",
        "    if now.last_marker > before.last_marker:\n",
        "    if False:\n",
        f"{OF_RULES} {OF_WIRE}",
    ),
    Mutant(
        "a leadership that was lost and regained keeps the answer of a coordinator",
        f"{PARTITIONS}/verification.py::why_dropped",
        "    if now.led_since != before.led_since:\n",
        "    if now.led_since < before.led_since:\n",
        f"{OF_RULES} {OF_WIRE}",
    ),
    Mutant(
        "the guard is of the turn of a batch, not of its arrival",
        f"{PARTITIONS}/confirmation.py::Confirmation.ask",
        "        claim, entries = self.claim, self._partition.log.producers.entries\n",
        "        claim, entries = self.claim, self._partition.log.producers.entries\n"
        "        self._guard = self._present_guard()\n",
        OF_WIRE,
    ),
    Mutant(
        "the rows of the count are not judged again after the wait",
        f"{PARTITIONS}/inspected_appends.py::InspectedAppends._append",
        "                refused = why_not_appended(partition, entry.named, entry.records)\n",
        "                refused = None\n",
        OF_WIRE,
    ),
    Mutant(
        "the ISR is not judged again after the wait",
        f"{PARTITIONS}/inspected_appends.py::InspectedAppends._append",
        "if entry.in_sync and is_too_small(partition):\n",
        "if False:\n",
        OF_WIRE,
    ),
    Mutant(
        "a marker is not noted where its producer has nothing open",
        "src/tidelog/storage/log/producers.py::ProducerState._carry_out",
        "        entry.coordinator_epoch, entry.last_marker = event.marker_epoch, event.offset\n",
        "        entry.coordinator_epoch = event.marker_epoch\n"
        "        entry.last_marker = event.offset if entry.open_since != NONE else NONE\n",
        f"{OF_LOG} {OF_WIRE}",
    ),
    Mutant(
        "a batch that waits for its coordinator holds up other producers",
        f"{PARTITIONS}/inspected_appends.py::InspectedAppends.add",
        "        key = partition, _ALL if joining is None else joining.claim.producer_id\n",
        "        key = partition, _ALL\n        partition.has_uninspected = True\n",
        OF_WIRE,
    ),
    Mutant(
        "a later batch of a producer goes before one that waits",
        f"{PARTITIONS}/inspected_appends.py::InspectedAppends.waits",
        "        return (partition, producer_id) in self._queues\n",
        "        return False\n",
        OF_WIRE,
    ),
    Mutant(
        "a batch of a transaction is taken without a transactional id",
        "src/tidelog/records/batch.py::_check_attributes",
        "    if attributes & TRANSACTIONAL_BIT:\n        return OUTSIDE\n",
        "",
        f"tests/unit/records/test_batch.py {OF_WIRE}",
    ),
    Mutant(
        "batches of two producers are taken in one request with a transactional id",
        "src/tidelog/broker/handlers/produce.py::_in_transaction",
        "    if len(producers - {None}) > 1:\n",
        "    if False:\n",
        OF_WIRE,
    ),
    Mutant(
        "an old client gets an error that it does not know",
        f"{PARTITIONS}/verification.py::refusal_of",
        "            knows = version >= ABORTABLE_SINCE\n",
        "            knows = True\n",
        OF_RULES,
    ),
)
