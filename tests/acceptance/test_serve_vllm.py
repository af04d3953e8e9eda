"""`orch serve --vllm` with a real engine on the CPU."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from orchestrator.server.engines import EngineDir, EngineUnavailable, require_installed
from tests.acceptance.conftest import NO_ENGINE, ROOT
from tests.support.batchapi import create, ended, health, retrieve, row, sdk_at
from tests.support.cli import Orch
from tests.support.process import PATIENCE, wait_until
from tests.support.serving import serve
from tools.cpu_engine.models import find_model

pytestmark = [pytest.mark.soak, pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def tiny() -> tuple[EngineDir, Path]:
    """The engine's folder and the tiny model's."""
    engine = EngineDir.at(os.environ.get("ORCH_ENGINE_DIR", ROOT / ".engine"))
    try:
        require_installed(engine)
        return engine, find_model(engine, "tiny").path
    except EngineUnavailable as error:
        if os.environ.get("ORCH_REQUIRE_VLLM") == "1":
            raise
        pytest.skip(f"{NO_ENGINE}: {error.message} ({error.hint})")


def engine_pid(log: Path) -> int:
    """The process that the newest start of vLLM has: the server that answers."""
    return int(re.findall(r"APIServer pid=(\d+)", log.read_text())[-1])


@pytest.mark.parametrize("blow", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "told-to-stop"])
def test_an_engine_that_ends_in_the_middle_costs_no_row(
    blow: signal.Signals, run_orch: Orch, orch_home: Path, tiny: tuple[EngineDir, Path]
) -> None:
    """vLLM that is told to stop answers what is in flight with what there is so far: a half answer is none."""
    engine, model = tiny
    (orch_home / "orch.toml").touch()
    env = {"ORCH_ENGINE_DIR": str(engine.root), "VLLM_CPU_KVCACHE_SPACE": "1"}
    process, url = serve(run_orch, "--vllm", str(model), env=env, timeout=300)
    log = orch_home / "serve" / "engines" / "cpu.log"
    ids = [f"r{n}" for n in range(150)]
    rows = [row(i, f"row {i}", model=model.name, max_tokens=120, ignore_eos=True) for i in ids]
    with sdk_at(url) as sdk:
        batch = create(sdk, rows)
        wait_until(lambda: retrieve(sdk, batch.id).request_counts.completed >= 5, 120)
        os.kill(engine_pid(log), blow)
        assert retrieve(sdk, batch.id).request_counts.completed < len(ids)
        done = ended(sdk, batch.id, 400)
        done.check(ids)
        assert len(done.output) == len(ids)
        assert {line["response"]["body"]["usage"]["completion_tokens"] for line in done.output} == {120}
        assert health(sdk)["engines"][0]["starts"] == 2
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert not Path(f"/proc/{engine_pid(log)}").exists()
