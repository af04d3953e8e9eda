"""`orch bench`: what an engine does with a job's own rows, kept over a kill, told in words, and used by plans."""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import Orch, write_config
from tests.support.fakevllm import fake_vllm, model_folder, starts
from tests.support.process import PATIENCE, Upstream, upstreams, wait_until

JOB = """\
name: letters
documents: [{path: letters}]
tasks:
  - {id: sort, model: small, prompt: "What is it?", max_tokens: 40}
  - {id: sum, model: small, prompt: "What does it say?", max_tokens: 40}
models: {small: test-model}
"""
QUICK = ("--minutes", "0.1")
SLOTS = 4
NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def orch(run_orch: Orch, orch_home: Path, tmp_path: Path) -> Orch:
    (tmp_path / "letters").mkdir()
    for number in range(30):
        (tmp_path / "letters" / f"{number}.txt").write_text(f"letter {number}\n" + "a line\n" * (1 + number % 5 * 10))
    (tmp_path / "job.yaml").write_text(JOB)
    return run_orch


@pytest.fixture
def engine(tmp_path: Path, orch_home: Path) -> Any:
    with upstreams(tmp_path) as make:
        upstream = make(slots=SLOTS, latency_ms=60, model=["test-model"])
        write_config(orch_home, [upstream.base_url], idle=None, cost_per_hour=2.5)
        yield upstream


def benched(orch: Orch, *arguments: str) -> Any:
    ran = orch("bench", "job.yaml", *QUICK, *arguments, "--json", timeout=120)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.long
def test_a_bench_is_killed_goes_on_and_is_used_by_plans(orch: Orch, engine: Upstream, tmp_path: Path) -> None:
    begun = orch.start("bench", "job.yaml", *QUICK)
    points = list[Path]()

    def some() -> bool:
        points[:] = (orch.home / "bench").glob("*/*.jsonl") if (orch.home / "bench").exists() else []
        found = [path for path in points if path.name != "rows.jsonl"]
        return bool(found) and found[0].read_bytes().count(b"\n") >= 2

    wait_until(some)
    os.kill(begun.pid, signal.SIGKILL)
    begun.wait(PATIENCE)
    file = next(path for path in points if path.name != "rows.jsonl")
    kept = file.read_bytes()
    kept = kept[: kept.rindex(b"\n") + 1]
    file.write_bytes(kept + b'{"name":"sweep/512","told":{"conc')  # what a kill may leave of a line

    found = benched(orch, "--vs", "openai:gpt-5-nano", "--apply", "--html", str(tmp_path / "bench.html"))
    assert file.read_bytes().startswith(kept), "what was measured is not measured again"
    # How exact it is, the soak tests measure; here the machine may be busy with anything.
    assert SLOTS // 2 <= found["knee"]["concurrency"] <= 8 * SLOTS
    assert [one["mode"] for one in found["modes"]] == ["continuous", "dynamic", "static"]
    assert found["rows"] == found["job_rows"] == 60
    at_knee = next(one for one in found["sweep"] if one["concurrency"] == found["knee"]["concurrency"])
    assert at_knee["end"] == "measured"
    assert at_knee["error_share"] == 0
    assert 0 < at_knee["kv_peak"] <= 1
    assert at_knee["preemptions"] == 0
    assert 0.03 < at_knee["p50"] <= at_knee["p99"]
    assert found["engine_version"] == "0.33.0"
    verdict = found["verdict"]
    assert verdict["documents"] == 30
    assert f"{verdict['rows_per_hour']:,.0f} rows an hour" in verdict["sentence"]
    assert float(verdict["per_1000_usd"]) == pytest.approx(2.5 / verdict["rows_per_hour"] * 1000, rel=1e-3)
    assert verdict["hosted"] == "openai:gpt-5-nano"
    page = (tmp_path / "bench.html").read_text()
    assert page.count("<svg") == 3
    assert verdict["sentence"].split(";")[0] in page

    asked = len(engine.log.read_text().splitlines())
    assert "█" in orch("bench", "job.yaml", *QUICK, timeout=60).stdout
    assert len(engine.log.read_text().splitlines()) == asked, "every point was known"

    planned = json.loads(orch("plan", "job.yaml", "--json").stdout)
    (route,) = planned["routes"]
    assert "from a bench" in route["reason"]


