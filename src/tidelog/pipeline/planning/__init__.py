"""The rules of which offsets a micro-batch reads: pure, without brokers and without Spark."""
