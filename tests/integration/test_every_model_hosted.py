"""The job of the README on every model that the documentation names, and each setting that some model refuses.

The provider is the emulated one, which refuses what the real ones refuse, from tables of its own.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from anthropic.types import ModelParam
from openai.types import AllModels, ChatModel, EmbeddingModel

from orchestrator.core.errors import RefusedError
from tests.support.hostedjob import Desk

ROOT = Path(__file__).resolve().parents[2]
Json = dict[str, Any]

OPENAI = (
    *"gpt-4o gpt-4o-mini gpt-4.1-nano gpt-4-turbo gpt-4 gpt-3.5-turbo o1 o1-mini o3 o3-mini o3-pro o4-mini".split(),
    *"gpt-5 gpt-5-mini gpt-5-nano gpt-5-nano-2025-08-07 gpt-5-pro gpt-5-codex gpt-5-chat-latest gpt-5.1".split(),
    *"gpt-5.2-pro gpt-5.3-codex gpt-5.4 gpt-5.4-mini gpt-5.4-nano gpt-5.5 gpt-5.6 gpt-5.6-sol gpt-6-sol".split(),
)
CLAUDE = (
    *"claude-3-haiku-20240307 claude-sonnet-4-0 claude-opus-4-1 claude-haiku-4-5 claude-sonnet-4-5".split(),
    *"claude-opus-4-5 claude-opus-4-6 claude-sonnet-4-6 claude-opus-4-7 claude-opus-4-8 claude-opus-5".split(),
    *"claude-sonnet-5 claude-fable-5 claude-opus-5-5 claude-sonnet-5-5 claude-haiku-5-5".split(),
)
GROQ = ("llama-3.3-70b-versatile", "openai/gpt-oss-20b", "openai/gpt-oss-120b", "qwen/qwen3-32b")
MODELS = {"openai": OPENAI, "azure": (*OPENAI, "our-deployment"), "claude": CLAUDE, "groq": GROQ}


def named_by_providers() -> set[str]:
    """The names that the SDKs list."""
    found = {name for kind in (ChatModel, EmbeddingModel, *get_args(AllModels), ModelParam) for name in _names(kind)}
    assert {"gpt-5-nano", "o3-pro", "claude-haiku-4-5", "text-embedding-3-small"} <= found
    return found


def _names(kind: Any) -> list[str]:
    return [name for one in get_args(kind) for name in ([one] if isinstance(one, str) else _names(one))]


def documented() -> set[str]:
    """Those of OpenAI's chat models that the documentation names."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.json")]
    known = named_by_providers()
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages if page.name != "CHANGELOG.md")
    found = {name for name in re.findall(r"[a-z][a-z0-9.-]*[a-z0-9]", text) if name in known}
    assert {"gpt-5-nano", "gpt-5-mini", "gpt-5"} <= found
    return {name for name in found if not name.startswith(("text-embedding", "claude"))}


