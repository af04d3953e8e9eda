"""Conversion of documents × tasks to request lines. Their identities stay the same from night to night.

The document comes first and the question last, and the tasks of a document follow each other. So an engine with a
prefix cache reads a document once, however many questions are asked about it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from copy import copy
from hashlib import sha256
from itertools import count
from typing import Any, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core import tokens
from orchestrator.core.batch_api import EMBEDDINGS
from orchestrator.core.model import Row
from orchestrator.core.quote_marks import QUOTES, has_marks
from orchestrator.documents import cleanup, splitting
from orchestrator.documents.splitting import Part
from orchestrator.documents.types import BY_OCR, Document, UnreadableDocument
from orchestrator.policy.cache_keys import cache_key
from orchestrator.policy.max_tokens import BoundOf, most_tokens, written_bound
from orchestrator.policy.request_bodies import (
    asked_fields,
    bound_field,
    fixed_fields,
    question_of,
    url_of,
)
from orchestrator.policy.sent_text import TextAt, question_text, text_range
from orchestrator.settings.job_spec import Clean, JobSpec
from orchestrator.settings.task_spec import Long, Task

_READERS = "2"
"""Constant part of fingerprints, formerly the version of all readers.

Now a change in a reader shows only in the text it reads.
"""


class Built(msgspec.Struct, frozen=True):
    """One request and its JSON line without newline. The line is empty if the row has a problem.

    `setting` is the source's setting that caused the problem, as in `UnreadableDocument`.
    """

    row: Row
    line: bytes
    setting: str | None = None


def custom_id(document_key: str, task_id: str) -> str:
    """Return a row's id, which is the same each night.

    The id has at most 61 characters of `[A-Za-z0-9_-]`, as the strictest provider requires.
    """
    digest = sha256(f"{document_key}\0{task_id}".encode()).hexdigest()
    return f"{task_id}-{digest[:20]}"


def part_id(document_key: str, task_id: str, text: str, times_before: int) -> str:
    """Return the `custom_id` of a part. It is derived from the part's text, so it stays the same while other parts
    change.

    `times_before` counts earlier parts with the same text.
    """
    digest = sha256(f"{document_key}\0{task_id}\0{times_before}\0{text}".encode()).hexdigest()
    return f"{task_id}-{digest[:20]}"


def content_of(document: Document) -> str:
    """Return the part of a row's fingerprint that depends on the document: 32 hex digits."""
    # The text counts too, since another `text_column` or `encoding` reads another text from the same bytes.
    digest = sha256(f"{document.digest}\0{document.text}".encode())
    for picture in document.pictures:
        digest.update(f"\0{picture.page}\0{picture.data}".encode())
    return digest.hexdigest()[:32]


