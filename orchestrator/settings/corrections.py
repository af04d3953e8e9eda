"""Hints for invalid values and unknown fields in job files and orch.toml. Pure.

Text in the file may be a secret. So hints repeat only numbers, times and words that the field accepts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from orchestrator.core.durations import seconds_of
from orchestrator.core.lazy_patterns import regex
from orchestrator.core.money import amount_cure
from orchestrator.settings.backend_packages import hosted_kinds

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
LONGEST_NAME = 40
"""Pattern and maximum length of names of jobs, tasks and models."""
EMAIL = r"^[^@\s<>]+@[^@\s<>]+$"
"""Pattern of e-mail addresses."""
_NUMBER = r"(\d+(?:\.\d+)?)"
_THOUSANDS = regex(r"\d{1,3}(?:[,_ ']\d{3})+")
_DECIMAL_COMMA = regex(r"(\d+),(\d{1,2}|\d{4,})")
_PERCENT = regex(rf"{_NUMBER}\s*%")
_SCALED = regex(rf"{_NUMBER}\s*([kKMG])B?")
_SCALES = {"k": 1_000, "K": 1_000, "M": 1_000_000, "G": 1_000_000_000}
_SMART = regex("[“”„‘’«»]")
_PATTERNS: Mapping[str, str] = {
    NAME: "letters, digits, - and _ alone, such as notice-period",
    r"^[A-Za-z0-9_-]{1,40}$": "letters, digits, - and _ alone, such as my-gpu",
    r"^[^=]+=.*$": "write KEY=VALUE, such as team=legal",
    r"^[^:\s]+:[^\s]+$": "write PROVIDER:MODEL, such as openai:gpt-5-nano",
    EMAIL: "write an address, such as team@example.org",
}
"""Hints for texts that do not match their field's pattern, by pattern."""
_NOTHING = "nothing follows the colon: write a value (in quotes if it begins with #), or leave the field out"
_FLAGS = {"yes": "true", "on": "true", "1": "true", "no": "false", "off": "false", "0": "false", "never": "false"}
_QUOTED_WORD = regex(r"'([^']*)'")

