"""Conversion of result lines to outcomes with checked answers. Pure, except that it reads files.

A result file may contain anything: rows in any order, duplicates, rows of other batches, broken lines. `outcome`
reads a row's line. The pipeline decides about rows without a line.
"""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from orchestrator.core import answers, batch_api, request_lines
from orchestrator.core.error_body import ErrorWords, read_error_value
from orchestrator.core.json_decoders import json_decoder
from orchestrator.core.model import Outcome, RequestState, Span, Usage
from orchestrator.core.refusal_words import NO_IMAGES, refuses_images, status_meant
from orchestrator.core.sanitize import cut
from orchestrator.policy import answer_ends
from orchestrator.policy.answer_check import AnswerCheck
from orchestrator.policy.answer_ends import Bound, no_bound
from orchestrator.policy.answer_text import Answer, answer_of, response_json
from orchestrator.policy.grounding import SentDocument, check_quotes
from orchestrator.policy.row_errors import BAD_ANSWERS, is_passing
from orchestrator.policy.unpriced import unpriced


def normal(custom_id: str) -> str:
    """Return an id without differences in case, outer spaces, Unicode form and leading zeros."""
    plain = unicodedata.normalize("NFC", custom_id).strip().casefold()
    return plain.lstrip("0") or "0" if plain.isdecimal() and plain.isascii() else plain


class Recognised:
    """Matches the ids of one batch's result lines to rows. Call `see` for every line, then `row` for each id."""

    def __init__(self, rows: Collection[str]) -> None:
        self._rows = rows
        forms: dict[str, list[str]] = {}
        for row in rows:
            forms.setdefault(normal(row), []).append(row)
        self._one = {form: names[0] for form, names in forms.items() if len(names) == 1}
        self._alike = {form: names for form, names in forms.items() if len(names) > 1}
        self._exact: set[str] = set()
        self._odd: dict[str, dict[str, set[int]]] = {}
        self._is_changed = False

    def see(self, told: str, content: bytes) -> None:
        """Note a line with the id `told`.

        `content` is the line itself. It shows if two lines with the same id are equal.
        """
        is_row = told in self._rows
        if is_row and not self._alike:
            self._exact.add(told)
            return
        form = normal(told)
        if is_row and form not in self._alike:
            self._exact.add(told)
        elif form in self._one or form in self._alike:
            self._odd.setdefault(form, {}).setdefault(told, set()).add(hash(content))
            self._is_changed |= not is_row

    def row(self, told: str) -> str | None:
        """Return the row to which a line with this id belongs. Returns None if no row, or more than one, matches."""
        form = None
        if told in self._rows and (not self._alike or (form := normal(told)) not in self._alike):
            return told
        form = normal(told) if form is None else form
        if form in self._alike:
            return told if told in self._rows and not self._is_ambiguous(form) else None
        seen = self._odd.get(form, {})
        # Two spellings of one id are ambiguous; if another line has the row's exact id, they are duplicates.
        return self._one.get(form) if len(seen) == 1 or self._one.get(form) in self._exact else None

    def names_each_of(self, lines: int) -> bool:
        """True if the `lines` lines that were noted have the exact ids of different rows, and no id is ambiguous.

        Two ids are ambiguous if `normal` returns the same form for both.
        """
        return len(self._exact) == lines and not self._alike

    def is_doubtful(self, told: str) -> bool:
        """True if a line with this id could belong to several rows."""
        form = normal(told)
        return form in self._alike and self._is_ambiguous(form)

    @property
    def ambiguous(self) -> dict[str, str]:
        """Rows to which ambiguous lines could belong, each with an id from such a line."""
        return {
            name: next(iter(self._odd[form]))
            for form, names in self._alike.items()
            if self._is_ambiguous(form)
            for name in names
        }

    def _is_ambiguous(self, form: str) -> bool:
        seen, names = self._odd.get(form, {}), self._alike[form]
        if not seen:
            return False
        is_plain = all(told in self._rows and len(lines) == 1 for told, lines in seen.items())
        return not is_plain or (self._is_changed and len(seen) < len(names))


AMBIGUOUS, UNRECOGNISED = "ambiguous_id", "unrecognised_id"
INVALID, UNFINISHED = "invalid_response", "unfinished_answer"
EXPIRED, CANCELLED = "batch_expired", "batch_cancelled"
NOT_EXECUTED = frozenset({EXPIRED, CANCELLED})
MAX_MESSAGE = 500
MAX_TIER = 16
_CUT = ("{", "data:", "event:")
_decode_line = json_decoder(batch_api.ResultLine).decode


