"""The steps from Kafka's record batches to Arrow columns. Not the fetches: see `tasks`."""
