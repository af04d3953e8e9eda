"""A job with known answers: how its own compare with them is told, and too few right ones keep its output back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.errors import InputError
from orchestrator.core.model import Job
from orchestrator.settings.job_file import load
from orchestrator.store.quality import Quality
from tests.support.hostedjob import Desk

SCHEMA = {
    "type": "object",
    "properties": {"kind": {"const": "Letter"}, "pages": {"const": 3}},
    "required": ["kind", "pages"],
}


def job_file(desk: Desk, gold: list[dict[str, Any]], **spec: Any) -> Path:
    folder = desk.folder / "documents"
    folder.mkdir(exist_ok=True)
    for name, fault in (("a", ""), ("b", ""), ("c", " [[fault:length]]")):
        (folder / f"{name}.txt").write_text(f"Letter {name}.{fault}", encoding="utf-8")
    (desk.folder / "gold.jsonl").write_text("".join(json.dumps(line) + "\n" for line in gold), encoding="utf-8")
    path = desk.folder / "job.yaml"
    task = {"id": "t", "prompt": "What of it?", "model": "m", "max_tokens": 60, "schema": SCHEMA}
    # JSON is YAML.
    given = {
        "name": "night", "documents": "documents", "tasks": [task], "models": {"m": "m"}, "gold": "gold.jsonl",
        "output": {"path": "answers.jsonl"}, **spec,
    }  # fmt: skip
    path.write_text(json.dumps(given), encoding="utf-8")
    return path


def known(name: str, **fields: Any) -> dict[str, Any]:
    return {"document": f"documents/{name}.txt", "task": "t", "expect": fields}


def delivered(desk: Desk) -> bool:
    return (desk.folder / "answers.jsonl").exists()


def quality(desk: Desk, job: Job) -> Quality | None:
    return desk.store.quality.of(job.id)


def test_enough_right_answers_let_the_output_go_out(desk: Desk) -> None:
    desk.backend()
    gold = [known("a", kind="letter", pages=3.0), known("b", kind="Letter", pages=4), known("gone", kind="x")]
    job = desk.run(job_file(desk, gold, quality_threshold=0.75))
    assert delivered(desk)
    assert quality(desk, job) == Quality(3, 4, 2, 1, None)
    assert desk.events(job, "quality") == [
        "75.0%: 3 of 4 known fields right, in 2 rows; wrong in documents/b.txt (t); "
        "1 known answers have nothing to be compared with"
    ]


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("gold", "found", "why"),
    [
        (
            [known("a", kind="Letter"), known("c", kind="Letter")],
            (1, 2, 2, 0),
            "50.0% is below the threshold of 75.0%",
        ),
        ([known("gone", kind="Letter")], (0, 0, 0, 1), "none of 1 known answers could be compared"),
    ],
    ids=["too few", "none"],
)
def test_too_few_keep_it_back_and_the_rows_can_be_fetched(
    desk: Desk, gold: list[dict[str, Any]], found: tuple[int, int, int, int], why: str
) -> None:
    desk.backend()
    job = desk.run(job_file(desk, gold, quality_threshold=0.75))
    assert not delivered(desk)
    assert quality(desk, job) == Quality(*found, why)
    assert desk.events(job, "quality")[0].endswith(f"; not delivered: {why}")
    assert desk.store.jobs.get(job.id).output_path == str(desk.home.merged(job.id, "jsonl"))
    assert len(desk.rows(job)) == 3


def test_without_a_threshold_it_is_told_and_nothing_is_kept_back(desk: Desk) -> None:
    desk.backend()
    job = desk.run(job_file(desk, [known("a", kind="memo")]))
    assert delivered(desk)
    assert quality(desk, job) == Quality(0, 1, 1, 0, None)


def test_a_job_that_was_cancelled_says_nothing_of_rows_that_were_not_asked(desk: Desk) -> None:
    desk.backend()
    job = desk.submit(job_file(desk, [known("a", kind="Letter")]))
    desk.cancel(job)
    desk.finish(job)
    assert quality(desk, job) == Quality(0, 0, 0, 1, None)


@pytest.mark.thinned(2)
@pytest.mark.parametrize("threshold", [0.5, None])
def test_a_file_that_is_gone_at_the_end_keeps_no_job_from_it(desk: Desk, threshold: float | None) -> None:
    """Where answers have to be good enough they are kept back, until somebody has put the file back."""
    desk.backend()
    more = {} if threshold is None else {"quality_threshold": threshold}
    job = desk.submit(job_file(desk, [known("a", kind="Letter")], **more))
    desk.settle(job)
    gold = desk.folder / "gold.jsonl"
    content = gold.read_bytes()
    gold.unlink()
    desk.finish(job)
    why = f"cannot read the known answers: {gold}: gold: there is no such file"
    assert quality(desk, job) == Quality(0, 0, 0, 0, why if threshold else None)
    assert desk.events(job, "quality") == [why]
    assert delivered(desk) is (threshold is None)
    gold.write_bytes(content)
    desk.store.jobs.reopen(job.id)
    desk.finish(job)
    assert quality(desk, job) == Quality(1, 1, 1, 0, None)
    assert delivered(desk)


def test_a_mistake_in_it_is_told_before_anything_is_sent(desk: Desk) -> None:
    path = job_file(desk, [{"document": "a", "task": "other", "expect": {"x": 1}}])
    with pytest.raises(InputError) as raised:
        load(path)
    assert str(raised.value) == (
        f"{desk.folder / 'gold.jsonl'}:1: task: the job has no task 'other' that answers in text\n"
        "  hint: its tasks: t"
    )


def test_a_threshold_needs_known_answers(desk: Desk) -> None:
    path = job_file(desk, [known("a", kind="Letter")], quality_threshold=0.9)
    path.write_text(path.read_text().replace('"gold": "gold.jsonl", ', ""), encoding="utf-8")
    with pytest.raises(InputError, match="quality_threshold: needs `gold`, the file of known answers"):
        load(path)
