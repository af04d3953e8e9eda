"""A request that its receiver refuses for all rows alike: told at once, nothing fails, and the next run sends it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.daemon.lock import running_daemon
from orchestrator.settings.home import Home
from tests.support.cli import Orch, write_config
from tests.support.letters import Gateway, counts, documents, gateway, job_file, refusing, run
from tests.support.process import wait_until
from tests.support.scripted import Answer

ROWS = 6


@pytest.fixture
def at() -> Iterator[Gateway]:
    with gateway() as found:
        yield found


@pytest.fixture
def folder(orch_home: Path, at: Gateway) -> Path:
    write_config(orch_home, [at.url], retry_delay=0.01)
    documents(orch_home, ROWS)
    job_file(orch_home)
    return orch_home


def line_of_model(folder: Path) -> int:
    lines = (folder / "job.yaml").read_text(encoding="utf-8").splitlines()
    return 1 + next(number for number, line in enumerate(lines) if line.startswith("models:"))


def quarantined(orch: Orch, folder: Path) -> list[Any]:
    return list(json.loads(orch("quarantine", "list", "--json", cwd=folder).stdout))


REFUSALS: dict[str, tuple[int, dict[str, Any]]] = {
    "a wrong model": (404, {"message": "The model `some-model` does not exist.", "code": "model_not_found"}),
    "a wrong model, in nobody's words": (400, {"message": "Invalid model name passed in model=some-model"}),
    "words that nobody knows": (422, {"message": "Computer says no.", "type": "odd", "code": "x17"}),
    "a status that nobody knows": (418, {"message": "I am a teapot"}),
    "a field": (400, {"message": "temperature is not supported by this model"}),
    "a field, with a 403": (403, {"message": "You are not allowed to set temperature"}),
    "no words at all": (400, {}),
}


CODES = {
    "a wrong model": "model_not_found",
    "a wrong model, in nobody's words": "model_not_found",
    "words that nobody knows": "x17",
    "a status that nobody knows": "http_418",
    "a field": "unsupported_parameter",
    "a field, with a 403": "unsupported_parameter",
    "no words at all": "http_400",
}


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", REFUSALS)
def test_all_rows_that_are_refused_alike_wait_and_go_out_by_the_next_run(
    run_orch: Orch, folder: Path, at: Gateway, case: str
) -> None:
    status, words = REFUSALS[case]
    at.refuses = lambda body: Answer({"error": words}, status)
    code, told, _ = run(run_orch, folder)
    assert code == 4
    assert told["error"]["code"] == "request_refused"
    assert words.get("message", "") in told["error"]["message"], "in the provider's words"
    assert "`orch retry letters-" in told["error"]["hint"]
    place = f"{folder / 'job.yaml'}:{line_of_model(folder)}: models.small, then run"
    assert (f"Correct the model at {place}" in told["error"]["hint"]) is (CODES[case] == "model_not_found")
    assert counts(run_orch, folder) == {"pending": ROWS, "succeeded": 0, "failed": 0}
    shown = json.loads(run_orch("status", "letters", "--json", cwd=folder).stdout)
    assert "local refuses all rows of model small: " in shown["problem"]
    [hold] = shown["holds"]
    assert hold["code"] == CODES[case]
    assert (hold["backend"], hold["task"]) == ("local", "t")
    assert (told["error"]["job"], told["error"]["holds"]) == (shown["job"], [hold])
    assert quarantined(run_orch, folder) == []
    assert len(at.bodies) == ROWS, "each was asked once"

    at.refuses = lambda body: None
    run_orch("report", "backends", "--forget", "local", cwd=folder)
    code, _, stderr = run(run_orch, folder)
    assert code == 0, stderr
    assert counts(run_orch, folder) == {"pending": 0, "succeeded": ROWS, "failed": 0}
    assert json.loads(run_orch("status", "letters", "--json", cwd=folder).stdout)["holds"] == []
    assert len(at.bodies) == 2 * ROWS


@pytest.mark.long
def test_a_row_with_a_picture_says_what_to_do_where_the_model_sees_none(
    run_orch: Orch, folder: Path, at: Gateway
) -> None:
    words = "small is not a multimodal model"
    at.refuses = lambda body: refusing(400, words) if "Letter 2." in json.dumps(body) else None
    assert run(run_orch, folder)[0] == 1
    assert counts(run_orch, folder) == {"pending": 0, "succeeded": ROWS - 1, "failed": 1}
    [reason] = json.loads(run_orch("status", "letters", "--json", cwd=folder).stdout)["reasons"]
    assert (reason["code"], reason["message"]) == ("images_not_supported", words)
    shown = " ".join(run_orch("status", "letters", cwd=folder).stdout.split())
    assert f"{words} → set `render: ocr` on the source" in shown


@pytest.mark.long
def test_a_wrong_address_costs_no_row(run_orch: Orch, folder: Path, at: Gateway) -> None:
    write_config(folder, [f"{at.url}/v1"], retry_delay=0.01)
    code, told, _ = run(run_orch, folder)
    assert (code, told["error"]["code"]) == (4, "request_refused")
    assert counts(run_orch, folder) == {"pending": ROWS, "succeeded": 0, "failed": 0}
    write_config(folder, [at.url], retry_delay=0.01)
    assert run(run_orch, folder)[0] == 0


@pytest.mark.long
def test_retry_sends_the_rows_that_wait(run_orch: Orch, folder: Path, at: Gateway) -> None:
    at.refuses = lambda body: refusing(422, "Computer says no.")
    assert run(run_orch, folder)[0] == 4
    at.refuses = lambda body: None
    done = run_orch("retry", "letters", "--wait", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert counts(run_orch, folder)["succeeded"] == ROWS
    assert run_orch("retry", "letters", cwd=folder).returncode == 0, "there is nothing left, as of any finished job"


@pytest.mark.long
def test_a_daemon_that_runs_tells_whoever_follows_it(run_orch: Orch, folder: Path, at: Gateway) -> None:
    at.refuses = lambda body: refusing(422, "Computer says no.")
    daemon = run_orch.start("up", cwd=folder)
    try:
        wait_until(lambda: running_daemon(Home(folder)) is not None)
        code, told, _ = run(run_orch, folder)
        assert (code, told["error"]["code"]) == (4, "request_refused")
        at.refuses = lambda body: None
        assert run(run_orch, folder)[0] == 0, "the daemon sends them again"
    finally:
        daemon.terminate()
        daemon.wait(60)


SPENT = {"message": "Budget has been exceeded! Current cost: 2, Max budget: 1", "type": "budget_exceeded"}
ACCOUNTS = {
    "a spent budget": (422, {"error": {**SPENT, "code": "422"}}, "budget_exceeded"),
    "a bad key": (
        400,
        {"code": "invalid-argument", "error": "Incorrect API key provided."},
        "refuses the API key (400)",
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("case", ACCOUNTS)
def test_an_account_that_a_gateway_refuses_costs_no_row(run_orch: Orch, folder: Path, at: Gateway, case: str) -> None:
    status, body, words = ACCOUNTS[case]
    write_config(folder, [at.url], retry_delay=0.01, patience=2)
    at.refuses = lambda _: Answer(body, status)
    code, told, _ = run(run_orch, folder)
    assert code == 4
    assert words in told["error"]["message"]
    assert counts(run_orch, folder) == {"pending": ROWS, "succeeded": 0, "failed": 0}
    assert len(at.bodies) < 3 * ROWS, "the upstream is left alone"
    at.refuses = lambda body: None
    assert run(run_orch, folder)[0] == 0
    assert counts(run_orch, folder)["succeeded"] == ROWS


def test_one_row_that_is_refused_for_what_it_says_fails_alone(run_orch: Orch, folder: Path, at: Gateway) -> None:
    at.refuses = lambda body: refusing(400, "no") if "Letter 3." in json.dumps(body) else None
    code, _, _ = run(run_orch, folder)
    assert code == 1
    assert counts(run_orch, folder) == {"pending": 0, "succeeded": ROWS - 1, "failed": 1}
    assert len(quarantined(run_orch, folder)) == 1


def test_texts_that_are_all_too_long_fail_one_by_one(run_orch: Orch, folder: Path, at: Gateway) -> None:
    words = "This model's maximum context length is 4 tokens. Please reduce the length of the messages."
    at.refuses = lambda body: refusing(400, words, code="context_length_exceeded")
    code, _, _ = run(run_orch, folder)
    assert code == 1
    assert counts(run_orch, folder)["failed"] == ROWS


@pytest.mark.long
def test_one_task_that_is_refused_holds_up_no_other(run_orch: Orch, folder: Path, at: Gateway) -> None:
    job_file(folder, "}\n  - {id: u, model: small, max_tokens: 20, prompt: Another, top_p: 0.5")
    at.refuses = lambda body: refusing(400, "Computer says no.") if "top_p" in body else None
    code, told, _ = run(run_orch, folder)
    assert code == 4, told
    assert "refuses all rows of task u and model small: " in told["error"]["message"]
    assert counts(run_orch, folder) == {"pending": ROWS, "succeeded": ROWS, "failed": 0}


@pytest.mark.long
def test_held_rows_end_at_the_deadline_with_the_code_and_the_next_night_asks_them(
    run_orch: Orch, folder: Path, at: Gateway
) -> None:
    at.refuses = lambda body: refusing(400, "Computer says no.", code="odd")
    assert run(run_orch, folder)[0] == 4
    job = json.loads(run_orch("status", "letters", "--json", cwd=folder).stdout)["job"]
    code, told, stderr = run(run_orch, folder, "--deadline", "1s")
    while code == 4:  # the second is not over
        code, told, stderr = run(run_orch, folder)
    assert code == 1, (told, stderr)
    assert told["job"] == job
    assert counts(run_orch, folder) == {"pending": 0, "succeeded": 0, "failed": ROWS}
    rows = run_orch("fetch", job, cwd=folder).stdout
    assert "odd" in rows
    assert "Computer says no." in rows
    assert quarantined(run_orch, folder) == []
    at.refuses = lambda body: None
    assert run(run_orch, folder)[0] == 0
    assert counts(run_orch, folder)["succeeded"] == ROWS
