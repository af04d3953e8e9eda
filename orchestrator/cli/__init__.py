"""The `orch` command: arguments in, a core call, its result drawn. Commands are imported when they are used.

Exit codes: 0 done, 1 failed rows or a failed job, 2 usage or bad input, 3 refused, 4 backend, network or storage.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from typing import Any

import click

from orchestrator import __version__
from orchestrator.errors import OrchError

# Imports make a hundred thousand objects that live to the end: collecting among them costs a quick command a tenth
# of its time. `root` turns collection on again before a command does its work.
gc.disable()

COMMANDS = {
    "run": ("jobs", "Submit a job or batch file, run it to its end, show the results."),
    "plan": ("plan", "Show where a job would run, for how much, by when, and why."),
    "submit": ("jobs", "Queue a job or batch file."),
    "status": ("look", "Show all jobs, or one in full."),
    "fetch": ("look", "Write the rows of a job, in input order."),
    "cancel": ("jobs", "End a job; rows that are done stay."),
    "retry": ("jobs", "Try rows of a finished job again."),
    "validate": ("check", "Check a job or batch file without running it."),
    "report": ("report", "Reports: what a night brought, what was paid, whether forecasts can be trusted."),
    "diff": ("diff", "Show what is different between the rows of two jobs."),
    "quarantine": ("quarantine", "Rows that failed for good: list them, let go of them."),
    "acknowledge": ("acknowledge", "Failures that a person knows of: they no longer make a night a bad one."),
    "budget": ("budget", "Show what is left of the budgets that jobs share."),
    "doctor": ("check", "Check configuration, home, database, upstreams and hosted backends."),
    "reconcile": ("reconcile", "Compare what hosted backends have with what is known here."),
    "serve": ("serve", "Serve OpenAI's Batch API in front of vLLM or any OpenAI-compatible endpoint."),
    "gc": ("house", "Remove what finished jobs leave and nobody needs; show what the home takes."),
    "backup": ("house", "Copy the home into one file while it runs, or check such a file."),
    "keys": ("keys", "API keys of `orch serve`."),
    "schedule": ("schedule", "Run job files every night: add, list, pause, resume, run, remove."),
    "up": ("up", "Be the engine until stopped: run queued jobs, and what is scheduled."),
}


class _Lazy(click.Group):
    """Knows its commands by name and help; imports one when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"orchestrator.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        # Here, because click makes exit code 1 of it.
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            drop_output(1, 2)
            return 0
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="orch")
def root() -> None:
    """Documents in, finished rows out: batch LLM jobs by the hour you named, for the least money."""
    gc.enable()


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with its code."""
    sys.exit(run(argv))


def run(argv: list[str] | None = None) -> int:
    """Run the command line; its exit code."""
    try:
        result: Any = root.main(argv, prog_name="orch", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return 2
    except OrchError as error:
        click.echo(f"orch: {error}", err=True)
        return error.exit_code
    except (click.exceptions.Abort, KeyboardInterrupt):
        click.echo("orch: stopped; run the same command again to go on", err=True)
        return 130
    return result if isinstance(result, int) else 0


def drop_output(*streams: int) -> None:
    """Let what is still to be written there go nowhere: nobody reads it, and Python would complain at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in streams:
        os.dup2(nowhere, stream)
    os.close(nowhere)


if __name__ == "__main__":
    main()
