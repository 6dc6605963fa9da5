"""Owns the file that spark-submit is given; nothing else."""
