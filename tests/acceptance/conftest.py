"""The real engine, for the tests marked `vllm`.

It is looked for in `.engine` of the checkout (or in ORCH_ENGINE_DIR). Where it is not installed these tests are
skipped and the run says so at its end; with ORCH_REQUIRE_VLLM=1 they fail instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.server.engines import EngineDir, EngineUnavailable, VllmProcess, require_installed
from orchestrator.server.engines.cpu_launch import vllm_launch
from tools.cpu_engine.models import find_model

ROOT = Path(__file__).resolve().parents[2]
NO_ENGINE = "NO REAL ENGINE"


@dataclass(frozen=True, slots=True)
class EngineInTest:
    base_url: str
    model: str


@pytest.fixture(scope="session")
def vllm_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineInTest]:
    """The tiny model on a real vLLM: one engine (1.7 GB of memory) for each pytest process that asks for it."""
    with running("tiny", tmp_path_factory) as engine:
        yield engine


@pytest.fixture(scope="session")
def vision_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineInTest]:
    """The tiny model that takes pictures, on a real vLLM of its own."""
    with running("tiny-vision", tmp_path_factory) as engine:
        yield engine


@contextmanager
def running(name: str, folders: pytest.TempPathFactory) -> Iterator[EngineInTest]:
    """A real vLLM with one of the models that recipes make; the test is skipped where there is none."""
    engine = EngineDir.at(os.environ.get("ORCH_ENGINE_DIR", ROOT / ".engine"))
    try:
        require_installed(engine)
        model = find_model(engine, name)
    except EngineUnavailable as error:
        if os.environ.get("ORCH_REQUIRE_VLLM") == "1":
            raise
        pytest.skip(f"{NO_ENGINE}: {error.message} ({error.hint})")
    launch = vllm_launch(engine, model, served_name=name)
    log = folders.mktemp("engine") / "vllm.log"
    with VllmProcess(launch, log=log, ready_timeout=600) as process:
        yield EngineInTest(process.base_url, name)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reasons = [
        report.longrepr[2]
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and NO_ENGINE in report.longrepr[2]
    ]
    if reasons:
        terminalreporter.section(f"{len(reasons)} tests did not run against a real engine", red=True, bold=True)
        terminalreporter.line(reasons[0])
