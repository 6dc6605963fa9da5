"""The results of the jobs as text and as one HTML page."""
