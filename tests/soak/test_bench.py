"""What `orch bench` finds of engines whose best is known (`make soak`): places, a cliff, long and short rows."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeUpstream
from tests.support.cli import Orch, write_config

pytestmark = pytest.mark.soak
SHORT, LONG = 0.1, 0.9


def job(folder: Path, texts: list[str]) -> None:
    (folder / "texts").mkdir()
    for number, text in enumerate(texts):
        (folder / "texts" / f"{number:04}.txt").write_text(text)
    (folder / "job.yaml").write_text(
        "name: texts\ndocuments: [{path: texts}]\nmodels: {m: test-model}\n"
        'tasks: [{id: sort, model: m, prompt: "What is it?", max_tokens: 40}]\n'
    )


def benched(run_orch: Orch, *arguments: str) -> Any:
    ran = run_orch("bench", "job.yaml", "--minutes", "2", "--json", *arguments, timeout=400)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_256_places_of_half_a_second_are_found(
    run_orch: Orch, orch_home: Path, tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    job(tmp_path, [f"Letter {number}. " + "a line\n" * (number % 40) for number in range(600)])
    write_config(orch_home, [make_upstream(slots=256, latency_ms=500).base_url])
    found = benched(run_orch, "--modes", "continuous")
    assert max(one["rows_per_second"] for one in found["sweep"]) >= 0.97 * 512
    assert found["knee"]["rows_per_second"] >= 0.94 * 512
    assert found["knee"]["concurrency"] == pytest.approx(256, rel=0.1)
    assert found["knee"]["within"] <= 0.1


@pytest.mark.parametrize("most", [100, 200])
def test_an_engine_that_refuses_above_a_number_is_used_below_it(
    most: int, run_orch: Orch, orch_home: Path, tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    job(tmp_path, [f"Letter {number}." for number in range(300)])
    write_config(orch_home, [make_upstream(slots=512, latency_ms=300, max_queued=most).base_url])
    found = benched(run_orch, "--modes", "continuous")
    knee = found["knee"]
    assert 0.85 * most <= knee["concurrency"] <= most
    assert most < knee["falls_over_at"] <= 1.12 * most
    assert all(one["end"] == "fell_over" for one in found["sweep"] if one["concurrency"] > most)


def test_static_batches_wait_for_their_longest_row_as_computed(
    run_orch: Orch, orch_home: Path, tmp_path: Path, make_upstream: MakeUpstream
) -> None:
    """Rows of 0.1 and 0.9 s: a batch takes as long as its longest, places of their own take the mean.

    One of each four rows is slow, at a random place among them, so that every part of the job has the same mean.
    """
    dice = random.Random(11)
    slow = [place == one for one in (dice.randrange(4) for _ in range(240)) for place in range(4)]
    delay = f"[[fault:slow:{round(1000 * (LONG - SHORT))}]]"
    job(tmp_path, [f"Letter {number:04}. {delay if is_slow else ''}" for number, is_slow in enumerate(slow)])
    upstream = make_upstream(slots=16, latency_ms=1000 * SHORT)
    write_config(orch_home, [upstream.base_url])
    found = benched(run_orch, "--modes", "static,continuous", "--minutes", "5")
    places = found["knee"]["concurrency"]
    mean = sum(LONG if is_slow else SHORT for is_slow in slow) / len(slow)
    batches = [slow[at : at + places] for at in range(0, len(slow) - places + 1, places)]
    longest = sum(LONG if any(batch) else SHORT for batch in batches) / len(batches)
    continuous, static = (
        next(one["rows_per_second"] for one in found["modes"] if one["mode"] == mode)
        for mode in ("continuous", "static")
    )
    assert continuous / static == pytest.approx(longest / mean, rel=0.05)
