"""The server's health: complete for clients with a key, minimal for other clients, such as a load balancer.

Clients without a key see no address, model, name, path or error text, because these may reveal upstreams or tenants.
"""

from __future__ import annotations

import shutil
import time
from typing import Any

from orchestrator.core.counts import number_that
from orchestrator.server.dispatch.upstreams import Upstream
from orchestrator.server.service import Service

STATUS = {
    "storage": "the server cannot write",
    "broken": "a part of the server has ended",
}


def health(service: Service, *, is_known: bool) -> dict[str, Any]:
    """Return the state of the server and its upstreams. `is_known` is True for a client with a key."""
    status, problem = service.state()
    upstreams = list(enumerate(service.upstreams, 1))
    return {
        "status": status,
        "problem": problem if is_known else STATUS.get(status),
        "running_batches": len(service.batches.runs),
        "webhooks": service.webhooks.state() if is_known else None,
        "engines": service.engines() if is_known else [],
        "replica": _replica(service) if is_known else None,
        "upstreams": [
            _upstream(service, number, each) if is_known else _number(number, each) for number, each in upstreams
        ],
    }


def _replica(service: Service) -> dict[str, Any] | None:
    replicator = service.replicator
    if replicator is None:
        return None
    return {
        "url": replicator.url,
        "generation": replicator.generation.number,
        "active": replicator.is_held,
        "written_seconds": round(replicator.generation.age, 1),
        "problem": replicator.problem,
    }


def _number(number: int, upstream: Upstream) -> dict[str, Any]:
    return {
        "number": number,
        "url": None,
        "problem": None if upstream.problem is None else "down",
        "problem_seconds": 0.0 if upstream.problem is None else round(time.monotonic() - upstream.since, 1),
        "answers": upstream.is_reached,
        "refusal": upstream.refusal,
        "unreached": upstream.unreached,
        "in_flight": upstream.inflight,
        "limit": upstream.limiter.limit,
        "limit_reason": upstream.limiter.move.value,
        "rates": None,
        "retrying": [],
        "models": [],
    }


def _upstream(service: Service, number: int, upstream: Upstream) -> dict[str, Any]:
    return {
        **_number(number, upstream),
        "url": upstream.shown,
        "problem": upstream.problem,
        "limit_reason": upstream.limiter.reason,
        "rates": None if upstream.rate_limiter is None else upstream.rate_limiter.state(time.monotonic()),
        "retrying": service.refused_rows(upstream),
        "models": upstream.models,
    }


def not_ready(service: Service, *, is_known: bool) -> list[str]:
    """Return the reasons why batches cannot be accepted or processed; empty if ready."""
    reasons: dict[str, str] = {}
    # If upstreams join on demand, there may be no upstream: rows wait for one.
    is_down = bool(service.upstreams) or not service.settings.expected_models
    if is_down and all(upstream.problem is not None for upstream in service.upstreams):
        problems = "; ".join(str(upstream.problem) for upstream in service.upstreams)
        reasons["no upstream is healthy"] = f"no upstream is healthy: {problems}"
    if not service.is_active:
        reasons["another server may be active"] = "the replica cannot be written, so another server may be active"
    status, _ = service.state()
    if status != "ok":
        reasons[STATUS[status]] = f"{STATUS[status]}: its log and /health tell why"
    free, stays = shutil.disk_usage(service.root).free, service.settings.min_free_bytes
    if free < stays:
        reasons["the disk is short of room"] = f"the disk has {free:,} bytes free, and {stays:,} must stay free"
    waiting, most = service.batches.unfinished_rows(), service.settings.max_queued_rows
    if waiting >= most:
        reasons["too many rows wait"] = f"{number_that(waiting, 'row', 'wait')}, and {most:,} are allowed"
    return [*(reasons.values() if is_known else reasons)]
