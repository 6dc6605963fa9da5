"""The lake: archived topics as Parquet files with manifests."""

from tidelog.pipeline.lake.reading import read

__all__ = ["read"]