OTHER_WORDS: Mapping[str, str] = {
    "question": "prompt", "instruction": "prompt", "instructions": "prompt", "user": "prompt",
    "system_prompt": "system", "response_format": "schema", "json_schema": "schema", "output_schema": "schema",
    "max_output_tokens": "max_tokens", "max_completion_tokens": "max_tokens", "files": "documents",
    "inputs": "documents", "folder": "path", "file": "path", "glob": "include", "pattern": "include",
    "questions": "tasks", "prompts": "tasks", "max_cost": "budget", "due": "deadline", "labels": "tags",
    "url": "base_url", "endpoint": "base_url", "api_base": "base_url", "price_per_hour": "cost_per_hour",
    "timeout": "request_timeout", "api_key": "api_key_env", "token": "api_key_env", "key": "api_key_env",
    "column": "text_column", "text_field": "text_column", "text": "text_column", "content_column": "text_column",
    "text_columns": "text_column", "key_column": "id_column", "messages": "prompt", "json": "schema",
    "limit": "amount", "processes": "workers", "in": "input", "out": "output", "email": "email_to",
    "slack": "webhook_env", "zone": "tz", "timezone": "tz", "time_zone": "tz", "temp": "temperature",
    "response_model": "schema", "json_mode": "schema", "metadata": "tags", "results": "output", "result": "output",
    "cost_limit": "budget", "max_spend": "budget", "max_budget": "budget", "columns": "text_column",
    "id": "id_column", "chunk_size": "part_tokens", "chunk_overlap": "overlap_tokens", "overlap": "overlap_tokens",
    "completion": "output", "to": "email_to", "recipients": "email_to", "webhook_url": "webhook_env",
    "org": "organization", "organisation": "organization", "upstreams": "base_url", "upstream": "base_url",
}  # fmt: skip
"""Names of orch's fields, by the names that other tools use."""
MISSING: Mapping[str, str] = {
    "upstreams": 'for a provider\'s Batch API, add  kind = "openai"',
    "prompt": "the question that is asked about every document",
    "documents": "the folder or file to read:  documents: {path: FOLDER}",
    "tasks": "the questions:  tasks: [{id: NAME, model: ALIAS, prompt: …}]",
    "name": "what the job is called:  name: letters",
    "budgets.name": 'what the budget is called:  name = "legal"',
    "base_url": 'the address of the API:  base_url = "https://HOST/v1"',
    "models": 'the models that it starts:  [backends.NAME.models.ALIAS]  model = "FOLDER_OR_NAME"',
    "api_key_env": 'the variable that holds the key:  api_key_env = "MY_KEY"',
    "amount": "dollars for each period:  amount = 50",
    "period": 'how often the budget is renewed:  period = "month"',
    "backends.model": 'what vLLM loads:  model = "FOLDER_OR_NAME"',
    "from": 'the address that sends:  from = "orch@example.org"',
    "input": "dollars for a million tokens:  input = 2.50",
}
"""Hints for missing required fields, by field."""
ELSEWHERE: Mapping[str, str] = {
    "api_key": "no key belongs in a job file: `api_key_env` in orch.toml names the variable that holds it",
    "cron": "`orch schedule add FILE --cron …` says when a job file runs",
    "schedule": "`orch schedule add FILE --cron …` says when a job file runs",
    "backends": "write  allow: {backends: [NAME]}; the backends themselves are in orch.toml",
    "backend": "write  allow: {backends: [NAME]}",
    "location": "write  allow: {location: local}",
    "extensions": 'write patterns:  include: ["*.txt", "*.pdf"]',
    "types": 'write patterns:  include: ["*.txt", "*.pdf"]',
    "recursive": "leave it out: a folder is read with all folders below it",
    "sheet": "leave it out: all sheets of a workbook are read",
    "delimiter": "leave it out: orch finds the delimiter of a table by itself",
    "separator": "leave it out: orch finds the delimiter of a table by itself",
    "thinking": "fields of a provider's API belong in `extra`:  extra: {NAME: …}",
    "reasoning_effort": "fields of a provider's API belong in `extra`:  extra: {reasoning_effort: low}",
    "reasoning": "fields of a provider's API belong in `extra`:  extra: {reasoning_effort: low}",
    "priority": "give the job a `deadline`: the job that is due soonest goes first",
    "limit": "`orch run FILE --limit N` asks the first N documents; `sample: N` of a source draws some",
    "only": "`orch run FILE --only DOC` asks one document",
    **dict.fromkeys(
        ("concurrency", "max_concurrency", "max_workers", "workers", "threads", "parallel", "batch_size"),
        "leave it out: orch finds concurrency and sizes of batches; bounds are set at a backend in orch.toml",
    ),
    "timezone": "`orch schedule add FILE --tz ZONE`; a deadline may have one: 2026-12-01T06:00+01:00",
    "tz": "`orch schedule add FILE --tz ZONE`; a deadline may have one: 2026-12-01T06:00+01:00",
    **dict.fromkeys(
        ("email", "notify", "webhook", "slack", "alerts"), "[reports] and [alerts] of orch.toml say who is told what"
    ),
    "wide": "write  shape: wide",
    "format": "the file's ending says it:  output: {path: FILE.csv}",
    "timeout": "`request_timeout` of a backend in orch.toml; `deadline` says when the job is due",
    **dict.fromkeys(
        ("base_url", "api_base", "host", "upstreams"),
        'addresses are in orch.toml:  [backends.local]  upstreams = ["http://HOST:8000/v1"]',
    ),
    "url": "the address of a source is its path:  path: https://…",
    **dict.fromkeys(("ext", "extension", "file_types", "suffixes"), 'write patterns:  include: ["*.txt", "*.pdf"]'),
    "ocr": "write  render: ocr  at the source",
    **dict.fromkeys(
        ("image", "images", "vision"), "write  render: image  at a source: its pages are sent as pictures"
    ),
    "pages": "leave it out: all pages are read; `max_document_tokens` of a task cuts long documents",
    **dict.fromkeys(("stream", "n", "best_of"), "leave it out: each request has one answer, which comes as a whole"),
    **dict.fromkeys(
        (
            "top_k",
            "min_p",
            "repetition_penalty",
            "frequency_penalty",
            "presence_penalty",
            "logit_bias",
            "tools",
            "tool_choice",
        ),
        "fields of a provider's API belong in `extra`:  extra: {NAME: …}",
    ),
    **dict.fromkeys(("prompt_file", "prompt_path"), "write the question itself into `prompt`: no other file is read"),
    **dict.fromkeys(("depends_on", "needs"), "tasks are independent; a job may come after another:  after: NAME"),
    **dict.fromkeys(("if", "when", "condition"), "`sources: [NAME]` says which documents a task is for"),
    **dict.fromkeys(("window", "completion_window"), "`deadline` says when the job is due: orch chooses the window"),
    **dict.fromkeys(
        ("every", "interval", "daily", "at"), "`orch schedule add FILE --cron …` says when a job file runs"
    ),
    **dict.fromkeys(
        ("on_error", "fail_fast", "max_errors", "continue_on_error"),
        "leave it out: a failed row ends no job; `canary: {max_failed: 0.25}` stops a bad one early",
    ),
    **dict.fromkeys(
        ("env", "environment", "variables", "vars", "params"), "write the values: a job file has no variables"
    ),
    **dict.fromkeys(
        ("append", "mode"), "leave it out: a run writes all its rows anew; `partition: night` keeps each"
    ),
    **dict.fromkeys(("description", "comment", "version"), "write it as a comment:  # …"),
    "examples": "write examples into `prompt` or `system`",
    "role": "write `system: …` beside `prompt: …`; a task has no other messages",
}
"""Hints for fields that exist in no part of a job file."""
_ADDRESSES = ("base_url", "url", "api_base", "host", "port", "address", "endpoint")
NOT_HERE: Mapping[str, str] = {
    "model": "models are named in the job file:  models: {ALIAS: {BACKEND: MODEL}}",
    "models": "models are named in the job file:  models: {ALIAS: {BACKEND: MODEL}}",
    "logging": "`orch up` logs to stderr, and to engine.log in its home",
    "web": "`orch up --web HOST:PORT` serves the pages",
    "server": "`orch serve HOST:PORT` is the Batch API alone; a local backend needs no port",
    "serve": "`orch serve HOST:PORT` is the Batch API alone; a local backend needs no port",
    "include": "orch.toml is one file: write its tables here",
    **dict.fromkeys(_ADDRESSES, 'write the address of the server:  upstreams = ["http://HOST:8000/v1"]'),
    **dict.fromkeys(
        ("rpm", "tpm", "requests_per_minute", "tokens_per_minute", "rate_limit"),
        "leave it out: orch learns limits from the answers; `max_concurrency` bounds the rows in flight",
    ),
    **dict.fromkeys(
        ("max_retries", "retries"),
        "leave it out: orch sends rows again by itself, within `patience` at a local backend",
    ),
    **dict.fromkeys(
        ("deployment", "deployment_name"),
        "name the deployment as the model:  models: {ALIAS: {BACKEND: DEPLOYMENT}}",
    ),
    "api_version": "leave it out: the /openai/v1/ address needs none",
    "currency": "leave it out: prices are in dollars",
    "prompt": "write dollars per million tokens:  input = 2.50",
    "input_cost_per_token": "write dollars per million tokens:  input = 2.50",
    "output_cost_per_token": "write dollars per million tokens:  output = 10.00",
    "ocr": "write  render: ocr  at a source of the job file",
    "webhook_url": "`webhook_env` in [reports] names the variable that holds the address",
    "log_level": "`orch up` logs to stderr, and to engine.log in its home",
    **dict.fromkeys(
        ("default_backend", "backend"), "leave it out: orch chooses; `allow` of a job file limits the choice"
    ),
    **dict.fromkeys(
        ("openai", "anthropic", "azure", "gemini", "mistral", "vllm", "local"),
        "a backend is a table of its own:  [backends.NAME]",
    ),
    **dict.fromkeys(("deadline", "tasks", "on_late", "canary"), "it belongs in the job file"),
    "orch": "write its keys at the top of the file, without a table",
    "hours": 'hours are for engines that orch starts:  kind = "engines"',
    "input_per_1k": "write dollars per million tokens:  input = 2.50",
    "output_per_1k": "write dollars per million tokens:  output = 10.00",
    "email_to": "it belongs in [reports]",
    "email": 'mail is set in [reports]:  email_to = ["team@example.org"]',
}
"""Hints for fields that orch.toml does not have in the table where the user wrote them."""