class FoundLine(msgspec.Struct, frozen=True):
    """One line of a result file. `line` is None if the text is not a valid result line."""

    span: Span
    line: batch_api.ResultLine | None


class NotExecuted(Struct, frozen=True):
    """A row that the backend did not finish. `code` is `batch_expired` or `batch_cancelled`.

    `upstream_seconds` is how long the row used the upstream before orch's server took the row back. `uncertain`
    counts the row's sends that got no answer; the upstream may bill them.
    """

    code: str
    upstream_seconds: float = 0.0
    uncertain: int = 0


class RowRefusal(Struct, frozen=True):
    """The backend's reason for a row without an answer. `status` is the HTTP status. Fields that are not stated are
    None.

    `param` is the part of the request that the backend names along with its message.
    """

    status: int | None
    code: str | None
    type: str | None
    message: str | None
    param: str | None = None


def read(path: Path) -> Iterator[FoundLine]:
    """Yield the lines of a result file. A missing file has no lines. Raises OSError if the file cannot be read."""
    if not path.exists():
        return
    with path.open("rb") as file:
        yield from _lines_of(file)


def custom_ids(path: Path) -> Iterator[str]:
    """Yield the custom_ids of a result file's lines. Raises OSError if the file cannot be read."""
    for found in read(path):
        if found.line is not None and found.line.custom_id is not None:
            yield found.line.custom_id


def parsed(lines: bytes) -> Iterator[FoundLine]:
    """Yield the lines of a part of a result file. Positions count from the start of the part."""
    return _lines_of(io.BytesIO(lines))


def _lines_of(file: BinaryIO) -> Iterator[FoundLine]:
    for _, offset, raw in request_lines.lines(file):
        try:
            line = _decode_line(raw)
        except batch_api.JSON_ERRORS:
            line = None
        yield FoundLine(Span(offset, len(raw)), line)


class Survey(Struct):
    """The rows that result files have lines for.

    `told` rows have any line, `executed` rows ran according to their line, and `answered` rows have an answer.
    `is_plain` is True if every line has the exact id of a different row.
    """

    recognised: Recognised
    executed: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    told: set[str] = field(default_factory=set)
    is_plain: bool = False


def survey(paths: Iterable[Path], rows: Collection[str]) -> Survey:
    """Scan result files for lines of these rows. Raises OSError if a file cannot be read."""
    found = Survey(Recognised(rows))
    names: dict[str, bool] = {}
    answered = set[str]()
    lines = 0
    for path in paths:
        if not path.exists():
            continue
        with path.open("rb") as file:
            for _, _, raw in request_lines.lines(file):
                lines += 1
                try:
                    line = _decode_line(raw)
                except batch_api.JSON_ERRORS:
                    continue
                if (name := line.custom_id) is not None:
                    found.recognised.see(name, raw)
                    names[name] = names.get(name, False) or _has_run(line)
                    if is_success(line):
                        answered.add(name)
    found.is_plain = found.recognised.names_each_of(lines)
    for name, has_run in names.items():
        if (row := found.recognised.row(name)) is None:
            continue
        found.told.add(row)
        if has_run:
            found.executed.add(row)
        if name in answered:
            found.answered.add(row)
    return found


def together(surveys: Sequence[Survey]) -> Survey | None:
    """Combine the surveys of a batch's files. Returns None if the files must be scanned together instead."""
    if len(surveys) == 1:
        return surveys[0]
    told = {name for one in surveys for name in one.told}
    if not surveys or not all(one.is_plain for one in surveys) or len(told) < sum(len(one.told) for one in surveys):
        return None
    executed = {name for one in surveys for name in one.executed}
    answered = {name for one in surveys for name in one.answered}
    return Survey(surveys[0].recognised, executed, answered, told, is_plain=True)


def is_success(line: batch_api.ResultLine) -> bool:
    """True if a result line has the HTTP status of an answer, whether the answer is good or bad."""
    return line.response is not None and 200 <= line.response.status_code < 300


def is_refused(line: batch_api.ResultLine) -> bool:
    """True if a result line has no answer, according to its status or its body."""
    if not is_success(line) or line.response is None:
        return True
    try:
        return answers.read_answer(response_json(line.response)).error is not None
    except batch_api.JSON_ERRORS:
        return False


