"""100,000 documents of which none or 1 % changed since the night before: what `orch submit` decides before it sends.

Against the same decision with every file read, as `verify` does. Both run on copies of the same database, once the
first night is answered. Memory is the child's peak; the files are read into the system's cache beforehand.
"""

from __future__ import annotations

import argparse
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

from benchmarks.serving import say, scratch
from orchestrator.pipeline.build.build_report import BuildReport

DOCUMENTS = 100_000
FOLDERS = 200
CHANGED = DOCUMENTS // 100
CHILD = "--child"
JOB = """\
name: bench
documents: {path: documents}
tasks:
  - {id: about, model: small, max_tokens: 64, prompt: "What is this about?"}
models: {small: m}
"""
SETTINGS = """\
[backends.local]
upstreams = ["http://127.0.0.1:1/v1"]
location = "local"
idle = true
"""


def main(argv: Sequence[str] = ()) -> None:
    """Make the documents and a first night, measure the second one over and over, print what it took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks changes", description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="of the second night; every file is read in one only")
    rounds = parser.parse_args(argv).rounds
    with scratch() as folder:
        first, first_mb, _ = first_night(folder)
        say(
            f"changes, the first night of {DOCUMENTS:,} documents of 4 kB HTML: {first:.1f} s, {first_mb:.0f} MB peak"
        )
        unchanged = [again(folder) for _ in range(rounds)]
        say(f"changes, none: {_told(unchanged)}")
        change(folder / "documents")
        changed = [again(folder) for _ in range(rounds)]
        whole, whole_mb, found = again(folder, "verify")
    said = changed[0][2]
    assert said.split("; ")[0] == found.split("; ")[0], (said, found)
    ratio = statistics.median(seconds for seconds, _, _ in changed) / whole
    say(
        f"changes, 1 % ({said}): {_told(changed)}; every file read {whole:.1f} s, {whole_mb:.0f} MB; "
        f"ratio {ratio:.2f}x"
    )


def _told(found: Sequence[tuple[float, float, str]]) -> str:
    seconds = [each[0] for each in found]
    peak = statistics.median(each[1] for each in found)
    return (
        f"{statistics.median(seconds):.1f} s [{min(seconds):.1f}, {max(seconds):.1f}], {peak:.0f} MB peak, "
        f"{len(found)} rounds"
    )


def first_night(folder: Path) -> tuple[float, float, str]:
    """Make the documents and answer all; for `again`."""
    make_documents(folder / "documents")
    (folder / "job.yaml").write_text(JOB, encoding="utf-8")
    (folder / "orch.toml").write_text(SETTINGS, encoding="utf-8")
    found = measured("first", folder)
    answer_all(folder / "orch.db")
    shutil.copy(folder / "orch.db", folder / "first.db")
    return found


def again(folder: Path, what: str = "again") -> tuple[float, float, str]:
    """Measure a second night on a copy of the first one's database."""
    shutil.copy(folder / "first.db", folder / "orch.db")
    return measured(what, folder)


def make_documents(root: Path) -> None:
    """Pages of about 4 kB."""
    line = "<p>The <b>supplier</b> delivers by the date agreed; payment is due <i>thirty days</i> after it.</p>\n"
    for folder in range(FOLDERS):
        (root / f"{folder:03d}").mkdir(parents=True)
        for number in range(DOCUMENTS // FOLDERS):
            text = f"<html><title>Contract {folder}/{number}</title><body>{line * 38}</body></html>"
            (root / f"{folder:03d}" / f"{number:04d}.html").write_text(text, encoding="utf-8")


def change(root: Path) -> None:
    """Edit 1 % of the documents, spread over the folders."""
    for number in range(CHANGED):
        path = root / f"{number % FOLDERS:03d}" / f"{number // FOLDERS:04d}.html"
        path.write_text(path.read_text(encoding="utf-8").replace("thirty", "sixty"), encoding="utf-8")


def answer_all(path: Path) -> None:
    """Mark every row as answered, as if the job had run."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE requests SET state = 'succeeded'")
        database.execute("UPDATE jobs SET finished_at = created_at")


def measured(what: str, folder: Path) -> tuple[float, float, str]:
    """Seconds and peak megabytes of one child process, and what it found."""
    command = [sys.executable, "-m", "benchmarks.changes", CHILD, what, str(folder)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    seconds, megabytes, said = done.stdout.rstrip("\n").split(" ", 2)
    return float(seconds), float(megabytes), said


def night(folder: Path, *, verify: bool) -> BuildReport:
    """The build of one submit."""
    from orchestrator.core.clock import now
    from orchestrator.pipeline.build import builder, reused_answers, submission
    from orchestrator.settings.config import load
    from orchestrator.settings.discovery import Place
    from orchestrator.settings.home import Home
    from orchestrator.store import Store

    url = f"sqlite:///{folder / 'orch.db'}"
    config = load(Place(folder / "orch.toml", folder / "home", url, 10.0))
    home = Home(folder / "home")
    with Store.open(url) as store:
        job = submission.draft(folder / "job.yaml", config, home, submission.Options(), now())
        job = replace(job, options={**job.options, "verify": verify})
        store.jobs.add(job, {})
        asked = reused_answers.asked_of(config, job)
        # Files just written are not trusted; here they are taken for ten seconds older.
        report = builder.build(store, home, job, now(), asked=asked, clock_ns=lambda: time.time_ns() + 10**10)
        store.jobs.mark_built(job.id, now())
    return report


def child(what: str, folder: Path) -> None:
    """One measurement in a process of its own."""
    started = time.perf_counter()
    report = night(folder, verify=what == "verify")
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    told = ", ".join([*report.saved, *report.changes])
    sys.stdout.write(f"{seconds} {peak} {told}; {report.unread:,} not read\n")


if __name__ == "__main__":
    if CHILD in sys.argv:
        child(sys.argv[2], Path(sys.argv[3]))
    else:
        main(sys.argv[1:])
