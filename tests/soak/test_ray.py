"""A fleet on a real Ray cluster of several nodes on this machine (`make ray`). ORCH_SOAK_RAY_ROWS and
ORCH_SOAK_RAY_KILLS set how long that takes. Engines are the test upstream, and once a real vLLM on the CPU.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from orchestrator.daemon.drivers import driver_for
from orchestrator.daemon.fleet_controller import FleetController
from orchestrator.server.engines import EngineDir, EngineUnavailable, require_installed
from orchestrator.server.in_process import ServerThread
from orchestrator.server.settings import Settings
from orchestrator.settings.backends import RayBackend
from tests.support.accesslog import read_log
from tests.support.batchapi import Sdk, create, ended, health, retrieve, row, sdk_at
from tests.support.cli import Orch
from tests.support.fakevllm import fake_vllm, starts
from tests.support.process import wait_until
from tests.support.raycluster import PYTHON, below, cluster, command_of, needs_ray
from tools.cpu_engine.models import find_model

pytestmark = [pytest.mark.soak, needs_ray]

ROWS = int(os.environ.get("ORCH_SOAK_RAY_ROWS", "30000"))
KILLS = int(os.environ.get("ORCH_SOAK_RAY_KILLS", "50"))
SEED = int(os.environ.get("ORCH_SOAK_SEED", "1"))


def settings_of(address: str, vllm: Path, **given: Any) -> RayBackend:
    # So slow an engine is expected that any number of rows asks for both.
    told = {"kind": "ray", "address": address, "ray_python": str(PYTHON), "vllm_python": str(vllm), **given}
    model = {"model": "/m", "gpus": 0, "engines": "0..2", "cost_per_hour": "3.6"}
    return RayBackend.model_validate({"rows_per_second": 0.00001, "models": {"qwen": model}, **told})


@contextmanager
def running(folder: Path, settings: RayBackend) -> Iterator[tuple[Sdk, FleetController, list[str]]]:
    told: list[str] = []
    driver = driver_for("c", settings, folder, told.append)
    fleet = FleetController("c", settings, driver, folder, tell=told.append, now=lambda: datetime.now(UTC))
    serves = Settings(upstreams=(), retry_delay=0.05, expected_models=("qwen",), most_upstreams=settings.most_engines)
    try:
        with ServerThread(folder, serves) as server, sdk_at(server.socket) as sdk:
            fleet.begin(server)
            yield sdk, fleet, told
            fleet.end()
    finally:
        fleet.close()


def states(sdk: Sdk) -> list[str]:
    return sorted(one["state"] for one in health(sdk)["engines"])


def done(sdk: Sdk, batch: str) -> int:
    counts = retrieve(sdk, batch).request_counts
    return 0 if counts is None else int(counts.completed)


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def kill_child(pid: int) -> bool:
    """Kill the process below another that speaks with Ray; whether there was one."""
    found = [one for one in below(pid) if "ray/engines_child.py" in command_of(one)]
    for one in found:
        os.kill(one, signal.SIGKILL)
    return bool(found)


def node_of(nodes: list[subprocess.Popen[bytes]], pid: int) -> subprocess.Popen[bytes]:
    return next(node for node in nodes if pid in below(node.pid))


def test_a_node_is_lost_and_no_row_with_it(tmp_path: Path) -> None:
    log = tmp_path / "requests.jsonl"
    vllm = fake_vllm(tmp_path, "--latency-ms", "5", "--slots", "32", "--log", str(log))
    ids = [f"r{number}" for number in range(ROWS)]
    with (
        cluster(3) as (nodes_of, nodes),
        running(tmp_path / "server", settings_of(nodes_of.address, vllm, idle="10s")) as (sdk, fleet, _told),
    ):
        batch = create(sdk, [row(name, model="qwen", max_tokens=4) for name in ids]).id
        wait_until(lambda: done(sdk, batch) >= 0.4 * ROWS, 300)
        victim = starts(tmp_path)[0]
        # One of three nodes is left without an engine: with another gone too, there is room for one.
        free = next(node for node in nodes if not any(one["pid"] in below(node.pid) for one in starts(tmp_path)))
        in_flight = max(one["in_flight"] for one in health(sdk)["upstreams"])
        nodes_of.kill_node(free)
        nodes_of.kill_node(node_of(nodes, victim["pid"]))
        killed_at = time.monotonic()
        wait_until(lambda: states(sdk) == ["pending", "warm"], 120)
        wait_until(lambda: not is_running(victim["pid"]), 60)
        gone_after = time.monotonic() - killed_at
        second = create(sdk, [row(name, model="qwen", max_tokens=4) for name in ids[:2000]]).id
        nodes_of.add_node()
        added_at = time.monotonic()
        wait_until(lambda: len(starts(tmp_path)) == 3, 120)
        back_after = time.monotonic() - added_at
        ended(sdk, batch, 300).check(ids)
        ended(sdk, second, 300).check(ids[:2000])
        asked = len(read_log(log))
        wait_until(lambda: states(sdk) == ["cold"], 60)
        held = fleet.holds("home")
    sys.stderr.write(
        f"{ROWS:,} rows, a node lost at 40 %: {asked - ROWS - 2000} asked again ({in_flight} were out at an engine), "
        f"its engine gone after {gone_after:.1f} s, another {back_after:.1f} s behind the new node's start; "
        f"held {sum(one.hours for one in held) * 3600:.1f} s in {len(held)} leases\n"
    )
    assert asked - ROWS - 2000 <= 2 * in_flight
    assert not any(is_running(one["pid"]) for one in starts(tmp_path))
    assert all(one.is_over for one in held)


def test_the_child_and_orch_are_killed_again_and_again(run_orch: Orch, orch_home: Path, tmp_path: Path) -> None:
    vllm = fake_vllm(tmp_path, "--latency-ms", "50", "--slots", "4")
    lines = [row(f"r{number}", model="qwen", max_tokens=4) for number in range(KILLS * 600)]
    (orch_home / "batch.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    draw = random.Random(SEED)
    with cluster(2) as (found, _):
        (orch_home / "orch.toml").write_text(
            f'[backends.c]\nkind = "ray"\naddress = "{found.address}"\nray_python = "{PYTHON}"\n'
            f'vllm_python = "{vllm}"\nlocation = "local"\nrows_per_second = 0.00001\nidle = "5s"\n'
            '[backends.c.models.qwen]\nmodel = "/m"\ngpus = 0\nengines = "0..2"\ncost_per_hour = 3.6\n'
        )
        assert run_orch("submit", str(orch_home / "batch.jsonl")).returncode == 0
        up = run_orch.start("up")
        killed = {"child": 0, "orch": 0}
        for blow in range(KILLS):
            time.sleep(draw.uniform(0, 6))  # anywhere: while Ray is joined, engines start, or rows are out
            if blow % 2:
                os.kill(up.pid, signal.SIGKILL)
                up.wait()
                killed["orch"] += 1
                up = run_orch.start("up")
            else:
                wait_until(partial(kill_child, up.pid), 60)
                killed["child"] += 1

        def states() -> list[str]:
            return [one["state"] for one in json.loads(run_orch("status", "--json").stdout)]

        wait_until(lambda: states() == ["completed"], 1200)
        fetched = run_orch("fetch", json.loads(run_orch("status", "--json").stdout)[0]["job"], "--format", "batch")
        rows = [json.loads(line)["custom_id"] for line in fetched.stdout.splitlines()]
        assert rows == [line["custom_id"] for line in lines]
        os.kill(up.pid, signal.SIGKILL)
        up.wait()
        wait_until(lambda: not any(is_running(one["pid"]) for one in starts(tmp_path)), 60)
        held = json.loads(run_orch("report", "cost", "--json").stdout)["held"]
    sys.stderr.write(f"{killed} kills, {len(lines):,} rows once each, {len(starts(tmp_path))} starts; held {held}\n")
    assert sum(killed.values()) == KILLS


def test_from_nothing_to_engines_and_back(tmp_path: Path) -> None:
    vllm = fake_vllm(tmp_path, "--latency-ms", "20", "--slots", "8")
    ids = [f"r{number}" for number in range(2000)]
    with (
        cluster(2) as (found, _),
        running(tmp_path / "server", settings_of(found.address, vllm, idle="6s")) as (sdk, fleet, _told),
    ):
        assert starts(tmp_path) == []
        batch = create(sdk, [row(name, model="qwen") for name in ids]).id
        began: dict[int, float] = {}
        gone: dict[int, float] = {}
        last_row = None
        # Engines are there from the time that their process is, and gone when it is.
        while not began or len(gone) < len(began):
            now = time.monotonic()
            for one in starts(tmp_path):
                began.setdefault(one["pid"], now)
                if not is_running(one["pid"]):
                    gone.setdefault(one["pid"], now)
            if last_row is None and retrieve(sdk, batch).status == "completed":
                last_row = now
            time.sleep(0.05)
        wait_until(lambda: states(sdk) == ["cold"], 30)
        held = sorted(one.hours * 3600 for one in fleet.holds("home"))
    seen = sorted(gone[pid] - began[pid] for pid in began)
    assert last_row is not None
    ran, told = [round(one, 1) for one in seen], [round(one, 1) for one in held]
    sys.stderr.write(
        f"0 -> {len(began)} -> 0: the last engine left {max(gone.values()) - last_row:.1f} s behind the last row "
        f"(idle 6 s); processes ran {ran} s, held are {told} s\n"
    )
    # Looks at leases are a second apart, and a lease begins a moment before the process does.
    for there, lease in zip(seen, held, strict=True):
        assert -1.0 <= lease - there <= 1.5


def test_a_row_costs_no_more_than_direct(tmp_path: Path) -> None:
    ids = [f"r{number}" for number in range(10_000)]

    def cpu(folder: Path, through_ray: bool) -> float:
        vllm = fake_vllm(folder, "--latency-ms", "1", "--slots", "64")
        program = (
            "import sys, time, resource, json\n"
            "sys.path.insert(0, {root!r})\n"
            "from pathlib import Path\n"
            "from tests.soak.test_ray import measure\n"
            "print(json.dumps(measure(Path({folder!r}), {vllm!r}, {address!r}, {count})))\n"
        ).format(
            root=str(Path(__file__).resolve().parents[2]), folder=str(folder), vllm=str(vllm),
            address=found.address if through_ray else "", count=len(ids),
        )  # fmt: skip
        done = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True)
        return float(json.loads(done.stdout.splitlines()[-1]))

    figures: dict[bool, list[float]] = {True: [], False: []}
    with cluster(2) as (found, _):
        for turn in range(3):
            for through_ray in (False, True):
                folder = tmp_path / f"{turn}-{through_ray}"
                folder.mkdir()
                figures[through_ray].append(cpu(folder, through_ray))
    direct, ray = min(figures[False]), min(figures[True])
    sys.stderr.write(f"CPU a row: direct {direct * 1e3:.3f} ms, through the fleet {ray * 1e3:.3f} ms ({figures})\n")
    assert ray <= 1.1 * direct


def measure(folder: Path, vllm: str, address: str, count: int) -> float:
    """CPU seconds a row of this process, from the first row that is out to the end of the batch."""
    from tests.support.process import Upstream

    ids = [f"r{number}" for number in range(count)]

    def spent(sdk: Sdk) -> float:
        before = time.process_time()
        ended(sdk, create(sdk, [row(name, model="qwen", max_tokens=4) for name in ids]).id, 120).check(ids)
        return (time.process_time() - before) / count

    if address:
        with running(folder / "server", settings_of(address, Path(vllm))) as (sdk, _, _told):
            ended(sdk, create(sdk, [row("first", model="qwen")]).id, 120)
            wait_until(lambda: states(sdk) == ["warm", "warm"])
            return spent(sdk)
    options = {"latency_ms": 1, "slots": 64, "model": "qwen"}
    with Upstream(folder / "a", **options) as one, Upstream(folder / "b", **options) as two:
        serves = Settings(upstreams=(one.base_url, two.base_url), retry_delay=0.05)
        with ServerThread(folder / "server", serves) as server, sdk_at(server.socket) as sdk:
            ended(sdk, create(sdk, [row("first", model="qwen")]).id, 120)
            return spent(sdk)


@pytest.mark.vllm
@pytest.mark.timeout(900)
def test_a_real_vllm_as_an_actor_answers_a_batch(tmp_path: Path) -> None:
    engine = EngineDir.at(os.environ.get("ORCH_ENGINE_DIR", Path(__file__).resolve().parents[2] / ".engine"))
    try:
        require_installed(engine)
        model = find_model(engine, "tiny")
    except EngineUnavailable as error:
        pytest.skip(f"NO REAL ENGINE: {error.message} ({error.hint})")
    options = ["--max-model-len", "2048", "--chat-template", str(model.chat_template)]
    models = {"tiny": {"model": str(model.path), "gpus": 0, "cost_per_hour": 0, "options": options}}
    ids = [f"r{number}" for number in range(20)]
    with cluster(1) as (found, _):
        settings = settings_of(found.address, engine.python, models=models, idle="5s")
        folder = tmp_path / "server"
        told: list[str] = []
        fleet = FleetController(
            "c", settings, driver_for("c", settings, folder, told.append), folder, tell=told.append,
            now=lambda: datetime.now(UTC),
        )  # fmt: skip
        serves = Settings(upstreams=(), expected_models=("tiny",), most_upstreams=1)
        try:
            with ServerThread(folder, serves) as server, sdk_at(server.socket) as sdk:
                fleet.begin(server)
                batch = create(sdk, [row(name, model="tiny", max_tokens=8) for name in ids])
                ended(sdk, batch.id, 600).check(ids)
                wait_until(lambda: states(sdk) == ["cold"], 60)
                fleet.end()
        finally:
            fleet.close()
    sys.stderr.write(f"a real vLLM as a Ray actor: {told}\n")
