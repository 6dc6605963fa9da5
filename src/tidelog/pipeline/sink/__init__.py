"""Rows of Spark into topics: `format("tidelog")` of `df.write` and `df.writeStream`."""
