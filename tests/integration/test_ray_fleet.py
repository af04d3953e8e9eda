"""A fleet on a Ray cluster, as far as it can be without Ray: a program of the tests plays the process that speaks to
it, and the cluster (`tests/support/fakeray.py`). With Ray itself: tests/soak/test_ray.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from orchestrator.core.errors import BackendError
from orchestrator.daemon import fleet_controller
from orchestrator.daemon.drivers import driver_for
from orchestrator.daemon.fleet_controller import FleetController
from orchestrator.daemon.health import last_to_fail
from orchestrator.ray import driver as ray_driver
from orchestrator.ray.process import require_ray
from orchestrator.server.in_process import ServerThread
from orchestrator.server.settings import Settings
from orchestrator.settings.backends import RayBackend
from tests.support.batchapi import Sdk, create, ended, health, row, sdk_at
from tests.support.fakeray import arrange, engines_started, fake_ray, lose, pid_of
from tests.support.process import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="engines run on Linux")

IDS = [f"r{index}" for index in range(60)]


class Running:
    def __init__(self, folder: Path, sdk: Sdk, fleet: FleetController, told: list[str]) -> None:
        self.folder = folder
        self.sdk = sdk
        self.fleet = fleet
        self.told = told

    def states(self) -> list[str]:
        return sorted(one["state"] for one in health(self.sdk)["engines"])

    def batch(self, **body: Any) -> str:
        found: str = create(self.sdk, [row(name, model="qwen", **body) for name in IDS]).id
        return found


@pytest.fixture
def ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setattr(fleet_controller, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(fleet_controller, "GATHER_SECONDS", 0.1)
    monkeypatch.setattr(ray_driver, "FIRST_PAUSE", 0.05)
    monkeypatch.setenv("ORCH_SECRET", "x")

    @contextmanager
    def run(*upstream: str, idle: str = "10m", **cluster: Any) -> Iterator[Running]:
        folder = tmp_path / "cluster"
        python = fake_ray(folder, *upstream, **cluster)
        # A rate of nine rows a day: so few ask for both engines.
        model = {"model": "/m", "engines": "0..2", "gpus": 2, "cost_per_hour": 4, "options": ["--max-model-len", "9"]}
        settings = RayBackend.model_validate(
            {
                "kind": "ray", "ray_python": str(python), "idle": idle, "rows_per_second": 0.0001,
                "models": {"qwen": model},
            }
        )  # fmt: skip
        told: list[str] = []
        server_folder = tmp_path / "server"
        driver = driver_for("c", settings, server_folder, told.append)
        fleet = FleetController("c", settings, driver, server_folder, tell=told.append, now=lambda: datetime.now(UTC))
        serves = Settings(upstreams=(), retry_delay=0.01, expected_models=("qwen",), most_upstreams=2)
        try:
            with ServerThread(server_folder, serves) as server, sdk_at(server.socket) as sdk:
                fleet.begin(server)
                try:
                    yield Running(folder, sdk, fleet, told)
                except BaseException:
                    print(*told, *health(sdk)["engines"], *health(sdk)["upstreams"], sep="\n")  # noqa: T201
                    raise
                fleet.end()
        finally:
            fleet.close()

    return run


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.long
def test_rows_bring_engines_and_without_rows_nothing_is_left(ray: Callable[..., Any]) -> None:
    with ray(idle="1s") as running:
        ended(running.sdk, running.batch()).check(IDS)
        wait_until(lambda: running.states() == ["cold"])
        # Neither does the process that speaks to Ray stay: a cluster that may shrink to nothing does.
        wait_until(lambda: not is_running(pid_of(running.folder)))
        started = engines_started(running.folder)
        assert not any(is_running(one["pid"]) for one in started)
        asked = started[0]["asked"]
        assert (asked["gpus"], asked["strategy"]) == (2, "STRICT_PACK")
        told = asked["arguments"]
        assert told[told.index("--tensor-parallel-size") + 1] == "2"
        assert told[-2:] == ["--max-model-len", "9"]
        assert not any("key" in part for part in told)
        held = running.fleet.holds("home")
        assert {(one.gpus, one.cost_per_hour, one.is_over) for one in held} == {(2, 2, True)}
    lines = [json.loads(line) for line in (running.folder / "said.jsonl").read_text().splitlines()]
    assert max(len(line["wanted"]) for line in lines) == 2
    assert lines[-1] == {"wanted": []}


@pytest.mark.long
def test_an_engine_answers_none_but_those_who_have_its_key(ray: Callable[..., Any]) -> None:
    with ray() as running:
        ended(running.sdk, running.batch()).check(IDS)
        one = engines_started(running.folder)[0]
        with pytest.raises(HTTPError, match="401"):
            urlopen(f"http://127.0.0.1:{one['port']}/v1/models", timeout=10)
        key = one["asked"]["env"]["VLLM_API_KEY"]
        assert len(key) >= 32
        assert key not in json.dumps(health(running.sdk))
        assert not any(key in line for line in running.told)
        environ = Path(f"/proc/{pid_of(running.folder)}/environ").read_bytes()
        assert b"ORCH_SECRET" not in environ


@pytest.mark.long
def test_a_lost_engine_comes_again_elsewhere(ray: Callable[..., Any]) -> None:
    with ray("--latency-ms", "100", "--slots", "4") as running:
        batch = running.batch()
        wait_until(lambda: running.states() == ["warm", "warm"])
        first = engines_started(running.folder)[0]
        lose(running.folder, first["id"])
        wait_until(lambda: len(engines_started(running.folder)) == 3)
        ended(running.sdk, batch).check(IDS)
        wait_until(lambda: running.states() == ["warm", "warm"])
        ports = {one["port"] for one in engines_started(running.folder)[1:]}
        assert {int(one["url"].split(":")[2].split("/")[0]) for one in health(running.sdk)["upstreams"]} == ports
    assert any("c: qwen: lost: its node is gone" in line for line in running.told)


@pytest.mark.long
def test_the_process_that_speaks_to_ray_may_die_at_any_time(ray: Callable[..., Any]) -> None:
    with ray("--latency-ms", "20", "--slots", "4") as running:
        batch = running.batch()
        wait_until(lambda: running.states() == ["warm", "warm"])
        for _ in range(3):
            before = pid_of(running.folder)
            os.kill(before, signal.SIGKILL)
            wait_until(lambda before=before: pid_of(running.folder) != before)
            wait_until(lambda: running.states() == ["warm", "warm"])
        ended(running.sdk, batch).check(IDS)
    # Those of a process that was killed end by themselves, as those of a cluster do.
    wait_until(lambda: not any(is_running(one["pid"]) for one in engines_started(running.folder)))


def test_what_has_no_room_waits_and_is_told(ray: Callable[..., Any]) -> None:
    with ray("--latency-ms", "100", "--slots", "4", room=0) as running:
        batch = running.batch()
        wait_until(lambda: running.states() == ["pending", "pending"])
        # A backend of which no engine has a machine counts as one that is down: rows may go elsewhere.
        told = last_to_fail(health(running.sdk))
        assert told is not None
        assert told["problem"] == "no machine has room for it yet"
        assert running.fleet.holds("home") == []  # nothing is leased
        arrange(running.folder, room=1)
        wait_until(lambda: running.states() == ["pending", "warm"])
        wait_until(lambda: last_to_fail(health(running.sdk)) is None)
        ended(running.sdk, batch).check(IDS)


@pytest.mark.long
def test_a_cluster_that_is_not_there_is_tried_again(ray: Callable[..., Any]) -> None:
    with ray(reachable=False) as running:
        batch = running.batch()
        wait_until(lambda: running.states() == ["given_up", "given_up"])
        told = last_to_fail(health(running.sdk))
        assert told is not None
        assert told["problem"] == "there is no Ray cluster at auto"
        arrange(running.folder)
        ended(running.sdk, batch).check(IDS)


def test_a_python_without_ray_is_told_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(BackendError) as raised:
        require_ray(Path(sys.executable), os.environ)
    assert f"{sys.executable} has no Ray" in str(raised.value)
    assert "pip install ray" in str(raised.value)
    with pytest.raises(BackendError, match="cannot be run"):
        require_ray(tmp_path / "none", os.environ)


@pytest.mark.long
def test_orch_itself_never_imports_ray() -> None:
    code = (
        "import sys, orchestrator.cli, orchestrator.daemon.loop, orchestrator.daemon.drivers\n"
        "sys.exit(any(name == 'ray' or name.startswith('ray.') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
