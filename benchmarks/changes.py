"""100,000 documents of which 1 % changed since the night before: what `orch submit` decides before it sends.

Against the same decision with every file read, as `verify` does. Both run on copies of the same database, once the
first night is answered. Memory is the child's peak; the files are read into the system's cache beforehand.
"""

from __future__ import annotations

import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from msgspec.structs import replace

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


def main() -> None:
    """Make the documents and a first night, measure the second one twice, print the ratio."""
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as name:
        folder = Path(name)
        make_documents(folder / "documents")
        (folder / "job.yaml").write_text(JOB, encoding="utf-8")
        (folder / "orch.toml").write_text(SETTINGS, encoding="utf-8")
        first, first_mb, _ = measured("first", folder)
        answer_all(folder / "orch.db")
        change(folder / "documents")
        shutil.copy(folder / "orch.db", folder / "first.db")
        ours, ours_mb, said = measured("again", folder)
        shutil.copy(folder / "first.db", folder / "orch.db")
        whole, whole_mb, said_whole = measured("verify", folder)
    assert said.split("; ")[0] == said_whole.split("; ")[0], (said, said_whole)
    sys.stdout.write(
        f"decide what changed among {DOCUMENTS:,} documents of 4 kB HTML ({said}): {ours:.1f} s, {ours_mb:.0f} MB "
        f"peak; every file read {whole:.1f} s, {whole_mb:.0f} MB; ratio {ours / whole:.2f}x\n"
        f"the first night {first:.1f} s, {first_mb:.0f} MB\n"
    )


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
        main()
