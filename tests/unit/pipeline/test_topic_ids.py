"""Topic ids in offsets and lakes: Kafka's form is written, and the former one read as the same."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

from tests.support.lakes import at, new_layout, rows, staged
from tidelog.cli.topics import topic_id_text
from tidelog.pipeline.lake.chain import fold, read_manifests, summary
from tidelog.pipeline.lake.commit import check_nothing_beyond, commit
from tidelog.pipeline.lake.layout import parse_file_name
from tidelog.pipeline.lake.manifest import Manifest
from tidelog.pipeline.lake.offsets import LakePartition, begins, ends, losses_between
from tidelog.pipeline.planning.positions import Positions
from tidelog.pipeline.planning.ranges import ranges_between
from tidelog.pipeline.topic_ids import normal, text_of

ID = UUID("fb4d7c1e-92a0-4c1b-8f77-0a9d3e5b6c21")
FORMER, NOW = str(ID), text_of(ID)


def test_an_id_is_written_as_the_commands_show_it() -> None:
    assert topic_id_text(ID) == NOW == normal(FORMER) == normal(NOW) and len(NOW) == 22
    assert text_of(UUID(int=0)) == "" == normal("")
    assert normal("id") == "id" and normal(FORMER.upper()) == FORMER.upper()


def test_a_checkpoint_of_the_former_form_is_continued() -> None:
    before, after = at(5, topic_id=FORMER), at(9, topic_id=NOW)
    assert Positions.from_json(before).to_json() == at(5, topic_id=NOW)
    (part,) = ranges_between(Positions.from_json(before), Positions.from_json(after), int)
    assert (part.pid.topic_id, part.start, part.end) == (NOW, 5, 9)
    first = {"version": 1, "topics": {"t": {"id": FORMER, "positions": {"0": 5}}}}
    assert Positions.from_json(first).at == Positions.from_json(at(5, topic_id=NOW)).at


def test_a_lake_of_the_former_form_is_continued(tmp_path: Path) -> None:
    """Its files stay where they are; what is written now has a folder of the new form."""
    layout = new_layout(tmp_path)
    old, home = LakePartition("t", FORMER, 0), LakePartition("t", NOW, 0)
    made = staged(layout, rows(0, 4), homes=(old,))
    before = at(5, topic_id=FORMER)
    commit(layout, Manifest(0, "q", at(0, topic_id=FORMER), before, made.files), dict(made.places))
    after = at(9, topic_id=NOW)
    assert begins(before, after) == {home: 5} and losses_between(before, after) == []
    made = staged(layout, rows(5, 8), homes=tuple(ends(after)))
    commit(layout, Manifest(1, "q", before, after, made.files), made.places)
    first, second = read_manifests(layout)
    assert first.files[0].home == second.files[0].home == home
    assert f"id={FORMER}" in first.files[0].path and f"id={NOW}" in second.files[0].path
    named = parse_file_name(first.files[0].path)
    assert named is not None and named.topic_id == NOW
    total, _ = summary(layout)
    assert total.reached == {home: 9}
    check_nothing_beyond(layout, total.bounds)
    fold(layout, 1)
    assert summary(layout)[0].reached == {home: 9}
    assert json.dumps(next(read_manifests(layout)).end) == json.dumps(before), "as Spark has it"
