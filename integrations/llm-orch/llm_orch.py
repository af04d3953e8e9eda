"""`llm orch`: many prompts as one batch job of orch, with its deadline, budget and cache.

It is a command and not a model: llm asks one prompt at a time and waits, and a Batch API takes hours.
"""

from __future__ import annotations

import json
from typing import Any, TextIO

import click
import llm

import orchestrator as orch


@llm.hookimpl
def register_commands(cli: click.Group) -> None:
    """Add `llm orch`."""

    @cli.command(name="orch")
    @click.argument("prompts", type=click.File("r", encoding="utf-8"), default="-")
    @click.option("-m", "--model", required=True, help="An alias under [models] in orch.toml.")
    @click.option("-s", "--system", help="System prompt for all of them.")
    @click.option("-t", "--template", help="A template of llm; each line is its $input.")
    @click.option("--deadline", help="As of orch: 06:00, 8h.")
    @click.option("--budget", type=float, help="Dollars that the job may cost.")
    def orch_command(
        prompts: TextIO,
        model: str,
        system: str | None,
        template: str | None,
        deadline: str | None,
        budget: float | None,
    ) -> None:
        """Ask each line of PROMPTS, and write its answer as a JSON line, in order."""
        lines = [line.rstrip("\n") for line in prompts if line.strip()]
        asked = [_messages(line, system, template) for line in lines]
        try:
            answers = orch.requests(
                [{"model": model, "messages": one} for one in asked], deadline=deadline, budget=budget
            )
        except orch.OrchError as error:
            raise click.ClickException(str(error)) from None
        for line, answer in zip(lines, answers, strict=True):
            click.echo(json.dumps({"prompt": line, **_fields(answer)}, ensure_ascii=False))


def _messages(line: str, system: str | None, template: str | None) -> list[dict[str, str]]:
    if template is not None:
        from llm.cli import load_template

        text, its_system = load_template(template).evaluate(line)
        line, system = text or line, system or its_system
    said = [] if system is None else [{"role": "system", "content": system}]
    return [*said, {"role": "user", "content": line}]


def _fields(answer: Any) -> dict[str, Any]:
    if isinstance(answer, orch.RowError):
        return {"response": None, "error": answer.code}
    return {"response": answer.choices[0].message.content, "error": None}
