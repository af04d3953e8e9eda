"""The engine that a bench measures: running upstreams of a backend, or an engine started for the bench."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import httpx2
from msgspec import Struct
from msgspec.structs import replace

from orchestrator.backends.open import key_of
from orchestrator.core.engines import EngineState
from orchestrator.core.errors import BackendError, RefusedError, UsageError
from orchestrator.core.listening import is_local_url
from orchestrator.daemon.drivers import driver_for, require_open
from orchestrator.daemon.health import fetch_health
from orchestrator.daemon.loop import running_daemon
from orchestrator.server.engines.driver import EngineDriver, EngineReport
from orchestrator.settings.backends import EnginesBackend, LocalBackend
from orchestrator.settings.config import Config
from orchestrator.settings.home import Home

LOOK_SECONDS = 0.1
VERSION_SECONDS = 5.0


class BenchTarget(Struct, frozen=True):
    """The engine that answers a bench's rows.

    `cost_per_hour` is in dollars for all upstreams together. `options` are vLLM settings that differ from the
    defaults. `start_seconds` is None if the engine was already running. `version` is None if unknown.
    """

    backend: str
    model: str
    urls: tuple[str, ...]
    api_key: str | None
    cost_per_hour: Decimal
    request_timeout: float
    most: int
    idle_seconds: float = 0.0
    options: tuple[str, ...] = ()
    start_seconds: float | None = None
    version: str | None = None
    slots: tuple[int, ...] | None = None
    """GPUs of the engine on this machine; None if unknown."""

    @property
    def is_here(self) -> bool:
        """True if the engine runs on this machine, so that its GPUs can be watched."""
        return all(is_local_url(url) for url in self.urls)


def backend_named(config: Config, name: str | None) -> str:
    """Return the backend to measure. Raises UsageError."""
    able = [one for one, backend in config.backends.items() if isinstance(backend, LocalBackend | EnginesBackend)]
    if name is None:
        if len(able) == 1:
            return able[0]
        hint = (
            f"name one with --backend: {', '.join(able)}"
            if able
            else "bench measures backends of kind local, engines"
        )
        raise UsageError(
            "orch.toml has no engine to measure" if not able else "several backends have engines", hint=hint
        )
    if name not in config.backends:
        raise UsageError(
            f"--backend {name}: there is no such backend in {config.path}",
            hint=f"known: {', '.join(config.backends) or 'none'}",
        )
    if name not in able:
        raise UsageError(
            f"--backend {name}: bench measures your own engines (kind local, engines); "
            f"what {name} does is up to its provider",
            hint=f"measure {able[0]} and compare: --vs {name}:MODEL" if able else None,
        )
    return name


@contextmanager
def target_of(
    config: Config, home: Home, name: str, model: str, tell: Callable[[str], None], options: Sequence[str] = ()
) -> Iterator[BenchTarget]:
    """Yield the engine once it accepts rows. `options` are extra options for an engine started here.

    Raises BackendError, RefusedError or UsageError.
    """
    backend = config.backends[name]
    if isinstance(backend, EnginesBackend):
        with _engine(home, name, backend, model, tell, tuple(options)) as found:
            yield _versioned(found)
        return
    assert isinstance(backend, LocalBackend), "backend_named lets no other kind through"
    key = None if backend.api_key_env is None else key_of(name, backend.api_key_env, os.environ)
    yield _versioned(
        BenchTarget(
            name, model, backend.upstreams, key, (backend.cost_per_hour or Decimal(0)) * len(backend.upstreams),
            backend.request_timeout, backend.max_concurrency,
        )
    )  # fmt: skip


@contextmanager
def _engine(
    home: Home, name: str, backend: EnginesBackend, model: str, tell: Callable[[str], None], options: tuple[str, ...]
) -> Iterator[BenchTarget]:
    known = backend.models.get(model)
    if known is None:
        raise UsageError(f"{name} has no model {model}", hint=f"known: {', '.join(backend.models)}")
    base = BenchTarget(
        name, model, (), None, backend.cost_per_hour * known.tensor_parallel, backend.request_timeout,
        backend.max_concurrency, backend.idle, (*known.options, *options),
    )  # fmt: skip
    if running_daemon(home) is not None:
        yield _running(home, base)
        return
    require_open(name, backend)
    models = {model: known.model_copy(update={"options": (*known.options, *options), "swap": "stop"})}
    driver = driver_for(name, backend.model_copy(update={"models": models}), home.server(name), tell)
    try:
        slots = driver.prepare(lambda: False)[: known.tensor_parallel]
        began = time.monotonic()
        driver.start(model, slots)
        report = _ready(driver, model)
        on_gpus = None if report.memory is None else slots
        yield replace(base, urls=(report.url,), start_seconds=time.monotonic() - began, slots=on_gpus)
    finally:
        driver.close()


def _ready(driver: EngineDriver, model: str) -> EngineReport:
    while True:
        report = next((one for one in driver.engines() if one.model == model), None)
        if report is not None and report.state is EngineState.WARM:
            return report
        # Do not wait for a second start: an engine that failed once will most likely fail again.
        if (
            report is not None
            and report.problem is not None
            and (report.state in (EngineState.GIVEN_UP, EngineState.COLD) or report.starts > 1)
        ):
            raise BackendError(f"{model} does not start: {report.problem}")
        time.sleep(LOOK_SECONDS)


def require_no_daemon(home: Home) -> None:
    """Raise RefusedError if the home's daemon is running, because the daemon uses the home's GPUs."""
    if running_daemon(home) is not None:
        raise RefusedError(
            "the daemon of this home is running (`orch up`, or a job): settings are tried on engines started for it",
            hint="stop `orch up`, then run the same command again",
        )


def _running(home: Home, base: BenchTarget) -> BenchTarget:
    health = fetch_health(home, base.backend)
    told: list[dict[str, Any]] = [] if health is None else health["engines"]
    warm = [one for one in told if one["model"] == base.model and one["state"] == EngineState.WARM.value]
    if not warm:
        raise RefusedError(
            f"`orch up` has no warm engine of {base.model}",
            hint=f"orch engines start {base.model} --backend {base.backend}, and wait until it is warm",
        )
    urls = tuple(one["url"] for one in warm)
    return replace(base, urls=urls, cost_per_hour=base.cost_per_hour * len(urls))


def _versioned(target: BenchTarget) -> BenchTarget:
    root = target.urls[0].rstrip("/").removesuffix("/v1")
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    try:
        found = httpx2.get(f"{root}/version", headers=headers, timeout=VERSION_SECONDS).json()["version"]
    except (httpx2.HTTPError, ValueError, KeyError, TypeError):
        return target
    return replace(target, version=found[:40]) if isinstance(found, str) else target
