"""Checks of answers against their tasks, and the values of answers: text, JSON, labels or vectors."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from orchestrator.core import batch_api, row_codes, schemas
from orchestrator.core.quote_marks import QUOTES, Quote, has_marks, marked_quotes, named_quotes
from orchestrator.policy import answer_ends, answer_json, coded_lines
from orchestrator.policy.answer_text import Answer
from orchestrator.policy.confidence import ConfidenceCurve, label_probability
from orchestrator.policy.vectors import NoVector, vector_of
from orchestrator.settings.task_spec import Task


class AnswerCheck:
    """Requirements for the answers to a task, and the value that merged rows show."""

    takes_cut = False
    """True if an answer that ended at `max_tokens`, and so may be incomplete, is accepted."""
    has_codes = False
    """True if each answer must repeat the code of its row."""
    has_quotes = False
    """True if answers contain quotes from their documents."""

    def problem(self, answer: Answer) -> tuple[str, str] | None:
        """Return `(code, message)` of an answer's problem, or None; the codes are in `row_errors.BAD_ANSWERS`."""
        raise NotImplementedError

    def code_problem(self, answer: Answer, custom_id: str) -> tuple[str, str] | None:
        """Return `(code, message)` if an answer does not repeat its own row's code, else None."""
        return None

    def is_repaired(self, answer: Answer) -> bool:
        """True if an answer is accepted but its JSON was surrounded by other text."""
        return False

    def quotes(self, answer: Answer) -> list[Quote]:
        """Return the quotes in an accepted answer."""
        return []

    def output(self, answer: Answer, body: msgspec.Raw) -> Any:
        """Return the value of an accepted answer."""
        return raw_output(answer, body)


def check_of(task: Task, calibration: ConfidenceCurve | None = None, *, job_name: str = "") -> AnswerCheck:
    """Return the check of a task's answers.

    `calibration` is the curve for the task's labels, if known answers gave one. `job_name` is used to derive the
    codes of rows.
    """
    if task.kind == "embedding":
        return VectorCheck(task.dimensions)
    codes_of = job_name if task.check == row_codes.NONCE else None
    if task.logprobs and task.output_schema is not None:
        return LabelCheck(task.output_schema, calibration, repair=task.repair, codes_of=codes_of)
    has_named_quotes = task.check == QUOTES
    return OutputCheck(task.output_schema, repair=task.repair, has_named_quotes=has_named_quotes, codes_of=codes_of)


def raw_output(answer: Answer, body: msgspec.Raw) -> Any:
    """Return an answer's text, or its whole body if it has no text."""
    return body if answer.text is None else answer.text


class _Reading(Struct, frozen=True):
    answer: Answer
    repair: bool
    value: Any = None
    problem: tuple[str, str] | None = None
    repaired: bool = False


