"""The Spark pipeline: source, sink, lake and jobs."""

from tidelog.pipeline.sink.shuffle import write_ordered

__all__ = ["write_ordered"]
