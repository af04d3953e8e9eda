"""What a command costs before it does any work, or for one row or ten documents, against a bare interpreter that
imports the database library.

CPU is user and system time of the command and of the processes that it started, so that other work on the machine
matters less. Rounds are interleaved; the medians are told. The install is what pip installs without extras, as the
packages that are here say of their files.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from benchmarks.databases import SETTINGS
from benchmarks.serving import ROOT, Constant, Unavailable, say, write_rows
from tests.support.webhome import web_home

ROUNDS = 7
DOCUMENTS = 10
YARDSTICK = "import sqlalchemy"
LIBRARY = "import orchestrator"
ORCH = (sys.executable, "-m", "orchestrator.cli")
JOB = """\
name: bench
documents: {path: documents}
tasks:
  - {id: about, model: small, max_tokens: 64, prompt: "What is this about?"}
models: {small: m}
"""


def main() -> None:
    """Print a line for each command, and one for the install."""
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as folder, Constant() as upstream:
        place = Path(folder)
        (place / "orch.toml").write_text(SETTINGS.format(url=upstream.url), encoding="utf-8")
        (place / "broken.toml").write_text("[backends.local]\nupstream = 3\n", encoding="utf-8")
        write_rows(place / "rows.jsonl", 1)
        run = (*ORCH, "run", str(place / "rows.jsonl"), "--quiet")
        (place / "job.yaml").write_text(JOB, encoding="utf-8")
        (place / "documents").mkdir()
        for number in range(DOCUMENTS):
            (place / "documents" / f"{number}.txt").write_text(f"Contract {number}. " * 40, encoding="utf-8")
        verbs, job = ("validate", "plan", "submit"), str(place / "job.yaml")
        with _home(place) as used, _home(place) as going:
            web_home(going, 1000)
            seconds_of(run, place, "orch.toml", used)  # there is a job to show
            found: dict[str, list[tuple[float, float]]] = {}
            for _ in range(ROUNDS):
                with ExitStack() as homes:
                    fresh, empty, *new = (homes.enter_context(_home(place)) for _ in range(2 + len(verbs)))
                    of_ten = (
                        (f"orch {verb} of ten documents, a fresh home", (*ORCH, verb, job), "orch.toml", home, 0)
                        for verb, home in zip(verbs, new, strict=True)
                    )
                    for name, command, settings, home, code in (
                        (YARDSTICK, (sys.executable, "-c", YARDSTICK), "orch.toml", used, 0),
                        (LIBRARY, (sys.executable, "-c", LIBRARY), "orch.toml", used, 0),
                        ("orch --help", (*ORCH, "--help"), "orch.toml", used, 0),
                        ("orch status", (*ORCH, "status"), "orch.toml", used, 0),
                        ("orch status, a batch runs", (*ORCH, "status"), f"{going.name}/orch.toml", going, 0),
                        ("orch run, a mistake in orch.toml, a fresh home", run, "broken.toml", empty, 2),
                        ("orch run of one row, a fresh home", run, "orch.toml", fresh, 0),
                        *of_ten,
                    ):
                        found.setdefault(name, []).append(seconds_of(command, place, settings, home, code))
    walls, cpus = (
        {name: statistics.median(each[at] for each in taken) for name, taken in found.items()} for at in (0, 1)
    )
    for name in found:
        ratio = cpus[name] / cpus[YARDSTICK]
        say(f"startup {name}: {walls[name]:.3f} s, {cpus[name]:.3f} s CPU, {ratio:.2f}x of `{YARDSTICK}`")
    names, size = installed()
    say(f"startup install without extras: {size / 2**20:.0f} MB in {len(names)} packages")


@contextmanager
def _home(place: Path) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="home-", dir=place) as home:
        yield Path(home)


def seconds_of(
    command: tuple[str, ...], place: Path, settings: str, home: Path, code: int = 0
) -> tuple[float, float]:
    """Wall and CPU seconds of a command. Raises Unavailable where it ends with another code."""
    # What is installed is compiled; a checkout whose surroundings forbid that would be compiled at each start.
    more = {"PYTHONPYCACHEPREFIX": str(place / "compiled"), "PYTHONPATH": str(ROOT)}
    environ = {**os.environ, "ORCH_CONFIG": str(place / settings), "ORCH_HOME": str(home), **more}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    began = time.perf_counter()
    process = subprocess.Popen(command, cwd=place, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != code:
        raise Unavailable(f"`{' '.join(command[1:])}` ended with {process.returncode}")
    return time.perf_counter() - began, used.ru_utime + used.ru_stime


def installed(package: str = "orch-batch") -> tuple[set[str], int]:
    """The packages that one needs without extras, itself among them, and the bytes of their files."""
    names, size, left = set[str](), 0, [package]
    while left:
        name = re.sub(r"[-_.]+", "-", left.pop()).lower()
        if name in names:
            continue
        try:
            found = distribution(name)
        except PackageNotFoundError:
            continue  # for another platform
        names.add(name)
        places = (Path(str(file.locate())) for file in found.files or ())
        size += sum(place.stat().st_size for place in places if place.is_file())
        left += [
            re.split(r"[^A-Za-z0-9._-]", one, maxsplit=1)[0] for one in found.requires or () if "extra ==" not in one
        ]
    return names, size


if __name__ == "__main__":
    main()
