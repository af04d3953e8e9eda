"""Installs the CPU build of vLLM into its own environment, always with the same versions."""

from __future__ import annotations

import hashlib
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

from orchestrator.server.engines.errors import EngineUnavailable
from orchestrator.server.engines.layout import EngineDir
from orchestrator.server.engines.steps import StepFailed, run_step, say, unavailable

CONSTRAINTS = Path(__file__).resolve().parent / "engine-cpu.txt"
SPACE_NEEDED = 5_000_000_000
PYTHONS = ((3, 11), (3, 14))
PIP: tuple[str, ...] = (
    *("-m", "pip", "install", "--no-deps", "--only-binary", ":all:", "--no-input"),
    *("--progress-bar", "off", "--disable-pip-version-check", "--retries", "2"),
)
FETCH_BYTES = 630_000_000.0
REPORT_SECONDS = 10.0


def platform_problem(system: str, machine: str, python: tuple[int, int]) -> str | None:
    """Return why the CPU engine does not support this platform, or None if it does."""
    if system != "Linux" or machine.lower() not in {"x86_64", "amd64"}:
        return f"the CPU engine exists for Linux on x86_64, this is {system} on {machine}"
    if not PYTHONS[0] <= python <= PYTHONS[1]:
        oldest, newest = (f"{major}.{minor}" for major, minor in PYTHONS)
        return f"the CPU engine needs Python {oldest} to {newest}, this is {python[0]}.{python[1]}"
    return None


def fingerprint(constraints: Path) -> str:
    """Return a digest of the pinned versions and their Python version."""
    text = f"{sys.version_info.major}.{sys.version_info.minor}\n".encode() + constraints.read_bytes()
    return hashlib.sha256(text).hexdigest()


def is_installed(engine: EngineDir, constraints: Path = CONSTRAINTS) -> bool:
    """True if exactly the pinned versions are completely installed."""
    try:
        return engine.stamp.read_text(encoding="utf-8").strip() == fingerprint(constraints)
    except FileNotFoundError:
        return False


def require_installed(engine: EngineDir) -> None:
    if not is_installed(engine):
        state = "out of date or unfinished" if engine.venv.exists() else "not installed"
        raise EngineUnavailable(
            f"the engine in {engine.root} is {state}", hint="python -m orchestrator.server.engines install"
        )


def install(engine: EngineDir, constraints: Path = CONSTRAINTS) -> bool:
    """Create `engine.venv`. Return False if it already existed. Raises EngineUnavailable with the reason."""
    if problem := platform_problem(platform.system(), platform.machine(), sys.version_info[:2]):
        raise EngineUnavailable(problem)
    if not constraints.is_file():
        raise EngineUnavailable(f"{constraints} is missing: the engine is installed from a source checkout")
    try:
        with engine.lock():
            if is_installed(engine, constraints):
                return False
            if engine.venv.exists():
                say("the engine is out of date or unfinished: installing it again")
                shutil.rmtree(engine.venv)
            engine.require_space(SPACE_NEEDED, "the engine")
            _install(engine, constraints)
    except OSError as error:
        raise EngineUnavailable(f"the engine cannot be installed in {engine.root}: {error}") from error
    return True


def _install(engine: EngineDir, constraints: Path) -> None:
    started = time.monotonic()
    log = engine.root / "install.log"
    log.unlink(missing_ok=True)
    pins = _pins(constraints)
    torch = next(pin for pin in pins if pin.startswith("torch=="))
    python = engine.python
    try:
        say(f"[1/4] a new environment in {engine.venv}")
        run_step([sys.executable, "-m", "venv", engine.venv], log=log)
        # This package first, because a package index most likely lacks it.
        say(f"[2/4] {torch} (about 0.2 GB to fetch, 0.8 GB on disk)")
        run_step([python, *PIP, torch], log=log)
        say(f"[3/4] vLLM and what it needs, {len(pins)} packages (about 0.6 GB to fetch, 2.4 GB on disk)")
        run_step([python, *PIP, "-r", constraints], log=log, on_line=FetchProgress(FETCH_BYTES))
        say("[4/4] checking that the engine loads")
        run_step([python, "-P", "-c", "import vllm, transformers"], log=log)
    except StepFailed as failure:
        raise unavailable("installing the engine", failure, log) from failure
    engine.stamp.write_text(fingerprint(constraints) + "\n", encoding="utf-8")
    say(f"the engine is installed ({time.monotonic() - started:.0f} s)")


def _pins(constraints: Path) -> list[str]:
    lines = constraints.read_text(encoding="utf-8").splitlines()
    return [line for line in map(str.strip, lines) if line and not line.startswith("#")]


class FetchProgress:
    """Reports the amount that pip has downloaded, and the time left at the same rate.

    pip names each file's size before downloading the file. So a file's size counts once the next file begins.
    """

    _FILE = re.compile(r"^\s+(?:Downloading|Using cached) \S+ \(([\d.]+) ([kMG])B\)|^Processing (\S+\.whl)")
    _BYTES: ClassVar = {"k": 1e3, "M": 1e6, "G": 1e9}

    def __init__(self, total: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._total = total
        self._clock = clock
        self._start = self._last = clock()
        self._fetched = self._under_way = 0.0

    def __call__(self, line: str) -> None:
        if (file := self._FILE.match(line)) is not None:
            self._fetched += self._under_way
            self._under_way = float(file[1]) * self._BYTES[file[2]] if file[1] else _size(Path(file[3]))
            now = self._clock()
            if self._fetched > self._total / 20 and now - self._last >= REPORT_SECONDS:
                self._last = now
                left = max(0.0, self._total - self._fetched) * (now - self._start) / self._fetched
                say(f"      {self._fetched / 1e6:.0f} of about {self._total / 1e6:.0f} MB, {_roughly(left)} left")
        elif line.startswith("Installing collected packages"):
            say("      unpacking them (a minute or so)")


def _roughly(seconds: float) -> str:
    return f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {max(5, round(seconds, -1)):.0f} s"


def _size(file: Path) -> float:
    return file.stat().st_size if file.is_file() else 0.0
