"""Reasons why backends refuse batches, and what happens to their rows. Pure."""

from __future__ import annotations

import re
from enum import StrEnum

from msgspec import Struct

from orchestrator.core.error_body import plain
from orchestrator.core.lazy_patterns import regex
from orchestrator.policy.row_errors import MOST_READ, Disposition, classify, plain_all


class BatchFault(StrEnum):
    """Reason why a backend refused a batch."""

    LINE = "line"  # one line; the batch continues without that line
    QUOTA = "quota"  # no room now
    TOO_LARGE = "too_large"  # more rows, bytes or inputs than one batch may have
    ACCOUNT = "account"  # the key, the credit or a permission
    GONE = "gone"  # the backend has lost the batch
    WHOLE = "whole"  # the batch as such


class BatchVerdict(Struct, frozen=True):
    """The reason why a batch was refused, and what happens to the affected rows.

    If `kind` is LINE, only the row of the refused line is affected; otherwise all rows are. If the backend had no
    room and stated its limit, `limit` is the number of tokens that may be enqueued. Otherwise `limit` is None.
    """

    kind: BatchFault
    disposition: Disposition
    code: str
    why: str
    advice: str
    limit: int | None = None


INPUT_LOST = "input_lost"
"""The code of a batch whose input file its backend cannot find."""


NOT_SENT = "not_sent"
"""Code of a batch that could not be created in time."""


TOO_FEW_ROWS = "too_few_rows"
"""The code of a shard with fewer rows than its backend takes in a batch."""


_FEW = plain_all(TOO_FEW_ROWS)


_GONE = plain_all("batch_gone")


STRAY_UPLOADS = "stray_uploads"
"""Code of a batch without input, because its backend answered each upload with another file."""


_UNSENT = plain_all(NOT_SENT)


_STRAYS = plain_all(STRAY_UPLOADS)


_LOST = plain_all("input_modified", "file_not_found")


_LOST_SAYS = regex(r"cannot find file|no such file", re.IGNORECASE)


_MISSED = regex(r"file_?(id_?)?(not|un|missing|pending|processing)", re.IGNORECASE)


_MISSED_SAYS = regex(
    r"cannot find file|no such file|\bfile\b.{0,120}\b(not found|does not exist|cannot be (found|used)|pending"
    r"|(not|still)( yet)?( been| being)? (ready|processed|uploaded|available|usable))",
    re.IGNORECASE | re.DOTALL,
)


_QUOTA = plain_all("token_limit_exceeded", "request_limit_exceeded", "quota_exceeded")


_QUOTA_SAYS = regex(r"enqueued (token|request)", re.IGNORECASE)


_LARGE = plain_all("too_many_tasks", "file_too_large", "batch_too_large", "request_too_large", "http_413")


_LARGE_SAYS = regex(
    r"larger than the .{0,40}maximum|too many (lines|rows|tasks|inputs)"
    r"|exceeds? the maximum (number|size|file size)|maximum of [\d,]+ (requests|rows|lines|inputs)",
    re.IGNORECASE,
)


_MODEL = plain_all("model_not_found")


_URL = plain_all("invalid_url", "url_mismatch", "unsupported_endpoint")


_NO_ACCESS = plain_all("input_no_permissions")


_LIMIT = regex(
    r"\blimit(?::| of)\s*((?>\d{1,3}(?:,\d{3}){1,5}|\d{1,15})(?:\.\d{1,6})?)"
    r"\s*(?:([kmb])\b(?!\s+enqueued\s+request)|(?=(?:enqueued\s+)?tokens\b|for\b))",
    re.IGNORECASE | re.ASCII,
)


_UNIT = {None: 1, "k": 10**3, "m": 10**6, "b": 10**9}


def classify_batch(code: str | None, message: str | None, line: int | None = None) -> BatchVerdict:
    """Return the verdict on a batch refused for this problem, at its creation or validation. Never raises.

    All rows of our batches are for one model and endpoint. So if one line is refused for its model or endpoint, the
    verdict applies to all rows.
    """
    word, text = plain(code), (message or "")[:MOST_READ]
    row = classify(None if line is None else 400, code, None, message)
    if word in _GONE:
        why, advice = "the backend has lost the batch", "nothing: its rows go into another one"
        return BatchVerdict(BatchFault.GONE, Disposition.RETRY, "batch_gone", why, advice)
    if word in _LOST or _LOST_SAYS.search(text):
        why, advice = "the backend cannot find the batch's input file", "nothing: it is uploaded again"
        return BatchVerdict(BatchFault.WHOLE, Disposition.RETRY, INPUT_LOST, why, advice)
    if word in _FEW:
        why, advice = "its batches take more rows", "name a backend that takes few rows, then `orch retry`"
        return BatchVerdict(BatchFault.WHOLE, Disposition.ELSEWHERE, TOO_FEW_ROWS, why, advice)
    if word in _UNSENT:
        why, advice = "the backend did not accept it for days", "check the backend; `orch retry` sends it again"
        return BatchVerdict(BatchFault.WHOLE, Disposition.ELSEWHERE, NOT_SENT, why, advice)
    if word in _STRAYS:
        why, advice = "the backend answers uploads with other files", "check the backend; `orch retry` sends it again"
        return BatchVerdict(BatchFault.WHOLE, Disposition.ELSEWHERE, STRAY_UPLOADS, why, advice)
    if word in _QUOTA or _QUOTA_SAYS.search(text) or row.disposition is Disposition.WAIT:
        why = "the backend has no room for more of this model now"
        advice = "nothing: the rows wait; or raise the quota at the provider"
        return BatchVerdict(BatchFault.QUOTA, Disposition.WAIT, "no_room", why, advice, _limit_in(text))
    if word in _LARGE or _LARGE_SAYS.search(text):
        why = "the batch is larger than the backend accepts"
        advice = "nothing: it is split; or set `limits` for this backend in orch.toml"
        return BatchVerdict(BatchFault.TOO_LARGE, Disposition.WAIT, "batch_too_large", why, advice)
    if word in _NO_ACCESS or row.disposition is Disposition.STOP:
        kind, disposition = BatchFault.ACCOUNT, Disposition.STOP
    elif word in _URL:
        kind, disposition = BatchFault.WHOLE, Disposition.ELSEWHERE
    else:
        is_whole = line is None or plain(row.code) in _MODEL
        kind, disposition = BatchFault.WHOLE if is_whole else BatchFault.LINE, row.disposition
    return BatchVerdict(kind, disposition, row.code, row.why, row.advice)


def input_is_missed(code: str | None, message: str | None) -> bool:
    """True if a batch was refused because its input file is missing. The file may appear a moment later."""
    return bool(_MISSED.search(code or "") or _MISSED_SAYS.search((message or "")[:MOST_READ]))


def _limit_in(message: str) -> int | None:
    """Return the tokens in `Limit: 900,000 enqueued tokens` (OpenAI) or `limit of 30K for` (Azure), or None."""
    found = _LIMIT.search(message)
    if found is None:
        return None
    limit = int(float(found[1].replace(",", "")) * _UNIT[found[2] and found[2].lower()])
    return limit if 0 < limit < 2**63 else None