def readme_task() -> Json:
    """The task of the README's own job file."""
    [block] = re.findall(r"```yaml\n(name: contracts.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    [task] = yaml.safe_load(block)["tasks"]
    assert task["max_tokens"] == 120
    assert task["schema"]["type"] == "object"
    assert "additionalProperties" not in task["schema"]
    return dict(task)


def prices(*models: str) -> str:
    return "".join(
        f'[prices."{name}"]\ninput = 1\noutput = 4\nbatch = {{input = 0.5, output = 2}}\n' for name in models
    )


def backend(desk: Desk, name: str, *models: str) -> None:
    more: Json = {}
    if name == "groq":
        more = {"base_url": desk.provider.url_of("groq"), "profile": "groq"}
    desk.backends({name: more}, prices(*models))


def job_file(desk: Desk, tasks: dict[str, Json]) -> Path:
    """A job that asks one document, each task at the model by whose name it is listed."""
    folder = desk.folder / "in"
    folder.mkdir(exist_ok=True)
    (folder / "a.txt").write_text("The contract ends on 2027-01-31.", encoding="utf-8")
    aliases = {f"m{number}": name for number, name in enumerate(tasks)}
    listed = [
        {"id": f"t{number}", "model": f"m{number}", **{key: value for key, value in task.items() if key != "id"}}
        | {"model": f"m{number}"}
        for number, task in enumerate(tasks.values())
    ]
    path = desk.folder / "job.yaml"
    path.write_text(json.dumps({"name": "all", "documents": "in", "tasks": listed, "models": aliases}))
    return path


@pytest.mark.long
@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", MODELS)
def test_the_job_of_the_readme_runs_on_every_model(desk: Desk, name: str) -> None:
    models = sorted({*MODELS[name], *(documented() if name in ("openai", "azure") else ())})
    backend(desk, name, *models)
    job = desk.run(job_file(desk, dict.fromkeys(models, readme_task())))
    assert desk.provider.refused() == []
    assert set(desk.ends(job).values()) == {"succeeded"}, desk.ends(job)
    rows = desk.rows(job).values()
    assert len(rows) == len(models)
    assert all(set(row["output"]) == {"end_date", "renewable"} for row in rows)


SCHEMA = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
OPTIONAL = {**SCHEMA, "properties": {**SCHEMA["properties"], "b": {"type": "string", "maxLength": 4000}}}
LIST = {"type": "array", "items": SCHEMA, "minItems": 1}
LABELS = {"kind": "classify", "labels": ["x", "y"]}
THINKS = {"max_tokens": 4000, "extra": {"thinking": {"type": "enabled", "budget_tokens": 2000}}}

TOOL = {"extra": {"tool_choice": "required", "tools": [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
]}}  # fmt: skip

RENAMED: list[tuple[str, str, Json]] = [
    # what is asked, and has another spelling there: backend, models, settings
    ("openai", "gpt-5-nano o1 o3-mini o4-mini gpt-5.4 gpt-5.6", {"max_tokens": 50}),
    ("azure", "gpt-5-nano o4-mini", {"max_tokens": 50}),
    ("openai", "gpt-5-nano gpt-4o our-own", {"endpoint": "responses", "max_tokens": 5}),
    ("openai", "gpt-4o gpt-5-nano our-own", {"schema": SCHEMA}),
    ("openai", "gpt-4o gpt-5-nano our-own", {"schema": OPTIONAL}),
    ("openai", "gpt-4o gpt-5-nano our-own", {"schema": OPTIONAL, "endpoint": "responses"}),
    ("openai", "gpt-4o gpt-5-nano our-own", {"schema": LIST}),
    ("openai", "gpt-4o", {"schema": {**SCHEMA, "properties": {"a": {"type": "object"}}}}),
    ("openai", "gpt-4-turbo gpt-4 gpt-3.5-turbo o1-mini", {"schema": SCHEMA}),
    ("openai", "gpt-4-turbo gpt-4 gpt-3.5-turbo", {"schema": SCHEMA, "endpoint": "responses"}),
    ("openai", "gpt-4o gpt-4.1-nano gpt-4-turbo gpt-4 o1 o1-mini gpt-5", {"max_tokens": 1_000_000}),
    ("openai", "gpt-4o gpt-5-nano", {"max_tokens": 1_000_000, "endpoint": "responses"}),
    (
        "openai",
        "gpt-5-nano",
        {
            "endpoint": "responses",
            "extra": {"reasoning_effort": "low", "max_completion_tokens": 70, "verbosity": "low"},
        },
    ),
    ("openai", "gpt-5.6-cyber gpt-6-rosalind gpt-5.5-pro", {"schema": OPTIONAL}),
    ("openai", "o1-mini o1-mini-2024-09-12 o1-preview", {"system": "Be brief."}),
    ("openai", "gpt-5-pro o3-pro gpt-5-codex", {"schema": OPTIONAL, "max_tokens": 5, "system": "Be brief."}),
    ("openai", "gpt-5-nano gpt-4o", {"extra": {"max_completion_tokens": 70}}),
    ("openai", "gpt-5-nano", {"temperature": 1}),
    ("openai", "gpt-4o o3-mini o1", {"stop": ["x"]}),
    ("openai", "gpt-5.4-nano gpt-4o", {"temperature": 0}),
    ("claude", "claude-3-haiku-20240307 claude-sonnet-4-0", {"schema": SCHEMA}),
    ("claude", "claude-opus-4-5 claude-haiku-4-5 claude-opus-5", {"schema": OPTIONAL}),
    ("claude", "claude-opus-4-5 claude-opus-5", {"schema": LIST}),
    ("claude", "claude-haiku-4-5", {"max_tokens": 100_000}),
    ("groq", "openai/gpt-oss-20b", {"extra": {"reasoning_effort": "low"}}),
    ("groq", "qwen/qwen3-32b", {"extra": {"reasoning_effort": "none"}}),
    ("groq", "llama-3.3-70b-versatile openai/gpt-oss-20b qwen/qwen3-32b", {"schema": OPTIONAL}),
    ("groq", "llama-3.3-70b-versatile openai/gpt-oss-20b", {"schema": LIST}),
]

LOST: list[tuple[str, str, Json, str]] = [
    # what cannot be said there: backend, models, settings, the field
    ("openai", "gpt-5-nano gpt-5 o3 o4-mini gpt-5.6", {"temperature": 0}, "temperature"),
    ("azure", "gpt-5-mini", {"temperature": 0.3}, "temperature"),
    ("openai", "gpt-5-nano o3", {"top_p": 0.5}, "top_p"),
    ("openai", "gpt-5-nano o4-mini", {"temperature": 0, "endpoint": "responses"}, "temperature"),
    ("openai", "gpt-5-nano o3", {"top_p": 0.5, "endpoint": "responses"}, "top_p"),
    ("openai", "gpt-5-nano gpt-5.4 o3 o4-mini gpt-5.1-chat-latest", {"stop": ["END"]}, "stop"),
    ("openai", "o1", {"extra": {"n": 2}}, "n"),
    ("openai", "gpt-5-nano o1 o3", {**LABELS, "logprobs": True}, "logprobs"),
    ("openai", "gpt-5-nano", {**LABELS, "logprobs": True, "endpoint": "responses"}, "logprobs"),
    ("openai", "gpt-5-nano", {"extra": {"presence_penalty": 1}}, "presence_penalty"),
    ("openai", "gpt-5-pro", {"seed": 4}, "seed"),
    ("openai", "gpt-5-nano", {"extra": {"reasoning_effort": "none"}}, "reasoning_effort"),
    ("openai", "gpt-4o", {"extra": {"reasoning_effort": "low"}}, "reasoning_effort"),
    ("claude", "claude-opus-4-1 claude-haiku-4-5 claude-opus-4-6", {"temperature": 0, "top_p": 0.9}, "top_p"),
    ("claude", "claude-haiku-4-5 claude-sonnet-4-5", {"extra": {"reasoning_effort": "low"}}, "reasoning_effort"),
    ("claude", "claude-opus-4-6 claude-sonnet-4-6", {"extra": {"reasoning_effort": "xhigh"}}, "reasoning_effort"),
    ("claude", "claude-fable-5", {"extra": {"reasoning_effort": "none"}}, "reasoning_effort"),
    (
        "claude",
        "claude-opus-5",
        {"extra": {"reasoning_effort": "xhigh", "thinking": {"type": "disabled"}}},
        "reasoning_effort",
    ),
    ("claude", "claude-fable-5 claude-mythos-5", TOOL, "tool_choice"),
    ("claude", "claude-opus-4-7 claude-opus-5 claude-sonnet-5", THINKS, "thinking"),
    ("claude", "claude-sonnet-4-5", {**THINKS, "temperature": 0.2}, "temperature"),
    ("claude", "claude-sonnet-4-5", {**THINKS, "max_tokens": 512}, "thinking"),
    ("claude", "claude-sonnet-4-5 claude-opus-5", {"stop": ["\n"]}, "stop"),
    ("claude", "claude-opus-4-7 claude-opus-5 claude-mythos-preview", {"temperature": 0.5}, "temperature"),
    ("claude", "claude-opus-4-5", {"seed": 3}, "seed"),
    ("claude", "claude-mythos-preview", {"extra": {"reasoning_effort": "xhigh"}}, "reasoning_effort"),
    ("claude", "claude-3-haiku-20240307", THINKS, "thinking"),
    ("claude", "claude-haiku-4-5", {"extra": {"verbosity": "low"}}, "verbosity"),
    ("openai", "gpt-5.3-codex", {"temperature": 0}, "temperature"),
    ("openai", "gpt-4o-search-preview gpt-4o-mini-search-preview-2025-03-11", {"temperature": 0}, "temperature"),
    ("groq", "llama-3.3-70b-versatile", {**LABELS, "logprobs": True}, "logprobs"),
    ("groq", "llama-3.3-70b-versatile qwen/qwen3-32b", {"extra": {"reasoning_effort": "low"}}, "reasoning_effort"),
]


NOT_THERE: list[tuple[str, str, Json, str]] = [
    # a model that is not at the endpoint: backend, models, settings, the reason
    ("openai", "text-embedding-3-small", {}, "is for embeddings, and cannot be asked at /v1/chat/completions"),
    (
        "azure",
        "gpt-4o-mini-tts whisper-1",
        {"endpoint": "responses"},
        "is for sound, and cannot be asked at",
    ),
    ("openai", "gpt-4o-search-preview gpt-audio o1-mini", {"endpoint": "responses"}, "is for chat completions alone"),
    ("groq", "whisper-large-v3", {}, "is for sound"),
]


def tasks_of(names: str, asked: Json, **more: Any) -> dict[str, Json]:
    return {name: {"prompt": "When?", "max_tokens": 60, **asked, **more} for name in names.split()}


@pytest.mark.long
@pytest.mark.thinned(14)
@pytest.mark.parametrize(("name", "models", "asked"), RENAMED)
def test_what_has_another_spelling_there_is_said(desk: Desk, name: str, models: str, asked: Json) -> None:
    backend(desk, name, *models.split())
    job = desk.run(job_file(desk, tasks_of(models, asked)))
    assert desk.provider.refused() == []
    assert set(desk.ends(job).values()) == {"succeeded"}, desk.ends(job)


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("name", "models", "asked", "field"), LOST)
def test_what_cannot_be_said_there_is_known_before_money_moves(
    desk: Desk, name: str, models: str, asked: Json, field: str
) -> None:
    for model in models.split():
        backend(desk, name, model)
        with pytest.raises(RefusedError) as caught:
            desk.submit(job_file(desk, tasks_of(model, asked)))
        assert model in str(caught.value)
        assert field in str(caught.value)
    assert desk.batches() == []


