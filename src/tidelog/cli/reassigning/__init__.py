"""Moves of partitions for the commands: plan files, the state of the cluster, cost, progress."""
