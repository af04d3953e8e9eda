"""Where the limit of an upstream begins: at what a bench found, which somebody has applied."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from orchestrator.core.engines import EngineRates
from orchestrator.daemon.health import fetch_health
from orchestrator.daemon.loop import Daemon
from orchestrator.server.in_process import ServerThread
from orchestrator.server.settings import Settings
from orchestrator.settings.config import load
from orchestrator.settings.discovery import locate
from orchestrator.settings.home import Home
from orchestrator.store import Store
from tests.support.batchapi import Sdk, health, sdk_at
from tests.support.cli import write_config
from tests.support.process import wait_until
from tests.support.stored import NOW

NOWHERE = "http://127.0.0.1:9/v1"


def limits(sdk: Sdk) -> dict[str, int]:
    return {one["url"]: one["limit"] for one in health(sdk)["upstreams"]}


def test_an_upstream_begins_with_what_was_measured_of_its_model(tmp_path: Path) -> None:
    measured = {"small": 37, "large": 5}
    with (
        ServerThread(tmp_path, Settings((), expected_models=("small", "other"), measured_limits=measured)) as server,
        sdk_at(server.socket) as sdk,
    ):
        server.join("http://127.0.0.1:9/small", ["small"])
        server.join("http://127.0.0.1:9/other", ["other"])
        assert limits(sdk) == {"http://127.0.0.1:9/small": 37, "http://127.0.0.1:9/other": 16}


def test_one_whose_models_are_not_known_begins_with_the_least(tmp_path: Path) -> None:
    """It may be any of them; and never with more than it may have at all."""
    for most, measured, expected in ((1024, {"a": 40, "b": 30}, 30), (20, {"a": 40}, 20), (1024, {}, 16)):
        settings = Settings((NOWHERE,), max_concurrency=most, measured_limits=measured)
        with ServerThread(tmp_path / str(expected), settings) as server, sdk_at(server.socket) as sdk:
            assert limits(sdk) == {NOWHERE: expected}


def test_the_daemon_hands_on_what_was_applied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_config(tmp_path, [NOWHERE])
    monkeypatch.setenv("ORCH_HOME", str(tmp_path))
    monkeypatch.setenv("ORCH_CONFIG", str(tmp_path / "orch.toml"))
    home = Home(tmp_path)
    rates = EngineRates(
        home.identity(), "local", "small", "", "", "", 40_000.0, None, 1_000.0, 0.0, 37, None, None, NOW
    )
    with Store.open(f"sqlite:///{tmp_path / 'orch.db'}") as store:
        store.engine_rates.put(rates)
        store.engine_rates.put(replace(rates, backend="other", best_limit=3))
        with Daemon(load(locate()), store) as daemon:
            handle = daemon.open("local")
            [upstream] = wait_until(lambda: (fetch_health(home, "local") or {}).get("upstreams"))
            assert upstream["limit"] == 37
            # Settings that say nothing else keep the server: what a bench measured is not theirs.
            daemon.use(load(locate()))
            assert daemon.open("local").api is handle.api
