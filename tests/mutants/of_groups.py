"""Broken rules of groups on resized topics, and of compaction across the homes of a key."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SIGHTS = "tests/unit/groups/test_first_sights.py"
BIRTHS = "tests/unit/groups/test_births.py"
FETCHES = "tests/broker/test_offset_fetch_births.py"
POSITIONS = "tests/unit/groups/test_positions.py"
HOMES = "tests/unit/storage/test_compaction_across_homes.py"

GATED = "tests/unit/client/test_gated.py"
LAG = "tests/unit/client/test_lag.py tests/broker/test_group_lag.py"

MUTANTS = (
    Mutant(
        "a position that is reported again counts as progress",
        "src/tidelog/groups/positions.py::_take",
        "        if topic.offsets.get(tp.partition) != offset:\n",
        "        if True:\n",
        "tests/unit/groups/test_progress.py",
    ),
    Mutant(
        "tools show a stock member as one that waits",
        "src/tidelog/client/groups/gated.py::gated_partitions",
        "        if owner is None or owner.aware is False:\n",
        "        if owner is None:\n",
        GATED,
    ),
    Mutant(
        "what was asked ahead of a commit counts after the group went back",
        "src/tidelog/client/groups/topic_gates.py::TopicGates._with_nothing_left",
        " and first <= max(position.offset, 0)",
        "",
        "tests/unit/client/test_topic_gates.py",
    ),
    Mutant(
        "records that a new leader may have are never looked for",
        "src/tidelog/client/groups/topic_gates.py::TopicGates.follow",
        "                self._nothing.pop(index, None)\n",
        "",
        "tests/unit/client/test_topic_gates.py",
    ),
    Mutant(
        "a partition that an answer has no room for counts as read up to its commit",
        "src/tidelog/client/groups/commits_ahead.py::CommitsAhead._ask",
        "crowded=crowded,",
        "",
        "tests/broker/test_commits_ahead.py",
    ),
    Mutant(
        "what is left to read after a commit passes what is not committed",
        "src/tidelog/client/fetching/left_to_read.py::question_of",
        ", []), _COMMITTED, _OPTIONS)\n",
        ", []), IsolationLevel.READ_UNCOMMITTED, _OPTIONS)\n",
        "tests/broker/test_left_to_read.py",
    ),
    Mutant(
        "tombstones in front of the end count as lag",
        "src/tidelog/client/groups/lag.py::data_begin",
        "        begin = max(begin, header.next_offset)\n",
        "        break\n",
        LAG,
    ),
    Mutant(
        "a group with latest skips what a new partition has from before its first fetch",
        "src/tidelog/groups/births.py::begins_at_birth",
        "    return birth_epoch > sight.resize_epoch or 0 <= sight.partitions <= partition\n",
        "    return False\n",
        BIRTHS,
    ),
    Mutant(
        "partitions beyond the first assignment are not new to a group",
        "src/tidelog/groups/births.py::begins_at_birth",
        "    return birth_epoch > sight.resize_epoch or 0 <= sight.partitions <= partition\n",
        "    return birth_epoch > sight.resize_epoch\n",
        BIRTHS,
    ),
    Mutant(
        "a first sight has the resize epoch of the assignment, not of the first join",
        "src/tidelog/groups/joining.py::_add_member",
        "    group.add(member)\n    _note_topics(group, event)\n    group.delay_join",
        "    group.add(member)\n    group.delay_join",
        SIGHTS,
    ),
    Mutant(
        "a first sight with an assignment leaves the offsets before it without a topic id",
        "src/tidelog/groups/replay.py::_begin",
        "    if former is not None or sight.partitions == NO_ASSIGNMENT:\n",
        "    if True:\n",
        SIGHTS,
    ),
    Mutant(
        "a refused write leaves its topic id for the offset in flight before it",
        "src/tidelog/groups/offsets_in_flight.py::OffsetsInFlight.end",
        "flying.popleft() if oldest else flying.pop()\n",
        "flying.popleft()\n",
        SIGHTS,
    ),
    Mutant(
        "offsets of partitions that a coordinator does not know yet are hidden",
        "src/tidelog/broker/handlers/offset_fetch.py::_Open.judge",
        "not self.is_named and topic.resize_epoch > 0:\n",
        "not self.is_named and topic.resize_epoch >= 0:\n",
        FETCHES,
    ),
    Mutant(
        "a coordinator whose metadata are late answers -1",
        "src/tidelog/broker/handlers/offset_fetch.py::_Open.close",
        "        if any(exists.get(tp, True) for tp in self.unknown):\n",
        "        if False:\n",
        FETCHES,
    ),
    Mutant(
        "the birth offset is answered also where retention has passed it",
        "src/tidelog/broker/handlers/offset_fetch.py::_Open.close",
        "            part.committed_offset = max(part.committed_offset, starts[tp])\n",
        "            pass\n",
        FETCHES,
    ),
    Mutant(
        "the controller counts children that are not published as partitions",
        "src/tidelog/controller/handlers/describe_topic_partitions.py::handle",
        "if index >= first and shown.shows(index))",
        "if index >= first)",
        FETCHES,
    ),
    Mutant(
        "the highest report of a position counts, not the last",
        "src/tidelog/groups/positions.py::_take",
        "        topic.offsets[tp.partition] = offset\n",
        "        topic.offsets[tp.partition] = max(offset, topic.offsets.get(tp.partition, 0))\n",
        POSITIONS,
    ),
    Mutant(
        "a commit below a position does not lower it",
        "src/tidelog/groups/offsets.py::_take",
        "        if group.positions is not None:\n",
        "        if False:\n",
        POSITIONS,
    ),
    Mutant(
        "the commit of an aware owner is its position",
        "src/tidelog/groups/positions.py::_position",
        "        if owner is not None and owner.aware is not False:\n",
        "        if owner is not None and owner.aware is not False and known.reported:\n",
        POSITIONS,
    ),
    Mutant(
        "a member whose awareness a load does not know counts as a stock one",
        "src/tidelog/groups/positions.py::_position",
        "        if owner is not None and owner.aware is not False:\n",
        "        if owner is not None and owner.aware:\n",
        POSITIONS,
    ),
    Mutant(
        "a tombstone goes while an older value is in another home of its key",
        "src/tidelog/storage/compaction/rewriting.py::Rewriting._judged",
        "        if not records.has_value.all() and not self._plan.keeps_tombstones:\n",
        "        if not records.has_value.all():\n",
        HOMES,
    ),
    Mutant(
        "the time of a tombstone runs while it is kept",
        "src/tidelog/storage/compaction/rewriting.py::Rewriting._of_judged",
        "judged.has_tombstone[row] and horizon is None and not plan.keeps_tombstones\n",
        "judged.has_tombstone[row] and horizon is None\n",
        HOMES,
    ),
    Mutant(
        "ancestor tombstones void nothing",
        "src/tidelog/storage/compaction/keys.py::DirtyKeys._put",
        "            voided = _voided_in(part)\n",
        "            voided = []\n",
        HOMES,
    ),
    Mutant(
        "a survivor does not mind the retired partitions whose keys it took over",
        "src/tidelog/partitioning/older_homes.py::survives_retired",
        "    return any(partition in ancestors_of(one, initial_count) for one in retired)\n",
        "    return False\n",
        HOMES,
    ),
    Mutant(
        "reports in a former topic of the name keep those in the present one out",
        "src/tidelog/groups/positions.py::_take",
        "        if topic is None or topic.topic_id != topic_id:\n            topic = generation",
        "        if topic is None:\n            topic = generation",
        POSITIONS,
    ),
    Mutant(
        "positions in flight do not count among those that a commit removes",
        "src/tidelog/groups/first_sights.py::_most_offsets",
        "return len(group.offsets.get(topic, ())) + len(group.flying.partitions_of(topic))",
        "return len(group.offsets.get(topic, ()))",
        "tests/unit/groups/test_removals.py",
    ),
    Mutant(
        "a plain commit is taken for partitions that the broker does not know",
        "src/tidelog/broker/coordinator/commit_fast_path.py::_read",
        " and topic.partitions.keys() >= set(partitions)",
        "",
        "tests/broker/test_commit_fast_path.py",
    ),
    Mutant(
        "offsets whose deltas take two bytes have the length of those with one",
        "src/tidelog/groups/offset_columns.py::OffsetRecords.add_to",
        "len(shown[0]) if shown else 0",
        "1",
        "tests/unit/groups/test_offset_columns.py",
    ),
    Mutant(
        "the fast path of OffsetFetch does not know of births",
        "src/tidelog/broker/coordinator/committed_fast_path.py::_may_be_judged",
        "    return births.may_have_births(sight, topic.resize_epoch, len(topic.partitions) - 1)\n",
        "    return False\n",
        "tests/broker/test_committed_fast_path.py",
    ),
    Mutant(
        "the fast path of OffsetFetch returns offsets of a former topic",
        "src/tidelog/broker/coordinator/committed_fast_path.py::_committed",
        "    if first_sights.is_former(group.first_sights.get(topic.name), topic.topic_id):\n",
        "    if False:\n",
        "tests/broker/test_committed_fast_path.py",
    ),
    Mutant(
        "a plain commit of another member of a static instance is not fenced",
        "src/tidelog/broker/coordinator/commit_fast_path.py::_read",
        "        member_id,\n        instance_id,\n",
        "        member_id,\n        None,\n",
        "tests/broker/test_commit_fast_path.py",
    ),
    Mutant(
        "a group that a plain commit begins counts for no address",
        "src/tidelog/broker/coordinator/commit_fast_path.py::_read",
        '        client_host="/" + client.client_host,\n',
        "",
        "tests/broker/test_commit_fast_path.py",
    ),
)