KINDS: Mapping[str, str] = {
    "claude": '"anthropic"', "gpt": '"openai"', "chatgpt": '"openai"', "google": '"gemini"', "lmstudio": '"local"',
    "vllm": '"local" (it runs already) or "engines" (orch starts it)',
    "ollama": '"local"', "llama.cpp": '"local"', "sglang": '"local"', "hosted": '"openai"',
    "azure_openai": '"azure"', "azure-openai": '"azure"', "groq": '"openai" with a `base_url`',
    "litellm": '"sync" with a `base_url`', "batch": '"openai"', "tgi": '"local"', "aws": '"bedrock"',
    "vertexai": '"vertex"', "vertex-ai": '"vertex"', "vertex_ai": '"vertex"', "google-vertex": '"vertex"',
    "aistudio": '"gemini"', "openrouter": '"sync"', "realtime": '"sync"', "flex": '"sync"',
    **{kind: f'"{kind}"' for kind in ("local", "engines", "ray", "sync")},
}  # fmt: skip
"""The `kind` to suggest for each word that users may write instead. `of_kind` adds the kinds of hosted backends."""


_SHAPES: Mapping[str, str] = {
    "schema": "write the schema itself here:  {type: object, properties: {NAME: {type: string}}, required: [NAME]}",
    "tags": "write  tags: {KEY: VALUE}",
    "labels": "write a list of labels, or  {LABEL: when it fits}",
    "models": "write  models: {ALIAS: MODEL}",
    "extra": "write  extra: {NAME: VALUE}",
    "long": "write  long: {reduce: Make one answer of these.}",
}
"""Hints with the correct form of fields that need a mapping but have a single value."""
_TABLES: Mapping[str, str] = {
    "batch": "write  batch = {input = 1.25, output = 5.00}",
    "backends": "name each by its table:  [backends.NAME]",
    "smtp": 'write  smtp = {host = "smtp.example.org", from = "orch@example.org"}',
    "gpus": 'it belongs above the tables of its models, into [backends.NAME]:  gpus = "0-3"',
}
"""Hints with the correct form of fields that need a table but have a single value."""


