"""The demo's questions, answered by Spark and once more by pandas.

The demo itself: `tests/package/test_package_demo.py`.
"""

from __future__ import annotations

import pandas as pd
import pytest
from examples.flights import questions
from examples.flights.data import flights, messages
from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FLIGHTS = 20_000


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return flights().head(FLIGHTS)


def test_the_data_is_what_the_package_says() -> None:
    every = flights()
    assert len(every) == 336_776
    assert every.tailnum.isna().sum() == 2512
    assert every.moment.is_monotonic_increasing


def test_answers(spark: SparkSession, frame: pd.DataFrame) -> None:
    rows = [(each.key, each.value, 0, offset) for offset, each in enumerate(messages(frame))]
    lake = spark.createDataFrame(rows, "key binary, value binary, epoch int, offset bigint")
    left = questions.departures(lake).cache()
    made = questions.aircraft(left).toPandas().set_index("tailnum").sort_index()

    known = frame[frame.departed.notna() & frame.tailnum.notna()].copy()
    by_plane = known.groupby("tailnum")
    known["gap_h"] = by_plane.departed.diff() / 3600
    known["next_delay"] = by_plane.dep_delay.shift(-1)
    wanted = by_plane.departed.agg("size").to_frame("departures")
    wanted["longest_gap_h"] = known.groupby("tailnum").gap_h.max()
    assert made.departures.to_dict() == wanted.departures.to_dict()
    pd.testing.assert_series_equal(
        made.longest_gap_h, wanted.longest_gap_h, check_names=False, check_dtype=False
    )
    # The order of the log is the order of time: no aircraft leaves before it has left.
    assert made.shortest_gap_h.min() >= 0
    assert questions.busiest(questions.aircraft(left), 1).first()["departures"] == int(
        wanted.departures.max()
    )
    assert questions.longest_idle(questions.aircraft(left), 1).first()[
        "longest_gap_h"
    ] == pytest.approx(wanted.longest_gap_h.max())

    late = known[(known.dep_delay > 0) & known.next_delay.notna()].copy()
    late["left_over"] = late.next_delay.clip(lower=0).clip(upper=late.dep_delay)
    sums = late.groupby(["carrier", "hour"])[["left_over", "dep_delay"]].sum()
    share = 100 * sums.left_over / sums.dep_delay
    mean = known.groupby(["carrier", "hour"]).dep_delay.mean()
    for line in questions.delays(left).collect():
        place = (line["carrier"], line["hour"])
        assert line["mean_delay"] == pytest.approx(mean[place])
        if line["still_there"] is not None:
            assert line["still_there"] == pytest.approx(share[place])
    left.unpersist()
