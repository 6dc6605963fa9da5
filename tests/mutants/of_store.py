"""Broken rules of what the metadata store says: records that are believed without a look."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

MUTANTS = (
    Mutant(
        "a stored list of targets may be empty",
        "src/tidelog/metadata/soundness.py::_why_no_state",
        "        if not targets:\n",
        "        if False:\n",
        "tests/unit/metadata/test_layout.py",
    ),
    Mutant(
        "a stored list of brokers may name one twice",
        "src/tidelog/metadata/soundness.py::_why_no_brokers",
        "    if len(set(brokers)) != len(brokers):\n",
        "    if False:\n",
        "tests/unit/metadata/test_layout.py",
    ),
    Mutant(
        "a stored plan of a resize may lack leader epochs",
        "src/tidelog/metadata/soundness.py::_why_no_plan",
        "    if len(plan.leader_epochs) != _epochs_of(plan):\n",
        "    if False:\n",
        "tests/unit/metadata/test_layout.py tests/unit/controller/test_wrong_nodes.py",
    ),
    Mutant(
        "a member of the ISR need not be assigned",
        "src/tidelog/controller/decisions/assignments.py::why_not_of",
        "    if strange:\n",
        "    if False:\n",
        "tests/unit/controller/test_agreement.py",
    ),
    Mutant(
        "the deletion of a living topic is carried out",
        "src/tidelog/controller/decisions/agreement.py::_deletions",
        "        if alive is not None and alive not in cluster.marked:\n",
        "        if False:\n",
        "tests/unit/controller/test_agreement.py",
    ),
    Mutant(
        "a counter stays where it went back to",
        "src/tidelog/controller/decisions/epoch_counters.py::_counted",
        "            counters[counter] = epoch\n",
        "            pass\n",
        "tests/unit/controller/test_agreement.py",
    ),
    Mutant(
        "a counter that is missing begins again",
        "src/tidelog/controller/decisions/epoch_counters.py::_counted",
        "    is_missing = counter not in counters\n",
        "    is_missing = False\n",
        "tests/unit/controller/test_wrong_nodes.py tests/broker/test_missing_files.py",
    ),
    Mutant(
        "a node of a partition that was resized is made again",
        "src/tidelog/controller/decisions/agreement.py::_lost",
        "            if has_state and not has_node and was_resized:\n",
        "            if False:\n",
        "tests/unit/controller/test_agreement.py",
    ),
    Mutant(
        "a partition that lost its node is one that a tool has added",
        "src/tidelog/controller/decisions/external_counts.py::first_unborn",
        " or not cluster.damaged.keys().isdisjoint(paths):\n",
        ":\n",
        "tests/unit/controller/test_agreement.py tests/unit/controller/test_wrong_pairs.py",
    ),
    Mutant(
        "a partition that lost its node gets a new partition epoch",
        "src/tidelog/controller/decisions/completion.py::complete",
        "            if reported < 0:\n",
        "            if True:\n",
        "tests/unit/controller/test_wrong_nodes.py tests/broker/test_missing_files.py",
    ),
    Mutant(
        "a state that is restored beside a wrong assignment counts, and replicas become stale",
        "src/tidelog/controller/decisions/nodes.py::apply",
        "        if isinstance(write, Put) and _is_contradicted(cluster, write):\n",
        "        if False:\n",
        "tests/unit/controller/test_bad_writes.py",
    ),
    Mutant(
        "a state that is removed beside a torn topic is forgotten",
        "src/tidelog/controller/decisions/agreement.py::_lost",
        "        if node is None and layout.topic(name) in cluster.damaged:\n",
        "        if False:\n",
        "tests/unit/controller/test_bad_writes.py",
    ),
    Mutant(
        "a state repaired with a low leader epoch marks the whole store",
        "src/tidelog/controller/decisions/registration.py::why_gone_back",
        " and tp not in cluster.loaded.by_hand:\n",
        ":\n",
        "tests/unit/controller/test_bad_writes.py",
    ),
    Mutant(
        "a right assignment is replaced while its state cannot be read",
        "src/tidelog/controller/decisions/assignments.py::_stated",
        "    return damaged.former if damaged.record is None else damaged.record\n",
        "    return damaged.record\n",
        "tests/unit/controller/test_bad_writes.py",
    ),
    Mutant(
        "notes of brokers that are no members come first",
        "src/tidelog/controller/decisions/uncertain_replicas.py::_within_room",
        "    for wanted in range(3):\n",
        "    for wanted in (2, 1, 0):\n",
        "tests/unit/controller/test_report_sizes.py",
    ),
    Mutant(
        "producer ids begin at 0 in a store that lost the newest block",
        "src/tidelog/controller/decisions/producer_ids.py::_first",
        "    return 0 if cluster.controller_epoch <= 1 else",
        "    return 0 if cluster.controller_epoch <= 9 else",
        "tests/unit/controller/test_wrong_nodes.py",
    ),
    Mutant(
        "a replica of a topic whose id is unknown is stopped",
        "src/tidelog/controller/decisions/stops.py::stops_of",
        " or (cluster.level.topic_ids and cluster.topic_id(name) == NO_ID):\n",
        ":\n",
        "tests/unit/controller/test_agreement.py tests/unit/controller/test_wrong_nodes.py",
    ),
    Mutant(
        "the end of a topic is sent as a change of its configuration",
        "src/tidelog/controller/pending.py::changes_of",
        "(changes.ended if ends else changes.configs)",
        "changes.configs",
        "tests/component/controller/test_outbox.py",
    ),
)
