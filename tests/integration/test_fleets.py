"""A fleet behind its batch server: real processes on this machine, the test upstream in vLLM's place."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from orchestrator.daemon import fleet_controller
from orchestrator.daemon.drivers import driver_for
from orchestrator.daemon.engine_wishes import Wished, write_wishes
from orchestrator.daemon.fleet_controller import FleetController
from orchestrator.policy import degradation
from orchestrator.policy.engine_switches import EngineWish
from orchestrator.server.engines import local_driver, local_engine
from orchestrator.server.in_process import ServerThread
from orchestrator.server.settings import Settings
from orchestrator.settings.backends import EnginesBackend
from tests.support.batchapi import Sdk, create, ended, health, retrieve, row, sdk_at
from tests.support.fakevllm import fake_nvidia_smi, fake_vllm, model_folder, refuse, starts
from tests.support.process import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="engines and their leash run on Linux")

IDS = [f"r{index}" for index in range(40)]
EVENING = datetime(2026, 11, 22, 20, 0).astimezone()


@dataclass
class Night:
    """A clock that stands still until the test moves it, and what was told."""

    at: datetime = field(default_factory=lambda: EVENING)
    told: list[str] = field(default_factory=list)

    def now(self) -> datetime:
        return self.at.astimezone(UTC)


@dataclass
class Running:
    server: ServerThread
    sdk: Sdk
    fleet: FleetController
    folder: Path

    def states(self) -> dict[str, list[str]]:
        """The states of each model's engines."""
        found: dict[str, list[str]] = {}
        for one in health(self.sdk)["engines"]:
            found.setdefault(one["model"], []).append(one["state"])
        return found

    def wish(self, model: str, wish: EngineWish, night: Night) -> None:
        write_wishes(self.folder, {model: Wished(wish, night.now())})


