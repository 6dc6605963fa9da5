"""The audit of a topic from its log alone (see ``cli.audit``)."""
