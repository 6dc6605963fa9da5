"""Commands that the sentences of servers name as the way out, each with the options that it needs.

Owns these names. Not the commands: see `tidelog.cli`.
"""

RESTORED = (
    "`tidelog doctor restored --cluster-secret-file FILE` (FILE: the servers' cluster.secret.file)"
)
"""The command for a metadata store that is lost, or has gone back in time."""
