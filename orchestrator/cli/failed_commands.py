"""Reports failed commands: a message on stderr, and with --json also an object on stdout."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from orchestrator.cli.terminal import INTERRUPTED, StreamFault, drop_output
from orchestrator.core.errors import BackendRefused, InputError, OrchError, RequestRefused, StorageError
from orchestrator.core.sanitize import escape_controls
from orchestrator.library.messages import say


class CommandInterrupted(Exception):
    """Raised on Ctrl-C. The message says which work stopped and which continues."""


def report(error: Exception, words: Sequence[str]) -> int | None:
    """Report the error that ended a command and return its exit code. Return None for a defect of orch."""
    as_json = "--json" in (words[: words.index("--")] if "--" in words else words)
    match error:
        case click.ClickException():
            return misused(error, words, as_json=as_json)
        case OrchError():
            return failed(error, words, as_json=as_json)
        case CommandInterrupted():
            return interrupted(str(error), as_json=as_json)
        case click.Abort():  # Ctrl-C or Ctrl-D at a question, or Ctrl-C before the command begins
            return interrupted("stopped", as_json=as_json)
        case OSError():
            return unusable(error, as_json=as_json)
    return None


def failed(error: OrchError, words: Sequence[str] = (), *, as_json: bool) -> int:
    """Report a command's error and return its exit code. `words` are the command line."""
    name_as_typed(error, words)
    say(f"orch: {error}")
    if as_json:
        _print(error_json(error))
    return error.exit_code


def name_as_typed(error: OrchError, words: Sequence[str]) -> None:
    """Replace an error's file name by the name in `words`, as the user typed it.

    Jobs store absolute paths.
    """
    if error.file is not None:
        file = os.path.realpath(error.file)
        error.file = next((Path(word) for word in words if os.path.realpath(word) == file), error.file)
    for other in error.others:
        name_as_typed(other, words)


def misused(error: click.ClickException, words: Sequence[str], *, as_json: bool) -> int:
    """Report an invalid command line and return the exit code. `words` are the command line."""
    from orchestrator.cli.usage_cures import cure_of

    message, hint = error.format_message(), cure_of(error, words)
    context = error.ctx if isinstance(error, click.UsageError) else None
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and not as_json:
        say(message)
        return 2
    if context is not None:
        if hint and isinstance(context.command, click.Group):
            message = error.message  # without click's own guess, which the hint repeats
        hint = hint or f"see `{context.command_path} --help`"
        say(context.get_usage())
    say(f"orch: {message}" + (f"\n  hint: {hint}" if hint else ""))
    if as_json:
        _print({"code": "bad_usage", "message": message, **_PLACE, "hint": hint, "exit_code": 2})
    return 2


def interrupted(message: str, *, as_json: bool) -> int:
    say(f"orch: {message}")
    if as_json:
        _print({"code": "interrupted", "message": message, **_PLACE, "hint": None, "exit_code": INTERRUPTED})
    return INTERRUPTED


def unusable(error: OSError, *, as_json: bool) -> int:
    """Report a disk, socket or stream fault that no other code handled, and return the exit code."""
    place = "" if error.filename is None else f"{os.fsdecode(error.filename)}: "
    if isinstance(error, StreamFault):
        place = f"cannot write to {error.name}: "
    for number, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            drop_output(number)  # the broken stream
    if logging.getLogger().hasHandlers():  # without a handler, the entry would go to the terminal
        logging.getLogger(__name__).error("a command ended", exc_info=error)
    fault = StorageError(f"{place}{error.strerror or error}")
    with suppress(OSError):  # stderr itself may be broken
        failed(fault, as_json=as_json)
    return fault.exit_code


_PLACE = {"file": None, "line": None, "field": None}


def error_json(error: OrchError) -> dict[str, Any]:
    """Return the stable form of an error, documented in docs/reference/json.md."""
    told: dict[str, Any] = {
        "code": error.kind,
        "message": error.message,
        "file": None if error.file is None else str(error.file),
        "line": error.line,
        "field": error.field,
        "hint": error.hint,
        "exit_code": error.exit_code,
    }
    if isinstance(error, InputError) or error.others:
        told["others"] = [error_json(other) for other in error.others]
    if isinstance(error, BackendRefused):
        told |= {"provider_status": error.status, "provider_code": error.code}
    if isinstance(error, RequestRefused):
        told |= {"job": error.job_id, "holds": list(error.holds)}
    return told


def _print(told: dict[str, Any]) -> None:
    try:
        sys.stdout.write(escape_controls(json.dumps({"error": told}, indent=2, ensure_ascii=False)) + "\n")
        sys.stdout.flush()
    except OSError:
        drop_output(1)  # stderr has the failure, which keeps its exit code
