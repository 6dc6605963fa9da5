"""DescribeCondition of one broker: version, level, quarantined directories."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

from tests.support.lone_broker import LoneBroker
from tidelog import __version__
from tidelog.broker.handlers import describe_condition
from tidelog.model.levels import HIGHEST, LATEST
from tidelog.protocol import messages
from tidelog.runtime.loop import run


def test_a_broker_reports_its_version_its_level_and_its_quarantined_directories(
    tmp_path: Path,
) -> None:
    """U15: a directory quarantined before a restart stays, and no report named it."""

    async def main() -> None:
        lone = LoneBroker(tmp_path)
        await lone.start()
        lone.session = SimpleNamespace(search=SimpleNamespace(tried=["h:9093"]))
        (directory,) = lone.broker.directories
        passes, stays = (tmp_path / f"{name}-0.abc-stray" for name in ("passes", "stays"))
        for path in (passes, stays):
            path.mkdir()
        (tmp_path / "gone-0.abc-delete").mkdir()
        directory.remove_later(str(passes), 1_000_000)
        request = messages.DescribeConditionRequest(subjects=["broker"])
        answer = await describe_condition.handle(lone.broker, request, None)  # type: ignore[arg-type]
        assert answer.error_code == 0
        found = json.loads(answer.condition)
        aside = {each["path"]: each["removed_at_ms"] for each in found.pop("set_aside")}
        assert aside.keys() == {str(passes), str(stays)}
        assert aside[str(passes)] > 1_000_000 and aside[str(stays)] is None
        assert found == {
            "role": "broker",
            "node_id": 1,
            "version": __version__,
            "level": LATEST.name,
            "highest_level": HIGHEST.name,
            "controllers": ["h:9093"],
        }
        await lone.stop()

    run(main())
