"""Starting, watching and stopping, against small real processes in the engine's place."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestrator.server.engines import EngineDir, EngineUnavailable, Launch, VllmProcess
from orchestrator.server.engines.cpu_launch import engine_environment, free_port, vllm_launch
from orchestrator.server.engines.cpu_models import LocalModel
from orchestrator.server.engines.process import log_tail
from tests.support.process import wait_until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the engine and its leash run on Linux")

STOP_TIMEOUT = 100.0
# Serves /health on argv[1]; its grandchild is in a session of its own; both ignore SIGTERM if argv[3] says so.
# The process ids of both go to the file argv[2].
STAND_IN = """
import http.server, json, os, signal, subprocess, sys
port, pids, stubborn = int(sys.argv[1]), sys.argv[2], sys.argv[3] == "stubborn"
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
below = subprocess.Popen(["sleep", "600"], start_new_session=True)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
    def log_message(self, *args):
        pass
print("serving", flush=True)
with open(pids + ".new", "w") as file:
    json.dump([os.getpid(), below.pid], file)
os.rename(pids + ".new", pids)
http.server.HTTPServer(("127.0.0.1", port), Answer).serve_forever()
"""

STARTER = """
import os, sys, threading
from pathlib import Path
from orchestrator.server.engines import Launch, VllmProcess
port, *command = sys.argv[2:]
launch = Launch(tuple(command), int(port), "m", dict(os.environ))
engine = VllmProcess(launch, log=Path(sys.argv[1]), stop_timeout=0.5)
# Started from a thread that ends: it is the process whose death counts, not the thread's.
thread = threading.Thread(target=engine.start)
thread.start()
thread.join()
engine.wait_ready()
print("ready", flush=True)
threading.Event().wait()
"""


def stand_in(pids: Path, *, stubborn: bool) -> Launch:
    port = free_port()
    kind = "stubborn" if stubborn else "polite"
    command = (sys.executable, "-c", STAND_IN, str(port), str(pids), kind)
    return Launch(command, port, "stand-in", dict(os.environ))


def running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def test_the_command_line(tmp_path: Path) -> None:
    model = LocalModel("gem", tmp_path / "gem", tmp_path / "gem" / "t.jinja", 4096)
    launch = vllm_launch(EngineDir.at(tmp_path), model, port=8111, served_name="x", extra=("--max-num-seqs", "4"))
    text = " ".join(launch.command)
    assert launch.base_url == "http://127.0.0.1:8111/v1"
    assert launch.model == "x"
    assert "-m vllm.entrypoints.openai.api_server" in text
    assert f"--model {tmp_path}/gem --served-model-name x --host 127.0.0.1 --port 8111" in text
    assert f"--max-model-len 4096 --chat-template {tmp_path}/gem/t.jinja" in text
    assert "--enable-prefix-caching --enable-prompt-tokens-details" in text
    assert text.endswith("--max-num-seqs 4")


def test_the_environment(tmp_path: Path) -> None:
    ours = {"PATH": "/bin", "OPENAI_API_KEY": "k", "PYTHONPATH": "/x", "VLLM_CPU_KVCACHE_SPACE": "4", "A": "b"}
    env = engine_environment(EngineDir.at(tmp_path), ours)
    assert env["VLLM_CPU_KVCACHE_SPACE"] == "4"
    assert env["HF_HUB_OFFLINE"] == env["VLLM_NO_USAGE_STATS"] == env["DO_NOT_TRACK"] == "1"
    assert env["PATH"] == f"{tmp_path}/venv/bin:/bin"
    assert env["A"] == "b"
    assert not {"OPENAI_API_KEY", "PYTHONPATH"} & set(env)


def test_the_tail_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert log_tail(log) == ""
    log.write_bytes(b"old\n" + b"".join(b"line %d \xff\n" % number for number in range(50_000)))
    assert log_tail(log, lines=2) == "line 49998 \ufffd\nline 49999 \ufffd"
    log.write_bytes(b"old\nnew\n")
    assert log_tail(log, start=4) == "new"
    log.write_bytes(b"x" * 5_000 + b"\nshort\n")
    long, short = log_tail(log).splitlines()
    assert (long[-2:], len(long) < 500, short) == ("x…", True, "short")


@pytest.mark.slow
def test_ready_and_stopped(tmp_path: Path) -> None:
    with VllmProcess(
        stand_in(tmp_path / "pids", stubborn=False), log=tmp_path / "log", stop_timeout=STOP_TIMEOUT
    ) as engine:
        pids = json.loads((tmp_path / "pids").read_text())
        assert engine.healthy()
        engine.check()
        assert all(map(running, pids))
        started = time.monotonic()
    assert time.monotonic() - started < STOP_TIMEOUT, "it ended when it was asked to, and was not killed"
    assert not engine.running
    assert not any(map(running, pids))
    assert (tmp_path / "log").read_text() == "serving\n"
    engine.stop()  # once more does no harm


@pytest.mark.slow
def test_what_ignores_sigterm_is_killed_with_what_is_below_it(tmp_path: Path) -> None:
    launch = stand_in(tmp_path / "pids", stubborn=True)
    with VllmProcess(launch, log=tmp_path / "log", stop_timeout=0.5):
        pids = json.loads((tmp_path / "pids").read_text())
    assert not any(map(running, pids))


@pytest.mark.slow
def test_a_crash_takes_the_rest_along(tmp_path: Path) -> None:
    engine = VllmProcess(stand_in(tmp_path / "pids", stubborn=False), log=tmp_path / "log")
    with engine:
        main, below = json.loads((tmp_path / "pids").read_text())
        os.kill(main, signal.SIGKILL)
        assert engine.wait() == 128 + signal.SIGKILL
        assert not running(below)
        with pytest.raises(EngineUnavailable, match="ended with code 137"):
            engine.check()


@pytest.mark.slow
def test_the_starter_is_killed(tmp_path: Path) -> None:
    launch = stand_in(tmp_path / "pids", stubborn=True)
    command = [sys.executable, "-c", STARTER, str(tmp_path / "log"), str(launch.port), *launch.command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == "ready\n"
        pids = json.loads((tmp_path / "pids").read_text())
        assert all(map(running, pids))
        starter.kill()
    wait_until(lambda: not any(map(running, pids)))


@pytest.mark.slow
def test_the_leash_is_killed(tmp_path: Path) -> None:
    with VllmProcess(stand_in(tmp_path / "pids", stubborn=False), log=tmp_path / "log") as engine:
        main, below = json.loads((tmp_path / "pids").read_text())
        leash = int(Path(f"/proc/{main}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(leash, signal.SIGKILL)
        wait_until(lambda: not running(main))
        os.kill(below, signal.SIGKILL)  # the stand-in does not stop its own child on SIGTERM, as vLLM does
        with pytest.raises(EngineUnavailable):
            engine.check()


@pytest.mark.slow
def test_death_before_it_is_ready_shows_the_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("of an earlier run\n")
    command = (sys.executable, "-c", "import sys; print('loading'); sys.exit('out of memory')")
    launch = Launch(command, free_port(), "m", dict(os.environ))
    with pytest.raises(EngineUnavailable) as caught, VllmProcess(launch, log=log):
        pass
    said = str(caught.value)
    assert "the engine ended with code 1" in said
    assert "loading" in said
    assert "out of memory" in said
    assert "earlier" not in said
    assert str(log) in said


@pytest.mark.slow
def test_never_ready(tmp_path: Path) -> None:
    launch = Launch(("sleep", "600"), free_port(), "m", dict(os.environ))
    with (
        pytest.raises(EngineUnavailable, match=r"not ready after \d+ s"),
        VllmProcess(launch, log=tmp_path / "log", ready_timeout=1),
    ):
        pass


# Writes argv[2] lines, one each tenth of a second, and then serves /health on argv[1].
SLOW = """
import http.server, sys, time
for number in range(int(sys.argv[2])):
    print("loading", number, flush=True)
    time.sleep(0.1)
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


