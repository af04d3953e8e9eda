"""Answers of other jobs, before an emulated provider: nothing is sent, and nothing is paid."""

from __future__ import annotations

from pathlib import Path

from tests.emulator.driving import chat_line
from tests.support.hostedjob import MODEL, Desk


def job_file(desk: Desk, name: str, alias: str) -> Path:
    documents = desk.folder / "documents"
    documents.mkdir(exist_ok=True)
    for number in range(3):
        (documents / f"{number}.txt").write_text(f"Letter {number}.")
    path = desk.folder / f"{name}.yaml"
    path.write_text(
        f"name: {name}\ndocuments: documents\nmodels: {{{alias}: {MODEL}}}\n"
        f"tasks: [{{id: {name}, prompt: Who wrote this, model: {alias}}}]\n"
    )
    return path


def test_another_jobs_answers_are_taken_and_nothing_is_sent(desk: Desk) -> None:
    first = desk.run(job_file(desk, "letters", "small"))
    second = desk.run(job_file(desk, "mail", "cheap"))
    assert set(desk.ends(second).values()) == {"succeeded"}
    assert (len(desk.batches()), desk.cost(second)) == (1, 0)
    rows, answers = desk.rows(second).values(), desk.rows(first).values()
    assert [row["output"] for row in rows] == [row["output"] for row in answers]
    assert {row["provenance"]["carried_from"] for row in rows} == {first.id}


def test_a_batch_file_takes_answers_of_another_batch_file(desk: Desk) -> None:
    lines = [
        chat_line(f"r{number}", f"what of {number}?", MODEL, max_tokens=50, temperature=0) for number in range(3)
    ]
    desk.run(lines)
    second = desk.run([{**line, "custom_id": f"again-{line['custom_id']}"} for line in lines])
    assert desk.ends(second) == {f"again-r{number}": "succeeded" for number in range(3)}
    assert (len(desk.batches()), desk.cost(second)) == (1, 0)
