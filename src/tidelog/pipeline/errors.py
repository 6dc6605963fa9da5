"""The errors of the pipeline; the text of each is one line that a user can act on.

Owns their types.
"""

from __future__ import annotations


class PipelineError(Exception):
    """The user's input, or the state of the log, does not allow the operation. One line."""


class OptionRefused(PipelineError):
    """An option that does not exist, is malformed, or does not go with another."""


class TopicChanged(PipelineError):
    """The checkpoint belongs to another topic of the same name (another topic id)."""


class DataLost(PipelineError):
    """Records that this query should have read are gone (option failOnDataLoss)."""


class LakeRefused(PipelineError):
    """A lake that this job cannot continue without breaking exactly-once."""


class RowRefused(PipelineError):
    """A row that cannot be written to a topic."""


class NotWritten(PipelineError):
    """Rows of a task that brokers have not acknowledged."""


class LedgerRefused(PipelineError):
    """A sink's ledger that cannot be read, or has no room for a batch."""


class SinkInUse(PipelineError):
    """A sink that belongs to another query, or whose ledger is missing."""


class SinkOvertaken(PipelineError):
    """Another run of the sink has begun since; this one decides nothing any more."""


class BatchLost(PipelineError):
    """A batch was decided, and its rows were lost before they were committed."""
