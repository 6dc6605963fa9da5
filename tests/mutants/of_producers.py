"""Broken rules of producers that a partition does not know (decision 0100), and of their
transactions (0118)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TESTS = "tests/unit/broker/test_resuming_producers.py tests/broker/test_resuming_producers.py"

OF_TRANSACTIONS = "tests/unit/storage/test_transactions.py"
START_MEMORY = "tests/unit/storage/test_start_memory.py"
OLDER_EPOCHS = "tests/unit/storage/test_older_epochs.py"

MUTANTS = (
    Mutant(
        "an unknown producer begins anywhere",
        "src/tidelog/storage/log/producers.py::ProducerState.judge",
        "            return RESUMES if first > 0 else None\n",
        "            return None\n",
        TESTS,
    ),
    Mutant(
        "an unknown producer that goes on is refused for good",
        "src/tidelog/broker/partitions/resuming_producers.py::ResumingProducers.may_begin",
        "            if is_at_or_below(sequence, lowest):\n                return True\n",
        "",
        TESTS,
    ),
    Mutant(
        "a batch above the lowest that was refused is taken when it comes again",
        "src/tidelog/broker/partitions/resuming_producers.py::ResumingProducers.may_begin",
        "            if now_ms - noted_ms < GIVEN_UP_MS:\n                return False\n",
        "",
        TESTS,
    ),
    Mutant(
        "a batch passes one that its leader refused for another reason",
        "src/tidelog/broker/partitions/resuming_producers.py::ResumingProducers.refused",
        "            self._notes[resumed] = sequence, note[1]\n",
        "            pass\n",
        TESTS,
    ),
    Mutant(
        "a note outlives the leadership in which it was made",
        "src/tidelog/broker/partitions/resuming_producers.py::_resumed",
        "    since = -1 if leadership is None else leadership.since\n",
        "    since = -1\n",
        TESTS,
    ),
    Mutant(
        "a batch with too few replicas in sync lowers no note",
        "src/tidelog/broker/handlers/produce.py::_Appending.serve",
        "resuming.note_refusal(partition, records, refused.error)",
        "pass",
        TESTS,
    ),
    Mutant(
        "a batch that is inspected lowers no note when it is refused",
        "src/tidelog/broker/partitions/inspected_appends.py::InspectedAppends._work_off",
        "                    self._resuming.note_refusal(partition, entry.records, result.error)\n",
        "                    pass\n",
        TESTS,
    ),
    Mutant(
        "the stable offset passes a transaction whose marker may still be cut",
        "src/tidelog/storage/log/transactions.py::OpenTransactions.first_unstable",
        "        while ended and ended[0].marker < high_watermark:\n",
        "        while ended:\n",
        OF_TRANSACTIONS,
    ),
    Mutant(
        "an older epoch takes the place of a newer one",
        "src/tidelog/storage/log/producers.py::ProducerState.note",
        "        elif epoch < entry.epoch:\n",
        "        elif False:\n",
        OLDER_EPOCHS,
    ),
    Mutant(
        "an older epoch takes the place of a newer one in a parallel check",
        "src/tidelog/storage/log/producers.py::ProducerState.follow",
        "(former is not None and former.epoch > entry.epoch)",
        "False",
        OLDER_EPOCHS,
    ),
    Mutant(
        "a plain batch is taken while a transaction of its producer is open",
        "src/tidelog/storage/log/joining.py::why_not_plain",
        "entry.open_since == NONE or attributes & TRANSACTIONAL_BIT",
        "True",
        OF_TRANSACTIONS,
    ),
    Mutant(
        "a reader passes what a cut below the watermark opens again",
        "src/tidelog/storage/log/transactions.py::last_stable",
        "    if transactions.is_outdated:\n",
        "    if False:\n",
        OF_TRANSACTIONS,
    ),
    Mutant(
        "a cut that did not begin holds readers back for ever",
        "src/tidelog/storage/log/state.py::LogState.restore_claims",
        "        self.producers.transactions.is_outdated = False\n",
        "",
        OF_TRANSACTIONS,
    ),
    Mutant(
        "a cut that was refused after its claims holds readers back for ever",
        "src/tidelog/storage/log/cutting.py::_not_begun",
        "    log.restore_claims(claimed)\n",
        "",
        OF_TRANSACTIONS,
    ),
    Mutant(
        "a start does not look for markers above the watermark",
        "src/tidelog/storage/log/snapshots.py::load_producers",
        "    if start > high_watermark and any(",
        "    if False and any(",
        OF_TRANSACTIONS,
    ),
    Mutant(
        "a check keeps the last marker of a producer without the highest epoch of its markers",
        "src/tidelog/storage/log/transaction_events.py::TransactionEvents.ended",
        "                event = event._replace(epoch=former.epoch)\n",
        "                pass\n",
        START_MEMORY,
    ),
    Mutant(
        "a check keeps all transactions that have ended",
        "src/tidelog/storage/log/transaction_events.py::TransactionEvents.ended",
        "            self._by_offset.pop(first_offset, None)\n",
        "            pass\n",
        START_MEMORY,
    ),
    Mutant(
        "a start keeps all transactions whose headers it reads",
        "src/tidelog/storage/log/snapshots.py::_note_from",
        "                if header.control:\n",
        "                if False:\n",
        START_MEMORY,
    ),
    Mutant(
        "a start follows a check that has forgotten producers",
        "src/tidelog/storage/log/snapshots.py::load_producers",
        "        checked = None\n",
        "        pass\n",
        START_MEMORY,
    ),
    Mutant(
        "what the parallel check of a start finds of transactions is lost",
        "src/tidelog/storage/log/producers.py::ProducerState.follow",
        "                self._carry_out(event)\n",
        "                pass\n",
        OF_TRANSACTIONS,
    ),
    Mutant(
        "a producer with an open transaction is forgotten",
        "src/tidelog/storage/log/producers.py::ProducerState._longest_idle",
        "            if head.open_since == NONE:\n",
        "            if True:\n",
        OF_TRANSACTIONS,
    ),
    Mutant(
        "a batch that the cleaner emptied opens a transaction",
        "src/tidelog/storage/log/producers.py::ProducerState.note",
        "            if count:\n",
        "            if True:\n",
        OF_TRANSACTIONS,
    ),
    Mutant(
        "the cleaner passes the stable offset",
        "src/tidelog/storage/compaction/plan.py::cleanable",
        "    bound = min(last_stable_offset(log), log.synced_end_offset)\n",
        "    bound = min(log.high_watermark, log.synced_end_offset)\n",
        OF_TRANSACTIONS,
    ),
)
