"""Owns which offsets a micro-batch reads: pure rules; does not talk to brokers or to Spark."""
