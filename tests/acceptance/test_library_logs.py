"""Logs of a caller's program: what a call says without asking, and what it keeps to itself."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import orchestrator as orch
from orchestrator.daemon.lock import running_daemon
from orchestrator.settings.home import Home
from tests.support.cli import Orch, write_config
from tests.support.letters import gateway
from tests.support.library import end_daemon, use_home
from tests.support.process import wait_until

ROWS = [{"text": "a"}, {"text": "b"}]
MODELS = '[models]\nsmall = "some-model"\n'


@pytest.fixture
def home(orch_home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    use_home(orch_home, monkeypatch)
    yield orch_home
    end_daemon(orch_home)


def nobody() -> str:
    """Return an address at which no server listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{taken.getsockname()[1]}/v1"


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == "orch" and one.levelno == logging.WARNING]


def test_a_call_says_unasked_that_it_waits_for_a_server_and_for_how_long(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_config(home, [nobody()], patience=6, extra=MODELS)

    with pytest.raises(orch.BackendError, match="no upstream took a row"):
        orch.map(ROWS, "{{ text }}", progress=False)

    (told,) = warnings(caplog)
    assert "does not answer" in told
    assert "waits up to 6 s" in told


@pytest.mark.long
def test_a_call_that_follows_a_daemon_says_for_what_the_daemon_waits(
    home: Path, run_orch: Orch, caplog: pytest.LogCaptureFixture
) -> None:
    address = nobody()
    write_config(home, [address], extra=MODELS)
    run_orch.start("up", cwd=home)
    wait_until(lambda: running_daemon(Home(home)) is not None)
    with ThreadPoolExecutor() as pool:
        answers = pool.submit(orch.map, ROWS, "{{ text }}", progress=False)
        wait_until(lambda: bool(warnings(caplog)) or answers.done())
        with gateway() as at:
            write_config(home, [at.url], extra=MODELS)
            assert [row["error"] for row in answers.result(60)] == [None, None]

    (told,) = warnings(caplog)
    assert address.removesuffix("/v1") in told


def test_calls_of_orchs_own_server_are_in_no_log_of_the_caller(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    logging.getLogger("openai").setLevel(logging.ERROR)
    with gateway() as at:
        write_config(home, [at.url], extra=MODELS)
        with ThreadPoolExecutor() as pool:
            for out in pool.map(lambda _: orch.map(ROWS, "{{ text }}"), range(2)):
                assert [row["error"] for row in out] == [None, None]

    assert {one.name for one in caplog.records} == {"orch"}
    levels = {name: logging.getLogger(name).level for name in ("httpx2", "uvicorn.error", "openai")}
    assert levels == {"httpx2": 0, "uvicorn.error": 0, "openai": logging.ERROR}, "as the caller had them"
    logging.getLogger("openai").setLevel(logging.NOTSET)