def _has_run(line: batch_api.ResultLine) -> bool:
    return line.response is not None or refusal(line).code not in NOT_EXECUTED


def outcome(
    seq: int,
    kind: str,
    found: FoundLine,
    check: AnswerCheck | None,
    bound: Callable[[], Bound | None] = no_bound,
    sent: Callable[[], SentDocument | None] = lambda: None,
    *,
    by_token: bool = True,
) -> Outcome | NotExecuted:
    """Return a row's outcome, or `NotExecuted`, from its result line. `found.line` must be a result line.

    `bound` returns the token limit that was sent for the answer, or None if it is not known for certain. `sent`
    returns the document in which to search for the answer's quotes. Only rows paid `by_token` can have usage without
    a price.
    """
    line = found.line
    assert line is not None
    response = line.response
    if response is None or not 200 <= response.status_code < 300:
        refused = refusal(line)
        if refused.code in NOT_EXECUTED:
            orch = line.orch
            return (
                NotExecuted(refused.code, orch.upstream_seconds, orch.uncertain)
                if orch
                else NotExecuted(refused.code)
            )
        return _failed(seq, kind, found, answers.AnswerHead(), refused)
    body = response_json(response)
    try:
        head = answers.read_answer(body)
    except batch_api.JSON_ERRORS:
        if line.error is not None:
            return _failed(seq, kind, found, answers.AnswerHead(), refusal(line))
        return _ended(seq, kind, found, answers.AnswerHead(), _no_object(response.body), response.status_code)
    if head.error is not None:
        failed = _failed(seq, kind, found, head, refusal(line))
        # A failure with tokens was billed, so it counts as a bad answer, which is booked.
        return replace(failed, status=response.status_code) if any(head.tokens) else failed
    is_full = line.orch is not None and line.orch.window_full
    is_read = check is not None or not any(head.tokens) or not head.is_complete or is_full
    answer = answer_of(body) if is_read else None
    if head.not_an_answer is not None:
        problem: tuple[str, str] | None = (UNFINISHED, head.not_an_answer)
    else:
        problem = _problem(answer, check, head.tokens.output, bound, is_full=is_full)
    if answer is not None and check is not None and problem is None:
        problem = check.code_problem(answer, line.custom_id or "")
    grounding = None
    if answer is not None and check is not None and problem is None and (quotes := check.quotes(answer)):
        grounding = check_quotes(quotes, sent())
        problem = grounding.problem
    ended = _ended(seq, kind, found, head, problem, response.status_code)
    if grounding is not None:
        is_unverifiable = problem is None and grounding.is_unverifiable
        ended = replace(ended, quotes=grounding.to_json(), unverifiable=is_unverifiable)
    if by_token and (used := unpriced(body, head.tokens.input + head.tokens.output)):
        ended = replace(ended, unpriced=used)
    if answer is not None and check is not None and problem is None and check.is_repaired(answer):
        ended = replace(ended, repaired=True)
    if answer is not None and problem is None and not head.is_complete:
        is_cut = answer_ends.is_cut(answer) and (check is None or check.takes_cut)
        ended = replace(ended, cut=is_cut, odd_end=answer_ends.is_odd(answer))
    if any(head.tokens):
        return ended
    return replace(ended, answer_bytes=len((answer.text or "").encode()) if answer is not None else 0)


def _problem(
    answer: Answer | None,
    check: AnswerCheck | None,
    output_tokens: int,
    bound: Callable[[], Bound | None],
    *,
    is_full: bool,
) -> tuple[str, str] | None:
    """Return an answer's problem, or None. Without a check, only a full context window is a problem."""
    if answer is None:
        return None
    found = None if check is None else check.problem(answer)
    # The model's own refusal explains more than the reason for the end of its text.
    if found is not None and found[0] == "refusal":
        return found
    if is_full and answer.choices == 1:
        return answer_ends.FULL
    return answer_ends.full_window(answer, output_tokens, bound) or found


def _no_object(body: msgspec.Raw) -> tuple[str, str]:
    """Return the problem of a body that is not a JSON object.

    If the body is the beginning of an object or a stream, the answer was cut off.
    """
    with suppress(*batch_api.JSON_ERRORS):
        if msgspec.json.decode(body, type=str).lstrip("\ufeff \t\r\n").startswith(_CUT):
            return UNFINISHED, "the answer was cut off: its body is the beginning of an object, or of a stream"
    return INVALID, "the body is not a JSON object"


