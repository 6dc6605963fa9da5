"""Stories of resizes: each holds, and is red with the bug that it is about.

As in ``test_cluster_resizes``; the stories and the bugs are in ``resize_stories`` and
``plan_stories``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.cluster.scripted_run import Script
from tests.simulation.planted import plan_stories, resize_stories
from tests.simulation.planted.search import Patch
from tests.simulation.scenarios.result import Result

pytestmark = pytest.mark.usefixtures("quiet")
NAMED = [
    pytest.param(module.run_story, *each, id=each[1].__name__)
    for module in (resize_stories, plan_stories)
    for each in module.STORIES
]


@pytest.mark.parametrize(("run", "story", "plant"), NAMED)
def test_a_story_is_red_with_its_bug_alone(
    run: Callable[[Script], Result],
    story: Script,
    plant: Callable[[Patch], None],
    monkeypatch: Patch,
) -> None:
    good = run(story)
    assert not good.violations, good.report()
    plant(monkeypatch)
    found = run(story)
    assert found.violations
    print(f"{plant.__name__}: {found.violations[0][-200:]}")
