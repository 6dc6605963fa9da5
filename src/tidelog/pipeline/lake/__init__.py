"""Owns an archived topic as Parquet files with a manifest; does not read the log."""
