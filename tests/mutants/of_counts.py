"""Broken rules of counts in requests: what leaders answer, and what brokers show (KIP-253)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

BROKER = "src/tidelog/broker"
RULES = "src/tidelog/replication/resize_rules.py"
CHECKS = f"{BROKER}/partitions/resize_checks.py"

OF_RULES = "tests/unit/replication/test_resize_rules.py"
OF_CHECKS = "tests/unit/broker/test_resize_checks.py"
OF_PRODUCE = "tests/broker/test_produce_with_counts.py"
OF_FETCH = "tests/broker/test_fetch_with_counts.py"
OF_CACHE = "tests/unit/broker/test_metadata_cache.py"

MUTANTS = (
    Mutant(
        "a deposed leader of a former incarnation acknowledges the new one's batches",
        RULES,
        "    if aware:\n        if ABSENT in named:\n",
        "    if aware and not known:\n        if ABSENT in named:\n",
        OF_RULES,
    ),
    Mutant(
        "a batch is refused for good while another leader may still commit it",
        RULES,
        "        return ToProduce.OLDER if fence_committed else ToProduce.UNDETERMINED\n",
        "        return ToProduce.OLDER\n",
        f"{OF_RULES} {OF_CHECKS}",
    ),
    Mutant(
        "a retry of a batch from before a growth is refused",
        CHECKS,
        "        known=_is_known(log, records),\n",
        "        known=False,\n",
        OF_CHECKS,
    ),
    Mutant(
        "a retired partition takes records where the order of keys is not kept",
        CHECKS,
        "    if not (state.sealed or partition.fence_unwritten):\n",
        "    if not configs.enable_ordered_delivery or not partition.fence_unwritten:\n",
        OF_CHECKS,
    ),
    Mutant(
        "a follower refuses producers for good",
        CHECKS,
        "    if not partition.is_leader:\n        return None",
        "    if not partition:\n        return None",
        OF_CHECKS,
    ),
    Mutant(
        "a partition takes records before its growth is published",
        CHECKS,
        "        if shown is None or shown.partition_epoch != partition.state.partition_epoch:\n",
        "        if shown is None:\n",
        OF_PRODUCE,
    ),
    Mutant(
        "a partition whose growth is not published takes plain batches on the fast path",
        f"{BROKER}/partitions/produce_fast_path.py",
        "        or (unaware and state.birth_epoch and not _is_shown(partition))\n",
        "",
        OF_PRODUCE,
    ),
    Mutant(
        "a sealed partition takes plain batches on the fast path",
        f"{BROKER}/partitions/produce_fast_path.py",
        "        state.sealed\n        or partition.fence_unwritten\n",
        "        partition.fence_unwritten\n",
        "tests/broker/test_produce_fast_path.py",
    ),
    Mutant(
        "a batch that a thread inspected is appended after a resize",
        f"{BROKER}/partitions/inspected_appends.py",
        "                refused = why_not_appended(partition, entry.named, entry.records)\n",
        "                refused = None\n",
        OF_PRODUCE,
    ),
    Mutant(
        "a refused producer does not wait for this broker's metadata",
        f"{BROKER}/partitions/delayed_produce.py",
        "        if self.shown.of(topic) >= resize_epoch or self.waiting >= MOST_WAIT_TO_SEE:\n",
        "        if self.waiting >= 0:\n",
        OF_PRODUCE,
    ),
    Mutant(
        "a client writes a fence",
        f"{BROKER}/partitions/ancestor_tombstones.py",
        "        return isinstance(decode_change(record.value), AncestorTombstone)\n",
        "        return decode_change(record.value) is not None\n",
        OF_PRODUCE,
    ),
    Mutant(
        "sendfile passes the fence of a newer resize epoch",
        f"{BROKER}/fetching/partition_reads.py",
        "find_region(log, offset, most, min(limit, log.high_watermark), known)",
        "find_region(log, offset, most, log.high_watermark, known)",
        OF_FETCH,
    ),
    Mutant(
        "a read at a fence is woken by each append beyond it",
        f"{BROKER}/handlers/fetch.py",
        "            return partition.waiting.fenced, shown.waiters(partition.topic)\n",
        "            return partition.waiting.readers, shown.waiters(partition.topic)\n",
        OF_FETCH,
    ),
    Mutant(
        "a read at a fence is not woken by the metadata",
        f"{BROKER}/handlers/fetch.py",
        "            return partition.waiting.fenced, shown.waiters(partition.topic)\n",
        "            return (partition.waiting.fenced,)\n",
        OF_FETCH,
    ),
    Mutant(
        "a position beyond a fence is read",
        f"{BROKER}/partitions/read_limit.py",
        "    return offset == limit or limit < offset <= high_watermark\n",
        "    return offset == limit\n",
        OF_FETCH,
    ),
    Mutant(
        "a fetch session keeps the first count of a partition",
        f"{BROKER}/fetching/client_sessions.py",
        "                    known.update(topic_id, asked, named)\n",
        "                    known.update(topic_id, asked, known.named)\n",
        OF_FETCH,
    ),
    Mutant(
        "a late UpdateMetadata shows an older resize epoch again",
        f"{BROKER}/metadata/cache.py",
        "    if state.resize_epoch < known:\n",
        "    if state.resize_epoch < 0:\n",
        OF_CACHE,
    ),
    Mutant(
        "a late UpdateMetadata shows a removed partition again",
        f"{BROKER}/metadata/cache.py",
        "                    topic.removed[state.partition_index] = epoch\n",
        "                    topic.removed[state.partition_index] = -1\n",
        OF_CACHE,
    ),
    Mutant(
        "a consumer reads up to a fence that is not committed",
        f"{BROKER}/partitions/read_limit.py",
        "min(mark, fence.offset)",
        "fence.offset",
        OF_CHECKS,
    ),
    Mutant(
        "DescribeFences says that the data ends at the fence",
        f"{BROKER}/handlers/describe_fences.py",
        "each.kind, each.data_end)",
        "each.kind, each.offset)",
        "tests/broker/test_describe_fences.py",
    ),
    Mutant(
        "a fence that became due during a report is forgotten",
        f"{BROKER}/control_plane/fence_reports.py",
        "            if self._due.get(key) == due:\n",
        "            if key in self._due:\n",
        "tests/broker/test_fencing.py",
    ),
    Mutant(
        "a consumer that waited gets records of a newer leader epoch",
        "src/tidelog/broker/fetching/partition_reads.py",
        "            if of_its_epoch <= offset < end:\n",
        "            if False:\n",
        "tests/broker/test_leads_on.py",
    ),
    Mutant(
        "a consumer that waited gets its records and those of a newer leader epoch",
        "src/tidelog/broker/fetching/partition_reads.py",
        "            end = min(end, of_its_epoch)\n",
        "",
        "tests/broker/test_leads_on.py",
    ),
)
