"""Edges of the Python interface: each odd call works, or is refused with a cure before anything is sent."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, time, timedelta
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pandas
import polars
import pyarrow
import pytest
from openai.types.chat import ChatCompletionMessage
from pydantic import AliasChoices, BaseModel, Field, RootModel
from typing_extensions import TypedDict

import orchestrator as orch
from tests.conftest import MakeUpstream
from tests.support.cli import write_config
from tests.support.letters import gateway
from tests.support.library import use_home
from tests.support.process import Upstream, wait_until

QUESTION = "What is it?\n{{ text }}"
LOOP = "{% for word in text.split() %}{{ word }} {% endfor %}?"
"""A prompt that a worker process renders."""
FRAME = pandas.DataFrame({"text": ["one", "two"], "n": [1, 2]})


@pytest.fixture
def home(orch_home: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_config(orch_home, [upstream.base_url], retry_delay=0.01, extra='[models]\nsmall = "some-model"\n')
    use_home(orch_home, monkeypatch)
    return orch_home


def ask(rows: Any, prompt: str = QUESTION, **more: Any) -> Any:
    return orch.map(rows, prompt, progress=False, **more)


class Kind(Enum):
    BILL = "bill"
    LETTER = "letter"


class Part(BaseModel):
    kind: Kind
    pages: int | None


class Whole(BaseModel):
    part: Part | None
    parts: list[Part]
    kind: Kind = Field(validation_alias=AliasChoices("sort", "type"))


@dataclass
class Facts:
    topic: str
    pages: int | None = None


class Typed(TypedDict):
    topic: str
    pages: int


class Numbers(RootModel[list[int]]):
    pass


class OneField(BaseModel):
    answer: str


SCHEMAS: dict[str, tuple[Any, list[str]]] = {
    "dataclass": (Facts, ["topic", "pages"]),
    "typed dict": (Typed, ["topic", "pages"]),
    "nested": (Whole, ["part", "parts", "kind"]),
    "optional": (Part | None, ["kind", "pages"]),
    "enum": (Kind, ["answer"]),
    "list": (list[Part], ["answer"]),
    "root": (Numbers, ["answer"]),
    "one field": (OneField, ["answer"]),
    "dict": ({"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}, ["answer"]),
}


@pytest.mark.long
@pytest.mark.thinned(5)
@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_of_every_type_are_columns(name: str, home: Path) -> None:
    schema, columns = SCHEMAS[name]

    out = ask(FRAME, schema=schema)

    assert out.columns.tolist() == ["text", "n", *columns, "error", "cost"]
    assert out["error"].isna().all()
    assert out[columns[-1]].notna().all()
    shown = ask(polars.from_pandas(FRAME), schema=schema).to_dicts()
    assert all(row[columns[0]] is not None for row in shown)
    if name in ("one field", "dict"):
        assert out["answer"].map(type).eq(str).all()
    if name == "nested":
        assert set(out["kind"]) <= {"bill", "letter"}


class Clash(BaseModel):
    error: str


def path_of_frames(home: Path) -> list[Path]:
    return [path for path in home.rglob("*") if path.name in ("job.yaml", "rows.jsonl")]


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "a schema that is a value": (lambda: ask(FRAME, schema=Part(kind=Kind.BILL, pages=1)), "schema: .* value"),
    "a schema that pydantic cannot read": (
        lambda: ask(FRAME, schema=multiprocessing.Process),
        "schema: Process is not a type",
    ),
    "a field of ours": (lambda: ask(FRAME, schema=Clash), "the field 'error'"),
    "deadline: date": (lambda: ask(FRAME, deadline=date(2030, 1, 1)), "deadline: date"),
    "deadline: time": (lambda: ask(FRAME, deadline=time(6)), "deadline: time"),
    "deadline: number": (lambda: ask(FRAME, deadline=8), "deadline: int"),
    "deadline: far": (lambda: ask(FRAME, deadline=timedelta.max), "too far away"),
    "budget: boolean": (lambda: ask(FRAME, budget=True), "not an amount"),
    "prompt": (lambda: ask(FRAME, 3), "prompt: int is not a text"),  # type: ignore[arg-type]
    "name outside of the home": (lambda: ask(FRAME, name="../../x"), "not a name of a job"),
    "name: empty": (lambda: ask(FRAME, name=""), "not a name of a job"),
    "name: number": (lambda: ask(FRAME, name=7), "name: int"),
    "prefix": (lambda: ask(FRAME, prefix=1), "prefix: int"),
    "text": (lambda: ask(FRAME, text=1), "text: int"),
    "id: number": (lambda: ask(FRAME, id=3), "id: int"),
    "id: numbers": (lambda: ask(FRAME, id=[3]), "id: int"),
    "id: too long": (lambda: ask([{"text": "a", "k": "x" * 600}], id="k"), "cannot name a row"),
    "id: NUL": (lambda: ask([{"text": "a", "k": "x\0"}], id="k"), "cannot name a row"),
    "id: blank": (lambda: ask([{"text": "a", "k": "  "}], id="k"), "cannot name a row"),
    "id: no column": (lambda: ask(FRAME, id="m"), r"id: .* no column 'm'"),
    "text: no column": (lambda: ask(FRAME, text="texts"), r"text: .*\n.*mean 'text'"),
    "a task's field, misspelt": (lambda: ask(FRAME, temprature=1), r"temprature: .*\n.*mean 'temperature'"),
    "an argument, misspelt": (lambda: ask(FRAME, deadlin="2h"), r"deadlin: .*\n.*mean 'deadline'"),
    "an argument of nothing": (lambda: ask(FRAME, response_model=Part), r"response_model: .*\n.*max_tokens, model"),
    "a term of a question": (
        lambda: orch.documents("in").map("When?", deadline="06:00"),
        r"deadline: .*\n.*plan\(\), run\(\) or submit\(\)",
    ),
    "a source's field, misspelt": (lambda: orch.documents("in", exlude=["a"]), r"exlude: .*\n.*mean 'exclude'"),
    "job: list": (lambda: ask(FRAME, job=[1]), "job: list"),
    "job: documents": (lambda: ask(FRAME, job={"documents": "/etc"}), "'documents' comes from the call"),
    "job: name": (lambda: ask(FRAME, job={"name": "x"}), "'name' comes from the call"),
    "our own column": (lambda: ask([{"_key": "a"}], "{{ _key }}"), "name of orch's own"),
    "a column of a function's name": (lambda: ask([{"range": "a"}], "{{ range }}"), "function of Jinja2"),
    "columns of one name": (
        lambda: ask(pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, names=["text", "text"])),
        "two columns 'text'",
    ),
    "columns of one name in pandas": (
        lambda: ask(pandas.DataFrame([["a", "b"]], columns=["text", "text"])),
        "two columns 'text'",
    ),
    "columns without a text as name": (
        lambda: ask(pandas.DataFrame([[1]], columns=pandas.MultiIndex.from_tuples([("text", "y")]))),
        "none with a name",
    ),
    "an object without a text": (lambda: ask([{"text": "a"}, {"text": object()}]), "text: row 1 cannot"),
    "a class as a value": (lambda: ask([{"text": Part}]), "text: row 0 cannot"),
    "a plan of no rows": (lambda: orch.frame(FRAME[:0], QUESTION).plan(), "the frame has no rows"),
    "no rows to submit": (lambda: orch.frame([], QUESTION).submit(progress=False), "the frame has no rows"),
    "bytes": (lambda: ask(FRAME.assign(text=[b"one", b"\xff"])), r"text: row 0 has bytes\n.*decode"),
    "bytes in a column of the prompt": (lambda: ask([{"a": bytearray(b"x")}], "{{ a }}?"), "a: row 0 has bytes"),
    "half a character": (lambda: ask([{"text": "a\ud800"}]), "text: row 0 cannot"),
    "requests: class": (lambda: requests({"response_format": Part}), r"response_format: params\[0\] cannot"),
    "requests: object": (lambda: requests({"user": object()}), r"user: params\[0\] cannot"),
    "requests: dict": (lambda: orch.requests({"model": "small"}), "params: give a list"),  # type: ignore[arg-type]
    "requests: text": (lambda: orch.requests("abc"), "params: give a list"),  # type: ignore[arg-type]
    "requests: None": (lambda: orch.requests(None), "params: NoneType"),  # type: ignore[arg-type]
    "requests: name": (lambda: orch.requests([], name="../x"), "not a name of a job"),
    "open_job": (lambda: orch.open_job(3), "open_job: int"),  # type: ignore[call-overload]
    "documents: number": (lambda: orch.documents(3), "documents: int"),  # type: ignore[arg-type]
    "documents: empty": (lambda: orch.documents(""), "path is empty"),
    "rows of models": (lambda: ask([Part(kind=Kind.BILL, pages=1)]), r"row 0 is Part.*\n.*model_dump"),
    "generator": (lambda: ask({"text": one} for one in "ab"), r"\n.*list\(rows\)"),
    "dict of columns": (lambda: ask({"text": ["a"]}), r"\n.*DataFrame\(rows\)"),
    "a column": (lambda: ask(pyarrow.chunked_array([["a"]])), r"\n.*give a frame with this column"),
    "a record batch": (lambda: ask(pyarrow.RecordBatch.from_pylist([{"text": "a"}])), "from_batches"),
}


def requests(more: Mapping[str, Any], text: Any = "a") -> list[Any]:
    return orch.requests(
        [{"model": "small", "messages": [{"role": "user", "content": text}], **more}], progress=False
    )


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_refused_with_a_cure_before_anything_is_written(
    name: str, home: Path, upstream: Upstream, tmp_path: Path
) -> None:
    call, message = WRONG[name]
    before = {*tmp_path.rglob("*")} - {*home.rglob("*")}

    with pytest.raises((orch.InputError, orch.UsageError), match=message):
        call()

    assert upstream.requests() == []
    assert path_of_frames(home) == []
    assert {*tmp_path.rglob("*")} - {*home.rglob("*")} == before, "nothing is written outside of the home"


def test_circular_rows_are_refused(home: Path) -> None:
    row: dict[str, Any] = {}
    row["text"] = row
    with pytest.raises(orch.InputError, match="text: row 0 cannot be written"):
        ask([row])


def test_a_budget_of_nothing_sends_nothing_that_costs(home: Path, upstream: Upstream) -> None:
    assert ask(FRAME, budget=0)["error"].isna().all(), "an idle engine of one's own is free"
    asked = len(upstream.requests())
    write_config(home, [upstream.base_url], idle=None, cost_per_hour=3600.0, extra='[models]\nsmall = "some-model"\n')
    out = ask(FRAME, "Another question: {{ text }}", budget=0)
    assert out["error"].str.startswith("budget_exhausted: ").all()
    assert out["cost"].sum() == 0
    with pytest.raises(orch.RefusedError, match="already passed"):
        ask(FRAME, "Another question: {{ text }}", deadline=timedelta(-1))
    assert len(upstream.requests()) == asked


SHARED_BUDGET = '[[budgets]]\nname = "all"\namount = 1\nperiod = "month"\n'


@pytest.mark.thinned(3)
@pytest.mark.parametrize(
    ("shared", "budget", "which"),
    [("", 1, "a budget"), (SHARED_BUDGET, None, "budget all"), (SHARED_BUDGET, 1, "a budget")],
    ids=["the job's own", "shared", "both"],
)
@pytest.mark.parametrize("limit", [{}, {"max_tokens": 20}], ids=["without a limit", "with one"])
def test_requests_under_a_budget_need_a_limit_where_answers_are_paid_by_the_token(
    limit: dict[str, int],
    shared: str,
    budget: int | None,
    which: str,
    home: Path,
    upstream: Upstream,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("API_KEY", "k")
    (home / "orch.toml").write_text(
        f'[backends.api]\nkind = "sync"\nbase_url = "{upstream.base_url}"\nprovider = "openai"\n'
        'api_key_env = "API_KEY"\n'
        f"[prices.some-model]\ninput = 1\noutput = 2\n{shared}"
    )
    bodies = [{"model": "some-model", "messages": [{"role": "user", "content": "Hi"}], **limit}]
    if limit:
        (answer,) = orch.requests(bodies, budget=budget, progress=False)
        assert not isinstance(answer, orch.RowError)
        assert str(orch.open_job("requests").progress).endswith("completed, 1 of 1 done, 0 failed, $0.000015")
        return
    with pytest.raises(orch.RefusedError, match="no backend may run this job") as told:
        orch.requests(bodies, budget=budget, progress=False)
    assert f"rows without `max_tokens` cannot be held to {which}" in (told.value.hint or "")
    assert upstream.requests() == []


def test_a_deadline_that_is_unlikely_is_a_warning_and_the_job_runs(
    home: Path, upstream: Upstream, caplog: pytest.LogCaptureFixture
) -> None:
    write_config(home, [upstream.base_url], rows_per_second=0.001, extra='[models]\nsmall = "some-model"\n')
    assert ask(FRAME, deadline=timedelta(minutes=2))["error"].isna().all()
    (told,) = (record for record in caplog.records if record.name == "orch" and record.levelname == "WARNING")
    assert "likely to be in time; the target is 99%" in told.getMessage()


@pytest.mark.long
def test_frames_without_rows_come_back_with_their_columns(home: Path, upstream: Upstream) -> None:
    assert ask([], schema=Facts) == []
    assert ask(pandas.DataFrame(), schema=Facts).columns.tolist() == ["topic", "pages", "error", "cost"]
    datasets = pytest.importorskip("datasets")
    empty = ask(datasets.Dataset.from_dict({"text": []}), schema=Facts)
    full = ask(datasets.Dataset.from_dict({"text": ["a"]}), schema=Facts)
    assert {name: empty.features[name] for name in ("topic", "pages", "error", "cost")} == {
        name: full.features[name] for name in ("topic", "pages", "error", "cost")
    }
    assert len(upstream.requests()) == 1


def sent(upstream: Upstream) -> list[str]:
    return [json.loads(one["body"])["messages"][-1]["content"] for one in upstream.requests()]


def test_columns_have_the_names_of_words_of_templates(home: Path, make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(log_bodies=True)
    write_config(home, [upstream.base_url], extra='[models]\nsmall = "m"\n')
    ask([{"row": "r", "_": "u", 1: "no", None: "no"}], "{{ row }}{{ _ }} in the range of {{ range(2) | list }}")
    assert sent(upstream) == ["ru in the range of [0, 1]"]


def test_messages_of_a_client_and_any_mapping_are_sent_as_what_they_hold(
    home: Path, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream(log_bodies=True)
    write_config(home, [upstream.base_url], extra='[models]\nsmall = "m"\n')
    message = ChatCompletionMessage(role="assistant", content="earlier")
    asked = MappingProxyType({"role": "user", "content": "x"})

    (answer,) = orch.requests([MappingProxyType({"model": "small", "messages": [message, asked]})], progress=False)

    assert not isinstance(answer, orch.RowError)
    (one,) = upstream.requests()
    assert json.loads(one["body"])["messages"] == [{"role": "assistant", "content": "earlier"}, dict(asked)]


@pytest.mark.long
def test_a_row_that_is_too_large_is_a_failed_row_at_its_place(home: Path, upstream: Upstream) -> None:
    out = ask([{"text": "a"}, {"text": "b" * 51_000_000}, {"text": "c"}])
    assert [row["error"] is None for row in out] == [True, False, True]
    assert len(out[1]["text"]) == 51_000_000


@pytest.mark.long
def test_an_interrupted_map_is_opened_and_finished_in_the_same_process(
    home: Path, make_upstream: MakeUpstream
) -> None:
    upstream = make_upstream(slots=1, latency_ms=50)
    write_config(home, [upstream.base_url], max_concurrency=1, extra='[models]\nsmall = "m"\n')
    frame = pandas.DataFrame({"text": [f"row {number}" for number in range(40)]})
    over = threading.Event()

    def interrupt() -> None:
        wait_until(lambda: over.is_set() or len(upstream.requests()) >= 3)
        if not over.is_set():
            os.kill(os.getpid(), signal.SIGINT)

    watcher = threading.Thread(target=interrupt)
    watcher.start()
    with pytest.raises(KeyboardInterrupt):
        ask(frame, name="stopped")
    over.set()
    watcher.join()

    job = orch.open_job("stopped")
    assert not job.is_done
    assert len(job.wait(progress=False)) == 40
    assert ask(frame, name="stopped")["answer"].notna().all()
    assert len(upstream.requests()) <= 40 + 2, "beyond the rows in flight, nothing is asked twice"


def _map_in_a_child(numbers: range) -> list[object]:
    """Return the errors of the rows."""
    return [row["error"] for row in ask([{"text": f"child {number}"} for number in numbers], LOOP)]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_forked_children_of_a_caller_map_beside_each_other(home: Path, upstream: Upstream) -> None:
    assert ask([{"text": "parent"}], LOOP)[0]["error"] is None  # starts what a child must not share
    with multiprocessing.get_context("fork").Pool(2) as pool:
        answered = pool.map(_map_in_a_child, [range(5), range(5, 10)])

    assert answered == [[None] * 5] * 2
    assert ask([{"text": "parent again"}], LOOP)[0]["error"] is None
    assert len({one["marker"] for one in upstream.requests()}) == 12, "each row has its own prompt"
    assert len(upstream.requests()) == 12, "a child that leaves lets the other's rows in flight end"


@pytest.mark.long
def test_a_call_that_is_over_lets_rows_in_flight_of_another_end(home: Path) -> None:
    held = {"mine": threading.Event(), "other": threading.Event()}

    def answer(body: dict[str, Any]) -> None:
        held[body["messages"][-1]["content"]].wait()

    with gateway() as at, ThreadPoolExecutor() as pool:
        at.refuses = answer
        write_config(home, [at.url], extra='[models]\nsmall = "some-model"\n')
        mine = pool.submit(ask, [{"text": "mine"}], "{{ text }}", name="mine")
        wait_until(lambda: len(at.bodies) == 1)
        other = pool.submit(ask, [{"text": "other"}], "{{ text }}", name="other")
        wait_until(lambda: len(at.bodies) == 2)
        held["mine"].set()
        wait_until(lambda: orch.open_job("mine").is_done)
        held["other"].set()
        assert mine.result()[0]["error"] is None
        assert other.result()[0]["error"] is None

    assert len(at.bodies) == 2, "each row is asked once"