def stands(outcome: Outcome) -> bool:
    """True if an outcome is from a complete answer, good or bad. Such a row is not sent again unchanged."""
    if outcome.state is not RequestState.FAILED:
        return True
    return outcome.is_answer and (outcome.error_code in BAD_ANSWERS or outcome.error_code == INVALID)


def unreadable(seq: int, kind: str, found: FoundLine, why: str) -> Outcome:
    """Return the outcome of a row whose line is unreadable."""
    bad = INVALID, f"the result of this row cannot be read: {why}"
    return _ended(seq, kind, replace(found, line=None), answers.AnswerHead(), bad)


def ambiguous(seq: int, told: str) -> Outcome:
    """Return the outcome of a row if a line with an ambiguous id may belong to it."""
    message = f"its batch's results name {told!r}, which may mean this row or another one: nothing was guessed"
    return Outcome(seq, RequestState.FAILED, error_code=AMBIGUOUS, error_message=_short(message))


def unrecognised(seq: int, told: str) -> Outcome:
    """Return the outcome of a row if its batch's results have only unknown ids."""
    message = f"none of its batch's results has an id that was sent (one has {told!r}); a retry would be billed again"
    return Outcome(seq, RequestState.FAILED, error_code=UNRECOGNISED, error_message=_short(message))


def _failed(seq: int, kind: str, found: FoundLine, head: answers.AnswerHead, refused: RowRefusal) -> Outcome:
    status = None if refused.status is None else f"http_{refused.status}"
    # A status that marks a passing failure takes precedence over the provider's code.
    said = None if is_passing(status) else refused.code
    code = said or status or refused.type or "error"
    if refuses_images(refused.message):
        code = NO_IMAGES  # neither a status nor a provider's code says how to fix the row
    message = refused.message or "the backend gave neither an answer nor a reason"
    return _ended(seq, kind, found, head, (code, message), refused.status)


def _ended(
    seq: int,
    kind: str,
    found: FoundLine,
    head: answers.AnswerHead,
    problem: tuple[str, str] | None,
    status: int | None = None,
) -> Outcome:
    code, message = problem or (None, None)
    orch = found.line.orch if found.line else None
    tokens = head.tokens
    return Outcome(
        seq,
        RequestState.SUCCEEDED if problem is None else RequestState.FAILED,
        kind,
        found.span,
        Usage(*tokens),
        _short(head.model),
        orch.upstream if orch else None,
        orch.latency_ms if orch else None,
        orch.upstream_seconds if orch else 0.0,
        tier=_short(head.tier, MAX_TIER),
        uncertain=orch.uncertain if orch else 0,
        status=status,
        error_code=_short(code),
        billed=None if head.billed is None else Usage(*head.billed),
        error_message=_short(message),
        answered_at=head.answered_at,
    )


def refused(said: Outcome, line: batch_api.ResultLine) -> RowRefusal:
    """Return the reason why a failed row has no answer.

    The reason is our own code if the server did not finish the answer.
    """
    if said.error_code == UNFINISHED:
        return RowRefusal(None, UNFINISHED, None, None)
    return refusal(line)


def refusal(line: batch_api.ResultLine) -> RowRefusal:
    """Return the reason why a line has no answer. The reason is empty if the line has an answer."""
    response = line.response
    status = response.status_code if response else None
    if status is not None and 200 <= status < 300:
        status = None  # a status of success is no reason
    body = batch_api.read_json(response_json(response)) if response else None
    # `vllm run-batch` puts the error next to the response.
    words = _words_in(body) or _words_in(line.error)
    if words is None:
        error = body.get("error") if isinstance(body, dict) else body
        error = line.error if error is None else error
        message = None if error is None else "no message" if isinstance(error, dict) else str(error)
        return RowRefusal(status, None, None, message)
    code = words.code
    if code is None and status is None and words.status is not None:
        code = str(words.status)
    if status is None and not is_passing(words.code):
        status = status_meant(words)
    return RowRefusal(status, code, words.type, words.message, words.param)


def _words_in(value: Any) -> ErrorWords | None:
    words = read_error_value(value)
    if words.message is None and (words.code or words.type):
        return replace(words, message="no message")
    return None if words.message is None else words


def _short(text: str | None, most: int = MAX_MESSAGE) -> str | None:
    """Shorten a text for reports, and replace NUL, which Postgres refuses."""
    return None if text is None else cut(text.replace("\0", "\ufffd"), most)
