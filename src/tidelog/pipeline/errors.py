"""The refusals of the pipeline, each one line that a user can act on.

Owns their types and nothing else.
"""

from __future__ import annotations


class PipelineError(Exception):
    """Something the user, or the state of the log, made impossible. One line."""


class OptionRefused(PipelineError):
    """An option that does not exist, is malformed, or does not go with another."""


class TopicChanged(PipelineError):
    """The checkpoint belongs to another topic of the same name (another topic id)."""


class DataLost(PipelineError):
    """Records that this query should have read are gone (option failOnDataLoss)."""


class LakeRefused(PipelineError):
    """A lake that this job cannot continue without breaking exactly-once."""
