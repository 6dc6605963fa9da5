"""Broken rules of producers that a partition does not know (decision 0100)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

TESTS = "tests/unit/broker/test_resuming_producers.py tests/broker/test_resuming_producers.py"

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
)
