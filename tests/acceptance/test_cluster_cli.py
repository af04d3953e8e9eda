"""`orch cluster` and `orch doctor` with a cluster that the tests play (`tests/support/fakeray.py`)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.support.cli import Orch
from tests.support.fakeray import arrange, engines_started, fake_ray

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="engines run on Linux")

MODEL = '[backends.{name}.models.m]\nmodel = "/m"\ncost_per_hour = 4\nengines = "0..3"\n'


def settings(home: Path, python: Path | str, *names: str) -> None:
    lines = [f'[backends.{name}]\nkind = "ray"\nray_python = "{python}"\n{MODEL.format(name=name)}' for name in names]
    (home / "orch.toml").write_text("\n".join(lines))


def test_the_cluster_is_shown(run_orch: Orch, orch_home: Path, tmp_path: Path) -> None:
    settings(orch_home, fake_ray(tmp_path / "ray"), "c")
    done = run_orch("cluster", "status", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["backend"], told["ray"], len(told["nodes"])) == ("c", "9.9.9", 2)
    assert told["nodes"][0] == {
        "id": "n0", "address": "10.0.0.0", "alive": True, "cpus": 8.0, "gpus": 1.0, "memory_bytes": 2**30,
    }  # fmt: skip
    assert (told["free"], told["node_process"]) == ({"cpus": 8.0, "gpus": 1.0}, None)
    assert "c: Ray 9.9.9, 2 nodes, 1 GPUs and 8 CPUs free\n" in run_orch("cluster", "status").stdout
    assert json.loads(run_orch("cluster", "down", "--json").stdout) == {"ended": False}

    arrange(tmp_path / "ray", reachable=False)
    done = run_orch("cluster", "status")
    assert (done.returncode, "there is no Ray cluster at auto" in done.stderr) == (4, True)
    told = json.loads(run_orch("doctor", "--json").stdout)
    cluster = next(one for one in told if one["check"] == "cluster of c")
    assert (cluster["ok"], cluster["found"]) == (False, "there is no Ray cluster at auto")


def test_what_cannot_be_shown(run_orch: Orch, orch_home: Path, tmp_path: Path) -> None:
    settings(orch_home, sys.executable, "c")
    done = run_orch("cluster", "up")
    assert done.returncode == 4
    assert "has no Ray" in done.stderr
    assert "pip install ray" in done.stderr
    settings(orch_home, sys.executable, "c", "d")
    done = run_orch("cluster", "status")
    assert (done.returncode, "name one with --backend: c, d" in done.stderr) == (2, True)
    assert run_orch("cluster", "status", "--backend", "e").returncode == 2
    (orch_home / "orch.toml").write_text("")
    done = run_orch("cluster", "status")
    assert (done.returncode, "there is no backend of kind `ray`" in done.stderr) == (2, True)


@pytest.mark.long
def test_a_job_brings_engines_and_pays_for_their_leases(run_orch: Orch, orch_home: Path, tmp_path: Path) -> None:
    python = fake_ray(tmp_path / "ray", "--latency-ms", "5")
    (orch_home / "orch.toml").write_text(
        f'[backends.c]\nkind = "ray"\nray_python = "{python}"\nlocation = "local"\nrows_per_second = 100\n'
        '[backends.c.models.small]\nmodel = "/s"\ncost_per_hour = 3.6\nengines = "0..2"\ngpus = 3\n'
        '[backends.c.models.free]\nmodel = "/f"\ncost_per_hour = 0\n'
    )
    (orch_home / "docs").mkdir()
    for number in range(4):
        (orch_home / "docs" / f"{number}.txt").write_text(f"Document {number}")
    (orch_home / "job.yaml").write_text(
        "name: two\ndocuments: [{path: docs}]\nmodels: {small: small}\n"
        'tasks:\n  - {id: a, prompt: "What?", model: small}\n  - {id: b, prompt: "Who?", model: free}\n'
    )
    plan = run_orch("plan", str(orch_home / "job.yaml"), "--deadline", "4h", "--json")
    assert plan.returncode == 0, plan.stderr
    assert [route["backend"] for route in json.loads(plan.stdout)["routes"]] == ["c"]
    done = run_orch("run", str(orch_home / "job.yaml"), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["requests"]["succeeded"] == 8
    # `free` needed no alias. A row costs its share of its own engine's hour: those of the free one cost nothing.
    report = json.loads(run_orch("report", "cost", "--by", "task", "--json").stdout)
    costs = {line["group"]: float(line["cost_usd"]) for line in report["lines"]}
    assert costs["a"] > 0
    assert costs["b"] == 0
    held = {one["model"]: one for one in json.loads(run_orch("report", "cost", "--json").stdout)["held"]}
    assert (held["small"]["starts"], held["free"]["starts"]) == (1, 1)
    # The price is that of the engine, whatever it has of GPUs.
    hours = held["small"]["gpu_hours"] / 3
    assert float(held["small"]["cost_usd"]) == pytest.approx(hours * 3.6, rel=0.01)
    assert float(held["free"]["cost_usd"]) == 0
    assert not any(Path(f"/proc/{one['pid']}").exists() for one in engines_started(tmp_path / "ray"))
