"""The wheel alone, without the checkout: a job, a server, migrations, pages, a plug-in, the demo and the help."""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
from pathlib import Path

import httpx2
import pytest

from orchestrator import __version__
from orchestrator.store.database import HEAD
from tests.support.batchapi import row, run_batch, sdk_at
from tests.support.cli import write_config
from tests.support.earlier_home import put_home
from tests.support.process import Upstream
from tests.support.wheel import Installation, build_wheel, copy_sources

pytestmark = [pytest.mark.slow, pytest.mark.together]
JOB = """
name: letters
documents: letters
tasks: [{id: gist, model: small, prompt: "What is it?", max_tokens: 8}]
models: {small: {local: default}}
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """orch, and the sample of a plug-in."""
    folder = tmp_path_factory.mktemp("build")
    source = copy_sources(folder / "source")
    plugin = source / "samples/plugins/orch-vcard"
    return [build_wheel(source, folder / "orch"), build_wheel(plugin, folder / "plugin")]


@pytest.fixture(scope="module")
def orch(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Installation:
    made = Installation(tmp_path_factory.mktemp("installed"))
    made.install(*wheels)
    return made


@pytest.mark.long
def test_it_is_the_wheel_that_runs(orch: Installation) -> None:
    assert orch("--version") == f"orch, version {__version__}\n"
    command = [orch.bin / "python", "-c", "import orchestrator; print(orchestrator.__file__)"]
    place = subprocess.run(command, env=orch.environment, cwd=orch.home, capture_output=True, text=True, check=True)
    assert place.stdout.startswith(str(orch.folder))


@pytest.mark.long
def test_a_job_with_a_plug_in(orch: Installation, upstream: Upstream) -> None:
    config = write_config(orch.home, [upstream.base_url])
    config.write_text('home = "state"\n' + config.read_text())
    (orch.home / "letters").mkdir()
    (orch.home / "letters/a.txt").write_text("Dear Ms Aster, the roof leaks.")
    (orch.home / "letters/card.vcf").write_text("BEGIN:VCARD\nFN:Ada Grün\nORG:Grün & Sons\nEND:VCARD\n")
    (orch.home / "job.yaml").write_text(JOB)

    orch("run", "job.yaml", "-o", "out.jsonl")

    rows = [json.loads(line) for line in (orch.home / "out.jsonl").read_text().splitlines()]
    assert [(one["document"], one["status"]) for one in rows] == [
        ("letters/a.txt", "succeeded"), ("letters/card.vcf", "succeeded"),
    ]  # fmt: skip
    assert "Ada Grün" in orch("show", "letters", "letters/card.vcf")
    with (
        orch.serving(r"(http://[^\s,]+)", "view", "127.0.0.1:0") as url,
        httpx2.Client(follow_redirects=True) as client,
    ):
        assert client.get(url).status_code == 200
        assert client.get(httpx2.URL(url).join("/static/orch.css")).status_code == 200


def test_a_server(orch: Installation, upstream: Upstream) -> None:
    arguments = ("serve", "--upstream", upstream.base_url, "--port", "0", "--dir", "served")
    with orch.serving(r"OPENAI_BASE_URL=(\S+)/v1", *arguments) as url, sdk_at(url) as sdk:
        done = run_batch(sdk, [row("a"), row("b")])
    assert done.batch.status == "completed"
    assert done.counts[0] == 2


@pytest.mark.long
def test_a_home_of_0_1_0_is_migrated(orch: Installation) -> None:
    folder = orch.home / "earlier"
    put_home(folder, f"sqlite:///{folder / 'home/orch.db'}")
    (folder / "home/orch.toml").touch()
    environment = {"ORCH_HOME": str(folder / "home"), "ORCH_CONFIG": str(folder / "home/orch.toml")}
    done = subprocess.run(
        [orch.bin / "orch", "status", "--all", "--json"],
        env={**orch.environment, **environment}, cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)) == 7
    with sqlite3.connect(folder / "home/orch.db") as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchone() == (HEAD,)


@pytest.mark.long
def test_the_demo_with_a_server_of_one_s_own(orch: Installation, upstream: Upstream) -> None:
    said = orch("demo", "--upstream", upstream.base_url)
    assert re.search(r"rows: \d+ of 120 succeeded", said), said
    assert "as the package declares it" in said
    assert len(upstream.requests()) >= 60


@pytest.mark.long
def test_pages_of_the_documentation_are_in_it(orch: Installation) -> None:
    assert orch("help").startswith("# Documentation")
    assert orch("help", "budgets").startswith("# ")
    assert orch("help", "backends") == orch("help", "reference/backends/README")
    assert "Usage: orch validate" in orch("help", "validate")
    orch("help", "nothing-of-the-kind", code=2)


@pytest.mark.parametrize(
    ("shell", "file"),
    [
        ("bash", ".local/share/bash-completion/completions/orch"),
        ("zsh", ".local/share/zsh/site-functions/_orch"),
        ("fish", ".config/fish/completions/orch.fish"),
    ],
)
def test_completion_is_installed_where_the_shell_looks(orch: Installation, shell: str, file: str) -> None:
    orch("completion", shell, "--install")
    assert (orch.home / file).read_text() == orch("completion", shell)
    word = "val" if shell == "fish" else "1"
    words = {"COMP_WORDS": "orch val", "COMP_CWORD": word, "_ORCH_COMPLETE": f"{shell}_complete"}
    done = subprocess.run(
        [orch.bin / "orch"], env={**orch.environment, **words}, capture_output=True, text=True, check=True
    )
    assert "validate" in done.stdout


@pytest.mark.long
def test_the_manual_page_has_every_command(orch: Installation) -> None:
    page = orch("man")
    orch("man", "--install")
    assert (orch.home / ".local/share/man/man1/orch.1").read_text() == page
    assert ".SS orch schedule add" in page
    assert r"\fB\-\-deadline" in page
