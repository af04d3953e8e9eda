"""The emulator is what the official SDKs of other providers take it for; `make provider-sdks` installs them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.client import Emulator
from tests.support.process import ROOT

PYTHON = Path(os.environ.get("ORCH_PROVIDER_SDKS", ROOT / ".provider-sdks")) / "bin" / "python"
MONTH = 30 * 86_400.0
SCRIPT = Path(__file__).with_name("provider_sdks.py")


def seen_by(name: str, folder: Path, first_takes: float | None = None) -> dict[str, Any]:
    """What the SDK sees; the first batch may take so many seconds, by the provider's clock."""
    if not PYTHON.exists():
        pytest.skip("`make provider-sdks` installs the SDKs")
    with Emulator(folder, speed=600.0) as provider:
        if first_takes is not None:
            provider.script({"do": "turnaround", "seconds": first_takes, "match": {"flavour": name}})
        command = [str(PYTHON), str(SCRIPT), name, provider.url_of(name)]
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout)
    return found


@pytest.mark.soak
def test_mistrals_sdk_runs_unmodified(tmp_path: Path) -> None:
    seen = seen_by("mistral", tmp_path)
    assert seen.pop("text").startswith("answer ")
    assert seen.pop("statuses")[-1] == "SUCCESS"
    assert seen == {
        "listed": True,
        "metadata": {"of": "a test"},
        "counts": [3, 3, 0],
        "ids": ["row 0", "row 1", "row 2"],
        "files": ["batch_result"],
        "refused": 400,
        "deleted": True,
    }


@pytest.mark.soak
def test_geminis_sdk_runs_unmodified(tmp_path: Path) -> None:
    seen = seen_by("gemini", tmp_path)
    assert seen.pop("text").startswith("answer ")
    assert seen.pop("states")[-1] == "JOB_STATE_SUCCEEDED"
    assert seen == {
        "listed": True,
        "name": "of a test",
        "ids": ["row 0", "row 1", "row 2"],
        "texts": ["answer "],
        "tokens": 8,
        "refused": 400,
        "left": [],
    }


@pytest.mark.soak
def test_geminis_sdk_runs_unmodified_before_vertex(tmp_path: Path) -> None:
    seen = seen_by("vertex", tmp_path)
    assert seen.pop("text").startswith("answer ")
    assert seen.pop("states")[-1] == "JOB_STATE_SUCCEEDED"
    assert seen == {
        "listed": True,
        "name": "of a test",
        "counts": 3,
        "files": ["predictions.jsonl"],
        "echoes": 3,
        "texts": ["answer "],
        "models": True,
        "refused": 400,
        "left": [],
    }


@pytest.mark.soak
def test_togethers_sdk_runs_unmodified(tmp_path: Path) -> None:
    seen = seen_by("together", tmp_path)
    assert seen.pop("text").startswith("answer ")
    assert seen.pop("statuses")[-1] == "COMPLETED"
    assert seen == {
        "listed": True,
        "is_one_file": True,
        "progress": 100.0,
        "ids": ["row 0", "row 1", "row 2"],
        "files": ["batch-api", "batch-generated"],
        "refused": 400,
        "deleted": True,
    }


@pytest.mark.soak
def test_fireworks_sdk_runs_unmodified(tmp_path: Path) -> None:
    seen = seen_by("fireworks", tmp_path)
    assert seen.pop("text").startswith("answer ")
    assert seen.pop("states")[-1] == "JOB_STATE_COMPLETED"
    assert seen == {
        "again": 409,
        "state_of_input": "READY",
        "listed": 0,
        "counts": [3, 3],
        "ids": ["row 0", "row 1", "row 2"],
        "left": 0,
    }


@pytest.mark.soak
def test_coheres_sdk_runs_unmodified(tmp_path: Path) -> None:
    seen = seen_by("cohere", tmp_path)
    assert seen.pop("text").startswith("answer ")
    assert seen.pop("states")[-1] == "BATCH_STATUS_COMPLETED"
    assert seen == {
        "type": "batch-chat-v2-output",
        "listed": ["of-a-test"],
        "counts": [3, 3, 0],
        "billed": True,
        "ids": ["row 0", "row 1", "row 2"],
        "ends": ["COMPLETE"],
        "cancelled": True,
        "refused": 400,
        "left": 0,
        "models": ["command-a-03-2025", "command-r7b-12-2024"],
    }


@pytest.mark.soak
def test_xais_sdk_runs_unmodified(tmp_path: Path) -> None:
    assert seen_by("xai", tmp_path, first_takes=MONTH) == {
        "listed": ["of a test", "another"],
        "is_cancelled": True,
        "file": True,
        "counts": [3, 0, 0],
        "ids": ["row 0", "row 1", "row 2"],
        "last": None,
        "texts": ["answer "],
    }


@pytest.mark.soak
def test_openrouters_sdk_runs_unmodified(tmp_path: Path) -> None:
    seen = seen_by("openrouter", tmp_path, first_takes=MONTH)
    assert seen.pop("statuses")[-1] == "completed"
    assert seen == {
        "listed": True,
        "counts": [3, 3, 0],
        "ids": ["row 0", "row 1", "row 2"],
        "codes": [200],
        "usage": True,
        "refused": 409,
        "deleted": "deleted",
        "left": True,
    }
