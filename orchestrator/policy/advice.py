"""Advice for failed rows, by error code, once a job is over and no row is retried. Pure.

`row_errors` decides what happens to a row while its job runs.
"""

from __future__ import annotations

from orchestrator.documents.types import DocumentProblem
from orchestrator.policy.row_errors import BAD_ANSWERS, RULES, classify

_AGAIN = "the next run retries them"

_OF_DOCUMENTS = {
    DocumentProblem.ENCODING: "set `encoding` on its source, or save the file as UTF-8",
    DocumentProblem.EMPTY: "put text into it (a scan needs OCR first), or exclude it",
    DocumentProblem.UNUSABLE_TEXT: "set `render: auto` or `render: ocr` on its source, or exclude it",
    DocumentProblem.ENCRYPTED: "save it without a password, or exclude it",
    DocumentProblem.TOO_LARGE: "raise `max_bytes` of its source, split the file, or exclude it",
    DocumentProblem.UNREADABLE: "check that it opens and is readable here; replace it, or exclude it",
    DocumentProblem.VANISHED: "put the file back, or move files only while no run reads them",
    DocumentProblem.UNSUPPORTED: "convert it to PDF, DOCX, HTML or text, or exclude it",
    DocumentProblem.NO_TEXT_COLUMN: "set `text_column` of its source to the column with the text, or exclude it",
    DocumentProblem.BAD_ROW: "correct this row of the table; its other rows were read",
}
_OF_REQUESTS = {
    "template": "correct the prompt, or the field of the document that it uses",
    "answers_too_long": "raise `reduce_tokens` or `part_tokens`, or ask for shorter answers",
    "part_failed": "`orch show` says why the part failed; fix that first",
    "cancelled": "`orch retry` asks the remaining rows, if you want them",
    "budget_exhausted": "raise the budget, then `orch retry`",
    "batch_expired": f"give the job more time, or a faster backend; {_AGAIN}",
    "batch_cancelled": f"somebody cancelled the batch at the provider; {_AGAIN}",
    "missing_result": f"the result file had no line for them; {_AGAIN}",
}
_OF_ANSWERS = {
    "truncated": "raise `max_tokens`, or ask for less",
    "endless_blanks": "change the prompt, the schema or the model: more tokens do not help",
    "invalid_json": "use a model that is better at JSON, or set `retries`",
    "schema_mismatch": "simplify the schema, set `retries`, or use a stronger model",
}
# These rules advise to wait, which no longer helps once the job is over.
_OF_RULES = {
    "no_credit": "add credit or raise the spending limit at the provider, then `orch retry`",
    "bad_key": "set a valid key in the variable that `api_key_env` names, then `orch retry`",
    "no_permission": "give the key the permission that the message names, then `orch retry`",
    "rate_limited": f"raise the account's rate, or send less at once; {_AGAIN}",
    "overloaded": f"allow another backend, or run at another hour; {_AGAIN}",
    "upstream_error": f"check the upstream's log or the provider's status page; {_AGAIN}",
    "http_5xx": f"the backend failed: check its status page; {_AGAIN}",
    "http_4xx": "fix what the provider's message names, then run it again",
}
ADVICE: dict[str, str] = {
    **{rule.code: rule.advice for rule in RULES},
    **{code: advice for code, (_, advice) in BAD_ANSWERS.items()},
    **_OF_RULES,
    **_OF_ANSWERS,
    **_OF_REQUESTS,
    **{problem.value: advice for problem, advice in _OF_DOCUMENTS.items()},
}


def advice_for(code: str) -> str:
    """Return advice about rows that failed with this code, from orch or a provider."""
    return ADVICE.get(code) or ADVICE[classify(None, code, None, None).rule]


def added_advice(code: str) -> str | None:
    """Return the advice to show after a failed row's message, or None if the message already contains it.

    Messages about documents, and about answers that reached their token limit, contain their advice.
    """
    return None if code in {*DocumentProblem, "truncated", "endless_blanks"} else advice_for(code)