def settings_of(tmp_path: Path, *upstream: str, **given: Any) -> EnginesBackend:
    for name in ("s", "l"):
        if not (tmp_path / name).exists():
            model_folder(tmp_path / name)
    models = {"small": {"model": str(tmp_path / "s")}, "large": {"model": str(tmp_path / "l")}}
    told = {"kind": "engines", "cost_per_hour": 2, "vllm_python": str(fake_vllm(tmp_path, *upstream)), **given}
    return EnginesBackend.model_validate({"models": models, **told})


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(local_driver, "AGAIN_SECONDS", 0.2)
    monkeypatch.setattr(fleet_controller, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(fleet_controller, "GATHER_SECONDS", 0.3)

    @contextmanager
    def run(settings: EnginesBackend, night: Night) -> Iterator[Running]:
        folder = tmp_path / "server"
        made = FleetController(
            "gpu", settings, driver_for("gpu", settings, folder, night.told.append), folder, tell=night.told.append,
            now=night.now,
        )  # fmt: skip
        told = Settings(
            upstreams=(), retry_delay=0.01, max_concurrency=4, expected_models=tuple(settings.models),
            most_upstreams=2,
        )  # fmt: skip
        try:
            with ServerThread(folder, told) as server, sdk_at(server.socket) as sdk:
                made.begin(server)
                yield Running(server, sdk, made, folder)
                made.end()
        finally:
            made.close()

    return run


def rows(model: str, **body: Any) -> list[dict[str, Any]]:
    return [row(name, model=model, **body) for name in IDS]


def models_started(folder: Path) -> list[str]:
    return [each["options"][each["options"].index("--served-model-name") + 1] for each in starts(folder)]


def is_running(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@pytest.mark.long
def test_two_models_on_one_slot_are_two_starts(tmp_path: Path, fleet: Callable[..., Any]) -> None:
    night = Night()
    with fleet(settings_of(tmp_path), night) as running:
        batches = [create(running.sdk, rows(model)) for model in ("small", "large") * 3]
        night_over = (EVENING + timedelta(hours=1)).replace(microsecond=0)

        def all_done() -> bool:
            night.at = min(night.at + timedelta(seconds=1), night_over)
            return all(retrieve(running.sdk, batch.id).status == "completed" for batch in batches)

        wait_until(all_done, 60)
        for batch in batches:
            ended(running.sdk, batch.id).check(IDS)
        assert Counter(models_started(tmp_path)) == {"small": 1, "large": 1}
        assert sum("rows of large do" in line or "rows of small do" in line for line in night.told) == 1
        # Nobody asks for either any more.
        night.at += timedelta(minutes=11)
        wait_until(lambda: running.states() == {"small": ["cold"], "large": ["cold"]})
    assert not any(is_running(each["pid"]) for each in starts(tmp_path))


@pytest.mark.long
def test_nothing_runs_outside_the_hours(tmp_path: Path, fleet: Callable[..., Any]) -> None:
    night = Night(EVENING - timedelta(seconds=1))
    settings = settings_of(tmp_path, "--latency-ms", "300", hours="20:00-07:00")
    with fleet(settings, night) as running:
        batch = create(running.sdk, rows("small") * 1)
        wait_until(lambda: running.server.demand() and health(running.sdk)["engines"])
        engine = wait_until(lambda: next(one for one in health(running.sdk)["engines"] if one["model"] == "small"))
        assert (engine["state"], engine["problem"]) == ("cold", "outside its hours; they begin at 20:00")
        assert running.sdk.raw.get("/ready").status_code == 200
        assert starts(tmp_path) == []
        night.at = EVENING
        wait_until(lambda: retrieve(running.sdk, batch.id).request_counts.completed >= 4)
        night.at = EVENING + timedelta(hours=10, minutes=58)
        wait_until(lambda: running.states() == {"small": ["cold"], "large": ["cold"]})
        assert not any(is_running(each["pid"]) for each in starts(tmp_path))
        (left,) = running.server.demand()
        assert (left.in_flight, left.rows) == (0, 40 - retrieve(running.sdk, batch.id).request_counts.completed)
        assert left.rows > 0
        night.at = EVENING + timedelta(days=1)
        ended(running.sdk, batch.id, 60).check(IDS)
    assert len(starts(tmp_path)) == 2


@pytest.mark.long
def test_what_a_person_wants_goes_before_what_rows_want(tmp_path: Path, fleet: Callable[..., Any]) -> None:
    night = Night()
    with fleet(settings_of(tmp_path), night) as running:
        running.wish("large", EngineWish.START, night)
        wait_until(lambda: running.states().get("large") == ["warm"])
        running.wish("large", EngineWish.STOP, night)
        wait_until(lambda: running.states().get("large") == ["cold"])
        batch = create(running.sdk, rows("large"))
        told = wait_until(
            lambda: next((one["problem"] for one in health(running.sdk)["engines"] if one["problem"]), None)
        )
        assert told == "asked for: orch engines stop large; `orch engines start large` takes that back"
        running.wish("large", EngineWish.START, night)
        ended(running.sdk, batch.id, 60).check(IDS)
    assert models_started(tmp_path) == ["large", "large"]


def test_gpus_that_others_use_are_waited_for(
    tmp_path: Path, fleet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", fake_nvidia_smi(tmp_path, "0, 80000, 20000", "1, 80000, 79000"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    night = Night()
    with fleet(settings_of(tmp_path, gpus="0", vram="60GiB"), night) as running:
        batch = create(running.sdk, rows("small"))
        told = wait_until(
            lambda: next((one["problem"] for one in health(running.sdk)["engines"] if one["problem"]), None)
        )
        assert "GPU 0 is not free: vLLM takes 60.0 GiB" in told
        assert starts(tmp_path) == []
        fake_nvidia_smi(tmp_path, "0, 80000, 65000", "1, 80000, 79000")
        ended(running.sdk, batch.id, 60).check(IDS)
    (start,) = starts(tmp_path)
    assert start["gpus"] == "0"
    share = start["options"][start["options"].index("--gpu-memory-utilization") + 1]
    assert float(share) == pytest.approx(60 * 1024 / 80000, abs=0.001)


@pytest.mark.long
def test_one_that_dies_or_is_given_up_costs_no_row(tmp_path: Path, fleet: Callable[..., Any]) -> None:
    night = Night()
    with fleet(settings_of(tmp_path, "--latency-ms", "100"), night) as running:
        batch = create(running.sdk, rows("small"))
        wait_until(lambda: retrieve(running.sdk, batch.id).request_counts.completed >= 4)
        os.kill(starts(tmp_path)[0]["pid"], signal.SIGKILL)
        ended(running.sdk, batch.id, 60).check(IDS)
        refuse(tmp_path, "api_server.py: error: unrecognized arguments: --no-such", code=2)
        create(running.sdk, rows("large"))
        for _ in range(3):
            night.at += timedelta(seconds=10)
        wait_until(lambda: running.states().get("large") == ["given_up"] or night_goes_on(night))
        problem = next(one["problem"] for one in health(running.sdk)["engines"] if one["model"] == "large")
        assert "unrecognized arguments: --no-such" in problem
        # Those who choose among backends see an upstream that is down.
        wait_until(lambda: all(one["problem"] for one in health(running.sdk)["upstreams"]))


def night_goes_on(night: Night) -> bool:
    night.at += timedelta(seconds=2)
    return False


def settled(night: Night, done: Callable[[], Any]) -> Any:
    """What `done` gives in the end; the time goes on meanwhile."""

    def look() -> Any:
        night.at += timedelta(seconds=1)
        return done()

    return wait_until(look, 60)


def sleeping(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch, *gpus: str) -> EnginesBackend:
    monkeypatch.setenv("PATH", fake_nvidia_smi(tmp_path, *gpus))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    found = settings_of(tmp_path, "--sleeps", how, idle="10h")
    models = {name: model.model_copy(update={"swap": "sleep"}) for name, model in found.models.items()}
    return found.model_copy(update={"models": {**found.models, "small": models["small"]}})


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize(("how", "starts_of_small"), [("well", 1), ("addled", 2)])
def test_one_that_answers_otherwise_after_waking_starts_anew_before_its_first_row(
    tmp_path: Path, fleet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, how: str, starts_of_small: int
) -> None:
    night = Night()
    with fleet(sleeping(tmp_path, how, monkeypatch, "0, [N/A], [N/A]"), night) as running:
        sdk = running.sdk
        for model in ("small", "large", "small"):
            batch = create(sdk, rows(model))
            settled(night, lambda batch=batch: retrieve(sdk, batch.id).status == "completed")
            end = ended(sdk, batch.id)
            end.check(IDS)
            assert "!!!!!" not in json.dumps(end.output)
            if model == "large":
                assert running.states()["small"] == ["asleep"], "\n".join(night.told)
                assert health(sdk)["upstreams"][0]["models"] == ["large"]
    assert Counter(models_started(tmp_path)) == {"small": starts_of_small, "large": 1}
    assert any("after waking it answers differently" in line for line in night.told) is (starts_of_small == 2)


@pytest.mark.long
def test_one_that_keeps_its_memory_asleep_is_stopped(
    tmp_path: Path, fleet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    night = Night()
    settings = sleeping(tmp_path, "well", monkeypatch, "0, 80000, 79000")
    with fleet(settings, night) as running:
        for model in ("small", "large"):
            batch = create(running.sdk, rows(model))
            settled(night, lambda batch=batch: retrieve(running.sdk, batch.id).status == "completed")
        assert running.states()["small"] == ["cold"]
    assert any("it is asleep and still holds 1,048,576,000 of 1,048,576,000 bytes" in line for line in night.told)


@pytest.mark.long
def test_one_that_becomes_slow_starts_anew_once_and_costs_no_row(
    tmp_path: Path, fleet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, seconds in (("WINDOW_SECONDS", 0.4), ("SLOW_SECONDS", 1.2)):
        monkeypatch.setattr(degradation, name, seconds)
    night = Night()
    names = [f"r{number}" for number in range(260)]
    with fleet(settings_of(tmp_path, "--latency-ms", "40", "--tires-after", "100"), night) as running:
        batch = create(running.sdk, [row(name, model="small") for name in names])
        ended(running.sdk, batch.id, 60).check(names)
    assert len(starts(tmp_path)) == 2
    assert sum("of its earlier rate at this concurrency" in line for line in night.told) == 1


@pytest.mark.long
def test_one_that_takes_too_much_memory_starts_anew_once(
    tmp_path: Path, fleet: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_engine, "MEMORY_SECONDS", 0.1)
    night = Night()
    with fleet(settings_of(tmp_path, "--latency-ms", "100", host_memory="1MB"), night) as running:
        batch = create(running.sdk, rows("small"))
        ended(running.sdk, batch.id, 60).check(IDS)
    assert len(starts(tmp_path)) == 2
    assert sum("bytes of the machine's memory; the limit is 1,000,000" in line for line in night.told) == 1


def test_engines_end_with_their_fleet(tmp_path: Path, fleet: Callable[..., Any]) -> None:
    night = Night()
    with fleet(settings_of(tmp_path, "--latency-ms", "60000"), night) as running:
        create(running.sdk, rows("small"))
        wait_until(lambda: running.states().get("small") == ["warm"])
    assert not any(is_running(each["pid"]) for each in starts(tmp_path))
    assert json.loads(json.dumps(night.told))
