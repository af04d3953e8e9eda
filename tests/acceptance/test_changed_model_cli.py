"""An alias that stands for another model: it is told, and asked again only where that is wanted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import MakeUpstream
from tests.support.cli import Orch, write_config
from tests.support.process import Upstream

JOB = """\
name: letters
documents: {path: documents}
tasks:
  - {id: gist, model: small, prompt: Tell the gist., max_tokens: 20}
"""


@pytest.fixture
def upstream(make_upstream: MakeUpstream, tmp_path: Path) -> Upstream:
    (tmp_path / "documents").mkdir()
    for name in ("a", "b"):
        (tmp_path / "documents" / f"{name}.txt").write_text(f"Letter {name}.")
    (tmp_path / "documents" / "c.zzz").write_text("?")
    return make_upstream(model=["first", "second"], log_bodies=True)


def asked(upstream: Upstream) -> Counter[str]:
    """The number of requests by model."""
    return Counter(json.loads(one["body"])["model"] for one in upstream.requests())


@pytest.mark.long
def test_another_model_behind_an_alias_is_told_and_asked_where_it_is_wanted(
    run_orch: Orch, orch_home: Path, tmp_path: Path, upstream: Upstream
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB)

    def means(model: str) -> None:
        write_config(orch_home, [upstream.base_url], extra=f'[models]\nsmall = "{model}"\n')

    def ran(*options: str) -> str:
        done = run_orch("run", str(job), *options)
        assert done.returncode == 0, done.stderr
        return " ".join(done.stderr.split())

    def planned() -> Any:
        return json.loads(run_orch("plan", str(job), "--json").stdout)

    def whys() -> set[str]:
        lines = run_orch("fetch", "letters").stdout.splitlines()
        return {json.loads(line)["provenance"]["why"] for line in lines}

    means("first")
    assert "--reask" not in ran()
    means("second")
    told = ran()
    assert "nothing changed" in told
    assert "2 answers are from first: `--reask` asks second" in told
    assert (planned()["requests"], planned()["to_send"]) == (2, 0)
    said = run_orch("plan", str(job)).stdout
    assert "nothing to send: 2 requests of 2 documents, 2 unchanged" in said
    assert (said.count("`--reask` asks second"), said.count("1 of other kinds")) == (1, 1)
    assert planned()["of_other_models"] == [{"answered_by": "first", "asks": "second", "requests": 2}]
    assert asked(upstream) == {"first": 2}

    # A document that is new meanwhile is asked as ever; only what stands from the other model is told.
    (tmp_path / "documents" / "c.txt").write_text("Letter c.")
    changed = "requests: 3 requests of 3 documents, 2 unchanged since an earlier run, 1 "
    assert changed in run_orch("plan", str(job)).stdout
    assert "2 answers are from first" in ran()
    assert asked(upstream) == {"first": 2, "second": 1}
    ran("--reask")
    assert asked(upstream) == {"first": 2, "second": 3}
    assert whys() == {"model changed", "unchanged"}
    assert "--reask" not in ran()

    # The job file can ask for it every night; an answer that was paid before is found again.
    means("first")
    job.write_text(JOB + "reask: model_changed\n")
    assert (planned()["of_other_models"], planned()["to_send"]) == ([], 1)
    ran()
    assert asked(upstream) == {"first": 3, "second": 3}


@pytest.mark.thinned(2)
@pytest.mark.parametrize("taken", ["from a name before", "from another job file"])
def test_an_answer_that_was_taken_over_stays_too(
    run_orch: Orch, orch_home: Path, tmp_path: Path, upstream: Upstream, taken: str
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    write_config(orch_home, [upstream.base_url], extra='[models]\nsmall = "first"\n')
    assert run_orch("run", str(job), "-q").returncode == 0
    if taken == "from a name before":
        (tmp_path / "documents" / "b.txt").rename(tmp_path / "documents" / "renamed.txt")
    else:
        job = tmp_path / "other.yaml"
        job.write_text(JOB.replace("letters", "others"))
    assert run_orch("run", str(job), "-q").returncode == 0
    assert asked(upstream) == {"first": 2}
    write_config(orch_home, [upstream.base_url], extra='[models]\nsmall = "second"\n')
    for _ in range(2):
        done = run_orch("run", str(job))
        assert (done.returncode, asked(upstream)) == (0, {"first": 2}), done.stderr
        assert "2 answers are from first: `--reask` asks second" in " ".join(done.stderr.split())
    assert run_orch("run", str(job), "--reask").returncode == 0
    assert asked(upstream) == {"first": 2, "second": 2}


def test_a_stronger_model_of_a_list_is_no_other_model(
    run_orch: Orch, orch_home: Path, tmp_path: Path, upstream: Upstream
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB + "models: {small: [first, second]}\nreask: model_changed\n")
    write_config(orch_home, [upstream.base_url])
    assert run_orch("run", str(job), "-q").returncode == 0
    job.write_text(JOB + "models: {small: [second, first]}\nreask: model_changed\n")
    done = run_orch("run", str(job))
    assert (done.returncode, "--reask" in done.stderr, asked(upstream)) == (0, False, {"first": 2}), done.stderr
