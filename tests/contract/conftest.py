"""The batch server over TCP and over its Unix socket with the SDK's two clients of it; a store on each database."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.core.guarded_server import Server
from orchestrator.core.replica.takeover import Replica
from orchestrator.server.app import configuration
from orchestrator.server.in_process import ServerThread
from orchestrator.server.service import Service
from orchestrator.server.settings import Settings
from orchestrator.store import Store
from tests.emulator.client import Emulator
from tests.support.batchapi import Sdk, sdk_at
from tests.support.process import Upstream, upstreams, wait_until


def pytest_itemcollected(item: pytest.Item) -> None:
    """`make test` has each way to the server and each client, not each way with each client."""
    chosen = any("served" in mark.args[0] for mark in item.iter_markers("parametrize"))
    if {"served", "sdk"} <= _parameters(item) and not chosen and item.get_closest_marker("thinned") is None:
        item.add_marker(pytest.mark.thinned(2))


def _parameters(item: pytest.Item) -> set[str]:
    return set(item.callspec.params) if isinstance(item, pytest.Function) and hasattr(item, "callspec") else set()


@dataclass(frozen=True)
class Served:
    """A running server: where it listens (a socket's path or a URL), its folder, its upstream."""

    address: Path | str
    folder: Path
    upstream: Upstream


@contextmanager
def over_tcp(folder: Path, settings: Settings, replica: Replica | None = None) -> Iterator[str]:
    service = Service(folder, settings, replica)
    server = Server(configuration(service, host="127.0.0.1", port=0), service.connections)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive())
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module", params=["tcp", "unix"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One server for the tests of a module; its upstream serves the model `test-model`."""
    folder = tmp_path_factory.mktemp("served")
    with upstreams(folder) as make:
        upstream = make(model=["test-model"], max_model_len=2000)
        settings = Settings(upstreams=(upstream.base_url,), retry_delay=0.02, max_file_bytes=100_000, max_rows=200)
        if request.param == "tcp":
            with over_tcp(folder, settings) as url:
                yield Served(url, folder, upstream)
        else:
            with ServerThread(folder, settings) as server:
                yield Served(server.socket, folder, upstream)


@pytest.fixture(scope="module", params=["sync", "async"])
def sdk(request: pytest.FixtureRequest, served: Served) -> Iterator[Sdk]:
    with sdk_at(served.address, request.param) as found:
        yield found


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """A store on an empty database, of each kind in turn."""
    with Store.open(store_url) as opened:
        yield opened


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("provider")) as running:
        yield running
