"""Broken rules of the Spark pipeline: commits of the lake, positions of the source."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

LAKE = "tests/unit/pipeline/test_lake.py"
READING = "tests/broker/test_pipeline_reading.py"
PLANNER = "tests/unit/pipeline/test_planner.py"
HISTORIES = "tests/unit/pipeline/test_histories.py"
SOURCE = "tests/cluster/test_source_resizes.py"

AUDITING = "tests/unit/cli/auditing/test_judging.py"
AUDITING_BOUNDS = "tests/unit/cli/auditing/test_judging_bounds.py"
BOUNDS = "tests/unit/pipeline/test_planner_bounds.py"

SINK = "tests/unit/pipeline/test_sink_rows.py"
BAD_RECORDS = "tests/unit/pipeline/test_bad_records.py"

MUTANTS = (
    Mutant(
        "a row of the sink passes one that names the partition of its key",
        "src/tidelog/pipeline/sink/rows.py::_targets",
        "if len(parts) == 1 or parts[0] != NO_PARTITION:",
        "if len(parts):",
        SINK,
    ),
    Mutant(
        "the rows of a task are not sorted as the sink was asked",
        "src/tidelog/pipeline/sink/ordering.py::in_order",
        '(str(index), "ascending") for index in by',
        '(str(index), "ascending") for index in by[:1]',
        SINK,
    ),
    Mutant(
        "a batch that was damaged on the way counts as bad at once",
        "src/tidelog/pipeline/decoding/chunks.py::Decoder._bad_frame",
        "        if bad.is_damaged and not is_first:\n",
        "        if not bad.raw:\n",
        BAD_RECORDS,
    ),
    Mutant(
        "of two damaged batches the word counts that leads further",
        "src/tidelog/pipeline/decoding/chunks.py::_end_of_damage",
        "        return min(until, after.first)\n",
        "        return max(until, after.first)\n",
        BAD_RECORDS,
    ),
    Mutant(
        "an abort marker that cannot be read hides the next transaction of its producer",
        "src/tidelog/pipeline/decoding/chunks.py::Decoder._judged",
        "            damaged = header.control\n",
        "            damaged = header.record_count < 0\n",
        BAD_RECORDS,
    ),
    Mutant(
        "one batch that cannot be decoded takes the others of its chunk with it",
        "src/tidelog/pipeline/decoding/chunks.py::Decoder._chunk",
        "            if len(chunk) > 1:\n",
        "            if len(chunk) > 1 << 30:\n",
        BAD_RECORDS,
    ),
    Mutant(
        "the planner waits for each broker that is silent, although others have said enough",
        "src/tidelog/client/connecting/first_answer.py::several_answers",
        "        while len(results) < fewest and not all(",
        "        while not all(",
        "tests/component/pipeline/test_silent_brokers.py",
    ),
    Mutant(
        "one report of a broker proves that a topic was replaced",
        "src/tidelog/pipeline/brokers.py::Brokers.was_replaced",
        "        wanted = min(2, len(self._cluster.view.brokers))\n        answers",
        "        wanted = 1\n        answers",
        "tests/component/pipeline/test_silent_brokers.py",
    ),
    Mutant(
        "a batch read that begins beyond the log reads nothing",
        "src/tidelog/pipeline/planning/resolve.py::beyond_the_log",
        "        if pid in states and offset > states[pid].end\n",
        "        if pid in states and offset < 0\n",
        PLANNER,
    ),
    Mutant(
        "T11: a stray file of a cut-down batch stays",
        "src/tidelog/pipeline/lake/commit.py::recover",
        "                    place.unlink()\n                    sync(place.parent)\n",
        "                    sync(place.parent)\n",
        LAKE,
    ),
    Mutant(
        "T11: a stray file of a batch that version 1 cut down stays",
        "src/tidelog/pipeline/lake/commit.py::recover_first_version",
        "    for name in stray:\n        (layout.root / name).unlink()\n",
        "",
        f"{LAKE} tests/unit/pipeline/test_archive.py",
    ),
    Mutant(
        "T11: folders are not synced before a manifest",
        "src/tidelog/pipeline/lake/commit.py::_link_files",
        "    for folder in folders:\n        sync(folder)\n",
        "",
        f"{LAKE}::test_each_name_is_durable_before_what_rests_on_it",
    ),
    Mutant(
        "T11: only the last of new folders is synced before a manifest",
        "src/tidelog/pipeline/lake/commit.py::_link_files",
        "folders.update(parent for parent in place.parents if parent.is_relative_to(layout.root))",
        "folders.add(place.parent)",
        f"{LAKE}::test_each_name_is_durable_before_what_rests_on_it",
    ),
    Mutant(
        "a draft is not durable before files are linked",
        "src/tidelog/pipeline/lake/commit.py::commit",
        "        out.flush()\n        os.fsync(out.fileno())\n    sync(layout.inflight)\n",
        "        out.flush()\n    sync(layout.inflight)\n",
        f"{LAKE}::test_each_name_is_durable_before_what_rests_on_it",
    ),
    Mutant(
        "recovery removes a file that another writer linked",
        "src/tidelog/pipeline/lake/commit.py::recover",
        "                if (stat.st_dev, stat.st_ino) in own:\n",
        "                if stat:\n",
        LAKE,
    ),
    Mutant(
        "a manifest checkpoint does not take the place of what it holds when a batch is looked for",
        "src/tidelog/pipeline/lake/chain.py::is_there",
        "layout.manifest(batch).exists() or batch <= _listing(layout).folded",
        "layout.manifest(batch).exists()",
        "tests/unit/pipeline/test_lake_chain.py tests/unit/pipeline/test_archive.py",
    ),
    Mutant(
        "what one broker calls lost is believed",
        "src/tidelog/pipeline/planning/losses.py::_missing",
        "    if pid not in snapshot.proven:\n",
        "    if pid in snapshot.silent:\n",
        PLANNER,
    ),
    Mutant(
        "a batch opens gates by its own progress",
        "src/tidelog/pipeline/planning/planner.py::shut_ends",
        "GroupPosition(_NO_GATE_WAITS if pid in judged.ended else position)",
        "GroupPosition(getattr(snapshot.partitions.get(pid), 'end', position))",
        HISTORIES,
    ),
    Mutant(
        "a resized topic is read although a partition left no trace",
        "src/tidelog/pipeline/planning/planner.py::shut_ends",
        "        if topic in lost_track:\n",
        "        if False:\n",
        PLANNER,
    ),
    Mutant(
        "the seal of a removed partition counts as data",
        "src/tidelog/pipeline/planning/losses.py::_removed",
        "    if position < former.data_end:\n",
        "    if position < former.final_offset:\n",
        PLANNER,
    ),
    Mutant(
        "a partition that was born and removed unseen is no loss",
        "src/tidelog/pipeline/planning/losses.py::_never_seen",
        "    if former.data_end > _BIRTH_FENCE:\n",
        "    if False:\n",
        PLANNER,
    ),
    Mutant(
        "a record at a fence's offset has the epoch before it",
        "src/tidelog/pipeline/decoding/chunks.py::Origin.resize_epochs",
        'np.searchsorted(fences[:, 0], offsets, "right")',
        'np.searchsorted(fences[:, 0], offsets, "left")',
        "tests/unit/pipeline/test_chunks.py",
    ),
    Mutant(
        "keys of a resized topic are held against Kafka's own hash",
        "src/tidelog/partitioning/audit_rules.py::home_in",
        "modulus_of(partition, *each) for each",
        "each[1] for each",
        "tests/unit/pipeline/test_comparing.py",
    ),
    Mutant(
        "a lake that lacks the end of a removed partition is right",
        "src/tidelog/pipeline/audit/rules.py::_gone",
        "        if gone.lacking > 0:\n",
        "        if False:\n",
        "tests/unit/pipeline/test_audit.py",
    ),
    Mutant(
        "a stream does not report the partitions that it has drained",
        "src/tidelog/pipeline/stream_reader.py::StreamReader._with_drains_reported",
        "        return {**start, _REPORTS: int(start.get(_REPORTS, 0)) + 1}\n",
        "        return start\n",
        SOURCE,
    ),
    Mutant(
        "a leader of an earlier epoch than the position's is believed",
        "src/tidelog/pipeline/planning/losses.py::_found",
        "    if 0 <= state.leader_epoch < epoch:\n",
        "    if False:\n",
        PLANNER,
    ),
    Mutant(
        "a task reads on over a batch of a later epoch than its plan's",
        "src/tidelog/pipeline/tasks.py::_Reading._search_for_later_epochs",
        "            if header.leader_epoch > self._planned_in:\n",
        "            if False:\n",
        READING,
    ),
    Mutant(
        "the audit of a live topic judges a record by the present count",
        "src/tidelog/cli/auditing/judging.py::TopicJudge._take_records",
        "home_in(partition, span.resize_epoch)",
        "home_in(partition, self._audited.topic.resize_epoch)",
        AUDITING,
    ),
    Mutant(
        "two partitions of one resize epoch have an order",
        "src/tidelog/partitioning/audit_rules.py::Remembered.is_back_from",
        "        return is_later & (self.value < before.value)\n",
        "        return self.value < before.value\n",
        "tests/unit/partitioning/test_audit_rules.py",
    ),
    Mutant(
        "the audit of a live topic reads a child before its parent",
        "src/tidelog/cli/auditing/facts.py::AuditedTopic.phases",
        "        return [by_epoch[epoch] for epoch in sorted(by_epoch)]\n",
        "        return [by_epoch[epoch] for epoch in sorted(by_epoch, reverse=True)]\n",
        AUDITING,
    ),
    Mutant(
        "a growth that was undone misplaces keys",
        "src/tidelog/partitioning/epoch_spans.py::counts_in_force",
        "            possible.insert(0, before)\n",
        "            possible.insert(0, count)\n",
        "tests/unit/partitioning/test_epoch_spans.py",
    ),
    Mutant(
        "two neighbouring fences count as one",
        "src/tidelog/partitioning/gates.py::is_met",
        "need.upto.offset) >= need.upto.offset\n",
        "need.upto.offset) >= need.upto.offset - 1\n",
        "tests/unit/partitioning/test_gates.py",
    ),
    Mutant(
        "a topic that was created again keeps the resize epoch of the former one",
        "src/tidelog/pipeline/planning/planner.py::_positions",
        " if start.topic_ids.get(topic) == topic_id else 0",
        "",
        BOUNDS,
    ),
    Mutant(
        "a position in doubt holds up a whole resized topic",
        "src/tidelog/pipeline/planning/planner.py::shut_ends",
        " if pid not in snapshot.partitions}\n    for",
        "}\n    for",
        BOUNDS,
    ),
    Mutant(
        "a gate waits for a partition that is lost for good",
        "src/tidelog/pipeline/planning/losses.py::_missing",
        "    made.ended.add(pid)\n",
        "",
        BOUNDS,
    ),
    Mutant(
        "a leader of the same epoch is believed that a position is lost",
        "src/tidelog/pipeline/planning/losses.py::_found",
        "0 <= epoch < state.leader_epoch)",
        "0 <= epoch <= state.leader_epoch)",
        BOUNDS,
    ),
    Mutant(
        "a position goes back where very many partitions hold others back",
        "src/tidelog/pipeline/planning/admission.py::admit",
        "{pid: max(1, count) for",
        "{pid: count for",
        BOUNDS,
    ),
    Mutant(
        "a range that ends in a gap is never read to its end",
        "src/tidelog/pipeline/decoding/chunks.py::Decoder.decode",
        "                reached = self.end\n",
        "",
        "tests/unit/pipeline/test_chunks.py",
    ),
    Mutant(
        "what a later audit compared counts among the batches before",
        "src/tidelog/pipeline/audit/record.py::_is_of",
        "    if not 0 <= recorded.batch <= whole.batch:\n",
        "    if not 0 <= recorded.batch:\n",
        "tests/unit/pipeline/test_audit_bounds.py",
    ),
    Mutant(
        "a resize that is not published says that no order was promised before",
        "src/tidelog/cli/auditing/snapshot.py::audited_of",
        "        if epoch <= topic.resize_epoch\n",
        "",
        AUDITING_BOUNDS,
    ),
    Mutant(
        "the audit of a live topic judges what lies above the end",
        "src/tidelog/cli/auditing/judging.py::TopicJudge._take_records",
        "if span.begin <= record.offset < span.end]",
        "if span.begin <= record.offset]",
        AUDITING_BOUNDS,
    ),
    Mutant(
        "a plain producer has another clock in each of its epochs",
        "src/tidelog/cli/auditing/judging.py::TopicJudge._take_time",
        "header.producer_epoch if header.transactional else _ANY_EPOCH",
        "header.producer_epoch",
        AUDITING_BOUNDS,
    ),
    Mutant(
        "a file below the log's start counts as compared by less than nothing",
        "src/tidelog/pipeline/audit/reading.py::PieceToCompare.begin",
        "return min(self.piece.end, max(self.piece.start, self.log_start))",
        "return max(self.piece.start, self.log_start)",
        "tests/unit/pipeline/test_audit_pieces.py",
    ),
)
