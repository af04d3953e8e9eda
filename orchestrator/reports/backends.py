"""Report on backends: health, waiting batches, turnaround, learned limits and refused fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from orchestrator.core.shards import Shard
from orchestrator.pipeline.dialects import recipient_of
from orchestrator.pipeline.plan.routes import named_models
from orchestrator.policy.dialect import describe
from orchestrator.reports.removed_backends import of_home
from orchestrator.settings.backends import Backend, HostedBackend, LocalBackend, SyncBackend
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home

if TYPE_CHECKING:
    from orchestrator.policy.quota import LearnedLimit
    from orchestrator.store import Store
    from orchestrator.store.refused_fields import LearnedField

NEWEST = 200
"""Number of newest batches from which turnaround is computed."""
RECENT = timedelta(hours=24)
BOUNDS = (60, 300, 900, 1800, 3600, 2 * 3600, 4 * 3600, 8 * 3600, 16 * 3600, 24 * 3600)
"""Upper bounds of the turnaround groups, in seconds. A last group holds slower batches."""

Health = Callable[[str], Mapping[str, Any] | None]
"""Returns the health report of a backend's batch server, or None if no server runs."""


def backends_report(store: Store, settings: Config, health: Health, now: datetime) -> list[dict[str, Any]]:
    """Describe each backend, in the order of orch.toml, in the stable form of docs/reference/json.md.

    Backends removed from orch.toml follow if open jobs of this home still have batches there.
    """
    learned, fields = store.limits.all(), store.refused_fields.all(now)
    removed = of_home(store, Home(settings.home).identity(), settings.backends)
    found = []
    for name in [*settings.backends, *removed]:
        backend = settings.backends.get(name)
        own = isinstance(backend, LocalBackend | SyncBackend)
        condition = _REMOVED if backend is None else _condition(own, health(name) if own else None)
        found.append(
            {
                "backend": name,
                "kind": None if backend is None else backend.kind,
                "location": None if backend is None else backend.location,
                **condition,
                "preflight": backend.preflight if isinstance(backend, HostedBackend) else None,
                "requests": [] if backend is None else _spellings(settings, name, backend),
                **_waiting(store.shards.at_backend(name)),
                **_pace(store.shards.counted_since(name, now - RECENT), now),
                "turnaround": _turnaround([ended for _, ended in store.shards.durations(name, NEWEST)]),
                "limits": [_limit(one, now) for one in learned if one.backend == name],
                "refused_fields": [_refused(one) for one in fields if one.backend == name],
            }
        )
    return found


_REMOVED: Mapping[str, Any] = {
    "state": "removed",
    "problem": "it is no longer in orch.toml, and batches are there: put it back, so that orch collects them",
    "upstreams": [],
}


def _spellings(settings: Config, name: str, backend: Backend) -> list[dict[str, str]]:
    found = {model: describe(recipient_of(backend), model) for model in named_models(settings, name)}
    return [{"model": model, "told": told} for model, told in found.items() if told is not None]


def _condition(own: bool, told: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a backend's condition.

    `state` is `hosted` for a provider (health unknown), and `stopped` if the backend's server is not running.
    """
    upstreams = [] if told is None else [_upstream(one) for one in told["upstreams"]]
    down = [one for one in upstreams if one["problem"] is not None]
    if not own:
        state = "hosted"
    elif told is None:
        state = "stopped"
    elif told["status"] != "ok" or (upstreams and len(down) == len(upstreams)):
        state = "down"
    else:
        state = "degraded" if down else "up"
    return {"state": state, "problem": None if told is None else told["problem"], "upstreams": upstreams}


def _upstream(told: Mapping[str, Any]) -> dict[str, Any]:
    names = ("number", "url", "problem", "problem_seconds", "in_flight", "limit", "limit_reason")
    return {name: told[name] for name in names}


def _waiting(shards: Sequence[Shard]) -> dict[str, Any]:
    return {
        "batches": len(shards),
        "rows": sum(shard.rows for shard in shards),
        "rows_done": sum(shard.provider_completed + shard.provider_failed for shard in shards),
        "prompt_tokens_estimated": sum(shard.tokens for shard in shards),
    }


def _pace(shards: Sequence[Shard], now: datetime) -> dict[str, Any]:
    """Return the completed rows of these shards, and their rate over the time in which batches ran."""
    rows = sum(one.provider_completed for one in shards)
    ran = [one for one in shards if one.submitted_at is not None and not one.preflight]
    spans = sorted((max(one.submitted_at, now - RECENT), one.ended_at or now) for one in ran if one.submitted_at)
    busy, until = 0.0, now - RECENT
    for began, end in spans:
        busy += max(0.0, (end - max(began, until)).total_seconds())
        until = max(until, end)
    return {
        "rows_24h": rows,
        "rows_per_second": round(sum(one.provider_completed for one in ran) / busy, 3) if busy else None,
    }


def _turnaround(seconds: Sequence[float]) -> dict[str, Any] | None:
    if not seconds:
        return None
    ordered = sorted(seconds)
    groups = [0] * (len(BOUNDS) + 1)
    for one in ordered:
        groups[sum(one > bound for bound in BOUNDS)] += 1
    return {
        "batches": len(ordered),
        "p50_seconds": round(_quantile(ordered, 0.5), 1),
        "p95_seconds": round(_quantile(ordered, 0.95), 1),
        "groups": [
            {"up_to_seconds": bound, "batches": number} for bound, number in zip((*BOUNDS, None), groups, strict=True)
        ],
    }


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _limit(one: LearnedLimit, now: datetime) -> dict[str, Any]:
    held = one.hold_until is not None and one.hold_until > now
    return {
        "model": one.model,
        "enqueued_tokens": one.enqueued_tokens,
        "max_rows": one.max_rows,
        "hold_until": one.hold_until.isoformat(timespec="seconds") if held and one.hold_until else None,
        "reason": one.reason,
    }


def _refused(one: LearnedField) -> dict[str, Any]:
    return {
        "model": one.model,
        "endpoint": one.endpoint,
        "field": one.field,
        "code": one.code,
        "message": one.message,
        "learned_at": one.learned_at.isoformat(timespec="seconds"),
        "until": one.until.isoformat(timespec="seconds"),
    }
