"""Broken rules of groups on resized topics, and of compaction across the homes of a key."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

GROUPS = "src/tidelog/groups"
SIGHTS = "tests/unit/groups/test_first_sights.py"
BIRTHS = "tests/unit/groups/test_births.py"
FETCHES = "tests/broker/test_offset_fetch_births.py"
POSITIONS = "tests/unit/groups/test_positions.py"
CLEANER = "src/tidelog/storage/compaction/cleaner.py"
HOMES = "tests/unit/storage/test_compaction_across_homes.py"

GATED = "tests/unit/client/test_gated.py"
LAG = "tests/unit/client/test_lag.py tests/broker/test_group_lag.py"

MUTANTS = (
    Mutant(
        "a position that is reported again counts as progress",
        f"{GROUPS}/positions.py",
        "        if topic.offsets.get(at.partition) != offset:\n",
        "        if True:\n",
        "tests/unit/groups/test_progress.py",
    ),
    Mutant(
        "tools show a stock member as one that waits",
        "src/tidelog/client/groups/gated.py",
        "        if owner is None or owner.aware is False:\n",
        "        if owner is None:\n",
        GATED,
    ),
    Mutant(
        "tombstones in front of the end count as lag",
        "src/tidelog/client/groups/lag.py",
        "        begin = max(begin, header.next_offset)\n",
        "        break\n",
        LAG,
    ),
    Mutant(
        "a group with latest skips what a new partition has from before its first fetch",
        f"{GROUPS}/births.py",
        "    return birth_epoch > sight.resize_epoch or 0 <= sight.partitions <= partition\n",
        "    return False\n",
        BIRTHS,
    ),
    Mutant(
        "partitions beyond the first assignment are not new to a group",
        f"{GROUPS}/births.py",
        "    return birth_epoch > sight.resize_epoch or 0 <= sight.partitions <= partition\n",
        "    return birth_epoch > sight.resize_epoch\n",
        BIRTHS,
    ),
    Mutant(
        "a first sight has the resize epoch of the assignment, not of the first join",
        f"{GROUPS}/joining.py",
        "    group.add(member)\n    _note_topics(group, event)\n    group.delay_join",
        "    group.add(member)\n    group.delay_join",
        SIGHTS,
    ),
    Mutant(
        "a first sight with an assignment leaves the offsets before it without a topic id",
        f"{GROUPS}/replay.py",
        "    if former is not None or sight.partitions == NO_ASSIGNMENT:\n",
        "    if True:\n",
        SIGHTS,
    ),
    Mutant(
        "a refused write leaves its topic id for the offset in flight before it",
        f"{GROUPS}/table.py",
        "                topic_ids.pop(0 if oldest else -1)\n",
        "                topic_ids.pop(0)\n",
        SIGHTS,
    ),
    Mutant(
        "offsets of partitions that a coordinator does not know yet are hidden",
        "src/tidelog/broker/handlers/offset_fetch.py",
        "not self.is_named and topic.resize_epoch > 0:\n",
        "not self.is_named and topic.resize_epoch >= 0:\n",
        FETCHES,
    ),
    Mutant(
        "a coordinator whose metadata are late answers -1",
        "src/tidelog/broker/handlers/offset_fetch.py",
        "        if any(exists.get(at, True) for at in self.unknown):\n",
        "        if False:\n",
        FETCHES,
    ),
    Mutant(
        "the birth offset is answered also where retention has passed it",
        "src/tidelog/broker/handlers/offset_fetch.py",
        "            part.committed_offset = max(part.committed_offset, starts[at])\n",
        "            pass\n",
        FETCHES,
    ),
    Mutant(
        "the controller counts children that are not published as partitions",
        "src/tidelog/controller/handlers/describe_topic_partitions.py",
        "if at >= first and shown.shows(at))",
        "if at >= first)",
        FETCHES,
    ),
    Mutant(
        "the highest report of a position counts, not the last",
        f"{GROUPS}/positions.py",
        "        topic.offsets[at.partition] = offset\n",
        "        topic.offsets[at.partition] = max(offset, topic.offsets.get(at.partition, 0))\n",
        POSITIONS,
    ),
    Mutant(
        "a commit below a position does not lower it",
        f"{GROUPS}/offsets.py",
        "            if group.positions is not None:\n",
        "            if False:\n",
        POSITIONS,
    ),
    Mutant(
        "the commit of an aware owner is its position",
        f"{GROUPS}/positions.py",
        "        if owner is not None and owner.aware is not False:\n",
        "        if owner is not None and owner.aware is not False and known.reported:\n",
        POSITIONS,
    ),
    Mutant(
        "a member whose awareness a load does not know counts as a stock one",
        f"{GROUPS}/positions.py",
        "        if owner is not None and owner.aware is not False:\n",
        "        if owner is not None and owner.aware:\n",
        POSITIONS,
    ),
    Mutant(
        "a tombstone goes while an older value is in another home of its key",
        CLEANER,
        "    tombstones_go = _is_over(plan, horizon) and not plan.keeps_tombstones\n",
        "    tombstones_go = _is_over(plan, horizon)\n",
        HOMES,
    ),
    Mutant(
        "the time of a tombstone runs while it is kept",
        CLEANER,
        "has_tombstone and horizon is None and not plan.keeps_tombstones\n",
        "has_tombstone and horizon is None\n",
        HOMES,
    ),
    Mutant(
        "ancestor tombstones void nothing",
        CLEANER,
        "                    newest.put(voided, header.last_offset)\n",
        "                    pass\n",
        HOMES,
    ),
    Mutant(
        "a survivor does not mind the retired partitions whose keys it took over",
        "src/tidelog/partitioning/older_homes.py",
        "    return any(partition in ancestors_of(one, initial_count) for one in retired)\n",
        "    return False\n",
        HOMES,
    ),
    Mutant(
        "reports in a former topic of the name keep those in the present one out",
        f"{GROUPS}/positions.py",
        "        if topic is None or topic.topic_id != topic_id:\n            topic = known",
        "        if topic is None:\n            topic = known",
        POSITIONS,
    ),
    Mutant(
        "positions in flight do not count among those that a commit removes",
        f"{GROUPS}/first_sights.py",
        "return len(group.offsets.get(topic, ())) + len(group.in_flight)",
        "return len(group.offsets.get(topic, ()))",
        "tests/unit/groups/test_removals.py",
    ),
)
