"""What an hour of each backend costs, read by a list of jobs without checking all of orch.toml."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.core.clock import now
from orchestrator.pipeline.plan.prices import prices_of
from orchestrator.settings.backends import HostedBackend
from orchestrator.settings.config import load
from orchestrator.settings.discovery import Place
from orchestrator.settings.own_servers import hourly_costs

EVERY_KIND = """
[backends.gpu]
upstreams = ["http://127.0.0.1:8000/v1"]
cost_per_hour = 2.5
[backends.named]
kind = "local"
upstreams = ["http://127.0.0.1:8000/v1", "http://127.0.0.1:8001/v1"]
cost_per_hour = "0.1"
[backends.idle]
upstreams = ["http://127.0.0.1:8000/v1"]
idle = true
[backends.fleet]
kind = "engines"
cost_per_hour = 3
models = {small = {model = "s", tensor_parallel = 2}}
[backends.cluster]
kind = "ray"
ray_python = "/opt/ray/bin/python"
models = {small = {model = "s", cost_per_hour = 1.25}, large = {model = "l", cost_per_hour = 7.125}}
[backends.now]
kind = "sync"
base_url = "https://api.openai.com/v1"
api_key_env = "KEY"
[backends.night]
kind = "openai"
api_key_env = "KEY"
"""


def test_a_list_of_jobs_and_the_ledger_price_an_hour_alike(tmp_path: Path) -> None:
    path = tmp_path / "orch.toml"
    path.write_text(EVERY_KIND)
    settings = load(Place(path, tmp_path, "sqlite:///x", 1.0))
    assert hourly_costs(path) == {
        name: None if isinstance(backend, HostedBackend) else prices_of(backend, settings, now).of_time(3600.0).cost
        for name, backend in settings.backends.items()
    }


@pytest.mark.parametrize(
    "text",
    [
        "[backends.gpu]\nidle =",
        "backends = 3",
        "[backends]\ngpu = 3",
        "[backends.gpu]\nupstreams = []",
        "[backends.gpu]\ncost_per_hour = nan",
        "[backends.gpu]\ncost_per_hour = -1",
        '[backends.gpu]\ncost_per_hour = "free"',
        '[backends.gpu]\nkind = "ray"\nmodels = {}',
    ],
)
def test_a_file_that_cannot_be_read_has_no_prices(text: str, tmp_path: Path) -> None:
    (tmp_path / "orch.toml").write_text(text)
    assert hourly_costs(tmp_path / "orch.toml") is None
    assert hourly_costs(tmp_path / "missing.toml") is None


def test_without_a_file_there_are_no_backends() -> None:
    assert hourly_costs(None) == {}


def test_a_mistake_elsewhere_in_the_file_hides_no_price(tmp_path: Path) -> None:
    (tmp_path / "orch.toml").write_text(f"{EVERY_KIND}[retention]\nresults = 3\n")
    found = hourly_costs(tmp_path / "orch.toml")
    assert found is not None
    assert found["gpu"] == Decimal("2.5")