class _Question:
    def __init__(self, task: Task, cleaned: Clean, bound_of: BoundOf) -> None:
        from orchestrator.core.templates import template  # imported here, as a batch file has no templates

        self.task = task
        self.url = url_of(task)
        asked = question_of(task)
        self.prompt = template(asked)
        self.system = None if task.system is None else template(task.system)
        # A vector is made from the prompt alone, so the prompt itself has to contain the text.
        self.places_text = "text" in self.prompt.variables or self.url == EMBEDDINGS
        # With the token limit as written in the job file: a limit learned each night would change every row's
        # identity.
        self.asked = fixed_fields(task)
        about: dict[str, Any] = {
            "body": self.asked, "prompt": asked, "system": task.system, "cut": task.max_document_tokens,
        }  # fmt: skip
        if task.kind != "chat" or task.endpoint != "chat":
            about["kind"] = [task.kind, self.url]
        if task.long is not None:
            about["long"] = [task.long.part_tokens, task.long.overlap_tokens]
        if task.check == QUOTES or has_marks(task.output_schema):
            about["quotes"] = [QUOTES if task.check == QUOTES else None, task.output_schema]
        if cleaned.is_on:
            about["clean"] = [cleanup.RULES_VERSION, cleaned.whitespace, cleaned.boilerplate]
        # Keys are not sorted, since models answer a schema's properties in their order.
        digest = sha256(json.dumps(about, default=str).encode())
        self.version = digest.hexdigest()[:12]
        self.wording = sha256(f"{asked}\0{task.system or ''}".encode()).hexdigest()[:12]
        self.has_quotes = "quotes" in about
        self.keyed = {**self.asked, "quotes": about["quotes"]} if self.has_quotes else self.asked
        self.bound = 0 if self.url == EMBEDDINGS else bound_of(task, self.version)
        self.most_tokens = most_tokens(task, self.bound)
        self.body = {**self.asked, **bound_field(self.url, self.bound)}
        digest.update(f"{_READERS}\0{task.model}".encode())
        self.identity = digest.hexdigest()
        self.reduce = None if task.long is None else _Reduce.of(task, task.long, self, bound_of)

    def fingerprint(self, content: str) -> str:
        return _fingerprint(self.identity, content)

    def text_at(
        self, document: Document, text: str, messages: list[dict[str, Any]], whole: str = "", start: int = 0
    ) -> str | None:
        """Return the position of the document's text in the messages, or None if answers have no quotes to check.

        The text begins at `start` of `whole`.
        """
        if not self.has_quotes:
            return None
        asked = question_text(messages)
        bare = "" if text in asked else question_text(self.messages(document, ""))
        page = 1 + whole.count("\f", 0, start) if "pages" in document.fields else None
        is_by_ocr = str(document.fields.get("sent_as")).endswith(BY_OCR)
        return str(TextAt(*text_range(asked, text, bare), page, is_by_ocr))

    def messages(self, document: Document, text: str) -> list[dict[str, Any]]:
        fields = {**document.fields, "text": text}
        question = self.prompt.render(fields)
        content = question
        if not self.places_text and (text or not document.pictures):
            content = f"<document>\n{text}\n</document>\n\n{question}"
        user: dict[str, Any] = {"role": "user", "content": content}
        if document.pictures:  # pictures first, like a document's text, as all its tasks share them
            shown = [{"type": "image_url", "image_url": {"url": picture.url}} for picture in document.pictures]
            user["content"] = [*shown, {"type": "text", "text": content}]
        return [user] if self.system is None else [{"role": "system", "content": self.system.render(fields)}, user]


def _fingerprint(identity: str, content: str) -> str:
    return sha256(f"{identity}\0{content}".encode()).hexdigest()[:32]


class _Reduce(Struct, frozen=True):
    """Identity of the rows that combine the answers to a document's parts."""

    model: str
    version: str
    wording: str
    bound: int
    identity: str

    @classmethod
    def of(cls, task: Task, long: Long, question: _Question, bound_of: BoundOf) -> _Reduce:
        about = f"{question.version}\0{long.reduce}"
        version = sha256(about.encode()).hexdigest()[:12]
        model = long.reduce_model or task.model
        identity = sha256(f"{question.identity}\0{about}\0{long.reduce_tokens}\0{model}".encode()).hexdigest()
        wording = sha256(f"{question.wording}\0{long.reduce}".encode()).hexdigest()[:12]
        return cls(model, version, wording, bound_of(task, version), identity)


