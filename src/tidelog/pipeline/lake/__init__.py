"""Owns archived topics as Parquet files with manifests; does not read the log."""

from tidelog.pipeline.lake.reading import read

__all__ = ["read"]
