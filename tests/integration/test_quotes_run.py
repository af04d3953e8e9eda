"""Jobs whose answers quote their documents, before an emulated provider: found, refused, re-asked, carried over."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.clock import now
from orchestrator.core.model import Job
from orchestrator.reports.night_formats import blocks
from orchestrator.reports.night_reader import job_report
from orchestrator.reports.requests_and_answers import exchanges
from tests.support.hostedjob import Desk
from tests.support.stored import over

Json = dict[str, Any]
QUOTE = "Party 3 pays 21 EUR on day 3"


def job_file(desk: Desk, quote: str = QUOTE, **task: Any) -> Path:
    schema = {
        "type": "object",
        "properties": {"quote": {"type": "string", "const": quote, "x-quote": True}},
        "required": ["quote"],
        "additionalProperties": False,
    }
    asked = {"id": "t", "prompt": "Who pays?", "model": "small", "max_tokens": 60, "schema": schema, **task}
    spec = {"name": "job", "documents": "documents", "tasks": [asked], "models": {"small": "m"}}
    path = desk.folder / "job.yaml"
    path.write_text(json.dumps(spec), encoding="utf-8")  # JSON is YAML
    return path


def documents(desk: Desk, **texts: str) -> None:
    (desk.folder / "documents").mkdir(exist_ok=True)
    for name, text in texts.items():
        path = desk.folder / "documents" / f"{name}.txt"
        path.write_text(text, encoding="utf-8")


def by_document(desk: Desk, job: Job) -> dict[str, Json]:
    return {row["document"].removeprefix("documents/")[:-4]: row for row in desk.rows(job).values()}


def requests(desk: Desk, job: Job) -> str:
    return desk.home.requests(job.id).read_text(encoding="utf-8")


def test_quotes_are_found_where_they_stand_or_fail_their_check(desk: Desk) -> None:
    text = f"It was agreed: {QUOTE}.\n\nOnce more: Party 3  pays\n21 EUR on day\u00a03."
    documents(desk, good=text, bad="Party 3 pays 210 EUR on day 3.")
    job = desk.run(job_file(desk))
    rows = by_document(desk, job)
    assert (rows["good"]["status"], rows["bad"]["status"]) == ("succeeded", "failed")
    [quote] = rows["good"]["quotes"]
    assert (quote["path"], quote["status"]) == ("quote", "found")
    found = [text[place["start"] : place["end"]] for place in quote["places"]]
    assert [" ".join(one.split()) for one in found] == [QUOTE, QUOTE]
    assert rows["bad"]["error"]["code"] == "quote_not_found"
    assert rows["bad"]["error"]["message"] == f"quote: {QUOTE!r} is not in the document, to the word and digit"
    assert rows["bad"]["quotes"] == [{"path": "quote", "status": "not_found"}]
    assert "x-quote" not in requests(desk, job)

    [line] = over(desk.store, desk.store.jobs.get(job.id))
    report = job_report(desk.store, desk.home, line, now())
    assert report.to_json()["quotes"] == {"found": 1, "not_found": 1, "too_short": 0, "unverifiable": 0}
    assert "2 quotes: 1 proven, 1 not in the document" in blocks(report)[0].notes

    # The next night carries both, with their places, and still knows where the text stands.
    again = desk.run(job_file(desk))
    carried = by_document(desk, again)
    assert {name: row["quotes"] for name, row in carried.items()} == {
        name: row["quotes"] for name, row in rows.items()
    }
    [exchange] = exchanges(desk.store, desk.home, again, "documents/good.txt", None)
    assert exchange.text_at is not None
    assert exchange.messages[0]["content"][exchange.text_at.start : exchange.text_at.end] == text


def test_a_quote_that_is_not_there_is_asked_again_with_what_was_wrong(desk: Desk) -> None:
    documents(desk, bad="Party 3 pays 210 EUR on day 3.")
    job = desk.run(job_file(desk, retries=1))
    assert by_document(desk, job)["bad"]["error"]["code"] == "quote_not_found"
    told = [json.loads(line)["body"]["messages"] for line in requests(desk, job).splitlines()]
    assert [len(messages) for messages in told] == [1, 3]
    assert f"{QUOTE!r} is not in the document" in told[1][-1]["content"]
    assert any("1 is re-asked: 1 quote_not_found" in text for text in desk.events(job, "collected"))


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "prompt",
    [
        "In {{ text }}, who pays?",
        "{{ text | upper }}",
        "{{ name }}: {{ text | truncate(600) }}",
        "{{ text }}{{ text }}",
    ],
)
def test_only_the_document_counts_and_not_the_question(desk: Desk, prompt: str) -> None:
    text = f"A {QUOTE.upper() if 'upper' in prompt else QUOTE}. " + "And more of it. " * 20
    documents(desk, good=text, bad="Nothing. " * 20)
    # The question has the quote as well, which proves nothing.
    asked = f"{QUOTE} is what to look for, {QUOTE.upper()} too. {prompt} Is it {QUOTE}?"
    job = desk.run(job_file(desk, QUOTE.upper() if "upper" in prompt else QUOTE, prompt=asked))
    rows = by_document(desk, job)
    assert (rows["good"]["status"], rows["bad"]["status"]) == ("succeeded", "failed")
    assert [place["start"] for place in rows["good"]["quotes"][0]["places"]] == [2]


@pytest.mark.long
def test_parts_and_the_answer_of_all_have_their_places(desk: Desk) -> None:
    clauses = [f"Clause {n}: {QUOTE}. Clause {n} has more words to it. " * 20 for n in range(4)]
    documents(desk, long="\n\n".join(clauses))
    long = {"part_tokens": 400, "overlap_tokens": 0, "reduce": "Which of these?"}
    rows = sorted(desk.rows(desk.run(job_file(desk, long=long))).values(), key=lambda row: row["part"] or 0)
    assert {row["status"] for row in rows} == {"succeeded"}
    whole, *parts = rows
    assert len(parts) > 2
    assert all({place["part"] for place in row["quotes"][0]["places"]} == {row["part"]} for row in parts)
    assert whole["quotes"][0]["places"] == [place for row in parts for place in row["quotes"][0]["places"]]


def test_named_quotes_need_no_mark(desk: Desk) -> None:
    documents(desk, good=f"{QUOTE}.")
    schema = {"type": "object", "properties": {"quotes": {"type": "array", "items": {"const": QUOTE}}},
              "required": ["quotes"], "additionalProperties": False}  # fmt: skip
    job = desk.run(job_file(desk, schema=schema, check="quotes"))
    assert by_document(desk, job)["good"]["quotes"][0]["path"] == "quotes/0"


def test_a_mark_is_part_of_what_was_asked(desk: Desk) -> None:
    """An answer that nobody checked is not taken for one whose quotes were looked for."""
    documents(desk, bad="Nothing of it.")
    schema = {"type": "object", "properties": {"quote": {"const": QUOTE}}, "required": ["quote"],
              "additionalProperties": False}  # fmt: skip
    assert by_document(desk, desk.run(job_file(desk, schema=schema)))["bad"]["status"] == "succeeded"
    assert by_document(desk, desk.run(job_file(desk)))["bad"]["status"] == "failed"
