"""Jobs from Python, in front of a real upstream: what comes back, what is asked, and what the command line sees."""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas
import polars
import pytest
from pydantic import BaseModel

import orchestrator as orch
from tests.conftest import MakeUpstream
from tests.support.cli import Orch, write_config
from tests.support.letters import Gateway, gateway, refusing
from tests.support.library import end_daemon, use_home
from tests.support.process import PATIENCE, Upstream
from tests.support.scripted import Answer

QUESTION = "When does this end?\n{{ text }}"
FRAME = pandas.DataFrame({"text": ["one", "two", "two", None], "n": [1, 2, 3, 4]}, index=["a", "b", "b", "z"])


class Facts(BaseModel):
    topic: str
    pages: int | None


@pytest.fixture
def home(orch_home: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    models = '[models]\nsmall = "some-model"\n'
    write_config(orch_home, [upstream.base_url], retry_delay=0.01, extra=models)
    use_home(orch_home, monkeypatch)
    yield orch_home
    end_daemon(orch_home)


def jobs_of(run_orch: Orch) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(run_orch("status", "--all", "--json").stdout)
    return found


@pytest.mark.long
def test_a_frame_comes_back_with_its_answers_and_an_added_row_asks_one_row(
    home: Path, upstream: Upstream, run_orch: Orch
) -> None:
    out = orch.map(FRAME, QUESTION, schema=Facts, deadline="8h", budget=12)

    assert out.columns.tolist() == ["text", "n", "topic", "pages", "error", "cost"]
    assert out.index.tolist() == ["a", "b", "b", "z"]
    assert out["pages"].tolist()[:3] == [1, 1, 1]
    assert out["topic"].iloc[1] == out["topic"].iloc[2], "the same text is asked once"
    assert out["error"].iloc[3] == "bad_row: The row has no text in the column 'text'; fill it in or remove the row."
    assert len(upstream.requests()) == 2
    (job,) = jobs_of(run_orch)
    assert (job["name"], job["state"], job["requests"]["total"]) == ("facts", "completed", 4)

    more = pandas.concat([pandas.DataFrame({"text": ["new"], "n": [9]}, index=["q"]), FRAME.iloc[::-1]])
    again = orch.map(more, QUESTION, schema=Facts)

    assert len(upstream.requests()) == 3
    assert again.loc["a", "topic"] == out.loc["a", "topic"]
    assert orch.map(polars.DataFrame({"text": ["two"]}), QUESTION, schema=Facts)["topic"].to_list() == [
        out["topic"].iloc[1]
    ]
    assert len(upstream.requests()) == 3
    with pytest.raises(orch.RowError, match="no text") as caught:
        orch.map(FRAME, QUESTION, schema=Facts, raise_on_error=True)
    assert caught.value.code == "bad_row"
    with pytest.raises(orch.UsageError, match="column 'topic' already"):
        orch.map(out, QUESTION, schema=Facts)
    assert "v2_topic" in orch.map(out, QUESTION, schema=Facts, prefix="v2_")
    assert len(upstream.requests()) == 3


def test_a_prompt_of_columns_is_sent_as_written_and_nothing_else_leaves(
    home: Path, make_upstream: MakeUpstream, run_orch: Orch
) -> None:
    upstream = make_upstream(log_bodies=True)
    write_config(home, [upstream.base_url], extra='[models]\nsmall = "m"\n')
    rows = [{"title": "Invoice", "body": "120", "secret": "hush"}]

    (row,) = orch.map(rows, "{{ title }}: {{ body }}?", id="title")

    assert row["answer"].startswith("echo:")
    assert row["error"] is None
    (sent,) = upstream.requests()
    assert json.loads(sent["body"])["messages"] == [{"role": "user", "content": "Invoice: 120?"}]
    assert not [path for path in home.rglob("*") if path.is_file() and b"hush" in path.read_bytes()]


def test_labels_and_empty_frames(home: Path, upstream: Upstream) -> None:
    (row,) = orch.map([{"text": "a"}], "{{ text }}", kind="classify", labels=["bill", "letter"])
    assert row["label"] in ("bill", "letter")
    empty = orch.map(FRAME.iloc[:0], QUESTION, schema=Facts)
    assert (len(empty), empty.columns.tolist()[-2:]) == (0, ["error", "cost"])
    assert len(upstream.requests()) == 1


@pytest.mark.long
def test_a_plan_spends_nothing_and_a_refusal_is_an_exception(home: Path, upstream: Upstream, run_orch: Orch) -> None:
    draft = orch.frame(FRAME, QUESTION, schema=Facts)
    plan = draft.plan(deadline="8h")

    assert (plan.requests, plan.to_send, plan.holds) == (4, 2, True)
    assert [route.backend for route in plan.routes] == ["local"]
    assert "local" in str(plan)
    counts = "requests: 4 requests of 4 documents, 1 the same as another row, 1 that cannot be asked"
    assert str(plan).splitlines()[-2:] == [counts, "documents: read 3; 1 without a usable row"]
    assert repr(plan) == str(plan), "what a prompt shows"
    assert "local" in plan._repr_html_()
    assert counts in plan._repr_html_()
    assert plan.to_json()["holds"]
    late = draft.plan(deadline="1s")
    assert not late.holds
    for words in ("<p>expected $0, at most $0", "the target is 99%", "would hold: deadline="):
        assert words in late._repr_html_()
    assert upstream.requests() == []
    assert jobs_of(run_orch) == []
    with pytest.raises(orch.RefusedError, match="deadline"):
        draft.run(deadline="2020-01-01T00:00+00:00")
    with pytest.raises(orch.UsageError, match="not an amount"):
        draft.plan(budget="many")


def test_documents_are_asked_by_pattern(home: Path, upstream: Upstream, tmp_path: Path) -> None:
    for name in ("a.txt", "deep/b.txt", "deep/c.md"):
        path = tmp_path / "contracts" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"This is {name}.")
    draft = orch.documents(tmp_path / "contracts" / "**" / "*.txt").map("When does it end?", schema=Facts)

    answers = draft.run()

    assert [Path(row.document).name for row in answers] == ["a.txt", "b.txt"]
    answer = answers[0].answer
    assert isinstance(answer, Facts)
    assert answers[0].route == "local"
    assert answers[0].cost == Decimal(0)
    draft.run(raise_on_error=True)
    assert len(upstream.requests()) == 2
    again = draft.plan(deadline="8h")
    assert str(again).startswith("nothing to send: 2 requests of 2 documents")
    assert again._repr_html_() == f"<p>{again}</p>", "no route where nothing is sent"


