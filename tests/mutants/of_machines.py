"""Broken rules of ``min.insync.machines`` (decision 0131)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

OF_LEADERS = "tests/broker/test_machines_in_sync.py"
OF_RULES = "tests/unit/replication/test_watermark.py"
WATERMARK = "src/tidelog/replication/watermark.py"
IN_SYNC = "src/tidelog/broker/partitions/in_sync.py"

DECISIONS = "src/tidelog/controller/decisions"
OF_DECISIONS = "tests/unit/controller"

MUTANTS = (
    Mutant(
        "a broker of unknown machine counts as a machine",
        f"{WATERMARK}::machines_missing",
        "{machines[member] for member in isr if member in machines}",
        "{machines.get(member, member) for member in isr}",
        f"{OF_RULES} {OF_LEADERS}",
    ),
    Mutant(
        "a single replica waits for a second machine",
        f"{WATERMARK}::machines_missing",
        "    required = min(min_insync_machines, replication_factor)\n",
        "    required = min_insync_machines\n",
        f"{OF_RULES} {OF_LEADERS}",
    ),
    Mutant(
        "the watermark moves below min.insync.machines",
        f"{WATERMARK}::high_watermark",
        "    if lacks_machines or committed_isr_size < required:\n        return current\n",
        "    if committed_isr_size < required:\n        return current\n",
        f"{OF_RULES} {OF_LEADERS}",
    ),
    Mutant(
        "an append is admitted below min.insync.machines",
        "src/tidelog/broker/partitions/admission.py::why_not_open",
        "partition.log.configs.min_insync_machines > 1 and lacks_machines(partition)",
        "False",
        OF_LEADERS,
    ),
    Mutant(
        "what waits is not refused when the ISR falls below min.insync.machines",
        f"{IN_SYNC}::is_too_small",
        " < partition.required_in_sync or lacks_machines(partition)\n",
        " < partition.required_in_sync\n",
        OF_LEADERS,
    ),
    Mutant(
        "a broker that is not listed loses its machine",
        f"{IN_SYNC}::Machines.take",
        "        before = dict(self)\n",
        "        before = dict(self)\n        self.clear()\n",
        OF_LEADERS,
    ),
    Mutant(
        "leaders do not count again when a broker changes its machine",
        "src/tidelog/broker/partitions/registry.py::Partitions.machines_changed",
        "                partition.configure()\n",
        "                pass\n",
        OF_LEADERS,
    ),
    Mutant(
        "workers of a file without a rack count as machines",
        "src/tidelog/model/racks.py::machine_at",
        "    return text if SEPARATOR in text or host is None else within(text, host)\n",
        "    return machine_of(broker, text)\n",
        "tests/unit/model/test_racks.py",
    ),
    Mutant(
        "a minimum of machines that cannot be read any more is the default",
        f"{DECISIONS}/nodes.py::_put_unreadable",
        "for key in (MINIMUM, MACHINES)",
        "for key in (MINIMUM,)",
        f"{OF_DECISIONS}/test_external_changes.py",
    ),
    Mutant(
        "a resize begins whose fences cannot be committed on enough machines",
        f"{DECISIONS}/obstacles.py::_of_isr",
        "        return _of_machines(cluster, tp, state)\n",
        "        return None\n",
        f"{OF_DECISIONS}/test_resize_requests.py",
    ),
)
