"""Several processes run the tests of one that collected them, each test once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
OTHERS = ("schemathesis", "hypothesispytest", "xdist", "xdist.looponfail")
TESTS = """
import os, signal
from pathlib import Path
import pytest

@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    yield folder
    Path("ended", str(os.getpid())).touch()

@pytest.mark.parametrize("number", range(40))
def test_goes(made, number, tmp_path):
    assert made.parent == tmp_path.parent
    with Path(f"ran-{number}").open("x") as ran:
        ran.write(str(os.getpid()))

def test_exits(made):
    os._exit(0)

def test_is_killed(made):
    os.kill(os.getpid(), signal.SIGKILL)

def test_fails(made):
    print("what it prints")
    assert 1 == 2
"""


def run(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "tests.support.workers", "-p", "no:cacheprovider"]
    for name in OTHERS:
        command += ["-p", f"no:{name}"]
    done = subprocess.run(
        [*command, "--basetemp", str(folder / "temporary"), *options, "test_all.py"],
        cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "test_all.py").write_text(TESTS)
    (tmp_path / "ended").mkdir()
    return tmp_path


@pytest.mark.long
def test_each_runs_once_and_one_that_ends_its_process_has_failed(folder: Path) -> None:
    said = run(folder, "-n", "3")

    assert re.search(r"^=* ?3 failed, 40 passed", said, re.MULTILINE), said
    assert "its process ended, exit status 0" in said
    assert "its process ended, exit status -9" in said
    assert "what it prints" in said
    assert len(list(folder.glob("ran-*"))) == 40
    processes = {path.read_text() for path in folder.glob("ran-*")}
    assert len(processes) >= 2
    # Fixtures are taken down in a process that comes to its end.
    assert list((folder / "ended").iterdir())


@pytest.mark.slow
def test_a_run_that_stops_at_a_failure_leaves_no_process(folder: Path) -> None:
    said = run(folder, "-n", "3", "-x")

    assert "stopping after" in said
    assert len(re.findall(r"^=* ?\d+ failed", said, re.MULTILINE)) == 1