def test_what_cannot_be_benched_is_said(orch: Orch, engine: Upstream, orch_home: Path) -> None:
    for arguments, told in (
        (("--backend", "nobody"), "there is no such backend"),
        (("--modes", "quick"), "'quick' is not one of static, dynamic, continuous"),
        (("--tune", "quick"), "are not started by orch"),
        (("--vs", "gpt"), "write BACKEND:MODEL or PROVIDER:MODEL"),
        (("--vs", "local:x"), "is priced by the hour"),
        (("--vs", "openai:no-such-model"), "no price is known"),
    ):
        ran = orch("bench", "job.yaml", *QUICK, *arguments)
        assert (ran.returncode, told in ran.stderr.replace("\n  ", " ")) == (2, True), ran.stderr
    assert not engine.log.read_text(), "nothing was asked"
    sync = '[backends.api]\nkind = "sync"\nbase_url = "http://127.0.0.1:9/v1"\napi_key_env = "K"\n'
    write_config(orch_home, [engine.base_url], extra=sync)
    ran = orch("bench", "job.yaml", "--backend", "api")
    assert ran.returncode == 2
    assert "is up to its provider" in ran.stderr.replace("\n  ", " ")


def test_why_an_engine_refuses_the_rows_is_said_in_its_words(orch: Orch, orch_home: Path, tmp_path: Path) -> None:
    with upstreams(tmp_path) as make:
        write_config(orch_home, [make(model=["test-model"], max_model_len=16).base_url])
        ran = orch("bench", "job.yaml", "--minutes", "1", "--json", timeout=240)
    assert "attempts failed: status 400: This model's maximum context length is 16 tokens" in ran.stdout + ran.stderr


def fleet(home: Path, tmp_path: Path) -> None:
    """A home whose engines are started for it, each with four places for rows unless told otherwise."""
    python = fake_vllm(tmp_path, "--latency-ms", "80")
    options = '["--max-num-seqs", "4"]'
    (home / "orch.toml").write_text(
        f'[backends.gpu]\nkind = "engines"\nlocation = "local"\ncost_per_hour = 2.5\nvllm_python = "{python}"\n'
        f'[backends.gpu.models]\ntest-model = {{model = "{model_folder(tmp_path / "m")}", options = {options}}}\n'
    )


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="engines and their leash run on Linux")
def test_an_engine_is_started_for_a_bench_and_stopped(orch: Orch, orch_home: Path, tmp_path: Path) -> None:
    fleet(orch_home, tmp_path)
    begun = orch.start("bench", "job.yaml", *QUICK, env=NO_GPU)
    wait_until(lambda: any(path.name != "rows.jsonl" for path in orch.home.glob("bench/*/*.jsonl")))
    os.kill(begun.pid, signal.SIGINT)
    assert begun.wait(PATIENCE) == 130
    assert "the same command continues with the next one" in orch.output(begun)
    ran = orch("bench", "job.yaml", *QUICK, "--modes", "continuous", "--json", "--apply", env=NO_GPU)
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert len(starts(tmp_path)) == 2
    assert not any(Path(f"/proc/{one['pid']}").exists() for one in starts(tmp_path))
    assert found["rates"]["start_seconds"] > 0
    assert found["verdict"]["overhead_seconds"] == pytest.approx(600 + found["rates"]["start_seconds"], abs=0.2)
    assert found["notes"][0].startswith("VRAM is not known: this machine has no NVIDIA driver")
    assert found["applied"]
    here = datetime.now().astimezone()
    hours = f'hours = "{here + timedelta(hours=2):%H:%M}-{here + timedelta(hours=3):%H:%M}"'
    settings = orch_home / "orch.toml"
    settings.write_text(settings.read_text().replace("cost_per_hour", f"{hours}\ncost_per_hour"))
    refused = orch("bench", "job.yaml", *QUICK, "--new", env=NO_GPU)
    assert refused.returncode == 3
    assert "outside the hours of gpu" in refused.stderr
    assert len(starts(tmp_path)) == 2


@pytest.mark.soak
@pytest.mark.skipif(sys.platform != "linux", reason="engines and their leash run on Linux")
def test_settings_are_tried_until_one_has_won_three_times(orch: Orch, orch_home: Path, tmp_path: Path) -> None:
    fleet(orch_home, tmp_path)
    arguments = ("bench", "job.yaml", *QUICK, "--modes", "continuous", "--tune", "quick", "--json")
    begun = orch.start(*arguments, env=NO_GPU)
    wait_until(lambda: len(starts(tmp_path)) >= 4)
    os.kill(begun.pid, signal.SIGKILL)
    begun.wait(PATIENCE)
    wait_until(lambda: not any(Path(f"/proc/{one['pid']}").exists() for one in starts(tmp_path)))
    ran = orch(*arguments, env=NO_GPU, timeout=600)
    assert ran.returncode == 0, ran.stderr
    tuned = json.loads(ran.stdout)["tune"]
    assert tuned["winner"][0] == "--max-num-seqs"
    assert tuned["rows_per_second"] > 1.5 * tuned["default_rows_per_second"]
    won = [one for one in tuned["points"] if one["options"] == tuned["winner"]]
    assert len(won) >= 3
    tried = [(one["round"], tuple(one["options"])) for one in tuned["points"]]
    assert len(set(tried)) == len(tried)
    # The bench itself starts one each time, and so does what was under way at the kill.
    assert len(starts(tmp_path)) <= len(tried) + 3
