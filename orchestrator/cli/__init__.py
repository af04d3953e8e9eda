"""The `orch` command: parses arguments, makes one core call, and shows the result. Commands are imported on use.

Exit codes: 0 done, 1 failed rows or a failed job, 2 usage or bad input, 3 refused, 4 backend, network or storage.
"""

from __future__ import annotations

import gc as collector  # `orchestrator.cli.gc` is a command
import importlib
import os
import sys
from typing import Any

import click

from orchestrator.cli.terminal import drop_output, make_output_safe, safe_output
from orchestrator.core import permissions
from orchestrator.core.version import __version__

# Imports create 100,000 permanent objects. Collecting garbage among them takes a tenth of a quick command's time.
# `root` enables collection again before a command does its work.
collector.disable()

COMMANDS = {
    "init": ("init", "Write an orch.toml and a job.yaml to start from."),
    "demo": ("demo", "Ask a small model on this machine about some licence files."),
    "run": ("jobs", "Submit a job or batch file, run it to completion, show the results."),
    "try": ("try_job", "Ask a few documents now, and show prompts, answers and cost."),
    "plan": ("plan", "Show where a job would run, for how much, and by when."),
    "submit": ("jobs", "Queue a job or batch file."),
    "status": ("status_and_fetch", "Show all jobs, or everything about one."),
    "show": ("show", "Show a document's requests and their answers."),
    "fetch": ("status_and_fetch", "Write the rows of a job in input order."),
    "cancel": ("jobs", "Cancel a job; finished rows are kept."),
    "retry": ("jobs", "Retry rows of a finished job that failed."),
    "validate": ("validate_and_doctor", "Check a job or batch file without running it."),
    "view": ("view", "Serve this home's pages: tonight, jobs, rows, nights, money."),
    "report": ("report", "Reports on nights, costs and forecasts."),
    "diff": ("diff", "Show how the answers of two jobs differ."),
    "quarantine": ("quarantine", "List rows that failed permanently, and release them."),
    "acknowledge": ("acknowledge", "Acknowledge known failures."),
    "budget": ("budget", "Show how much of the shared budgets is left."),
    "engines": ("engines", "Show, start and stop your own engines."),
    "bench": ("bench", "Measure an engine with a job's own rows, and say what a night costs."),
    "cluster": ("cluster", "Show a Ray cluster, and make this machine a node of it."),
    "doctor": ("validate_and_doctor", "Check settings, home, database and all backends."),
    "reconcile": ("reconcile", "Compare hosted backends with this home's records."),
    "serve": ("serve", "Serve OpenAI's Batch API in front of any endpoint."),
    "adopt": ("adopt", "Continue a home that lost its id or was copied."),
    "gc": ("gc", "Remove what finished jobs left behind."),
    "backup": ("gc", "Back up the home into one file, or check a backup."),
    "keys": ("keys", "Manage the API keys of `orch serve`."),
    "schedule": ("schedule", "Run job files every night."),
    "up": ("up", "Run the daemon: queued jobs and schedules."),
    "down": ("down", "Stop the daemon."),
    "mcp": ("mcp", "Serve plan, submit, status and rows to a coding agent."),
    "help": ("help_pages", "Show a page of the documentation, or the list of them."),
    "completion": ("shell_files", "Complete commands in bash, zsh or fish."),
    "man": ("shell_files", "Print or install the manual page."),
}

OTHERWISE = {"help": "help_page", "show": "show_row", "init": "init_folder", "try": "try_job"}
"""Function names of commands whose function has a different name."""


class _Lazy(click.Group):
    """A group that knows the names and help of its commands, and imports a command when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"orchestrator.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, OTHERWISE.get(cmd_name, cmd_name))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if (name := args[0]).endswith((".yaml", ".yml", ".jsonl")):
            from orchestrator.core.errors import UsageError

            raise UsageError(f"No such command {name!r}.", hint=f"did you mean `orch run {name}`?")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        # For BrokenPipeError click would exit with 1, and for KeyboardInterrupt print an empty line.
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            drop_output(1, 2)
            return 0
        except KeyboardInterrupt:
            raise click.Abort from None
        return result

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(
    cls=_Lazy,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="orch")
@click.pass_context
def root(context: click.Context) -> None:
    """Run batch LLM jobs over documents, by a deadline you set and at the lowest cost."""
    if context.invoked_subcommand is None:
        click.echo(context.get_help())
    if not collector.isenabled():  # once per process
        collector.freeze()  # exempts all objects made so far
        collector.enable()


def main(argv: list[str] | None = None) -> None:
    """Run the command line and exit with its code.

    Files that it writes are private unless the user requests otherwise.
    """
    permissions.keep_private()
    make_output_safe()  # never undone, because a traceback may be printed last
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # the search covers all installed packages
    code = run(argv)
    collector.freeze()  # skips the final garbage collection, a tenth of a small run's time
    sys.exit(code)


def run(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    with safe_output():
        try:
            result: Any = root.main(argv, prog_name="orch", standalone_mode=False)
        except Exception as error:
            from orchestrator.cli import failed_commands  # a command that succeeds does without its imports

            if (code := failed_commands.report(error, sys.argv[1:] if argv is None else argv)) is None:
                raise
            return code
        return result if isinstance(result, int) else 0
