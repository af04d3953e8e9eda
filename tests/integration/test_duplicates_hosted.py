"""The same request more than once in a job, before an emulated provider: sent and billed once, told for each row."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.core.model import RequestState
from orchestrator.pipeline.finish.finisher import merged_lines
from tests.emulator.driving import chat_line
from tests.support.hostedjob import MODEL, Desk, script

Json = dict[str, Any]


def lines(texts: str) -> list[Json]:
    """r0, r1, ... with a letter each; the same letter is the same request."""
    return [
        chat_line(f"r{number}", f"what of {text}?", MODEL, max_tokens=50, temperature=0)
        for number, text in enumerate(texts)
    ]


def test_each_request_is_billed_once_and_every_row_has_its_answer(desk: Desk) -> None:
    job = desk.run(lines("abaacab"))
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert desk.billed() == {"r0": 1, "r1": 1, "r4": 1}
    rows = desk.rows(job)
    assert len({row["output"] for row in rows.values()}) == 3
    for name, row in rows.items():
        first = rows[f"r{'abaacab'.index('abaacab'[int(name[1:])])}"]
        assert row["output"] == first["output"]
        assert row["provenance"]["batch_id"] == first["provenance"]["batch_id"]
    taken = {name for name, row in rows.items() if row["provenance"]["carried_from"] == job.id}
    assert taken == {"r2", "r3", "r5", "r6"}
    assert {rows[name]["provenance"]["cost_usd"] for name in taken} == {"0"}
    detail = desk.detail(job)
    assert (detail["requests"]["succeeded"], detail["shards"][0]["rows"]) == (7, 3)
    ready = [json.loads(line) for line in merged_lines(desk.store, desk.home, job, style="batch")]
    assert [line["custom_id"] for line in ready] == [f"r{number}" for number in range(7)]


def test_a_request_whose_batch_is_lost_is_sent_again_once(desk: Desk) -> None:
    script(desk, "vanishes", seconds=300.0)
    job = desk.run(lines("aab"))
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert [shard["rows"] for shard in desk.detail(job)["shards"]] == [2, 2]
    assert desk.billed()["r0"] <= 2
    assert "r1" not in desk.billed()


def test_a_job_that_is_cancelled_ends_its_twins_with_what_was_sent(desk: Desk) -> None:
    job = desk.submit(lines("aab"))
    desk.settle(job)
    desk.cancel(job)
    desk.settle(job)
    # The batch may still come to its end: until it does, nobody knows the end of any of them.
    assert desk.detail(job)["requests"]["pending"] == 3
    desk.finish(job)
    assert desk.ends(job) == dict.fromkeys(("r0", "r1", "r2"), "cancelled: cancelled")


def test_rows_that_failed_are_tried_again_once(desk: Desk) -> None:
    texts = "what? [[fault:status:400:1]]"
    job = desk.run([chat_line(f"r{number}", texts, MODEL, max_tokens=50, seed=1) for number in range(3)])
    assert desk.ends(job) == dict.fromkeys(("r0", "r1", "r2"), "failed: invalid_value")
    assert desk.store.rows.retry(job.id, [RequestState.FAILED]) == 3
    desk.finish(job)
    assert set(desk.ends(job).values()) == {"succeeded"}
    assert [shard["rows"] for shard in desk.detail(job)["shards"]] == [1, 1]
    assert set(desk.billed()) == {"r0"}
