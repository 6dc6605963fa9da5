"""Speed, side by side with Apache Kafka: `python -m benchmarks.run`; one script per question."""
