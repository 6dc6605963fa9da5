"""The file that spark-submit is given; nothing else."""
