"""Owns the way from Kafka's record batches to Arrow columns; does not fetch them."""
