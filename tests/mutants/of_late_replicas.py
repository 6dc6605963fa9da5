"""Broken rules of late replicas: what a store does not know after an acceptance (0103)."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

UNIT = "tests/unit/controller/test_late_replicas.py"
WIRE = "tests/wire/test_controller_founding.py"

MUTANTS = (
    Mutant(
        "what an acceptance did not know is stale",
        "src/tidelog/controller/outbox.py::Outbox._send_all",
        "        if self._late:\n",
        "        if False:\n",
        f"{WIRE} tests/regressions/test_simulated_cluster.py",
    ),
    Mutant(
        "a late replica is served until its broker restarts, and by default configurations",
        "src/tidelog/controller/outbox.py::Outbox._open",
        "        await self._stop_late(connection)\n",
        "",
        WIRE,
    ),
    Mutant(
        "retention by defaults removes records of a late replica",
        "src/tidelog/broker/partitions/state.py::LeaderAndIsrState.is_assigned",
        "        return self.leader_epoch >= 0 and not is_stopped\n",
        "        return self.leader_epoch >= 0\n",
        "tests/broker/test_late_replicas.py",
    ),
    Mutant(
        "a damaged replica that no command names is removed after a delay",
        "src/tidelog/broker/partitions/registry.py::Partitions._kept_ms",
        "hosted.topic_id != NO_UUID and hosted.log.damaged is None\n",
        "hosted.topic_id != NO_UUID\n",
        "tests/broker/test_late_replicas.py",
    ),
    Mutant(
        "a deletion that is done is forgotten, and its topic comes back",
        "src/tidelog/controller/decisions/deletion.py::confirm",
        "    writes[:0] = _ended(cluster, writes)\n",
        "",
        UNIT,
    ),
    Mutant(
        "a replica that was deleted counts as late",
        "src/tidelog/controller/decisions/deletion.py::note_confirmed",
        "        forget_replicas(\n            cluster,\n",
        "        (lambda *_, **__: None)(\n            cluster,\n",
        UNIT,
    ),
    Mutant(
        "a replica that was moved away is late",
        "src/tidelog/controller/decisions/late_replicas.py::_was_taken",
        "    if stop is not None and stop >= end.leader_epoch:\n",
        "    if False:\n",
        UNIT,
    ),
    Mutant(
        "a late replica rejoins whatever it has, and cuts it",
        "src/tidelog/controller/decisions/late_replicas.py::_compared",
        "    if (epoch, end.end_offset) <= (election.end_epoch, election.end_offset):\n",
        "    if True:\n",
        UNIT,
    ),
    Mutant(
        "an epoch in which a leader wrote nothing counts as records",
        "src/tidelog/controller/decisions/late_replicas.py::_compared",
        "    epoch = end.leader_epoch if end.record_epoch < 0 else end.record_epoch\n",
        "    epoch = end.leader_epoch\n",
        UNIT,
    ),
    Mutant(
        "a partition without a replica is led, empty, by a broker that is there",
        "src/tidelog/controller/decisions/restoration.py::_restored_state",
        "isr=away or damaged",
        "isr=away or damaged or list(replicas)",
        "tests/unit/controller/test_restoration.py",
    ),
    Mutant(
        "a leader does not learn the count of a topic that got partitions back",
        "src/tidelog/controller/decisions/rejoining.py::_back",
        "leader_epoch=state.leader_epoch + 1)",
        "leader_epoch=state.leader_epoch)",
        UNIT,
    ),
    Mutant(
        "a topic is created with the name of a late one",
        "src/tidelog/controller/decisions/creation.py::_why_not_name",
        "    if name in batch.late:\n",
        "    if False:\n",
        UNIT,
    ),
    Mutant(
        "another topic's replica takes the place of a late one",
        "src/tidelog/controller/late_commands.py::without_places",
        "    held = {one.where: one for one in late}\n",
        "    held = {one.where: one for one in late if False}\n",
        UNIT,
    ),
)