@pytest.mark.parametrize(("name", "models", "asked", "reason"), NOT_THERE)
def test_a_model_that_is_not_there_is_known_before_money_moves(
    desk: Desk, name: str, models: str, asked: Json, reason: str
) -> None:
    for model in models.split():
        backend(desk, name, model)
        with pytest.raises(RefusedError) as caught:
            desk.submit(job_file(desk, tasks_of(model, asked, unsupported="drop")))
        assert f"{model} {reason}" in str(caught.value)
        assert "take it out" not in str(caught.value), "no task can do without a model"
    assert desk.batches() == []


@pytest.mark.thinned(11)
@pytest.mark.parametrize(("name", "models", "asked", "field"), LOST)
def test_what_a_task_lets_go_is_left_out(desk: Desk, name: str, models: str, asked: Json, field: str) -> None:
    backend(desk, name, *models.split())
    job = desk.run(job_file(desk, tasks_of(models, asked, unsupported="drop")))
    assert desk.provider.refused() == []
    assert set(desk.ends(job).values()) == {"succeeded"}, desk.ends(job)


def test_the_size_of_vectors_is_never_left_out(desk: Desk) -> None:
    backend(desk, "openai", "text-embedding-ada-002")
    task = {"kind": "embedding", "dimensions": 256, "unsupported": "drop"}
    with pytest.raises(RefusedError, match=r"text-embedding-ada-002 .*dimensions"):
        desk.submit(job_file(desk, {"text-embedding-ada-002": task}))
    assert desk.provider.refused() == []


@pytest.mark.long
def test_without_the_tables_of_the_dialect_real_providers_would_refuse_the_job(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests above hold because of the dialect: with its tables empty each of these models refuses its row."""
    monkeypatch.setattr("orchestrator.policy.dialect.writing.RULES", ())
    models = ["gpt-5-nano", "o3", "gpt-5.4-mini", "gpt-4o", "gpt-4-turbo", "gpt-5-pro"]
    backend(desk, "openai", *models)
    job = desk.submit(job_file(desk, dict.fromkeys(models, readme_task())))
    for _ in range(8):
        desk.later(900.0, job)
    assert {line.split(":")[0] for line in desk.provider.refused()} == set(models)
