"""Broken rules of what lies on disk: segments, recovery, producers, epochs, batches."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

STORIES = "tests/simulation/test_log_seeds.py"
CRASHED_MOVE = (
    "tests/simulation/test_future_crashes.py"
    "::test_a_crash_anywhere_in_a_move_leaves_one_whole_replica"
)

MUTANTS = (
    Mutant(
        "T11: a truncation is not synced",
        "src/tidelog/storage/log/cutting.py::_Cut.run",
        "        for file, _ in self.opened.sizes[-1:]:\n            file.sync()\n",
        "",
        STORIES,
    ),
    Mutant(
        "T11: what recovery cuts off is not synced",
        "src/tidelog/storage/log/recovery.py::_judge",
        "    segment.open_log().sync()\n",
        "",
        STORIES,
    ),
    Mutant(
        "T11: after a failed fsync the rest of a group-commit trip is synced",
        "src/tidelog/storage/log/syncing.py::run_all",
        "        pending.error = failed.get(pending.log_directory)\n",
        "        pending.error = None\n",
        "tests/unit/storage/test_faults.py tests/broker/test_group_commit.py",
    ),
    Mutant(
        "T11: after a failed fsync the leader epochs and fences of other logs are written",
        "src/tidelog/storage/log/syncing.py::write_all_epochs",
        "        pending.error = failed.get(pending.log_directory)\n",
        "        pending.error = None\n",
        "tests/unit/storage/test_faults.py",
    ),
    Mutant(
        "T11: that the directory of a deleted log is gone counts as a failed disk for other logs",
        "src/tidelog/storage/log/syncing.py::write_all_epochs",
        " and not (pending.is_refused or pending.overtaken):\n",
        " and not pending.is_refused:\n",
        "tests/unit/storage/test_faults.py tests/broker/test_group_commit.py",
    ),
    Mutant(
        "T11: a search in a log that is deleted meanwhile takes its directory out of service",
        "src/tidelog/storage/log/service.py::unreadable",
        "    if is_overtaken(log, error):\n        return out_of_service(log)\n"
        "    passing = log.resources.refused_for(error)\n"
        "    if passing is not None:\n"
        '        return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, f"{passing}: {log.path}")\n'
        '    log.resources.fail(f"a read',
        "    passing = log.resources.refused_for(error)\n"
        "    if passing is not None:\n"
        '        return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, f"{passing}: {log.path}")\n'
        '    log.resources.fail(f"a read',
        "tests/unit/storage/test_deleted_meanwhile.py",
    ),
    Mutant(
        "T11: work in pieces on a log that is deleted meanwhile counts as a failed write",
        "src/tidelog/storage/log/service.py::write_failed",
        "    if is_overtaken(log, error):\n        return out_of_service(log)\n"
        "    passing = log.resources.refused_for(error)\n"
        "    if passing is not None:\n"
        '        return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, f"{passing}: {log.path}")\n'
        '    log.resources.fail(f"a write',
        "    passing = log.resources.refused_for(error)\n"
        "    if passing is not None:\n"
        '        return Rejected(ErrorCode.KAFKA_STORAGE_ERROR, f"{passing}: {log.path}")\n'
        '    log.resources.fail(f"a write',
        "tests/unit/storage/test_deleted_meanwhile.py",
    ),
    Mutant(
        "T11: a search opens a file of a log that has moved, for the next log of its path",
        "src/tidelog/storage/log/time_lookup.py::newest",
        "    if log.damaged or log.closed:\n        return None  # a file that is opened now",
        "    if log.damaged:\n        return None  # a file that is opened now",
        "tests/unit/storage/test_deleted_meanwhile.py",
    ),
    Mutant(
        "T11: a file of a log that has moved stays open for the next log of its path",
        "src/tidelog/storage/future/moving.py::_clear_up",
        "        origin.resources.files.forget_below(former)\n",
        "",
        "tests/broker/test_log_work.py",
    ),
    Mutant(
        "T11: a deletion that waits for a move comes before its end",
        "src/tidelog/broker/control_plane/control_channel.py::Control._at_rest",
        "            if hosted.log is log and self._partitions.get(*key) is hosted:\n",
        "            if True:\n",
        "tests/broker/test_log_work.py",
    ),
    Mutant(
        "T11: what an earlier life found damaged is cut as a torn tail",
        "src/tidelog/storage/log/recovery.py::_judge",
        "    elif ending.was_damaged and not ending.unsynced_may_be_gone:\n"
        "        recovered.damaged = damage\n",
        "",
        "tests/unit/storage/test_recovery.py",
    ),
    Mutant(
        "T11: damage is cut off, and then named",
        "src/tidelog/storage/log/recovery.py::_judge",
        "    if recovered.damaged is not None:\n        return\n    recovered.lost_sound_batches",
        "    recovered.lost_sound_batches",
        "tests/unit/storage/test_recovery.py",
    ),
    Mutant(
        "T11: a retry with the same first and another last sequence is a duplicate",
        "src/tidelog/storage/log/producers.py::ProducerState.judge",
        "batch.first_sequence == first and batch.last_sequence == last",
        "batch.first_sequence == first",
        "tests/unit/storage/test_producers.py",
    ),
    Mutant(
        "T11: each batch of one request begins one offset after the start of the last",
        "src/tidelog/storage/log/preparing.py::chunks_for",
        "        offset += header.last_offset_delta + 1\n",
        "        offset += 1\n",
        "tests/unit/storage/test_producers.py tests/unit/storage/test_partition_log.py",
    ),
    Mutant(
        "T11: the high watermark stays when a log is emptied",
        "src/tidelog/storage/log/state.py::LogState.begin_again",
        "        self.start_offset = self.high_watermark = offset\n",
        "        self.start_offset = offset\n",
        "tests/unit/storage/test_cutting.py tests/unit/storage/test_partition_log.py",
    ),
    Mutant(
        "a checkpoint is not lowered before a cut",
        "src/tidelog/storage/log/cutting.py::_lower_claims",
        "        if max(former) > offset and log.resources.before_cut is not None:\n"
        "            yield from log.resources.before_cut()\n",
        "",
        STORIES,
    ),
    Mutant(
        "a sync that was overtaken by a cut is believed",
        "src/tidelog/storage/log/syncing.py::synced",
        "    if log.change is LogChange.CUT or pending.generation != log.generation:\n"
        "        return  # what is cut may be given out again\n",
        "",
        "tests/unit/storage/test_faults.py",
    ),
    Mutant(
        "a length that an earlier life cut is not made durable",
        "src/tidelog/storage/log/rewriting.py::write_again",
        "        file.truncate(log.segments.active.size + 1)\n"
        "        file.truncate(log.segments.active.size)\n"
        "        log.dirty.files.add(log.segments.active.log_path)\n",
        "        del file\n",
        STORIES,
    ),
    Mutant(
        "retention removes what is not committed",
        "src/tidelog/storage/log/retention.py::expired",
        "        if segment.next_offset > high_watermark or (last and segment.size == 0):\n",
        "        if last and segment.size == 0:\n",
        "tests/unit/storage/test_retention.py",
    ),
    Mutant(
        "compaction rewrites what is not synced",
        "src/tidelog/storage/compaction/plan.py::cleanable",
        "    bound = min(log.high_watermark, log.synced_end_offset)\n",
        "    bound = log.high_watermark\n",
        "tests/unit/storage/test_compaction.py",
    ),
    Mutant(
        "compaction forgets where a silent producer stands",
        "src/tidelog/storage/compaction/cleaner.py::_kept_batches",
        "                    kept.last_of_producer[header.producer_id] = last\n",
        "                    pass\n",
        "tests/unit/storage/test_compaction.py",
    ),
    Mutant(
        "compaction keeps only the last batch of a producer",
        "src/tidelog/storage/compaction/cleaner.py::_kept_batches",
        "(*last[1 - BATCHES_REMEMBERED :], header.last_offset)\n",
        "(header.last_offset,)\n",
        "tests/unit/storage/test_compacted_producers.py",
    ),
    Mutant(
        "each thread of the cleaner takes the whole buffer",
        "src/tidelog/broker/partitions/cleaning.py::Cleaning._share",
        "            buffer // threads,\n",
        "            buffer,\n",
        "tests/broker/test_cleaner_configs.py",
    ),
    Mutant(
        "one log is compacted at a time, whatever is set",
        "src/tidelog/broker/partitions/cleaning.py::Cleaning._rounds",
        "            if not round_ or len(at_work) >= threads:\n",
        "            if not round_ or at_work:\n",
        "tests/broker/test_cleaner_configs.py",
    ),
    Mutant(
        "keys that begin alike are one key for the cleaner",
        "src/tidelog/storage/compaction/newest.py::short",
        '        return (key + b"\\x80").ljust(_KEY_BYTES, b"\\0")\n',
        '        return key.ljust(_KEY_BYTES, b"\\0")\n',
        "tests/unit/storage/test_compaction_limits.py",
    ),
    Mutant(
        "the cleaner waits for nothing",
        "src/tidelog/storage/compaction/pace.py::Pace.take",
        "        while (wait_s := self._owed_bytes / self.bytes_per_second) >= LEAST_WAIT_S:\n",
        "        while (wait_s := 0.0) >= LEAST_WAIT_S:\n",
        "tests/unit/storage/test_compaction_limits.py",
    ),
    Mutant(
        "a run of the cleaner keeps the rate of its plan",
        "src/tidelog/storage/compaction/pace.py::Pace.take",
        "            self.bytes_per_second = self.check() or self.bytes_per_second\n",
        "            self.check()\n",
        "tests/unit/storage/test_compaction_limits.py",
    ),
    Mutant(
        "an epoch without records keeps its place before the next one",
        "src/tidelog/storage/epochs.py::LeaderEpochs.begin",
        "        while self.entries and self.entries[-1][1] >= start_offset:\n"
        "            self.entries.pop()\n",
        "",
        "tests/unit/storage/test_epochs.py",
    ),
    Mutant(
        "a truncation keeps the leader epochs above it",
        "src/tidelog/storage/epochs.py::LeaderEpochs.truncate_end",
        "        del self.entries[keep:]\n",
        "",
        "tests/unit/storage/test_epochs.py",
    ),
    Mutant(
        "the log start passes the high watermark",
        "src/tidelog/storage/log/expiring.py::advance_start",
        "    if offset > log.high_watermark:\n",
        "    if offset > log.end_offset:\n",
        "tests/unit/storage/test_partition_log.py tests/unit/storage/test_retention.py",
    ),
    Mutant(
        "a client's CRC is not looked at",
        "src/tidelog/records/batch.py::check_client_batch",
        "    if crc32c(batch[ATTRIBUTES_POSITION:]) != crc:\n",
        "    if False:\n",
        "tests/unit/records/test_batch.py",
    ),
    Mutant(
        "a client's batch may claim more records than it can hold",
        "src/tidelog/records/batch.py::check_client_batch",
        "    if count * LEAST_RECORD_BYTES > len(batch) - HEADER_SIZE and (\n",
        "    if False and (\n",
        "tests/unit/storage/test_lying_batches.py tests/unit/records/test_batch.py",
    ),
    Mutant(
        "B1: a greatest timestamp before the first one is kept",
        "src/tidelog/storage/log/tail.py::has_room",
        "        and 0 <= header[7] <= header[8] <= newest\n",
        "        and 0 <= header[8] <= newest\n",
        "tests/broker/test_batch_times.py",
    ),
    Mutant(
        "B1: the greatest timestamp is not taken from the records",
        "src/tidelog/storage/log/inspecting.py::_check_records",
        "    if scan.newest[0] != header.max_timestamp:\n",
        "    if False:\n",
        "tests/broker/test_batch_times.py",
    ),
    Mutant(
        "B1: the limits on times hold for the header alone",
        "src/tidelog/storage/log/inspecting.py::_check_records",
        "    for time, index in (scan.newest, scan.oldest):\n",
        "    for time, index in ():\n",
        "tests/broker/test_batch_times.py",
    ),
    Mutant(
        "B2: log.batch.check=full compares what header does",
        "src/tidelog/storage/log/state.py::LogState.configure",
        "            not self.resources.checks_records\n            and configs",
        "            configs",
        "tests/broker/test_batch_times.py",
    ),
    Mutant(
        "B2: two records of a batch may have one offset",
        "src/tidelog/records/record_scan.py::RecordScan._read_records",
        "            if delta != index + index:\n",
        "            if False:\n",
        "tests/unit/records/test_record_scan.py",
    ),
    Mutant(
        "B2: a plain record may have any offset delta",
        "src/tidelog/records/plain_records.py::_pass_singles",
        "            if said != delta:\n",
        "            if False:\n",
        "tests/unit/records/test_plain_records.py",
    ),
    Mutant(
        "B2: records of one layout may have any offset delta",
        "src/tidelog/records/plain_records.py::_pass_row",
        " != expected[start : start + count]:\n",
        ' == b"":\n',
        "tests/unit/records/test_plain_records.py",
    ),
    Mutant(
        "B2: the lengths of values of one layout are not compared",
        "src/tidelog/records/plain_records.py::_pass_row",
        "key_at, value_at, length - 1]\n",
        "key_at, length - 1]\n",
        "tests/unit/records/test_plain_records.py",
    ),
    Mutant(
        "bytes after the first frame of LZ4 are left out",
        "src/tidelog/records/compression.py::_lz4_blocks",
        " if at == len(payload) else None\n",
        "\n",
        "tests/unit/records/test_lz4_blocks.py",
    ),
    Mutant(
        "a slow level of compression may hold the loop",
        "src/tidelog/storage/log/inspecting.py::_compressed_at_once",
        "SLOW_LEVEL_BYTES if is_slow else",
        "SLOW_LEVEL_BYTES if False else",
        "tests/unit/storage/test_recompressed_batches.py",
    ),
    Mutant(
        "B2: numbers that Java does not read are taken",
        "src/tidelog/records/record_scan.py::_read",
        "    for shift in range(0, bits, 7):\n",
        "    for shift in range(0, 70, 7):\n",
        "tests/unit/records/test_record_scan.py",
    ),
    Mutant(
        "B2: LZ4 blocks may depend on each other",
        "src/tidelog/records/frames.py::_lz4_start_fault",
        "    if not flags & _LZ4_INDEPENDENT:\n",
        "    if False:\n",
        "tests/unit/records/test_frames.py",
    ),
    Mutant(
        "B2: a gzip payload may have several members",
        "src/tidelog/storage/log/inspecting.py::inspect",
        "inside.plain, taken, 1)",
        "inside.plain, taken)",
        "tests/broker/test_inspected_appends.py",
    ),
    Mutant(
        "a client may write control batches",
        "src/tidelog/records/batch.py::_check_attributes",
        "    if attributes & (CONTROL_BIT | DELETE_HORIZON_BIT):\n",
        "    if attributes & DELETE_HORIZON_BIT:\n",
        "tests/unit/records/test_batch.py",
    ),
    Mutant(
        "the fifth batch of a producer is forgotten",
        "src/tidelog/storage/log/producers.py::ProducerState.note",
        "            if len(batches) > BATCHES_REMEMBERED:\n",
        "            if len(batches) >= BATCHES_REMEMBERED:\n",
        "tests/unit/storage/test_producers.py",
    ),
    Mutant(
        "whole batches that are missing below the recovery point are not missed",
        "src/tidelog/storage/log/recovery.py::_why_too_short",
        "    if end < ending.recovery_point:\n        return",
        "    if end < 0:\n        return",
        "tests/unit/storage/test_recovery.py",
    ),
    Mutant(
        "bytes after the end of a clean stop are kept",
        "src/tidelog/storage/log/recovery.py::_open_last_clean",
        "    return end == last.size",
        "    return True",
        "tests/unit/storage/test_recovery.py",
    ),
    Mutant(
        "a topic without a time limit loses all",
        "src/tidelog/storage/log/retention.py::_too_old",
        "    if retention_ms < 0:\n        return 0\n",
        "",
        "tests/unit/storage/test_retention.py",
    ),
    Mutant(
        "retention takes batches whose producers no snapshot knows",
        "src/tidelog/storage/log/expiring.py::_apply_retention",
        "    while count and not (yield from keeping_producers(",
        "    while False and not (yield from keeping_producers(",
        "tests/unit/storage/test_retention.py",
    ),
    Mutant(
        "a producer's newer epoch does not end the former one",
        "src/tidelog/storage/log/producers.py::ProducerState.note",
        "        if entry is None or entry.epoch != epoch:",
        "        if entry is None:",
        "tests/unit/storage/test_producers.py",
    ),
    Mutant(
        "what was cleaned takes the place of other records, written since",
        "src/tidelog/storage/compaction/swap.py::_fits",
        "    if log.change is not None or log.is_mirrored or log.generation "
        "!= result.plan.generation:",
        "    if log.change is not None or log.is_mirrored:",
        "tests/unit/storage/test_compaction.py",
    ),
    Mutant(
        "compaction takes batches whose producers no snapshot knows",
        "src/tidelog/storage/compaction/swap.py::_keeps_producers",
        "        return (yield from keeping_producers(log, result.plan.end_offset))",
        "        return True; yield",
        "tests/unit/storage/test_compaction.py",
    ),
    Mutant(
        "a boot without a name counts as the same one",
        "src/tidelog/storage/directory/identity.py::how_it_ended",
        'same_boot = boot_id != "" and fields.get("boot.id") == boot_id',
        'same_boot = fields.get("boot.id") == boot_id',
        "tests/unit/storage/test_log_directory.py",
    ),
    Mutant(
        "a topic with LogAppendTime keeps the times of its producers",
        "src/tidelog/storage/log/tail.py::has_room",
        "        and log.keeps_batches\n",
        "",
        "tests/unit/storage/test_append_model.py",
    ),
    Mutant(
        "a plain batch of a newer leader epoch begins no epoch",
        "src/tidelog/broker/partitions/plain_append.py::plain_header",
        "        or leader_epoch != log.epochs.latest\n",
        "",
        "tests/unit/broker/test_plain_append.py",
    ),
    Mutant(
        "a batch that the disk refused keeps the offset that it was given",
        "src/tidelog/storage/log/tail.py::write_one",
        "        pack_prefix_into(batch, 0, header[0], length, header[2])\n",
        "",
        "tests/unit/broker/test_plain_append.py",
    ),
    Mutant(
        "an index entry of a plain batch has its first offset",
        "src/tidelog/storage/log/tail.py::write_one",
        "active.note(position, size, last, newest,",
        "active.note(position, size, first, newest,",
        "tests/unit/storage/test_append_model.py",
    ),
    Mutant(
        "fences: a sync does not write them",
        "src/tidelog/storage/log/syncing.py::_take_unsynced",
        "    write_missing_fences(log)\n",
        "",
        "tests/unit/storage/test_fence_files.py tests/simulation/test_fence_crashes.py",
    ),
    Mutant(
        "fences: retention takes the batch of one that is in no file",
        "src/tidelog/storage/log/expiring.py::_apply_retention",
        "    if unwritten is not None and unwritten < start and not",
        "    if unwritten is not None and unwritten < -1 and not",
        "tests/simulation/test_fence_crashes.py",
    ),
    Mutant(
        "fences: the log's start is noted above one that is in no file",
        "src/tidelog/storage/directory/claims.py::_log_start",
        "    return log.start_offset if unwritten is None else min(log.start_offset, unwritten)\n",
        "    return log.start_offset if unwritten is None else log.start_offset\n",
        "tests/simulation/test_fence_crashes.py",
    ),
    Mutant(
        "fences: a cut keeps those above it",
        "src/tidelog/storage/log/cutting.py::_end_at",
        "    take_fences(log, log.fences.below(end))\n",
        "",
        "tests/unit/storage/test_fence_files.py",
    ),
    Mutant(
        "fences: a start believes what is above the recovery point",
        "src/tidelog/storage/log/fence_recovery.py::_agree",
        "kept = kept.below(max(recovery_point, log.segments[0].base_offset))\n",
        "kept = kept.below(log.end_offset)\n",
        "tests/unit/storage/test_fence_files.py",
    ),
    Mutant(
        "fences: without its file a log that lost batches goes on",
        "src/tidelog/storage/log/fence_recovery.py::find_fences",
        "        if log.segments[0].base_offset > 0:\n",
        "        if log.segments[0].base_offset < 0:\n",
        "tests/unit/storage/test_fence_files.py",
    ),
    Mutant(
        "fences: markers before one count as data",
        "src/tidelog/storage/log/fence_writing.py::data_end_before",
        "        if before is None or not before.control or not before.base_offset < end:\n",
        "        if before is None or before.base_offset <= end:\n",
        "tests/unit/storage/test_fence_files.py",
    ),
    Mutant(
        "fences: a move does not take their file along",
        "src/tidelog/storage/future/moving.py::_Seal.run",
        "            names.FENCE_CHECKPOINT: _fences_content(self._fences),\n",
        "",
        "tests/simulation/test_future_crashes.py",
    ),
    Mutant(
        "a copy of a log reads less than a header at the end of a slice",
        "src/tidelog/storage/future/mirror.py::Mirror._copy",
        "        size = max(step.end - step.position, min(HEADER_SIZE, rest))\n",
        "        size = step.end - step.position\n",
        "tests/simulation/test_future_crashes.py",
    ),
    Mutant(
        "the checkpoints of a former directory drop a log before the copy's name is durable",
        "src/tidelog/storage/future/moving.py::_clear_up",
        "        yield from target.syncing_names(always=True)\n"
        "        del origin.moving[moved.partition]\n",
        "        del origin.moving[moved.partition]\n"
        "        yield from target.syncing_names(always=True)\n",
        f"{CRASHED_MOVE}[fences-power]",
    ),
    Mutant(
        "K4: a log whose first segment is missing begins with the second one",
        "src/tidelog/storage/log/opening.py::open_log",
        "        recovered.damaged = missing_before(recovered.segments, ending)\n",
        "        recovered.damaged = None\n",
        "tests/broker/test_missing_files.py",
    ),
    Mutant(
        "K4: a directory with replicas and without meta.properties is taken for a fresh one",
        "src/tidelog/storage/directory/identity.py::_written",
        "        if not _has_replicas(disk, path):\n",
        "        if True:\n",
        "tests/broker/test_missing_files.py",
    ),
    Mutant(
        "31: a log directory within another one is taken for a partition",
        "src/tidelog/storage/directory/identity.py::_written",
        "    if inner is not None:\n",
        "    if inner is None and inner:\n",
        "tests/unit/storage/test_foreign.py",
    ),
    Mutant(
        "31: a directory is removed by its name alone",
        "src/tidelog/storage/removals.py::Removal._remove",
        "            elif (why := why_kept(self.disk, path)) is None:\n",
        "            elif (why := why_kept(self.disk, path)) is None or why:\n",
        "tests/unit/storage/test_foreign.py",
    ),
    Mutant(
        "K4: a replica without partition.metadata is removed after a delay",
        "src/tidelog/broker/partitions/registry.py::Partitions._kept_ms",
        "hosted.topic_id != NO_UUID and hosted.log.damaged is None\n",
        "hosted.log.damaged is None\n",
        "tests/broker/test_missing_files.py",
    ),
)
