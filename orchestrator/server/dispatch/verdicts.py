"""Decides if a failed attempt is due to the row, the account or an upstream that is down."""

from __future__ import annotations

from typing import NamedTuple

from orchestrator.core.error_body import read_error
from orchestrator.core.refusal_words import refuses_request
from orchestrator.server.dispatch.client import Reply
from orchestrator.server.dispatch.in_flight import Work
from orchestrator.server.dispatch.outage import Blame
from orchestrator.server.dispatch.refused_rows import RefusedRows
from orchestrator.server.dispatch.retry import (
    MAX_DELAY,
    SHARED_FAULTS,
    UNAVAILABLE,
    Action,
    AttemptFault,
    End,
    RetryVerdict,
    account_problem,
    fault_of,
    judge,
    possible_account_problem,
)
from orchestrator.server.dispatch.upstreams import Upstream

UNKNOWN_DELAYS = 32
"""Retry delay of a row while other rows in flight may still show if the upstream works. A multiple of the first
delay.
"""
FORBIDDEN = 403
"""Status of a refusal that may concern the account, or only one row's request. If only the row is refused, other rows
are accepted.
"""


class Judgement(NamedTuple):
    """An attempt's fault, the number of the row's attempts that failed by this fault, and the verdict on the row."""

    fault: AttemptFault | None
    tries: int
    verdict: RetryVerdict


class Verdicts:
    """Judges failed attempts. `base` is the first delay in seconds. Rows that are forgiven are removed from
    `refused`.
    """

    def __init__(self, base: float, refused: RefusedRows) -> None:
        self._base = base
        self._refused = refused

    def judge(self, upstream: Upstream, work: Work, reply: Reply, sent_at: float, now: float) -> Judgement:
        """Judge a failed attempt. If the upstream fails for all rows, pause the upstream."""
        is_refused = reply.end is End.ANSWERED and refuses_request(reply.status, read_error(reply.body))
        fault = None if is_refused else fault_of(reply.end, reply.status)
        tries = work.failed_by(fault) if fault is not None else 0
        verdict = judge(
            reply.end,
            status=reply.status,
            detail=reply.detail,
            retry_after=reply.retry_after,
            tries=tries,
            base=self._base,
            paid=upstream.paid,
            account=_account_problem(upstream, work, reply, sent_at),
            is_refused=is_refused,
        )
        if fault is not None and fault in SHARED_FAULTS and verdict.action is not Action.LEAVE:
            verdict = self._blame(upstream, work, fault, reply.status, verdict, now)
        return Judgement(fault, tries, verdict)

    def _blame(
        self, upstream: Upstream, work: Work, fault: AttemptFault, status: int, verdict: RetryVerdict, now: float
    ) -> RetryVerdict:
        """Return the verdict on a fault. If the upstream is at fault, pause it and do not count the attempt against
        the row.
        """
        is_overload, is_last = fault is AttemptFault.OVERLOAD, verdict.action is not Action.RETRY
        if is_overload and not (is_last and status == UNAVAILABLE):
            return verdict
        outage, reason = upstream.outage, verdict.reason or f"server error ({status})"
        blame = outage.note(
            work,
            now,
            is_last=is_last,
            counts_many=not is_overload,
            in_flight=upstream.inflight,
            is_engine=upstream.is_vllm,
        )
        match blame:
            case Blame.UNKNOWN:
                work.tries[fault] -= 1
                return RetryVerdict(Action.RETRY, reason, min(MAX_DELAY, UNKNOWN_DELAYS * self._base))
            case Blame.UPSTREAM:
                for row in (work, *outage.failed_rows()):
                    row.forgive()
                    self._refused.forget(row)
                upstream.fail_all(reason)
                return RetryVerdict(Action.WAIT, reason)
            case Blame.ROW:
                return verdict


def _account_problem(upstream: Upstream, work: Work, reply: Reply, sent_at: float) -> str | None:
    """Return why an upstream refuses the account; None if it accepts the account, or refuses only the row."""
    if reply.end is not End.ANSWERED or (not upstream.paid and reply.status in (401, FORBIDDEN)):
        return None
    problem, is_sure = account_problem(reply.status, reply.body), reply.status != FORBIDDEN
    if problem is None:
        problem, is_sure = possible_account_problem(reply.status, reply.body), False
    if problem is not None:
        work.refused_at = sent_at if work.refused_at is None else work.refused_at
        if not is_sure and upstream.account.took_since(work.refused_at):
            return None
    return problem
