"""The integrations in their real schedulers: a worker is lost behind the submit, and nothing is asked twice.

`make soak-integrations` makes an environment for each scheduler.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import orchestrator as orch
from orchestrator.store import Store
from tests.support.cli import CONFIG, write_config
from tests.support.library import end_daemon, use_home
from tests.support.process import ROOT, Upstream

pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800), pytest.mark.filterwarnings("default")]
FOLDER = ROOT / "integrations"
LETTERS = {"birch.txt": "The roof leaks. Tom Birch", "cole.txt": "I pay for both weeks. Ida Cole"}
PAGE = ROOT / "docs/how-to/recipes/airflow.md"
LOST = """
class Lost(OrchOperator):
    def execute(self, context):
        from pathlib import Path

        mark = Path({mark!r})
        if not mark.exists():
            mark.touch()
            self.draft().submit(deadline=self.deadline, budget=self.budget, progress=False)
            raise RuntimeError("the worker is lost")
        return super().execute(context)


with DAG("""
"""An operator whose first worker is lost behind the submit, before the recipe's DAG."""


class Lost:
    """A draft whose first caller is lost behind the submit."""

    def __init__(self, draft: Any) -> None:
        self._draft, self.calls = draft, 0

    def submit(self, **terms: Any) -> Any:
        job = self._draft.submit(**terms)
        self.calls += 1
        if self.calls == 1:
            raise RuntimeError("the worker is lost")
        return job


@pytest.fixture
def letters(tmp_path: Path, orch_home: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    write_config(orch_home, [upstream.base_url], extra='[models]\nsmall = "some-model"\n')
    use_home(orch_home, monkeypatch)
    monkeypatch.syspath_prepend(str(FOLDER))
    folder = tmp_path / "letters"
    folder.mkdir()
    for name, text in LETTERS.items():
        (folder / name).write_text(text)
    yield folder
    end_daemon(orch_home)


def check(home: Path, upstream: Upstream) -> None:
    """One job has every answer, and nothing was asked twice."""
    with Store.open(f"sqlite:///{home / 'orch.db'}") as store:
        [job] = store.jobs.newest()
        assert store.jobs.counts([job.id])[job.id].succeeded == len(LETTERS)
    assert len(upstream.requests()) == len(LETTERS)


def draft(folder: Path) -> Lost:
    return Lost(orch.documents(folder).map("Who wrote it?", model="small"))


def test_airflow(letters: Path, tmp_path: Path, orch_home: Path, upstream: Upstream) -> None:
    pytest.importorskip("airflow.sdk")
    home = tmp_path / "airflow"
    (home / "dags").mkdir(parents=True)
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    code = code.replace("/srv/letters", str(letters)).replace("    OrchOperator(", "    Lost(")
    code = code.replace("with DAG(", LOST.format(mark=str(tmp_path / "mark")).lstrip())
    (home / "dags" / "letters.py").write_text(code)
    given = {
        "AIRFLOW_HOME": str(home), "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "PYTHONPATH": f"{FOLDER}:{ROOT}",
        "AIRFLOW__CORE__DAGS_FOLDER": str(home / "dags"), "ORCH_CONFIG": str(orch_home / CONFIG),
    }  # fmt: skip
    said = ""
    for command in (["db", "migrate"], ["dags", "test", "letters"]):
        done = subprocess.run(
            [sys.executable, "-m", "airflow", *command], env=os.environ | given, cwd=home, timeout=900,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        said += done.stdout
        assert done.returncode == 0, said[-5000:]

    assert (tmp_path / "mark").exists(), said[-5000:]
    assert "the worker is lost" in said
    check(orch_home, upstream)


def test_dagster(letters: Path, orch_home: Path, upstream: Upstream) -> None:
    dagster = pytest.importorskip("dagster")
    from orch_dagster import orch_asset

    lost = draft(letters)
    asset = orch_asset(lambda: lost, name="letters", retry_policy=dagster.RetryPolicy(max_retries=1))

    result = dagster.materialize([asset])

    assert result.success
    assert lost.calls == 2
    rows = result.output_for_node("letters")
    assert [row["error"] for row in rows] == [None, None]
    [event] = result.asset_materializations_for_node("letters")
    assert event.metadata["rows"].value == len(LETTERS)
    check(orch_home, upstream)


def test_prefect(letters: Path, orch_home: Path, upstream: Upstream) -> None:
    prefect = pytest.importorskip("prefect")
    from orch_prefect import run_job
    from prefect.testing.utilities import prefect_test_harness

    lost = draft(letters)

    @prefect.flow
    def night() -> list[str]:
        rows = run_job.with_options(retry_delay_seconds=0)(lost)
        return [row.answer for row in rows]

    with prefect_test_harness(server_startup_timeout=300):
        answers = night()

    assert lost.calls == 2
    assert [answer[:5] for answer in answers] == ["echo:"] * len(LETTERS)
    check(orch_home, upstream)


def test_llm(letters: Path, orch_home: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("llm")
    from click.testing import CliRunner
    from llm.cli import cli

    monkeypatch.syspath_prepend(str(FOLDER / "llm-orch"))
    import llm_orch

    llm_orch.register_commands(cli)
    command = ["orch", "-m", "small", "-s", "In one word."]
    done = CliRunner().invoke(cli, command, input="Who wrote it?\n\nWhat about?\n")

    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [(row["prompt"], row["response"][:5], row["error"]) for row in rows] == [
        ("Who wrote it?", "echo:", None), ("What about?", "echo:", None),
    ]  # fmt: skip
    check(orch_home, upstream)