_TABLE_LISTS = {"budgets"}
_FORMS = {"deadline": "8h", "windows": "24h", "hours": "20:00-07:00"}
"""Valid texts for fields with a fixed form, to suggest if the value is a number. Quotes would not make it valid."""
_LENGTHS = {"deadline", "windows"}


def of_value(problem: Mapping[str, Any], *, is_toml: bool) -> str | None:
    """Return a hint for an invalid value, based on pydantic's description of the problem, or None."""
    value, kind = problem["input"], str(problem["type"])
    text = value.strip() if isinstance(value, str) else ""
    match kind:
        case "int_parsing" | "float_parsing" | "decimal_parsing" | "int_from_float" | "decimal_type":
            return _number(problem["loc"], value, text, kind, is_toml=is_toml)
        case "int_type" | "float_type" if isinstance(value, list):
            return "write one number; for several, write a task for each"
        case "bool_parsing" | "bool_type":
            return f"write {_FLAGS.get(text.lower(), 'true or false')}"
        case "string_type" if (name := _last_name(problem["loc"])) in _FORMS and isinstance(value, int | float):
            is_length = name in _LENGTHS and not isinstance(value, bool) and value > 0
            form = f"{value:g}h" if is_length else _FORMS[name]
            return f"write {json.dumps(form) if is_toml else form}"
        case "string_type" if isinstance(value, int | float | bool):
            return f'put it in quotes: "{str(value).lower() if isinstance(value, bool) else value}"'
        case "string_type" if value is None:
            return _NOTHING
        case "string_type" if isinstance(value, dict) and [*value.values()] == [None]:
            return (
                f'a value in braces is not text: write  "{{{{ {next(iter(value))} }}}}"  for a field of the document'
            )
        case "string_type":
            return "write one text, not several values"
        case "string_pattern_mismatch":
            cure = _PATTERNS.get(str(problem["ctx"]["pattern"]))
            return 'use straight quotes: "…"' if cure and _SMART.search(text) else cure
        case "literal_error":
            words = _QUOTED_WORD.findall(str(problem["ctx"]["expected"]))
            # Only a near miss is corrected: suggesting `any` for `germany` would let documents leave.
            near = get_close_matches(text.lower(), words, 1, 0.62)
            only = f"write {words[0]}, or leave the field out" if len(words) == 1 else None
            return f"did you mean {near[0]!r}?" if near else only
        case "less_than_equal" | "less_than" if _is_percent(value, problem["ctx"]):
            return f"a share of 1: write {float(value) / 100:g}"
        case "string_too_long":
            return f"shorten it: it has {len(value)} characters"
        case "no_model" if isinstance(value, int | float):
            return f'put it in quotes: "{value}"'
    return None


