"""`orch down`: stops this home's daemon."""

from __future__ import annotations

import os
import signal
import time

import click

from orchestrator.cli.output import json_option, print_json, say
from orchestrator.core.errors import StorageError, UsageError
from orchestrator.daemon.lock import Holder, running_daemon
from orchestrator.settings.discovery import locate
from orchestrator.settings.home import Home

LOOK_SECONDS = 0.1
SAY_SECONDS = 10.0


@click.command()
@json_option
def down(as_json: bool) -> int:
    """Stop the daemon of this home, and wait until it has ended.

    This acts like Ctrl-C in `orch up`. The daemon waits for billed rows in flight, and nothing is lost. It also stops
    a daemon that a Python program started by `submit`.
    """
    home = Home(locate().home)
    holder = running_daemon(home)
    if holder is not None and not holder.is_up:
        raise UsageError(
            f"{holder} works in this home, not `orch up`", hint=f"stop it there, or: kill -INT {holder.pid}"
        )
    if holder is not None:
        _stop(home, holder)
    if as_json:
        print_json({"stopped": None if holder is None else holder.pid})
    else:
        say("orch: no daemon runs" if holder is None else f"orch: {holder} has stopped; nothing is lost")
    return 0


def _stop(home: Home, holder: Holder) -> None:
    try:
        os.kill(holder.pid, signal.SIGTERM)
    except ProcessLookupError:
        raise StorageError(f"{holder} runs on another machine or container", hint="run `orch down` there") from None
    except PermissionError:
        raise StorageError(f"{holder} belongs to another user", hint="run `orch down` as that user") from None
    said = time.monotonic()
    while running_daemon(home) == holder:
        time.sleep(LOOK_SECONDS)
        if time.monotonic() - said >= SAY_SECONDS:
            said = time.monotonic()
            say(f"orch: waiting for {holder}, whose rows in flight come back first")
