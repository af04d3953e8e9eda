"""Advice for wrong command lines. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from itertools import pairwise

import click

from orchestrator.core.near_names import meant

_LONG_WITH_ONE_HYPHEN = re.compile(r"-[a-z][a-z-]+")
_ODD_HYPHENS = "–—‐‑−"
_ACTIONS: Mapping[str, str] = {
    "delete": "remove", "rm": "remove", "del": "remove", "create": "add", "new": "add", "ls": "list", "show": "list",
    "costs": "cost", "money": "cost", "nights": "night",
    "start": "up", "stop": "down", "daemon": "up", "why": "status", "list": "status", "jobs": "status",
    "logs": "status", "explain": "status", "progress": "status", "download": "fetch", "export": "fetch",
    "results": "fetch", "answers": "fetch", "get": "fetch", "dashboard": "view", "web": "view", "ui": "view",
    "check": "validate", "lint": "validate", "estimate": "plan", "compare": "diff", "test": "try", "preview": "try",
}  # fmt: skip
"""Commands of orch, by the names that other tools use for them."""


_REHEARSALS = frozenset({"--dry-run", "--dryrun", "--dry", "--simulate", "--what-if"})
"""Names that other tools use for the option of a rehearsal."""


def cure_of(error: click.ClickException, words: Sequence[str]) -> str | None:
    """Return advice for the mistake in a command line, or None. `words` are the command line."""
    odd = next((word for word in words if word[:1] in _ODD_HYPHENS), None)
    if odd is not None:
        return f"write --{odd.lstrip(_ODD_HYPHENS + '-')}, with two plain hyphens"
    if isinstance(error, click.NoSuchOption):
        if error.option_name in _REHEARSALS:
            return "`orch plan` shows what a run would do, and sends nothing"
        long = (word for word in words if _LONG_WITH_ONE_HYPHEN.fullmatch(word))
        return next((f"write -{word}, with two hyphens" for word in long if word.startswith(error.option_name)), None)
    if isinstance(error, click.BadOptionUsage):
        return f"write {error.option_name} and its value after it"
    context = error.ctx if isinstance(error, click.UsageError) else None
    param = error.param if isinstance(error, click.BadParameter) else None
    kind = getattr(param, "type", None)
    if isinstance(kind, click.Choice) and (given := _value_of(param, words)) is not None:
        return meant(given, [str(choice) for choice in kind.choices])
    if isinstance(kind, click.types.IntParamType):
        return "write a whole number, such as 5"
    if context is None or not isinstance(error, click.UsageError):
        return None
    command = context.command
    if isinstance(error, click.NoSuchCommand) and isinstance(command, click.Group):
        known = command.list_commands(context)
        if (other := _ACTIONS.get(error.command_name)) not in known:
            other = next(iter(get_close_matches(error.command_name, known, 1)), None)
        return None if other is None else f"did you mean `{context.command_path} {other}`?"
    # A plain UsageError means extra arguments: click has subclasses for all other mistakes.
    return _extra(command, words) if type(error) is click.UsageError else None


def _value_of(param: click.Parameter | None, words: Sequence[str]) -> str | None:
    for word, after in pairwise([*words, ""]):
        name, has_value, value = word.partition("=")
        if isinstance(param, click.Option) and name in param.opts:
            return value if has_value else after
    return None


def _extra(command: click.Command, words: Sequence[str]) -> str | None:
    if "--cron" in words:
        return 'put the times in quotes:  --cron "0 22 * * *"'
    options = {name for param in command.params if isinstance(param, click.Option) for name in param.opts}
    if "-o" in options and not words[-1].startswith("-") and not words[-1].endswith((".yaml", ".yml")):
        return f"a file to write is named by an option:  -o {words[-1]}"
    return "one at a time; put a name with spaces in quotes"
