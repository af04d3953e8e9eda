"""The outcome of a row's last attempt: a line of the output or error file, and its counts."""

from __future__ import annotations

import logging

import msgspec

from orchestrator.core import answers, batch_api
from orchestrator.core.answers import NO_TOKENS, TokenCounts
from orchestrator.core.batch_api import MAX_LINE_BYTES, LineError
from orchestrator.server.dispatch.client import Reply
from orchestrator.server.dispatch.result_lines import answer_line, error_body, error_line
from orchestrator.server.dispatch.results import Line
from orchestrator.server.dispatch.retry import KEEP, Action, RetryVerdict
from orchestrator.server.dispatch.stats import Stats

log = logging.getLogger(__name__)

INTERNAL = LineError("internal_error", "This row failed because of an internal error of the server; see its log.")


Outcome = tuple[str, Line, TokenCounts]
"""A row's result: its file (`output` or `error`), the line without newline, and the tokens."""


def outcome_of(
    custom_id: msgspec.Raw, reply: Reply, verdict: RetryVerdict, orch: batch_api.Provenance | None, stats: Stats
) -> Outcome:
    """Return the outcome of a row's last attempt, and add it to the upstream's `stats`. Never raises."""
    line: Line
    try:
        if verdict.action is KEEP and reply.status < 300:
            tokens = answers.answer_tokens(reply.body) if reply.tokens is None else reply.tokens
            line = answer_line(custom_id, reply.status, reply.body, orch)
            if len(line) <= MAX_LINE_BYTES:
                stats.succeeded += 1
                stats.input_tokens += tokens[0]
                stats.cached_tokens += tokens[1]
                stats.output_tokens += tokens[2]
                return "output", line, tokens
            reason = (
                f"too long: a line of results has at most {MAX_LINE_BYTES:,} bytes, the answer {len(reply.body):,}"
            )
            line = error_line(custom_id, "upstream_error", reason, orch)
        elif verdict.action is Action.GIVE_UP:
            line = error_line(custom_id, "upstream_error", verdict.reason, orch)
        else:
            line = answer_line(custom_id, reply.status, error_body(reply), orch)
    except Exception:
        # An internal error becomes the outcome of this one row, so that the row does not get stuck and is not sent
        # again.
        log.exception("a row's answer could not be taken")
        line = error_line(custom_id, INTERNAL.code, INTERNAL.message, None)
    stats.failed += 1
    return "error", line, NO_TOKENS
