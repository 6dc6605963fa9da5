"""Broken rules of writers without a partition count: what is known of them after a crash."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

OF_NOTES = "tests/broker/test_unaware_notes.py"
OF_KNOWN = "tests/unit/controller/test_unaware_writers.py"

MUTANTS = (
    Mutant(
        "a batch without a count is appended before its note is durable",
        "src/tidelog/broker/partitions/unaware_notes.py::UnawareNotes.covers",
        "        if not 0 < left_ms <= COVERS_MS:\n",
        "        if not 0 < left_ms <= COVERS_MS and of.is_changed:\n",
        OF_NOTES,
    ),
    Mutant(
        "the fast path asks for no note",
        "src/tidelog/broker/partitions/produce_fast_path.py::answer",
        "    if is_due and not broker.unaware_writers.may_append(",
        "    if is_due and not unaware and not broker.unaware_writers.may_append(",
        OF_NOTES,
    ),
    Mutant(
        "a missing note says that no such producer was there",
        "src/tidelog/storage/directory/unaware_note.py::UnawareNote.load",
        "        except FileNotFoundError:\n            self.wanted = hosted\n",
        "        except FileNotFoundError:\n            self.wanted = {}\n",
        OF_NOTES,
    ),
    Mutant(
        "a damaged note says that no such producer was there",
        "src/tidelog/storage/directory/unaware_note.py::UnawareNote.load",
        "        except DamagedFile as error:\n            self.wanted = hosted\n",
        "        except DamagedFile as error:\n            self.wanted = {}\n",
        OF_NOTES,
    ),
    Mutant(
        "a former leader says nothing of what it has seen",
        "src/tidelog/broker/partitions/unaware_writers.py::UnawareWriters._hosted",
        "if x.state.undeleted_count >= 0), None)\n        if counted",
        "if x.is_leader and x.state.undeleted_count >= 0), None)\n        if counted",
        OF_NOTES,
    ),
    Mutant(
        "a topic that was moved away is forgotten at once",
        "src/tidelog/broker/partitions/unaware_writers.py::UnawareWriters._drop",
        "            self._former[topic_id] = self.last_ms[topic]\n",
        "            pass\n",
        OF_NOTES,
    ),
    Mutant(
        "the next controller does not know what was reported",
        "src/tidelog/controller/decisions/unaware_writers.py::note_unaware",
        "        if history is not None and history.resize_epoch > 0 and seen > recorded:\n",
        "        if history is not None and history.resize_epoch < 0 and seen > recorded:\n",
        OF_KNOWN,
    ),
    Mutant(
        "a growth forgets the writers before it",
        "src/tidelog/controller/decisions/resize_requests.py::begun",
        "unaware_ms=max(0, seen_ms))",
        "unaware_ms=0)",
        OF_KNOWN,
    ),
    Mutant(
        "a broker's clock that was set back hides a writer",
        "src/tidelog/controller/decisions/unaware_writers.py::note_unaware",
        "        seen = now_ms if is_new else min(at_ms, now_ms)\n",
        "        seen = min(at_ms, now_ms)\n",
        OF_KNOWN,
    ),
)
