"""Figures of the pages, from the `--json` of commands."""

from __future__ import annotations

import pytest

from orchestrator.web.figures import CommandJson, figure

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
