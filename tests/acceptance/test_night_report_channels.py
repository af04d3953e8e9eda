"""`orch up` sends the report of a job that is over, once, and again after a restart where nobody took it."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.cli import Orch, write_config
from tests.support.process import PATIENCE, Upstream, wait_until
from tests.support.receiver import Receiver

JOB = """\
name: letters
documents:
  - path: letters
tasks:
  - id: sort
    model: small
    prompt: What is it?
models: {small: some-model}
"""


def test_a_report_arrives_once_whatever_becomes_of_the_daemon(
    run_orch: Orch, orch_home: Path, upstream: Upstream, tmp_path: Path
) -> None:
    (tmp_path / "letters").mkdir()
    for name in ("a", "b"):
        (tmp_path / "letters" / f"{name}.txt").write_text(f"letter {name}")
    (tmp_path / "job.yaml").write_text(JOB)
    write_config(orch_home, [upstream.base_url], extra='[reports]\nwebhook_env = "HOOK"\nfolder = "told"\n')
    with Receiver(503) as receiver:
        env = {"HOOK": receiver.url}
        ran = run_orch("run", str(tmp_path / "job.yaml"), "--json", env=env)
        assert (ran.returncode, receiver.deliveries) == (0, []), "who waits for a job needs no message"
        # Each start of the daemon looks at once; the next look is a minute later.
        for wanted in (1, 2):
            daemon = run_orch.start("up", env=env)
            wait_until(lambda wanted=wanted: len(receiver.deliveries) == wanted)  # type: ignore[misc]
            daemon.terminate()
            assert daemon.wait(PATIENCE) == 0
        assert [delivery.status for delivery in receiver.deliveries] == [503, 204]
        told = json.loads(receiver.deliveries[1].body)["text"]
    assert told.startswith("*letters, ")
    assert "1 job completed" in told
    assert [path.suffix for path in sorted((orch_home / "told").iterdir())] == [".html", ".md"]
    shown = run_orch("report", "night", "--md")
    assert "| new | 2 |" in shown.stdout
    log = (orch_home / "engine.log").read_text()
    assert "the report was not accepted" in log
    assert receiver.url not in log
