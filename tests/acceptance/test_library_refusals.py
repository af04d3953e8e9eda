"""Calls from Python whose rows a backend refuses alike: every row comes back, and nothing keeps waiting."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import orchestrator as orch
from orchestrator.daemon.lock import running_daemon
from orchestrator.settings.home import Home
from tests.support.cli import Orch, write_config
from tests.support.letters import Gateway, gateway, refusing
from tests.support.library import end_daemon, use_home
from tests.support.process import wait_until
from tests.support.scripted import Answer

WORDS = "The model does not exist"
HOT = "temperature: must be at most 2"


@pytest.fixture
def at() -> Iterator[Gateway]:
    with gateway() as found:
        found.refuses = refuses
        yield found


@pytest.fixture
def home(orch_home: Path, at: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_config(orch_home, [at.url], retry_delay=0.01, extra='[models]\nsmall = "some-model"\n')
    use_home(orch_home, monkeypatch)
    yield orch_home
    end_daemon(orch_home)


def refuses(body: dict[str, Any]) -> Answer | None:
    if body["model"].startswith("no-such"):
        return refusing(404, WORDS, type="NotFoundError", code=404)
    if body.get("temperature", 0) > 2:
        return refusing(400, HOT, type="BadRequestError", code=400)
    return None


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "small", "messages": [{"role": "user", "content": text}], **more}


def states(run_orch: Orch) -> set[str]:
    return {job["state"] for job in json.loads(run_orch("status", "--all", "--json").stdout)}


@pytest.mark.parametrize("is_followed", [False, True], ids=["this process", "a daemon"])
def test_answers_come_back_beside_rows_that_are_refused_alike(
    home: Path, at: Gateway, run_orch: Orch, is_followed: bool
) -> None:
    if is_followed:
        run_orch.start("up", cwd=home)
        wait_until(lambda: running_daemon(Home(home)) is not None)
    good = [asked("a"), asked("b")]

    first, second, third = orch.requests([*good, asked("c", model="no-such-model")], progress=False)

    assert [type(one).__name__ for one in (first, second)] == ["ChatCompletion"] * 2
    assert isinstance(third, orch.RowError)
    assert (third.code, third.message) == ("model_not_found", WORDS)
    assert states(run_orch) == {"completed"}, "nothing waits"
    answers = orch.requests([*good, asked("d", temperature=3), asked("e", temperature=3)], progress=False)
    codes = [one.code if isinstance(one, orch.RowError) else None for one in answers]
    rows = [None if row.error is None else row.error.code for row in orch.open_job("requests").rows()]
    assert codes == rows == [None, None, "http_400", "http_400"], "one code for one failure"


@pytest.mark.long
def test_a_call_of_which_no_row_is_answered_says_why_and_the_same_call_asks_again(
    home: Path, at: Gateway, run_orch: Orch
) -> None:
    rows = [{"text": "a"}, {"text": "b"}]
    calls = {
        "all rows of model no-such-model: The model": lambda: orch.requests([asked("a", model="no-such-model")]),
        "all rows of model small: temperature": lambda: orch.map(rows, "{{ text }}", temperature=3),
    }
    for words, call in calls.items():
        with pytest.raises(orch.RequestRefused, match=words) as caught:
            call()
        assert isinstance(caught.value, orch.BackendError)
        job = orch.open_job(caught.value.job_id)
        assert job.is_done, "no later call works on it"
        assert "call again" in (caught.value.hint or "")
        assert {row.error.code for row in job.rows() if row.error} == {caught.value.code}
    assert states(run_orch) == {"completed"}
    before = len(at.bodies)

    at.refuses = lambda body: None
    for call in calls.values():
        assert call(), "the same call asks them again"
    assert len(at.bodies) == before + 3


def test_a_submitted_job_of_refused_rows_waits_has_no_outlook_and_holds_up_no_other_call(
    home: Path, at: Gateway, run_orch: Orch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "orch")
    job = orch.frame([{"text": "a"}, {"text": "c"}], "{{ text }}", temperature=3).submit(daemon=False, deadline="8h")
    with pytest.raises(orch.RequestRefused, match="all rows of model small"):
        job.wait()

    assert job.outlook is None
    assert not job.is_done
    shown = run_orch("status", job.id).stdout
    assert "100%" not in shown
    assert "refuses all rows of model small" in " ".join(shown.split())
    caplog.clear()
    assert orch.map([{"text": "b"}], "{{ text }}")[0]["error"] is None
    assert job.id not in caplog.text
