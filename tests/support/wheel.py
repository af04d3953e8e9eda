"""The wheel as its users have it: built from the checkout's own files, in an environment that knows no checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.process import ROOT, wait_until

SOURCES = (
    "pyproject.toml", "README.md", "LICENSE", "NOTICE", "orchestrator", "docs", "samples/plugins",
)  # fmt: skip
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input")
BUILD = """
import sys
import warnings

from setuptools import build_meta
from setuptools.warnings import SetuptoolsWarning

warnings.simplefilter("error", SetuptoolsWarning)
build_meta.build_wheel(sys.argv[1])
"""
"""As pip builds it, which starts four interpreters for that. A warning of the build is a fault of ours."""


def build_wheel(source: Path, folder: Path) -> Path:
    """Build the wheel of a source tree by this environment's setuptools; its path in `folder`."""
    folder.mkdir()
    command = [sys.executable, "-c", BUILD, str(folder)]
    subprocess.run(command, cwd=source, check=True, env=clean_environment(folder), stdout=subprocess.DEVNULL)
    [wheel] = folder.glob("*.whl")
    return wheel


def copy_sources(folder: Path) -> Path:
    """Copy what a wheel is built from, so that the build leaves nothing in the checkout."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in SOURCES:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignored)
        else:
            shutil.copy(source, target)
    return folder


def clean_environment(home: Path) -> dict[str, str]:
    """Variables of a process that knows neither this checkout nor this user's settings."""
    kept = {name: value for name, value in os.environ.items() if name in ("PATH", "LANG", "LC_ALL", "TMPDIR")}
    return {**kept, "HOME": str(home), "PYTHONDONTWRITEBYTECODE": "1"}


class Installation:
    """An environment with wheels, and with the libraries of this one beside them, since tests download nothing."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder / "user"
        self.home.mkdir(parents=True)
        venv.create(folder / "venv", symlinks=True)
        self.bin = folder / "venv" / "bin"
        [site] = (folder / "venv" / "lib").glob("python*/site-packages")
        # A plain line adds the folder without its own .pth files, of which one leads to the checkout.
        (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")

    def install(self, *wheels: Path) -> None:
        # Compiled is what runs, when it runs: a third of the modules.
        options = ("--python", str(self.bin / "python"), "install", "--no-deps", "--no-index", "--no-compile")
        command = [sys.executable, *PIP, *options]
        subprocess.run([*command, *map(str, wheels)], check=True, env=clean_environment(self.home))

    def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run `orch` to its end in the user's folder; what it wrote to stdout."""
        done = subprocess.run(
            [self.bin / "orch", *arguments],
            cwd=self.home, env=self.environment, capture_output=True, text=True, check=False, timeout=240,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        return {**clean_environment(self.home), "COLUMNS": "120", "PYTHONDONTWRITEBYTECODE": ""}

    @contextmanager
    def serving(self, address: str, *arguments: str) -> Iterator[str]:
        """Run `orch` beside the test; yields the address that it names, by a pattern with one group."""
        log = self.home / f"{arguments[0]}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [self.bin / "orch", *arguments], cwd=self.home, env=self.environment, stdout=output, stderr=output
            )
        try:
            found = wait_until(
                lambda: process.poll() is not None or re.search(address, log.read_text(encoding="utf-8"))
            )
            assert isinstance(found, re.Match), log.read_text(encoding="utf-8")
            yield found[1]
        finally:
            process.terminate()
            process.wait()