def _last_name(loc: Sequence[str | int]) -> str:
    return next((part for part in reversed(loc) if isinstance(part, str)), "")


def _number(loc: Sequence[str | int], value: Any, text: str, kind: str, *, is_toml: bool) -> str | None:
    is_whole = kind.startswith("int")
    if cure := amount_cure(text, f"{_last_name(loc)} = {{}}" if is_toml else f"{_last_name(loc)}: {{}}"):
        return cure
    if isinstance(value, float):
        return f"write {round(value)}"
    if _THOUSANDS.fullmatch(text):
        return f"write {re.sub(r'[^0-9]', '', text)}, without separators"
    if (found := _DECIMAL_COMMA.fullmatch(text)) and not is_whole:
        return f"write {found[1]}.{found[2]}, with a point"
    if (found := _PERCENT.fullmatch(text)) and not is_whole:
        return f"a share of 1: write {float(found[1]) / 100:g}"
    if found := _SCALED.fullmatch(text):
        return f"write {round(float(found[1]) * _SCALES[found[2]])}"
    if not is_whole and (seconds := seconds_of(text)):
        return f"write {seconds:g}: it is in seconds"
    example = 200 if any(str(part).endswith("tokens") for part in loc) else 3
    return f"write a whole number, such as {example}" if is_whole else "write a number, such as 2.5"


def _is_percent(value: Any, limits: Mapping[str, Any]) -> bool:
    largest = limits.get("le", limits.get("lt"))
    return isinstance(value, int | float) and largest == 1 and 1 < value <= 100


