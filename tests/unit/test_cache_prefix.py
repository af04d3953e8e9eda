"""What requests begin with alike, which is what a provider's cached price and an engine's prefix cache are for."""

from __future__ import annotations

import json
from itertools import takewhile
from typing import Any

from orchestrator.documents.types import Document
from orchestrator.policy.requests import Builder
from orchestrator.settings.job_spec import JobSpec

RULES = "You answer for a lawyer. " * 50
TEXTS = ("It was agreed.", "Nothing was.")


def prompts(*tasks: dict[str, Any]) -> list[str]:
    """What a model reads for each request, in their order."""
    given = [{"id": f"t{number}", "prompt": "Who?", "model": "m", **task} for number, task in enumerate(tasks)]
    builder = Builder(JobSpec.model_validate({"name": "j", "documents": "d", "tasks": given}))
    rows = [row for text in TEXTS for row in builder.build(Document(f"d/{text}", "a", text, text, 9, {}))]
    return ["".join(message["content"] for message in json.loads(row.line)["body"]["messages"]) for row in rows]


def shared(*texts: str) -> str:
    """What they all begin with."""
    alike = takewhile(lambda letters: len(set(letters)) == 1, zip(*texts, strict=False))
    return "".join(letters[0] for letters in alike)


def test_a_fixed_system_prompt_begins_every_request_of_a_task() -> None:
    assert shared(*prompts({"system": RULES})) == f"{RULES}<document>\n"


def test_instructions_in_the_prompt_are_shared_with_nobody() -> None:
    assert shared(*prompts({"prompt": RULES})) == "<document>\n"


def test_tasks_share_a_document_where_they_have_the_same_system_prompt() -> None:
    first, second, *_ = prompts({"system": RULES}, {"system": RULES, "prompt": "When?"})
    assert shared(first, second) == f"{RULES}<document>\n{TEXTS[0]}\n</document>\n\nWh"
    first, second, *_ = prompts({"system": "A. " + RULES}, {"system": "B. " + RULES})
    assert shared(first, second) == ""
