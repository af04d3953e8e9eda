"""Figures of the pages, from the `--json` of commands."""

from __future__ import annotations

import pytest

from orchestrator.web.figures import CommandJson, figure, share

TOLD = CommandJson(
    "report cost",
    {
        "rows": 3,
        "total": {"cost_usd": "1.5", "cost_estimated": False, "list_usd": "3", "list_estimated": True},
        "lines": [{"list_usd": None, "list_estimated": True}],
    },
)


@pytest.mark.parametrize(
    ("path", "form", "shown"),
    [
        ("total.cost_usd", "dollars", "$1.50"),
        ("total.list_usd", "dollars", "≈$3.00"),
        ("lines.0.list_usd", "dollars", "—"),
        ("rows", "count", "3"),
    ],
)
def test_an_estimate_is_marked(path: str, form: str, shown: str) -> None:
    assert f">{shown}</data>" in figure(TOLD, path, form)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0%"), (1, "100%"), (0.279, "28%"), (-0.279, "-28%"), (0.999, "99.9%"), (-0.004, "-0.4%")],
)
def test_a_share_has_the_same_digits_on_both_sides_of_zero(value: float, shown: str) -> None:
    assert share(value) == shown
