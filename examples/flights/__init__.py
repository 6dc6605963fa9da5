"""A year of real departures from New York through the log, an archive and Spark."""