@pytest.mark.slow
def test_who_waits_for_an_engine_is_told_how_long_it_has_been_loading(tmp_path: Path) -> None:
    port = free_port()
    seen: list[float] = []
    engine = VllmProcess(
        Launch((sys.executable, "-c", SLOW, str(port), "25"), port, "m", dict(os.environ)), log=tmp_path / "log"
    )
    engine.start()
    try:
        engine.wait_ready(seen.append)
    finally:
        engine.stop()
    assert seen
    assert seen == sorted(seen)


@pytest.mark.slow
def test_an_engine_that_still_writes_to_its_log_is_waited_for(tmp_path: Path) -> None:
    port = free_port()
    launch = Launch((sys.executable, "-c", SLOW, str(port), "40"), port, "m", dict(os.environ))
    with VllmProcess(launch, log=tmp_path / "log", ready_timeout=3) as engine:
        assert engine.healthy()
    launch = Launch((sys.executable, "-c", SLOW, str(port), "6000"), port, "m", dict(os.environ))
    with (
        pytest.raises(EngineUnavailable, match=r"not ready after \d+ s"),
        VllmProcess(launch, log=tmp_path / "log", ready_timeout=0.5),
    ):
        pass


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        launch = Launch(("sleep", "600"), other.getsockname()[1], "m", dict(os.environ))
        with pytest.raises(EngineUnavailable, match="cannot be used"):
            VllmProcess(launch, log=tmp_path / "log").start()


def test_no_such_program(tmp_path: Path) -> None:
    launch = Launch(("/no/such/engine",), free_port(), "m", dict(os.environ))
    with pytest.raises(EngineUnavailable, match="No such file"), VllmProcess(launch, log=tmp_path / "log"):
        pass
