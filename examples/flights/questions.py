"""What one asks of the archived flights, as Spark DataFrames.

The data has only departures from the three airports of New York, so "the next departure" of an
aircraft is its next departure from there. Every answer rests on the order of each key in the log:
rows of an aircraft are taken by (epoch, offset), not sorted by their times.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as sql

_VALUE = (
    "carrier string, flight int, origin string, dest string, hour int, dep_delay double,"
    " arr_delay double, distance int, scheduled long, departed double, moment long"
)


def departures(lake: DataFrame) -> DataFrame:
    """One row per flight that left, with the aircraft's departure before and after it.

    Adds `tailnum`, `gap_h` (hours since the aircraft's departure before), `next_delay` (minutes).
    """
    parsed = lake.select(
        sql.col("key").cast("string").alias("tailnum"),
        "epoch",
        "offset",
        sql.from_json(sql.col("value").cast("string"), _VALUE).alias("flight"),
    ).select("tailnum", "epoch", "offset", "flight.*")
    order = Window.partitionBy("tailnum").orderBy("epoch", "offset")
    return (
        parsed.where(sql.col("departed").isNotNull() & sql.col("tailnum").isNotNull())
        .withColumn("gap_h", (sql.col("departed") - sql.lag("departed").over(order)) / 3600)
        .withColumn("next_delay", sql.lead("dep_delay").over(order))
    )


def aircraft(left: DataFrame) -> DataFrame:
    """Per aircraft: departures, mean and longest time between consecutive ones, in hours."""
    return left.groupBy("tailnum").agg(
        sql.count(sql.lit(1)).alias("departures"),
        sql.avg("gap_h").alias("mean_gap_h"),
        sql.max("gap_h").alias("longest_gap_h"),
        sql.min("gap_h").alias("shortest_gap_h"),
    )


def busiest(per_aircraft: DataFrame, count: int) -> DataFrame:
    """The aircraft with the most departures."""
    return per_aircraft.orderBy(sql.desc("departures"), "tailnum").limit(count)


def longest_idle(per_aircraft: DataFrame, count: int) -> DataFrame:
    """The aircraft with the longest time between two consecutive departures."""
    known = per_aircraft.where(sql.col("longest_gap_h").isNotNull())
    return known.orderBy(sql.desc("longest_gap_h"), "tailnum").limit(count)


def delays(left: DataFrame) -> DataFrame:
    """Per carrier and scheduled hour: departures, mean delay (minutes), and what is left of it.

    `still_there` is the share (%) of the minutes of delay that the same aircraft still has at its
    next departure: of a delay d > 0 followed by a delay n, min(max(n, 0), d) minutes are left.
    """
    return left.groupBy("carrier", "hour").agg(
        sql.count(sql.lit(1)).alias("departures"),
        sql.avg("dep_delay").alias("mean_delay"),
        (100 * sql.sum(_left_over()) / sql.sum(_delay())).alias("still_there"),
    )


def _if_late(column: Column) -> Column:
    late = (sql.col("dep_delay") > 0) & sql.col("next_delay").isNotNull()
    return sql.when(late, column)


def _delay() -> Column:
    return _if_late(sql.col("dep_delay"))


def _left_over() -> Column:
    # Only for late flights: `least` and `greatest` pass over nulls.
    return _if_late(
        sql.least(sql.greatest(sql.col("next_delay"), sql.lit(0.0)), sql.col("dep_delay"))
    )
