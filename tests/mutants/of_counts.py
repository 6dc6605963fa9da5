"""Broken rules of counts in requests: what leaders answer, and what brokers show (KIP-253)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

OF_RULES = "tests/unit/replication/test_resize_rules.py"
OF_CHECKS = "tests/unit/broker/test_resize_checks.py"
OF_PRODUCE = "tests/broker/test_produce_with_counts.py"
OF_FETCH = "tests/broker/test_fetch_with_counts.py"
OF_CACHE = "tests/unit/broker/test_metadata_cache.py"

MUTANTS = (
    Mutant(
        "a deposed leader of a former incarnation acknowledges the new one's batches",
        "src/tidelog/replication/resize_rules.py::answer_to_produce",
        "    if aware:\n        if ABSENT in named:\n",
        "    if aware and not known:\n        if ABSENT in named:\n",
        OF_RULES,
    ),
    Mutant(
        "a batch is refused for good while another leader may still commit it",
        "src/tidelog/replication/resize_rules.py::answer_to_produce",
        "        return ToProduce.OLDER if fence_committed else ToProduce.UNDETERMINED\n",
        "        return ToProduce.OLDER\n",
        f"{OF_RULES} {OF_CHECKS}",
    ),
    Mutant(
        "a retry of a batch from before a growth is refused",
        "src/tidelog/broker/partitions/resize_checks.py::why_not_appended",
        "        known=is_known(log, records),\n",
        "        known=False,\n",
        OF_CHECKS,
    ),
    Mutant(
        "a retired partition takes records where the order of keys is not kept",
        "src/tidelog/broker/partitions/resize_checks.py::why_not_appended",
        "    if not (state.sealed or partition.fence_unwritten):\n",
        "    if not configs.enable_ordered_delivery or not partition.fence_unwritten:\n",
        OF_CHECKS,
    ),
    Mutant(
        "a follower refuses producers for good",
        "src/tidelog/broker/partitions/resize_checks.py::why_not_appended",
        "    if not partition.is_leader:\n        return None",
        "    if not partition:\n        return None",
        OF_CHECKS,
    ),
    Mutant(
        "a partition takes records before its growth is published",
        "src/tidelog/broker/partitions/resize_checks.py::why_not_shown",
        "        if shown is None or shown.partition_epoch != partition.state.partition_epoch:\n",
        "        if shown is None:\n",
        OF_PRODUCE,
    ),
    Mutant(
        "a partition whose growth is not published takes plain batches on the fast path",
        "src/tidelog/broker/partitions/resize_checks.py::why_not_taken",
        "why_not_appended(partition, named, records) if refusal is None else refusal",
        "why_not_appended(partition, named, records)",
        OF_PRODUCE,
    ),
    Mutant(
        "a sealed partition takes plain batches on the fast path",
        "src/tidelog/broker/partitions/produce_fast_path.py::answer",
        "    if why_not_taken(partition, named, records, broker.metadata) is not None:\n"
        "        return None\n",
        "",
        "tests/broker/test_produce_fast_path.py",
    ),
    Mutant(
        "a batch that a thread inspected is appended after a resize",
        "src/tidelog/broker/partitions/inspected_appends.py::InspectedAppends._append",
        "                refused = why_not_appended(partition, entry.named, entry.records)\n",
        "                refused = None\n",
        OF_PRODUCE,
    ),
    Mutant(
        "a refused producer does not wait for this broker's metadata",
        "src/tidelog/broker/partitions/delayed_produce.py::UnseenEpochs.of",
        "        if self.shown.of(topic) >= resize_epoch or self.waiting >= MOST_WAIT_TO_SEE:\n",
        "        if self.waiting >= 0:\n",
        OF_PRODUCE,
    ),
    Mutant(
        "a client writes a fence",
        "src/tidelog/broker/partitions/ancestor_tombstones.py::_is_tombstone",
        "        return isinstance(decode_change(record.value), AncestorTombstone)\n",
        "        return decode_change(record.value) is not None\n",
        OF_PRODUCE,
    ),
    Mutant(
        "sendfile passes the fence of a newer resize epoch",
        "src/tidelog/broker/fetching/record_reads.py::records_at",
        "find_region(log, offset, most, min(limit, log.high_watermark), remembered)",
        "find_region(log, offset, most, log.high_watermark, remembered)",
        OF_FETCH,
    ),
    Mutant(
        "a read at a fence is woken by each append beyond it",
        "src/tidelog/broker/handlers/fetch.py::_FetchResponse._places",
        "            return partition.waiting.fenced, shown.waiters(partition.topic)\n",
        "            return partition.waiting.readers, shown.waiters(partition.topic)\n",
        OF_FETCH,
    ),
    Mutant(
        "a read at a fence is not woken by the metadata",
        "src/tidelog/broker/handlers/fetch.py::_FetchResponse._places",
        "            return partition.waiting.fenced, shown.waiters(partition.topic)\n",
        "            return (partition.waiting.fenced,)\n",
        OF_FETCH,
    ),
    Mutant(
        "a position beyond a fence is read",
        "src/tidelog/broker/partitions/read_limit.py::is_at_limit",
        "    return offset == limit or limit < offset <= high_watermark\n",
        "    return offset == limit\n",
        OF_FETCH,
    ),
    Mutant(
        "a fetch session keeps the first count of a partition",
        "src/tidelog/broker/fetching/client_sessions.py::ClientFetchSession.take",
        "former.update(topic_id, asked, named)",
        "former.update(topic_id, asked, former.named)",
        OF_FETCH,
    ),
    Mutant(
        "a late UpdateMetadata shows an older resize epoch again",
        "src/tidelog/broker/metadata/cache.py::_resize",
        "    if state.resize_epoch < least:\n",
        "    if state.resize_epoch < 0:\n",
        OF_CACHE,
    ),
    Mutant(
        "a late UpdateMetadata shows a removed partition again",
        "src/tidelog/broker/metadata/cache.py::MetadataCache._put",
        "                    topic.removed[state.partition_index] = epoch\n",
        "                    topic.removed[state.partition_index] = -1\n",
        OF_CACHE,
    ),
    Mutant(
        "a consumer reads up to a fence that is not committed",
        "src/tidelog/broker/partitions/read_limit.py::limit_of_consumer",
        "min(mark, fence.offset)",
        "fence.offset",
        OF_CHECKS,
    ),
    Mutant(
        "DescribeFences says that the data ends at the fence",
        "src/tidelog/broker/handlers/describe_fences.py::_partition",
        "entry.kind, entry.data_end)",
        "entry.kind, entry.offset)",
        "tests/broker/test_describe_fences.py",
    ),
    Mutant(
        "a fence that became due during a report is forgotten",
        "src/tidelog/broker/control_plane/fence_reports.py::FenceReports._ask_for_some",
        "            if self._due.get(key) == due:\n",
        "            if key in self._due:\n",
        "tests/broker/test_fencing.py",
    ),
    Mutant(
        "a consumer that waited gets records of a newer leader epoch",
        "src/tidelog/broker/fetching/partition_reads.py::Reading.read",
        "            if of_its_epoch <= offset < end:\n",
        "            if False:\n",
        "tests/broker/test_leads_on.py",
    ),
    Mutant(
        "a consumer that waited gets its records and those of a newer leader epoch",
        "src/tidelog/broker/fetching/partition_reads.py::Reading.read",
        "            end = min(end, of_its_epoch)\n",
        "",
        "tests/broker/test_leads_on.py",
    ),
)
