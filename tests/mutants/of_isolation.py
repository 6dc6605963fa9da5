"""Broken rules of isolation levels: how far readers of committed records read, and what they get.

Each mutant names a function, a statement of it and what replaces it, and the tests that must find
it.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant

OF_PATHS = "tests/broker/test_isolation.py"
OF_LIMITS = "tests/unit/broker/test_aborted_reads.py"
OF_RANDOM = "tests/unit/broker/test_isolation_random.py"

MUTANTS = (
    Mutant(
        "the event loop walks the batches of a segment",
        "src/tidelog/storage/log/aborted_reading.py::_entries_of",
        "        if soon:\n            raise Unproved(base)\n",
        "",
        "tests/unit/storage/test_aborted_files.py tests/broker/test_isolation.py",
    ),
    Mutant(
        "what a thread has read of aborted transactions counts for other files",
        "src/tidelog/storage/log/aborted_proving.py::ProvingRead.done",
        " or log.aborted.changes != self._changes:\n",
        ":\n",
        "tests/unit/storage/test_aborted_files.py",
    ),
    Mutant(
        "a reader of committed records reads up to the high watermark",
        "src/tidelog/broker/fetching/partition_reads.py::Reading.read",
        "        end = stable if self.only_committed and stable < fence else fence\n",
        "        end = fence\n",
        OF_PATHS,
    ),
    Mutant(
        "the fast path reads up to the high watermark at read_committed",
        "src/tidelog/broker/fetching/fetch_fast_path.py::_parts",
        "            limit = stable\n",
        "            pass\n",
        OF_PATHS,
    ),
    Mutant(
        "the fast path answers without aborted transactions",
        "src/tidelog/broker/fetching/fetch_fast_path.py::_parts",
        "            if committed and length and not nothing_aborted(log, offset, records):\n",
        "            if False:\n",
        OF_PATHS,
    ),
    Mutant(
        "ListOffsets ends at the high watermark at read_committed",
        "src/tidelog/broker/partitions/read_limit.py::limit_at",
        "    if isolation_level != READ_COMMITTED:\n",
        "    if isolation_level >= 0:\n",
        OF_PATHS,
    ),
    Mutant(
        "a reader of committed records wakes on the high watermark",
        "src/tidelog/broker/partitions/waiters.py::StableReaders.committed",
        "        if offset == before:\n            return\n",
        "",
        OF_PATHS,
    ),
    Mutant(
        "all bytes below the high watermark count for a reader of committed records",
        "src/tidelog/broker/partitions/waiters.py::StableReaders.committed",
        "            size = bytes_below_stable(log, before, offset)\n",
        "            pass\n",
        OF_PATHS,
    ),
    Mutant(
        "a read of too many aborted transactions has all of its records",
        "src/tidelog/broker/fetching/partition_reads.py::Reading._committed",
        "            records = self._records_at(wanted, partition, room, aborted.end)\n",
        "            pass\n",
        OF_LIMITS,
    ),
    Mutant(
        "partitions of one request do not share what a response has",
        "src/tidelog/broker/fetching/partition_reads.py::Reading._records",
        "            self.aborted += len(aborted.transactions)\n",
        "",
        OF_LIMITS,
    ),
    Mutant(
        "aborted transactions that began before the first batch that is left are left out",
        "src/tidelog/broker/fetching/aborted_reads.py::aborted_of_read",
        "        reached = aborted_between(log, first.last_offset, end, most, soon=soon)\n",
        "        pass\n",
        OF_LIMITS,
    ),
    Mutant(
        "a look-up covers only the offset that is asked for",
        "src/tidelog/broker/fetching/aborted_reads.py::aborted_of_read",
        "    end = end_of(records)\n",
        "    end = offset + 1\n",
        OF_RANDOM,
    ),
)
