"""Errors of calls from Python name the call's arguments and rows, and no file that orch wrote."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas
import pytest

import orchestrator as orch
from tests.support.cli import write_config
from tests.support.letters import Gateway, gateway, refusing
from tests.support.library import use_home

ROWS = [{"text": "a"}, {"text": "bad"}, {"text": "c"}]
EXTRA = """\
[models]
small = "some-model"
[backends.api]
kind = "sync"
base_url = "%s"
provider = "openai"
api_key_env = "API_KEY"
[prices.some-model]
input = 1
output = 2
"""


@pytest.fixture
def at() -> Iterator[Gateway]:
    with gateway() as found:
        found.refuses = lambda body: (
            refusing(400, "Computer says no.") if body["messages"][-1]["content"] == "bad" else None
        )
        yield found


@pytest.fixture
def home(orch_home: Path, at: Gateway, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_config(orch_home, [at.url], retry_delay=0.01, extra=EXTRA % at.url)
    use_home(orch_home, monkeypatch)
    monkeypatch.setenv("API_KEY", "k")
    return orch_home


def ask(rows: Any = ROWS, **more: Any) -> Any:
    return orch.map(rows, "{{ text }}", progress=False, **more)


def asked(text: str = "a", **more: Any) -> dict[str, Any]:
    return {"model": "small", "messages": [{"role": "user", "content": text}], **more}


MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "a deadline": (lambda: ask(deadline="soon"), "deadline: 'soon' is not a deadline"),
    "a deadline that has passed": (
        lambda: ask(deadline=datetime(2020, 1, 1, tzinfo=UTC)),
        "deadline: the deadline 2020-01-01 00:00 UTC has already passed\n"
        "  hint: give a later one, such as 8h or 06:00",
    ),
    "a backend": (lambda: ask(backend="nope"), "backend='nope': there is no such backend"),
    "a budget": (lambda: ask(backend="api", budget=0.0000001, max_tokens=9), "what would hold: budget=0.00"),
    "a field of the task": (lambda: ask(max_tokens=-1), "max_tokens: Input should be greater"),
    "the task": (lambda: ask(kind="classify"), "`kind: classify` needs `labels`"),
    "a field of the job": (lambda: ask(job={"taggs": {}}), "taggs: unknown field"),
    "a path": (
        lambda: orch.documents("/nowhere/x").map("When?").run(),
        "path: There is no file or folder /nowhere/x; correct the path.",
    ),
    "requests": (
        lambda: orch.requests([asked(), {"messages": []}, asked(stream=True), {"model": 3}]),
        "params[1].model: Model parameter is required.\n"
        "params[2].stream: Chat Completions: Streaming is not supported in the Batch API.\n"
        "params[3].model: Model must be a string.\n"
        "  hint: correct them and call again; nothing was sent",
    ),
    "a request that is no dict": (
        lambda: orch.requests([asked(), 3]),  # type: ignore[list-item]
        "params[1]: is int instead of a dict",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_by_the_argument(name: str, home: Path, at: Gateway) -> None:
    call, words = MISTAKES[name]
    with pytest.raises(orch.OrchError) as caught:
        call()
    assert words in str(caught.value)
    for foreign in ("--", "/frames/", "job.yaml", ".jsonl", "job file"):
        assert foreign not in str(caught.value)
    assert at.bodies == []


@pytest.mark.long
def test_a_failed_row_is_found_by_its_place_and_its_id(home: Path, at: Gateway) -> None:
    labelled = pandas.DataFrame(ROWS, index=["p", "q", "r"])
    numbered = [{**row, "case": f"c-{number}"} for number, row in enumerate(ROWS)]
    calls: dict[str, Callable[[], Any]] = {
        "row 1": lambda: ask(raise_on_error=True),
        "row 1, index q": lambda: ask(labelled, raise_on_error=True),
        "row 1, id 'c-1'": lambda: ask(numbered, id="case", name="cases", raise_on_error=True),
        "params[1]": lambda: orch.requests([asked(), asked("bad")], raise_on_error=True),
    }
    for name, call in calls.items():
        with pytest.raises(orch.RowError) as caught:
            call()
        assert str(caught.value).startswith(f"http_400: {name}: Computer says no.\n  hint: 1 of ")
    assert [row.document for row in orch.open_job("cases").rows()] == ["c-0", "c-1", "c-2"]


def test_a_plan_names_arguments(home: Path) -> None:
    plan = orch.frame(ROWS, "{{ text }}", max_tokens=500).plan(deadline="1m", budget=0.00001)
    assert not plan.holds
    assert "would hold: deadline='20" in str(plan)
    assert "--" not in str(plan)
