"""The fetcher: prefetching from leaders, fetch sessions, detection of truncation."""
