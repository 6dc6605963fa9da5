"""Stories of resizes: each holds, and is red with the bug that it is about.

As in ``test_cluster_resizes``; the stories and the bugs are in ``resize_stories``.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.cluster.scripted_run import Script
from tests.simulation.planted.resize_stories import STORIES, run_story
from tests.simulation.planted.search import Patch

pytestmark = pytest.mark.usefixtures("quiet")
NAMED = [pytest.param(*each, id=each[1].__name__) for each in STORIES]


@pytest.mark.parametrize(("story", "plant"), NAMED)
def test_a_story_is_red_with_its_bug_alone(
    story: Script, plant: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    good = run_story(story)
    assert not good.violations, good.report()
    plant(monkeypatch)
    found = run_story(story)
    assert found.violations
    print(f"{plant.__name__}: {found.violations[0][-200:]}")
