"""Broken rules of transactional clients: partitions, ends, epochs, offsets, tombstones."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RULES = "tests/unit/client/test_transaction.py"
TOMBSTONES = "tests/component/client/test_tombstones_to_stopped_brokers.py"
ON_BOTH = "tests/cluster/test_client_transactions.py"
MEMBERS = "tests/cluster/test_client_exactly_once.py"
MACHINE = "src/tidelog/client/producing/transaction.py::ProducerTransaction"

MUTANTS = (
    Mutant(
        "a batch is sent before its partition is in the transaction",
        f"{MACHINE}.may_send",
        "        if partition in self._added:\n",
        "        if partition in self._added or partition in self._wanted:\n",
        RULES,
    ),
    Mutant(
        "a producer goes on in the epoch of an aborted transaction",
        f"{MACHINE}.ends",
        "        raises = self._is_open and not commits and not self._was_prepared\n",
        "        raises = False\n",
        RULES,
    ),
    Mutant(
        "a producer goes on in the epoch of a prepared transaction",
        f"{MACHINE}.ended",
        "        self._needs_epoch |= self._was_prepared\n",
        "",
        RULES,
    ),
    Mutant(
        "the names of a prepared transaction are void as soon as it has ended",
        f"{MACHINE}.ends",
        "        raises = self._is_open and not commits and not self._was_prepared\n",
        "        raises = self._is_open and (not commits or self._was_prepared)\n",
        RULES,
    ),
    Mutant(
        "an abort that may come after a commit counts as done",
        f"{MACHINE}.refused_end",
        "        return self._close(error) if self._is_decided else None\n",
        "        return None\n",
        RULES,
    ),
    Mutant(
        "the tombstones of an aborted transaction are sent",
        "src/tidelog/client/producing/ancestor_tombstones.py::AncestorTombstones.release",
        "        if committed and held:\n",
        "        if held:\n",
        TOMBSTONES,
    ),
    Mutant(
        "a failed record does not fail its transaction",
        "src/tidelog/client/producing/delivery.py::BatchDelivery.finish",
        "            self.lost(batch.failure)\n",
        "            pass\n",
        f"{ON_BOTH}::test_a_record_that_fails_leaves_only_an_abort",
    ),
    Mutant(
        "a new owner reads from before offsets that a transaction may commit",
        "src/tidelog/client/groups/position_lookup.py::PositionLookup._look_up_part",
        "require_stable=True",
        "require_stable=False",
        f"{MEMBERS}::test_a_new_member_waits_for_offsets_that_a_transaction_may_commit",
    ),
    Mutant(
        "an operator's marker aborts a part of what a coordinator may have committed",
        "src/tidelog/client/admin/aborting.py::aborted_by",
        "        if one.state == COMMITTED and is_of_epoch:\n",
        "        if one.state == COMMITTED and not is_of_epoch:\n",
        "tests/unit/client/test_hanging_transactions.py",
    ),
    Mutant(
        "a marker aborts what a silent coordinator may have",
        "src/tidelog/client/admin/aborting.py::aborted_by",
        "        return (Aborts.WRITES_A_MARKER if all_answered else Aborts.IN_DOUBT), None\n",
        "        return Aborts.WRITES_A_MARKER, None\n",
        "tests/unit/client/test_hanging_transactions.py",
    ),
)
