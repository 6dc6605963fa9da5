"""Comparison of the replicas of a partition, byte by byte or record by record."""