class OutputCheck(AnswerCheck):
    """Requirements for the answers to a task: not empty, and JSON that fits the schema, if there is one.

    With `repair`, JSON surrounded by other text is accepted too. With `has_named_quotes`, properties also count as
    quotes by their names, not only by the schema's marks. `codes_of` is the name of a job whose row codes answers
    must repeat.
    """

    def __init__(
        self,
        schema: Mapping[str, Any] | None,
        *,
        repair: bool = True,
        has_named_quotes: bool = False,
        codes_of: str | None = None,
    ) -> None:
        self._schema = schema
        self._codes_of = codes_of
        self._marks = schema if has_marks(schema) else None
        self._has_named_quotes = has_named_quotes
        self._check = None if schema is None else schemas.SchemaCheck(schema)
        self._repair = repair
        self._last: _Reading | None = None
        # JSON that fits its schema is complete wherever it ends.
        self.takes_cut = schema is None
        self.has_codes = codes_of is not None
        self.has_quotes = self._marks is not None or has_named_quotes

    def problem(self, answer: Answer) -> tuple[str, str] | None:
        if answer.refusal:
            return "refusal", f"the model refused: {answer.refusal}"
        if answer.text is None or not answer.text.strip():
            if answer.has_other:
                return None
            if answer_ends.is_cut(answer):
                return answer_ends.cut_at(answer.text or "", "began")
            if answer_ends.is_withheld(answer):
                return "content_filter", "the provider's content filter withheld the answer"
            if answer.is_missing:
                return "empty_answer", "there is no completion in the answer: it has no choices and no output"
            return "empty_answer", "the model returned an empty answer"
        if self._check is None:
            # Text that ended at `max_tokens` is accepted: its length may be what was asked for.
            return _WITHHELD if answer_ends.is_withheld(answer) else None
        return self._read(answer, repair=self._repair).problem

    def code_problem(self, answer: Answer, custom_id: str) -> tuple[str, str] | None:
        if self._codes_of is None:
            return None
        given, wanted = coded_lines.code_in(answer), row_codes.code_of(self._codes_of, custom_id)
        if given == wanted:
            return None
        told = f"has no `{row_codes.PROPERTY}`" if given is None else f"has the wrong `{row_codes.PROPERTY}`"
        return WRONG_CODE, f"the answer {told}: it must be the code at the end of the prompt"

    def is_repaired(self, answer: Answer) -> bool:
        return self._check is not None and bool(answer.text) and self._read(answer, repair=self._repair).repaired

    def quotes(self, answer: Answer) -> list[Quote]:
        """Return the quotes that the schema marks, and the texts of properties named `quote` or `quotes`."""
        if not self.has_quotes:
            return []
        value = self._read(answer, repair=self._repair).value
        marked = [] if self._marks is None else marked_quotes(self._marks, value)
        named = named_quotes(value) if self._has_named_quotes else []
        return list({quote.path: quote for quote in (*marked, *named)}.values())

    def output(self, answer: Answer, body: msgspec.Raw) -> Any:
        """Return the parsed JSON if there is a schema, else the answer's text."""
        if self._check is not None and answer.text:
            if "null" not in answer.text and row_codes.PROPERTY not in answer.text:
                try:  # the text fits: only nulls and text around the JSON differ
                    return msgspec.json.decode(answer.text)
                except batch_api.JSON_ERRORS:
                    pass
            # The answer was accepted, whatever the task now says about repairs.
            found = self._read(answer, repair=True)
            if found.problem is None:
                return found.value
            with suppress(*batch_api.JSON_ERRORS):
                return msgspec.json.decode(answer.text)
        return raw_output(answer, body)

    def _read(self, answer: Answer, *, repair: bool) -> _Reading:
        last = self._last
        if last is None or last.answer is not answer or last.repair is not repair:
            last = self._last = self._parse(answer, repair=repair)
        return last

    def _parse(self, answer: Answer, *, repair: bool) -> _Reading:
        text = answer.text or ""
        # The last message that is JSON is the answer.
        for said in (text, *reversed(answer.messages)):
            try:
                return self._check_value(answer, repair, msgspec.json.decode(said), len(said))
            except batch_api.JSON_ERRORS as error:
                wrong = error
        if answer_ends.is_cut(answer):
            return _Reading(answer, repair, problem=answer_ends.cut_at(text, "was complete"))
        if answer_ends.is_withheld(answer):
            return _Reading(answer, repair, problem=_WITHHELD)
        if repair and answer_ends.full_window(answer) is None:
            with suppress(answer_json.NotOneValue):
                found = self._check_value(answer, repair, answer_json.value_in(text), len(text))
                return replace(found, repaired=found.problem is None)
        return _Reading(answer, repair, problem=("invalid_json", f"the answer is not JSON: {wrong}"))

    def _check_value(self, answer: Answer, repair: bool, value: Any, size: int) -> _Reading:
        assert self._check is not None, "only an answer to a schema is read as JSON"
        value, wrong = self._check.fitted(row_codes.without_code(value, self._schema), size)
        return _Reading(answer, repair, value, None if wrong is None else ("schema_mismatch", wrong))


class LabelCheck(OutputCheck):
    """Requirements for a label. Its value includes the model's certainty."""

    def __init__(
        self,
        schema: Mapping[str, Any],
        calibration: ConfidenceCurve | None = None,
        *,
        repair: bool = True,
        codes_of: str | None = None,
    ) -> None:
        super().__init__(schema, repair=repair, codes_of=codes_of)
        self._calibration = calibration

    def output(self, answer: Answer, body: msgspec.Raw) -> Any:
        """Return the answer's object with the model's `probability` and the `confidence` from known answers.

        `probability` is None if the answer states no probabilities. `confidence` is None if `probability` is None or
        there is no calibration. An answer that is not an object is returned unchanged.
        """
        found = super().output(answer, body)
        if not isinstance(found, dict):
            return found
        probability = None if answer.text is None else label_probability(body, answer.text)
        known = None if probability is None else self._calibration
        confidence = None if known is None or probability is None else round(known.confidence(probability), 6)
        return {**found, "probability": probability and round(probability, 6), "confidence": confidence}


class VectorCheck(AnswerCheck):
    """Requirements for a vector. It has `size` numbers, if a size was requested."""

    def __init__(self, size: int | None) -> None:
        self._size = size

    def problem(self, answer: Answer) -> tuple[str, str] | None:
        """Return `invalid_vector` with a message, or None."""
        try:
            vector_of(answer.data, self._size)
        except NoVector as error:
            return "invalid_vector", str(error)
        return None

    def output(self, answer: Answer, body: msgspec.Raw) -> Any:
        with suppress(NoVector):
            return vector_of(answer.data, self._size)
        return super().output(answer, body)


WRONG_CODE = "wrong_row_code"
_WITHHELD = "content_filter", "the provider's content filter withheld the rest of the answer"