@pytest.mark.long
def test_help_describes_the_call_that_asks_documents() -> None:
    assert [*inspect.signature(orch.documents).parameters] == ["path", "source"]
    assert "`exclude`" in str(inspect.getdoc(orch.documents))
    told = subprocess.run(
        [sys.executable, "-c", "import orchestrator as orch; help(orch.documents)"],
        capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert "`exclude`" in told.stdout, told


@pytest.mark.long
def test_submit_starts_a_daemon_that_does_the_work_and_any_process_opens_the_job(
    home: Path, upstream: Upstream, run_orch: Orch
) -> None:
    job = orch.frame(FRAME, QUESTION, schema=Facts, id="n").submit()

    assert "`orch up --quiet`" in job.runner
    assert "daemon: `orch up --quiet`" in run_orch("status").stdout
    answers = orch.open_job(job.id, schema=Facts).wait(progress=False)
    assert [row.document for row in answers] == ["1", "2", "3", "4"]
    assert isinstance(answers[0].answer, Facts)
    assert job.is_done
    assert job.outlook is None
    assert job.progress.counts.succeeded == 3
    assert [str(job.progress.cost), str(answers.cost), str(answers[0].cost)] == ["0", "0", "0"]
    assert job.reused == 0, "a twin is a row of the same run"
    assert "completed" in repr(job)
    assert repr(job.progress) == str(job.progress) == f"{job.id}: completed, 4 of 4 done, 1 failed, $0"
    assert 'value="4"' in job._repr_html_()
    untyped = next(orch.open_job("facts").rows())
    assert untyped.answer.topic == answers[0].answer.topic
    assert len(upstream.requests()) == 2


@pytest.mark.long
def test_a_job_that_is_only_queued_says_so_and_is_continued_by_the_command_line(
    home: Path, upstream: Upstream, run_orch: Orch
) -> None:
    job = orch.frame(FRAME, QUESTION, name="terms").submit(daemon=False)

    assert job.runner == "queued: `orch up`, or wait(), runs it"
    assert upstream.requests() == []
    assert job.outlook is not None
    assert repr(job.outlook) == str(job.outlook) == f"{job.outlook.reason}; $0 more expected"
    assert [str(job.outlook.expected), str(job.progress.cost)] == ["0", "0"]
    with pytest.raises(orch.UsageError, match="not finished"):
        list(job.rows())
    (bad,) = [row.error for row in job.rows(partial=True) if row.error]
    assert repr(bad) == f"RowError({str(bad)!r})", "a list of rows tells the code of each"
    assert bad.code == "bad_row"
    run_orch("run", str(home / "frames" / "terms" / "job.yaml"))
    assert [row.answer is None for row in job.rows()] == [False, False, False, True]
    assert orch.map(FRAME, QUESTION, name="terms")["answer"].notna().sum() == 3
    assert len(jobs_of(run_orch)) == 1


def test_a_job_is_awaited_and_iterated_over(home: Path, upstream: Upstream) -> None:
    async def follow() -> tuple[list[Any], Any]:
        job = orch.frame(FRAME, QUESTION, schema=Facts).submit(daemon=False)
        rows = [row async for row in job]
        return rows, await job

    rows, answers = asyncio.run(follow())
    assert {row.custom_id for row in rows} == {row.custom_id for row in answers}
    assert (len(rows), len(upstream.requests())) == (4, 2)


@pytest.mark.long
def test_rows_of_a_running_batch_come_as_they_are_done(home: Path) -> None:
    goes_on = threading.Event()

    def hold(body: dict[str, Any]) -> Answer | None:
        if "bad" in body["messages"][-1]["content"]:
            return refusing(400, "No.")
        if len(at.bodies) > 10:
            goes_on.wait(PATIENCE)
        return None

    with gateway() as at:
        at.refuses = hold
        write_config(home, [at.url], max_concurrency=1, extra='[models]\nsmall = "some-model"\n')
        _see_a_running_batch(at, goes_on)


def _see_a_running_batch(at: Gateway, goes_on: threading.Event) -> None:
    frame = [{"text": "bad"}, *({"text": f"row {number}"} for number in range(40))]

    async def first(job: orch.JobHandle[Any]) -> orch.AnswerRow[Any]:
        async for row in job:
            return row
        raise AssertionError("no row came")

    job = orch.frame(frame, QUESTION).submit(daemon=False, progress=False)
    row = asyncio.run(first(job))
    assert row.answer is not None
    assert not job.is_done
    assert len(at.bodies) <= 12, "while the batch still runs"
    goes_on.set()

    # Its answers are there for the next process too, which nobody works for.
    so_far = [one.document for one in job.rows(partial=True)]
    assert row.document in so_far
    assert len(so_far) < 41
    assert len(job.wait(progress=False)) == 41


def test_a_cancelled_job_keeps_its_rows(home: Path, upstream: Upstream) -> None:
    job = orch.frame(FRAME, QUESTION).submit(daemon=False)
    job.cancel()
    assert {row.error.code for row in job.rows() if row.error} == {"cancelled", "bad_row"}
    with pytest.raises(orch.UsageError, match="already ended"):
        job.cancel()


def test_without_a_model_the_only_alias_answers(home: Path, upstream: Upstream) -> None:
    write_config(home, [upstream.base_url], extra='[models]\nsmall = "a"\nlarge = "b"\n')
    with pytest.raises(orch.UsageError, match="the alias 'huge' is not declared"):
        orch.map(FRAME, QUESTION, model="huge")
    with pytest.raises(orch.UsageError, match="known: large, small"):
        orch.map(FRAME, QUESTION)


def test_the_settings_that_a_call_lacks_are_shown_as_they_are_written(home: Path, upstream: Upstream) -> None:
    write_config(home, [upstream.base_url])
    for model, alias in ((None, "small"), ("huge", "huge"), ("a b.c", "a b.c")):
        with pytest.raises(orch.UsageError) as told:
            orch.map(FRAME, QUESTION, model=model)
        _, _, written = str(told.value.hint).partition("\n")
        assert tomllib.loads(written) == {"models": {alias: "NAME_OF_THE_MODEL"}}
    write_config(home, [upstream.base_url], extra='[models]\nsmall = "a"\nlarge = "b"\n')
    with pytest.raises(orch.UsageError, match="the alias 'smal' is not declared") as told:
        orch.map(FRAME, QUESTION, model="smal")
    assert told.value.hint == "did you mean 'small'?"


def test_a_notebook_shows_a_bar_and_its_running_event_loop_is_no_obstacle(
    home: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel runs cells within its event loop, and shows what IPython's `display` is given."""
    shown: list[str] = []
    display = ModuleType("IPython.display")
    handle = SimpleNamespace(update=shown.append)
    display.HTML = str  # type: ignore[attr-defined]
    display.display = lambda bar, display_id: (shown.append(bar), handle)[1]  # type: ignore[attr-defined]
    ipython = ModuleType("IPython")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", display)

    async def cell() -> Any:
        return orch.map(FRAME, QUESTION, schema=Facts)

    out = asyncio.run(cell())

    assert out["topic"].notna().sum() == 3
    assert shown
    assert all(bar.startswith("<progress ") for bar in shown)


@pytest.mark.long
def test_calls_in_several_threads_share_the_work(home: Path, upstream: Upstream) -> None:
    frames = [pandas.DataFrame({"text": [f"{letter}{number}" for number in range(5)]}) for letter in "abc"]

    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda frame: orch.map(frame, QUESTION, schema=Facts), frames))

    assert [out["topic"].notna().sum() for out in found] == [5, 5, 5]
    assert len(upstream.requests()) == 15


def test_a_row_says_where_the_quotes_of_its_answer_stand(home: Path, tmp_path: Path) -> None:
    class Term(BaseModel):
        end: str
        quote: str

    (tmp_path / "lease.txt").write_text("A lease.\n\nThe term ends on 30 November 2026.", encoding="utf-8")
    content = json.dumps({"end": "2026-11-30", "quote": "ends on 30 November 2026"})
    message = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    with gateway() as at:
        at.refuses = lambda body: Answer({"object": "chat.completion", "model": body["model"], "choices": [message]})
        write_config(home, [at.url], extra='[models]\nsmall = "some-model"\n')
        docs = orch.documents(tmp_path / "lease.txt").map(
            "When? Quote it.", schema=Term, check="quotes", name="terms"
        )
        (row,) = docs.run(progress=False)

    assert [row.quotes[0].status, row.quotes[0].path] == ["found", "quote"]
    assert [place.start for place in row.quotes[0].places] == [19]
    assert [one.quotes for one in orch.open_job("terms").rows()] == [row.quotes]
