"""How every failure of a command ends: an exit status, one error line, advice where there is some.

Owns the sentences that turn an error of the cluster into advice. Not the refusal type: see
`refusal`.
"""

from __future__ import annotations

import os
import re
import sys

import click

from tidelog.cli.refusal import FAILED, WRONG_USAGE, Failed, print_error
from tidelog.client.errors import (
    ClientError,
    ClusterUnreachable,
    GaveUp,
    Refused,
    VersionUnsupported,
)
from tidelog.model.errors import ErrorCode
from tidelog.protocol.primitives import EncodeError

_ADVICE = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "list the topics with `tidelog topics --list`",
    ErrorCode.TOPIC_ALREADY_EXISTS: "add --if-not-exists to accept an existing topic",
    ErrorCode.INVALID_REPLICATION_FACTOR: "use at most as many replicas as there are brokers",
    ErrorCode.NON_EMPTY_GROUP: "stop the group's consumers first",
    ErrorCode.GROUP_ID_NOT_FOUND: "list the groups with `tidelog groups --list`",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "stop the group's consumers first",
    ErrorCode.UNKNOWN_MEMBER_ID: "stop the group's consumers first",
    ErrorCode.MESSAGE_TOO_LARGE: "send smaller records or raise the topic's max.message.bytes",
    ErrorCode.OFFSET_OUT_OF_RANGE: "use --from-beginning, or an offset that is still in the log",
    ErrorCode.NOT_ENOUGH_REPLICAS: "start the missing brokers or lower min.insync.replicas",
    ErrorCode.LEADER_NOT_AVAILABLE: "run `tidelog doctor` to see which brokers are missing",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "run `tidelog doctor` to see which brokers are missing",
}

_WORDS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "does not exist",
    ErrorCode.TOPIC_ALREADY_EXISTS: "already exists",
    ErrorCode.GROUP_ID_NOT_FOUND: "does not exist",
    ErrorCode.NON_EMPTY_GROUP: "has members",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "is not a valid topic name: use up to 249 letters, "
    "digits, dots, underscores and hyphens",
}

_RANGE = re.compile(r"is not a valid integer( range)?$")
"""What click says of an option that takes a number."""

_SAID_BETTER = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.TOPIC_ALREADY_EXISTS})
"""Codes for which the broker's own message adds nothing."""


_SAID_BY_BROKERS = frozenset({ErrorCode.INVALID_REPLICATION_FACTOR})
"""Codes whose reason, if the broker gives one, has the advice already."""


def explain(error: ClientError, instead: str = "") -> str:
    """Return one line that says what happened and what to do about it: ``instead`` of the advice
    for the error code, if given."""
    if isinstance(error, ClusterUnreachable):
        return f"{error}; start the server, or correct --bootstrap-server"
    if isinstance(error, VersionUnsupported):
        return f"{error}; this server does not support the request"
    if isinstance(error, GaveUp) and isinstance(error.__cause__, Refused):
        advice = _ADVICE.get(error.__cause__.code)
        return f"{error}; {advice}" if advice else str(error)
    if not isinstance(error, Refused):
        return str(error)
    reason = error.reason.rstrip(".")
    if not reason or error.code in _SAID_BETTER:
        reason = _WORDS.get(error.code, "was refused")
        text = f"{error.subject} {reason}"
    elif reason.startswith(f"The {error.subject.replace(chr(39), '')} "):
        # The reason names its subject itself.
        text = reason
    else:
        text = f"{error.subject}: {reason}"
    advice = instead or _ADVICE.get(error.code)
    if error.code in _SAID_BY_BROKERS and error.reason:
        advice = None
    return f"{text} ({error.code.name})" + (f"; {advice}" if advice else "")


def run(command: click.Command, words: list[str]) -> int:
    """Run a command and return its exit status; every failure is one line on stderr."""
    try:
        # Not ``command.main``, which handles closed pipes in its own way.
        with command.make_context("tidelog", list(words)) as context:
            status = command.invoke(context)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except (click.Abort, KeyboardInterrupt):
        return 130
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        return WRONG_USAGE
    except click.UsageError as error:
        hint = f"; see `{error.ctx.command_path} --help`" if error.ctx else ""
        message = _RANGE.sub("is not a whole number", error.format_message().strip().rstrip("."))
        print_error(f"{message}{hint}")
        return WRONG_USAGE
    except click.ClickException as error:
        print_error(error.format_message())
        return error.exit_code
    except Failed as error:
        return error.show()
    except ClientError as error:
        return Failed(explain(error)).show()
    except (EncodeError, UnicodeError) as error:
        # A name or value that a request cannot encode, or a file that is not text.
        return Failed(str(error)).show()
    except BrokenPipeError:
        # The reader of the output has exited (`| head`): no error, but nothing left to print.
        _drop_output()
        return 0
    except OSError as error:
        # Mostly a full disk at a redirection (`>`); the exit must not try to write again.
        _drop_output()
        file = f"{error.filename}: " if error.filename else ""
        message = error.strerror or str(error) or repr(error)
        print(f"error: {file}{message}", file=sys.stderr)
        return FAILED


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