def of_shape(name: str, value: Any, wanted: str, bare: str | None, *, is_toml: bool) -> str | None:
    """Return a hint for a single value in a field that needs a mapping or a list (`wanted`), or None.

    `bare` is the field that the value most likely belongs to.
    """
    if value is None:
        return _NOTHING
    if wanted == "list":
        if isinstance(value, dict):
            tables = f"write  [[{name}]]" if name in _TABLE_LISTS else f'put texts in brackets:  {name} = ["…"]'
            return tables if is_toml else f"begin each with a dash:  {name}: [{{…}}, {{…}}]"
        return f'put it in brackets:  {name} = ["…"]' if is_toml else f"put it in brackets:  {name}: [ … ]"
    if is_toml and name.rpartition(".")[2] == "models":
        return f"write  [{name}.ALIAS]  model = …" if "." in name else 'write  [models]  ALIAS = {BACKEND = "NAME"}'
    if wanted == "mapping" and (cure := _SHAPES.get(name.rpartition(".")[2])) is not None:
        return cure
    if is_toml and isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return f"write  [{name}.NAME], in single brackets"
    if is_toml and (cure := _TABLES.get(name.rpartition(".")[2])) is not None:
        return cure
    if is_toml and bare is None:
        return f"name the table:  [{name.rpartition('.')[0]}.NAME]" if "." in name else None
    if name == "allow" and isinstance(value, list):
        return "write  allow: {backends: [NAME]}"
    if re.fullmatch(r"tasks\[\d+\]", name):
        return "write  - id: NAME, and below it `model` and `prompt`"
    if name.endswith("]") and bare is not None:
        return f"write  - {bare}: …"
    if bare is not None:
        return f"write  {name} = {{{bare} = …}}" if is_toml else f"write  {name}: {{{bare}: …}}"
    return None


def of_kind(table: Any) -> str | None:
    """Return a hint for an unknown `kind` of backend, or None."""
    said = str(table.get("kind", "")).lower() if isinstance(table, dict) else ""
    kinds = {**KINDS, **{kind: f'"{kind}"' for kind in hosted_kinds()}}
    meant = kinds.get(said) or next(iter(get_close_matches(said, set(kinds.values()), 1)), None)
    return meant and f"did you mean {meant}?"


def meant_field(name: str, value: Any, known: list[str], *, is_job_file: bool) -> str | None:
    """Return the known field that an unknown field with this `value` most likely means, or None."""
    meant, lower = OTHER_WORDS.get(name.lower(), ""), name.lower()
    if meant in known:
        return meant
    # A field that another part of the file has counts as misspelt only if its name is very similar.
    is_elsewhere = _cure_elsewhere(name, known, is_job_file=is_job_file) is not None
    least = 0.85 if is_elsewhere else 0.6 if value is not None else 0.8
    return next(iter(get_close_matches(lower, known, 1, least)), None)


def _cure_elsewhere(name: str, known: list[str], *, is_job_file: bool) -> str | None:
    lower = name.lower()
    if not is_job_file and lower in _ADDRESSES and not {"upstreams", "backends"} & {*known}:
        return None  # this table names no server
    return (ELSEWHERE if is_job_file else NOT_HERE).get(lower)


def of_unknown(name: str, value: Any, known: list[str], elsewhere: Mapping[str, str], *, is_job_file: bool) -> str:
    """Return a hint for an unknown field: the correct name, the part of the file that has it, or the known names.

    `elsewhere` maps each field of other parts of the file to the part that has it.
    """
    if not is_job_file and name.partition(".")[0] in known:
        return f"write  [{name}], without quotes"
    is_elsewhere = name in elsewhere and not is_job_file
    if not is_elsewhere and (near := meant_field(name, value, known, is_job_file=is_job_file)) is not None:
        return f"did you mean {near!r}?"
    if is_job_file and value is None and "id" in known:
        return f"a task is named by its id:  - id: {name}"
    if (cure := _cure_elsewhere(name, known, is_job_file=is_job_file)) is not None:
        return cure
    if not is_job_file and {"options", "tensor_parallel"} <= {*known}:
        return f'flags of vLLM belong in options:  options = ["--{name.replace("_", "-")}", "…"]'
    if name[:1].isdigit() and not is_job_file:
        return 'put a name with dots in quotes:  [prices."gpt-4.1"]'
    if (place := elsewhere.get(name)) is not None:
        return f"{name!r} belongs {place}"
    return f"known fields: {', '.join(sorted(known))}"
