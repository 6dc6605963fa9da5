"""tidelog: a Kafka-compatible replicated log whose topics grow and shrink in order."""

__version__ = "0.1.0"
