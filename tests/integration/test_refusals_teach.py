"""What a model refuses is learned: rows go on in another spelling, without the field, or elsewhere, and they end."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Orch, write_config
from tests.support.letters import Gateway, counts, documents, gateway, job_file, refusing, run
from tests.support.scripted import Answer

ROWS = 4
NEWER = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
LLAMA = "1 validation error for Request: response_format.type Input should be 'text' or 'json_object'"
SCHEMA = "schema: {type: object, properties: {a: {type: string}}, required: [a]}"


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


def learned(orch: Orch, folder: Path) -> list[tuple[str, str]]:
    backends = json.loads(orch("report", "backends", "--json", cwd=folder).stdout)
    return [(one["model"], one["field"]) for backend in backends for one in backend["refused_fields"]]


@pytest.mark.long
def test_a_field_with_another_spelling_costs_one_try_and_no_row_later(
    run_orch: Orch, folder: Path, at: Gateway
) -> None:
    at.refuses = lambda body: refusing(400, NEWER) if "max_tokens" in body else None
    code, _, stderr = run(run_orch, folder)
    assert code == 0, stderr
    assert counts(run_orch, folder) == {"pending": 0, "succeeded": ROWS, "failed": 0}
    assert [body.get("max_completion_tokens") for body in at.bodies] == [None] * ROWS + [20] * ROWS
    assert learned(run_orch, folder) == [("some-model", "max_tokens")]
    shards = json.loads(run_orch("status", "letters", "--json", cwd=folder).stdout)["shards"]
    assert [(one["rows"], one["done"], one["done_failed"]) for one in shards] == [(ROWS, 0, 0), (ROWS, ROWS, 0)], (
        "a row is done in one batch: the one that answered it"
    )

    documents(folder, ROWS + 2)
    assert run(run_orch, folder)[0] == 0
    assert len(at.bodies) == 2 * ROWS + 2, "what was learned holds for the next night"

    told = run_orch("report", "backends", "--forget", "local:some-model:max_tokens", cwd=folder)
    assert "1 refused fields forgotten" in told.stderr
    assert learned(run_orch, folder) == []


@pytest.mark.long
def test_llama_cpps_server_answers_tasks_with_a_schema(run_orch: Orch, folder: Path, at: Gateway) -> None:
    job_file(folder, f", {SCHEMA}")

    def refuses(body: dict[str, Any]) -> Answer | None:
        asked = body.get("response_format", {}).get("type")
        return refusing(500, LLAMA, type="invalid_request_error") if asked == "json_schema" else None

    at.refuses = refuses
    code, _, stderr = run(run_orch, folder)
    assert code == 0, stderr
    assert counts(run_orch, folder)["succeeded"] == ROWS
    assert [body["response_format"]["type"] for body in at.bodies] == ["json_schema"] * ROWS + ["json_object"] * ROWS
    assert learned(run_orch, folder) == [("some-model", "response_format")]
    events = json.loads(run_orch("status", "letters", "--json", cwd=folder).stdout)["events"]
    assert any(f"{ROWS} for unsupported_parameter (response_format)" in one["reason"] for one in events)


@pytest.mark.long
@pytest.mark.parametrize("drop", [False, True], ids=["refuse", "drop"])
def test_a_setting_is_left_out_only_where_the_task_lets_it_go(
    run_orch: Orch, folder: Path, at: Gateway, drop: bool
) -> None:
    job_file(folder, ", unsupported: drop" if drop else "")
    at.refuses = lambda body: refusing(403, "You may not set temperature here") if "temperature" in body else None
    code, told, _ = run(run_orch, folder)
    if drop:
        assert code == 0
        assert counts(run_orch, folder)["succeeded"] == ROWS
        return
    assert (code, told["error"]["code"]) == (4, "request_refused")
    assert counts(run_orch, folder) == {"pending": ROWS, "succeeded": 0, "failed": 0}
    assert len(at.bodies) == ROWS


@pytest.mark.long
def test_rows_go_where_the_field_is_taken(run_orch: Orch, folder: Path, at: Gateway) -> None:
    with gateway() as other:
        other_settings = f'[backends.other]\nupstreams = ["{other.url}"]\nlocation = "local"\nidle = true\n'
        write_config(folder, [at.url], retry_delay=0.01, extra=other_settings)
        job_file(folder, model="{local: some-model, other: some-model}")
        for one in (at, other):
            one.refuses = lambda body: None
        at.refuses = lambda body: refusing(400, "temperature is not supported") if "temperature" in body else None
        code, told, stderr = run(run_orch, folder)
        assert code == 0, (told, stderr)
        assert counts(run_orch, folder)["succeeded"] == ROWS
        assert len(other.bodies) == ROWS
        before = len(at.bodies)
        documents(folder, ROWS + 2)
        assert run(run_orch, folder)[0] == 0
        assert len(at.bodies) == before, "the next job goes there at once"


def test_an_outage_that_names_a_field_teaches_nothing(run_orch: Orch, folder: Path, at: Gateway) -> None:
    left = [2]

    def refuses(body: dict[str, Any]) -> Answer | None:
        left[0] -= 1
        return refusing(503, "max_tokens is not supported while overloaded") if left[0] >= 0 else None

    at.refuses = refuses
    assert run(run_orch, folder)[0] == 0
    assert learned(run_orch, folder) == []


def test_a_server_that_refuses_whatever_is_asked_ends(run_orch: Orch, folder: Path, at: Gateway) -> None:
    at.refuses = lambda body: refusing(400, f"{max(body)} is not supported, and never was")
    code, told, _ = run(run_orch, folder)
    assert (code, told["error"]["code"]) == (4, "request_refused")
    assert len(at.bodies) <= 3 * ROWS
    assert counts(run_orch, folder) == {"pending": ROWS, "succeeded": 0, "failed": 0}


@pytest.mark.long
def test_a_row_that_is_refused_among_others_fails_with_the_providers_words(
    run_orch: Orch, folder: Path, at: Gateway
) -> None:
    words = "temperature is not supported for letters of this kind"
    at.refuses = lambda body: refusing(403, words) if "Letter 2." in json.dumps(body) else None
    assert run(run_orch, folder)[0] == 1
    assert counts(run_orch, folder) == {"pending": 0, "succeeded": ROWS - 1, "failed": 1}
    reasons = json.loads(run_orch("status", "letters", "--json", cwd=folder).stdout)["reasons"]
    assert [(one["code"], words in one["message"]) for one in reasons] == [("unsupported_parameter", True)]
