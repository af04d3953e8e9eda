"""Every public name as a caller writes it: type checkers read this file, nothing runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, TypedDict, assert_type

import pandas as pd
import polars as pl
import pyarrow as pa
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

import orchestrator as orch
from orchestrator import (
    AnsweredRow,
    AnswerRow,
    Answers,
    BackendError,
    DocumentDraft,
    Documents,
    FailedRow,
    FrameDraft,
    InputError,
    JobFailed,
    JobHandle,
    OrchError,
    PlanReport,
    RefusedError,
    RequestRefused,
    RowError,
    StorageError,
    UsageError,
    __version__,
    batch,
    documents,
    frame,
    open_job,
    requests,
)


def use(*values: object) -> None:
    """Take values of any type."""


class Term(BaseModel):
    end_date: date | None
    renewable: bool


class Kind(Enum):
    A = "a"


@dataclass
class Plain:
    a: int


class Typed(TypedDict):
    a: int


df = pd.DataFrame({"text": ["a"]})
out: pd.DataFrame = orch.map(df, "{{ text }}", schema=Term, model="small", deadline="06:00", budget=12)
assert_type(out, pd.DataFrame)
out2: pl.DataFrame = orch.map(pl.DataFrame({"text": ["a"]}), "{{ text }}", schema=Term, max_tokens=3)
rows: list[dict[str, Any]] = orch.map([{"text": "a"}], "{{ text }}", schema=Plain)
table = orch.map(pa.table({"text": ["a"]}), "{{ text }}", schema=Typed)
orch.map([{"text": "a"}], "{{ text }}", schema=Kind)
orch.map([{"text": "a"}], "{{ text }}", schema=list[Term])
orch.map([{"text": "a"}], "{{ text }}", schema={"type": "object"})
orch.map([{"text": "a"}], "{{ text }}", schema=Term | None)

source: Documents = documents("in", exclude=["a"])
draft: DocumentDraft[Term] = source.map("When?", schema=Term)
plan: PlanReport = draft.plan(deadline=timedelta(hours=2), budget=Decimal(1), backend="x")
assert_type(plan.holds, bool)
assert_type(plan.chance, float | None)
assert_type(plan.cost, Decimal)
for route in plan.routes:
    use(route.backend, route.rows)
job: JobHandle[Term] = draft.submit(deadline=datetime.now().astimezone(), daemon=False)
assert_type(job.id.upper(), str)
answers: Answers[Term] = job.wait()
for row in job.rows(partial=True):
    if row.error is None:
        assert_type(row.answer, Term)
        use(row.answer.end_date, row.cost, row.route, row.document)
        if row.answer.end_date is not None:
            use(row.answer.end_date.isoformat())
    else:
        assert_type(row.error, RowError)
        use(row.error.code, row.error.message)
for each in answers:
    if isinstance(each, AnsweredRow):
        use(each.answer)
    if isinstance(each, FailedRow):
        use(each.error.code)
first: AnswerRow[Term] = answers[0]
some: Answers[Term] = answers[:2]
seq: Sequence[Any] = answers
use(answers.cost, answers.failed)
answers.raise_failed()
opened: JobHandle[Term] = open_job("terms", schema=Term)
untyped = open_job("terms")
for one in untyped.rows():
    use(one.answer, one.custom_id, one.state, one.model)
it: Iterator[Any] = opened.rows()
use(opened.progress.done, opened.progress.counts.total, opened.is_done, opened.reused, opened.runner)
outlook = opened.outlook
if outlook is not None:
    use(outlook.chance, outlook.expected, outlook.reason)
opened.cancel()
question: FrameDraft[Term] = frame(df, "{{ text }}", schema=Term)
question.plan()
question.run(raise_on_error=True)
question2 = frame(df, "{{ text }}")
others = [frame(df, "{{ text }}", schema=Plain), frame(df, "{{ text }}", schema=list[Term])]
more = [frame(df, "{{ text }}", schema=Term | None), source.map("When?", schema=Typed), open_job("a", schema=Kind)]


async def follow() -> Answers[Term]:
    async for row in opened:
        if row.error is None:
            assert_type(row.answer, Term)
    return await opened


asyncio.run(follow())
params = [{"model": "small", "messages": [{"role": "user", "content": "a"}]}]
done = requests(params, deadline="2h")
assert_type(done, list[ChatCompletion | RowError])
for answer in done:
    if isinstance(answer, RowError):
        use(answer.code)
    else:
        use(answer.choices[0].message.content)
other = requests(params, endpoint="/v1/embeddings", name="vectors")
client = OpenAI(base_url="x", api_key="y")
got = batch(client.chat.completions.create, params, deadline="2h", budget=1)
got2 = batch(AsyncOpenAI(base_url="x", api_key="y").chat.completions.create, params)
try:
    pass
except RequestRefused as refused:
    use(refused.job_id, refused.message)
except (BackendError, InputError, JobFailed, RefusedError, StorageError, UsageError) as error:
    use(error.message, error.hint)
except OrchError as error:
    use(error)
use(__version__, orch.__version__, orch.documents("a"), orch.map)