def reduce_line(task: Task, row_id: str, bound: int, answers: Sequence[str]) -> bytes | tuple[str, str]:
    """Return the request line that combines the answers to a long document's parts.

    Returns a code and a message instead if that is impossible. `bound` is the maximum tokens of the combined answer.
    """
    from orchestrator.core.templates import TemplateProblem, template

    long = task.long
    assert long is not None, "only a task that splits documents has parts"
    prompt = template(long.reduce)
    try:
        question = prompt.render({"answers": list(answers)})
        system = None if task.system is None else template(task.system).render({})
    except TemplateProblem as problem:
        return "template", f"the prompt cannot be rendered from the parts' answers: {problem.message}"
    if "answers" not in prompt.variables:
        told = "\n".join(f"<answer>\n{answer}\n</answer>" for answer in answers)
        question = f"<answers>\n{told}\n</answers>\n\n{question}"
    messages = [{"role": "user", "content": question}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    size = tokens.count([message["content"] for message in messages])
    if size > long.reduce_tokens:
        return (
            "answers_too_long",
            f"the answers to its {len(answers)} parts make a request of {size:,} tokens, and `reduce_tokens` is "
            f"{long.reduce_tokens:,}: raise it, or `part_tokens`, or ask for shorter answers",
        )
    url = url_of(task)
    fields = {**asked_fields(url, messages), **fixed_fields(task), **bound_field(url, bound)}
    body = {"model": long.reduce_model or task.model, **fields}
    return msgspec.json.encode({"custom_id": row_id, "method": "POST", "url": url, "body": body})


def variables(task: Task) -> frozenset[str]:
    """Return the template variables that a task uses, except `text`."""
    from orchestrator.core.templates import template

    used = (template(source).variables for source in (task.prompt, task.system) if source is not None)
    return frozenset[str]().union(*used) - {"text"}


def places_text_late(task: Task) -> bool:
    """True if a prompt contains `{{ text }}`, but not at its start. Tasks then share no prefix."""
    from orchestrator.core.templates import template

    head = task.prompt.split("{{", 1)
    return (
        task.kind != "embedding"
        and "text" in template(task.prompt).variables
        and (bool(head[0].strip()) or not head[-1].lstrip("- ").startswith("text"))
    )


class Identity(Struct, frozen=True):
    """A request's identity, known before the request is built. If `caches`, another job's answer may be used for
    it.
    """

    custom_id: str
    fingerprint: str
    model: str
    caches: bool


class SentBefore(Protocol):
    """An earlier row's identity, and facts about its document."""

    @property
    def custom_id(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def cut_from_tokens(self) -> int | None:
        """Number of tokens of the document before it was cut, or None if it was not cut."""

    @property
    def sent_as(self) -> str | None:
        """The pages that were sent as pictures, or None if no page was."""

    @property
    def notes(self) -> str | None:
        """The parts of the document that were not read, or None if all were read."""


class Builder:
    """Converts documents to request lines. The `model` in a line is an alias, which a backend's name replaces later.

    `bound_of` returns the maximum tokens of an answer, by task and prompt version.
    """

    def __init__(self, spec: JobSpec, bound_of: BoundOf = written_bound) -> None:
        self._clean = spec.clean
        self._questions: Sequence[_Question] = [_Question(task, spec.clean, bound_of) for task in spec.tasks]
        self._number = count()

    def asking(self, tasks: Collection[str]) -> Builder:
        """Return a builder for only these tasks. Both builders share one numbering of rows."""
        narrowed = copy(self)
        narrowed._questions = [question for question in self._questions if question.task.id in tasks]
        return narrowed

    def build(self, document: Document | UnreadableDocument) -> Iterator[Built]:
        """Yield one request per task, in the order of the tasks. A problem of the document fails all its requests.

        If a task splits documents, a long document yields a request without a line, and then a request for each part.
        The line of the first request is built later, from the answers to the parts.
        """
        from orchestrator.core.templates import TemplateProblem

        if isinstance(document, UnreadableDocument):
            for question in self._questions:
                failed = self._failed(question, document.key, None, (document.code.value, document.message))
                yield replace(failed, setting=document.setting)
            return
        on = self._clean
        cleaned = (
            cleanup.clean(document.text, whitespace=on.whitespace, boilerplate=on.boilerplate)
            if on.is_on
            else document.text
        )
        content = content_of(document)
        for question in self._questions:
            try:
                made = self._requests(question, document, content, cleaned)
            except TemplateProblem as error:
                problem = ("template", f"the prompt cannot be rendered for this document: {error.message}")
                made = [self._failed(question, document.key, content, problem)]
            yield from made

    def identities(self, key: str, content: str) -> list[Identity]:
        """Return the identities of the requests for a document with this key and content."""
        return [
            Identity(custom_id(key, one.task.id), one.fingerprint(content), one.task.model, one.task.cache)
            for one in self._questions
        ]

    def unread(self, key: str, content: str, earlier: Sequence[SentBefore]) -> Iterator[Built]:
        """Yield the rows of a document whose answers are known. The document is not read, so the rows have no lines.

        `earlier` has, for each question, the earlier row with the same identity.
        """
        for question, before in zip(self._questions, earlier, strict=True):
            task = question.task
            row = Row(
                next(self._number), before.custom_id, key, task.id, question.url, task.model, before.fingerprint,
                question.version, before.cut_from_tokens, max_output=question.most_tokens, content=content,
                wording=question.wording, sent_as=before.sent_as, notes=before.notes,
            )  # fmt: skip
            yield Built(row, b"")

    def _requests(self, question: _Question, document: Document, content: str, cleaned: str) -> list[Built]:
        task = question.task
        text, cut_from = cleaned, None
        if task.max_document_tokens is not None:
            text, cut_from = tokens.cut(text, task.max_document_tokens)
        trimmed = _trimmed_tokens(document.text, cleaned, task.max_document_tokens) if cut_from is None else 0
        if task.long is not None:
            parts = splitting.split(text, task.long.part_tokens, task.long.overlap_tokens)
            if len(parts) > 1:
                return self._in_parts(question, document, content, text, parts, cut_from, trimmed)
        messages = question.messages(document, text)
        row = self._row(question, document.key, question.fingerprint(content), content, cut_from=cut_from)
        text_at = question.text_at(document, text, messages)
        sent_as = document.fields.get("sent_as", "text")
        sent_as = None if sent_as == "text" else str(sent_as)
        row = replace(row, trimmed_tokens=trimmed, sent_as=sent_as, notes=document.notes or None, text_at=text_at)
        return [_built(question, row, messages)]

    def _in_parts(
        self, question: _Question, document: Document, content: str, text: str, parts: Sequence[Part],
        cut_from: int | None, trimmed: int,
    ) -> list[Built]:  # fmt: skip
        task, reduce = question.task, question.reduce
        assert reduce is not None, "a task that splits documents says how to reduce their answers"
        # Render all parts before numbering the first row: a part that fails fails the document.
        told = [(part, text[part.start : part.end]) for part in parts]
        messages = [question.messages(document, of_part) for _, of_part in told]
        whole = replace(
            self._row(question, document.key, _fingerprint(reduce.identity, content), content, cut_from=cut_from),
            model=reduce.model, prompt_version=reduce.version, wording=reduce.wording,
            max_output=most_tokens(task, reduce.bound), parts=len(parts), notes=document.notes or None,
        )  # fmt: skip
        built = [Built(whole, b"")]
        seen: Counter[str] = Counter()
        for number, ((part, of_part), asked) in enumerate(zip(told, messages, strict=True), 1):
            # From the part's request, not from the document, which also changes with other parts.
            fingerprint = question.fingerprint(sha256(msgspec.json.encode(asked)).hexdigest())
            row = replace(
                self._row(question, document.key, fingerprint, content, cut_from=cut_from),
                custom_id=part_id(document.key, task.id, of_part, seen[of_part]), part=number, parts=len(parts),
                trimmed_tokens=trimmed * (part.end - part.own) // len(text),
                text_at=question.text_at(document, of_part, asked, text, part.start),
            )  # fmt: skip
            seen[of_part] += 1
            built.append(_built(question, row, asked))
        return built

    def _failed(self, question: _Question, key: str, content: str | None, problem: tuple[str, str]) -> Built:
        if content is None:
            fingerprint = _fingerprint("unreadable", problem[0])  # the same for every question
        else:
            fingerprint = question.fingerprint(f"{content}\0{problem[0]}\0{problem[1]}")
        return Built(self._row(question, key, fingerprint, content, problem=problem), b"")

    def _row(
        self,
        question: _Question,
        key: str,
        fingerprint: str,
        content: str | None,
        *,
        cut_from: int | None = None,
        problem: tuple[str, str] | None = None,
    ) -> Row:
        task = question.task
        row_id = custom_id(key, task.id)
        return Row(
            next(self._number), row_id, key, task.id, question.url, task.model, fingerprint, question.version,
            cut_from, problem, max_output=question.most_tokens, content=content, wording=question.wording,
        )  # fmt: skip


def _built(question: _Question, row: Row, messages: list[dict[str, Any]]) -> Built:
    task, url = question.task, question.url
    asked = asked_fields(url, messages)
    line = {
        "custom_id": row.custom_id,
        "method": "POST",
        "url": url,
        "body": {"model": task.model, **asked, **question.body},
    }
    key = cache_key(url, {**asked, **question.keyed}) if task.cache else None
    return Built(replace(row, cache_key=key), msgspec.json.encode(line))


def _trimmed_tokens(text: str, cleaned: str, limit: int | None) -> int:
    """Estimate the tokens that a clean-up saved. Tokens that the limit would have cut in any case do not count."""
    if cleaned == text:
        return 0
    before, after = tokens.estimate(len(text.encode())), tokens.estimate(len(cleaned.encode()))
    return max(0, (before if limit is None else min(before, limit)) - after)
