"""The lake: archived topics as Parquet files with manifests."""

from tidelog.pipeline.lake.reading import read, read_bad

__all__ = ["read", "read_bad"]
