"""The producer: batches by partition, sequence numbers, delivery and retries."""
