"""Documents x tasks -> request lines, with identities that are stable over nights.

The document comes first and the question last, and the tasks of a document stand side by side: so the engine's
prefix cache reads a document once, however many questions are asked of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from typing import Any

import msgspec
from jinja2 import StrictUndefined, Template, TemplateError, meta
from jinja2.sandbox import SandboxedEnvironment

from orchestrator import tokens
from orchestrator.documents.types import Document, UnreadableDocument
from orchestrator.jobspec import JobSpec, Task
from orchestrator.model import Row
from orchestrator.wire import NO_BODY

ENDPOINT = "/v1/chat/completions"
_ENVIRONMENT = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)


# What a template may trip over in the fields of one document: `{{ amount * 2 }}` where the amount is text.
_RENDERING = (TemplateError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Built:
    """One request and its JSON line without newline; the line is empty where the row has a problem."""

    row: Row
    line: bytes


def custom_id(document_key: str, task_id: str) -> str:
    """At most 61 characters of `[A-Za-z0-9_-]`, the narrowest provider's rule; the same every night."""
    digest = sha256(f"{document_key}\0{task_id}".encode()).hexdigest()
    return f"{task_id}-{digest[:20]}"


class _Question:
    """A task, with its templates compiled and its identity computed once."""

    def __init__(self, task: Task, extractor: str) -> None:
        self.task = task
        self.prompt: Template = _ENVIRONMENT.from_string(task.prompt)
        self.system: Template | None = None if task.system is None else _ENVIRONMENT.from_string(task.system)
        self.variables = variables(task)
        self.places_text = "text" in meta.find_undeclared_variables(_ENVIRONMENT.parse(task.prompt))
        self.body = _fixed_body(task)
        about = {"body": self.body, "prompt": task.prompt, "system": task.system, "cut": task.max_document_tokens}
        # Not sorted: the order of a schema's properties is the order in which they are answered.
        digest = sha256(json.dumps(about, default=str).encode())
        self.version = digest.hexdigest()[:12]
        digest.update(f"{extractor}\0{task.model}".encode())
        self.identity = digest.hexdigest()

    def fingerprint(self, document_digest: str) -> str:
        return sha256(f"{self.identity}\0{document_digest}".encode()).hexdigest()[:32]

    def messages(self, document: Document, text: str) -> list[dict[str, str]]:
        fields = {**document.fields, "text": text}
        question = self.prompt.render(fields)
        content = question if self.places_text else f"<document>\n{text}\n</document>\n\n{question}"
        user = {"role": "user", "content": content}
        return [user] if self.system is None else [{"role": "system", "content": self.system.render(fields)}, user]


def variables(task: Task) -> frozenset[str]:
    """The template variables of a task, without `text`."""
    found: set[str] = set()
    for template in (task.prompt, task.system):
        if template is not None:
            found |= meta.find_undeclared_variables(_ENVIRONMENT.parse(template))
    return frozenset(found - {"text"})


def places_text_late(task: Task) -> bool:
    """Whether a prompt places `{{ text }}` itself, and not at its start: then no two tasks share a prefix."""
    head = task.prompt.split("{{", 1)
    return "text" in meta.find_undeclared_variables(_ENVIRONMENT.parse(task.prompt)) and (
        bool(head[0].strip()) or not head[-1].lstrip("- ").startswith("text")
    )


def _fixed_body(task: Task) -> dict[str, Any]:
    """The body's fields that are the same for every document, but for the model."""
    body: dict[str, Any] = {"max_tokens": task.max_tokens}
    for name in ("temperature", "top_p", "seed", "stop"):
        if (value := getattr(task, name)) is not None:
            body[name] = value
    if task.output_schema is not None:
        schema = {"name": task.id, "schema": task.output_schema, "strict": True}
        body["response_format"] = {"type": "json_schema", "json_schema": schema}
    return body | task.extra


