"""The wheel of `make dist`, installed as a stranger would: from an index, with every extra, into an empty folder."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from orchestrator import __version__
from tests.support.process import ROOT, Upstream
from tests.support.wheel import PIP, clean_environment

pytestmark = pytest.mark.soak
PAGE = ROOT / "docs/reference/python.md"
NAMES = ROOT / "tests/soak/every_name.py"


def test_a_stranger_installs_it_and_runs_the_demo(tmp_path: Path, upstream: Upstream) -> None:
    [wheel] = (ROOT / "dist").glob(f"orch_batch-{__version__}-*.whl")
    assert [*(ROOT / "dist").glob(f"orch_batch-{__version__}.tar.gz")]
    venv.create(tmp_path / "venv", with_pip=True, symlinks=True)
    bin_folder, environment = tmp_path / "venv/bin", clean_environment(tmp_path)
    constraints = ROOT / "constraints/dev.txt"
    pip = [str(part) for part in (bin_folder / "python", *PIP, "install", "--constraint", constraints)]
    subprocess.run([*pip, f"{wheel}[all]"], check=True, env=environment)

    def orch(*arguments: str) -> str:
        return subprocess.run(
            [bin_folder / "orch", *arguments],
            cwd=tmp_path,
            env=environment,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout

    assert orch("--version") == f"orch, version {__version__}\n"
    assert (tmp_path / "venv/share/man/man1/orch.1").is_file()
    assert orch("help").startswith("# Documentation")
    assert re.search(r"rows: \d+ of 120 succeeded", orch("demo", "--upstream", upstream.base_url))
    asked = len(upstream.requests())
    orch("demo", "--upstream", upstream.base_url)
    assert len(upstream.requests()) == asked, "the second run asks nothing"

    subprocess.run([*pip, "pandas", "polars"], check=True, env=environment)
    # The page of the Python interface and every public name, as an editor and a strict type checker see them.
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    (tmp_path / "page.py").write_text("\n".join(['BASE_URL = "http://127.0.0.1:8000/v1"', *blocks]), encoding="utf-8")
    shutil.copy(NAMES, tmp_path)
    python = str(bin_folder / "python")
    for checker in (
        (ROOT / ".release/bin/pyright", "--pythonpath", python),
        (sys.executable, "-m", "mypy", "--strict", "--ignore-missing-imports", "--python-executable", python),
    ):
        command = [*map(str, checker), "page.py", NAMES.name]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
