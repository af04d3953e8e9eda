"""Rows that upstreams refused and our server retries, as reported by its `/health`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from http import HTTPStatus
from typing import Any

from orchestrator.core.counts import number_of

MOST_GROUPS = 3


def rows_in_back_off(health: Mapping[str, Any], batch_id: str | None, left: int) -> int:
    """Return how many of the `left` rows of a batch wait for a retry.

    If upstreams work only on refused rows, all rows wait: their upstream accepts no row.
    """
    refused = sum(int(group["rows"]) for group in _groups(health) if group["batch"] == batch_id)
    if not refused:
        return 0
    return left if not _works_on_others(health) else min(left, refused)


def describe_refused(health: Mapping[str, Any], batches: Collection[str]) -> str | None:
    """Return the refused rows of some batches as text (`1 row refused: overloaded (529), try 3 of 20`), or None."""
    groups = sorted(
        (group for group in _groups(health) if group["batch"] in batches),
        key=lambda group: -int(group["rows"]),
    )
    shown = [_describe(group) for group in groups[:MOST_GROUPS]]
    if more := sum(int(group["rows"]) for group in groups[MOST_GROUPS:]):
        shown.append(f"and {more:,} more")
    return "; ".join(shown) or None


def _groups(health: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for upstream in health["upstreams"]:
        yield from upstream["retrying"]


def _works_on_others(health: Mapping[str, Any]) -> bool:
    return any(
        int(upstream["in_flight"]) > sum(int(group["rows"]) for group in upstream["retrying"])
        for upstream in health["upstreams"]
    )


def _describe(group: Mapping[str, Any]) -> str:
    rows, tries, most = int(group["rows"]), int(group["tries"]), group["most_tries"]
    what = "refused" if int(group["status"]) >= HTTPStatus.BAD_REQUEST else "failed"
    attempt = f"try {tries}" if most is None else f"try {tries} of {most}"
    return f"{number_of(rows, 'row')} {what}: {group['reason']}, {attempt}"