class Builder:
    """Turns documents into request lines. The `model` in a line is the task's alias; a route gives it its name."""

    def __init__(self, spec: JobSpec, extractor: str) -> None:
        self._questions: Sequence[_Question] = [_Question(task, extractor) for task in spec.tasks]
        self._number = count()

    def build(self, document: Document | UnreadableDocument) -> Iterator[Built]:
        """One request a task, in the order of the tasks; a problem of the document fails each of them."""
        for question in self._questions:
            if isinstance(document, UnreadableDocument):
                yield self._failed(question, document.key, "", (document.code.value, document.message))
                continue
            try:
                yield self._request(question, document)
            except _RENDERING as error:
                problem = ("template", f"the prompt cannot be made for this document: {error}")
                yield self._failed(question, document.key, document.digest, problem)

    def _request(self, question: _Question, document: Document) -> Built:
        task = question.task
        text, cut_from = document.text, None
        if task.max_document_tokens is not None:
            text, cut_from = tokens.cut(text, task.max_document_tokens)
        body = {"model": task.model, "messages": question.messages(document, text), **question.body}
        # The text too: another `text_column` or `encoding` reads another text out of the same bytes.
        fingerprint = question.fingerprint(f"{document.digest}\0{document.text}")
        row = self._row(question, document.key, fingerprint, cut_from=cut_from)
        line = {"custom_id": row.custom_id, "method": "POST", "url": ENDPOINT, "body": body}
        return Built(row, msgspec.json.encode(line))

    def _failed(self, question: _Question, key: str, digest: str, problem: tuple[str, str]) -> Built:
        fingerprint = question.fingerprint(f"{digest}\0{problem[0]}\0{problem[1]}")
        return Built(self._row(question, key, fingerprint, problem=problem), b"")

    def _row(
        self,
        question: _Question,
        key: str,
        fingerprint: str,
        *,
        cut_from: int | None = None,
        problem: tuple[str, str] | None = None,
    ) -> Row:
        task = question.task
        row_id = custom_id(key, task.id)
        return Row(
            next(self._number), row_id, key, task.id, ENDPOINT, task.model, fingerprint, question.version,
            cut_from, problem, max_output=task.max_tokens,
        )  # fmt: skip


class _Bounds(msgspec.Struct):
    """The fields of a body that say how much may come back, and how much goes in."""

    max_completion_tokens: msgspec.Raw = NO_BODY
    max_output_tokens: msgspec.Raw = NO_BODY
    max_tokens: msgspec.Raw = NO_BODY
    n: msgspec.Raw = NO_BODY
    input: msgspec.Raw = NO_BODY


_decode_bounds = msgspec.json.Decoder(_Bounds).decode
_decode_list = msgspec.json.Decoder(list[msgspec.Raw]).decode
# What these endpoints give back is bounded by what goes in; nothing of it is billed as output.
_WITHOUT_OUTPUT = frozenset({"/v1/embeddings", "/v1/moderations"})


def bounds(url: str, body: msgspec.Raw) -> tuple[int, int | None]:
    """How many inputs a request has, and how many tokens may come back at most; None where it does not say."""
    found = _decode_bounds(body)
    if url in _WITHOUT_OUTPUT:
        # A list of numbers is one input: tokens of a text.
        inputs = _decode_list(found.input) if bytes(found.input).lstrip()[:1] == b"[" else []
        return (1 if not inputs or bytes(inputs[0])[:1].isdigit() else len(inputs)), 0
    for limit in (found.max_completion_tokens, found.max_output_tokens, found.max_tokens):
        if bytes(limit).isdigit():
            return 1, int(limit) * (int(found.n) if bytes(found.n).isdigit() else 1)
    return 1, None


class _Line(msgspec.Struct):
    """A request line whose body's fields are kept as they are."""

    custom_id: str
    method: str
    url: str
    body: dict[str, msgspec.Raw]


_decode_line = msgspec.json.Decoder(_Line).decode


def with_model(line: bytes, model: str) -> bytes:
    """The same request line for another model."""
    parsed = _decode_line(line)
    parsed.body["model"] = msgspec.Raw(msgspec.json.encode(model))
    return msgspec.json.encode(parsed)


def resolve_model(alias: str, backend: str, models: Mapping[str, str | Mapping[str, str]]) -> str | None:
    """The name that a backend knows a model by; None where the alias has no name there."""
    found = models.get(alias)
    if found is None:
        return None
    return found if isinstance(found, str) else found.get(backend)
