"""100,000 small documents: built, validated, recorded and sharded, against a bare loop that writes the same lines.

The bare loop reads the files and writes request lines with the standard library's json: no checks, no identities, no
database, nothing durable. Memory is the child's peak.
"""

from __future__ import annotations

import json
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks.serving import say

DOCUMENTS = 100_000
FOLDERS = 200
CHILD = "--child"
QUESTION = "What is this about? Answer in one sentence."

JOB = """\
name: bench
documents: {path: documents}
tasks:
  - id: about
    model: small
    max_tokens: 64
    prompt: "%s"
models: {small: m}
"""


def main() -> None:
    """Make the documents, measure both, print the ratio."""
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as name:
        folder = Path(name)
        make_documents(folder / "documents")
        (folder / "job.yaml").write_text(JOB % QUESTION, encoding="utf-8")
        bare, bare_mb = measured("bare", folder)
        ours, ours_mb = measured("ours", folder)
        again, _ = measured("again", folder)
    say(
        f"build {DOCUMENTS:,} documents: {ours:.1f} s, {ours_mb:.0f} MB peak (bare loop {bare:.1f} s, "
        f"{bare_mb:.0f} MB); ratio to the bare loop {ours / bare:.1f}x"
    )
    say(f"the same again, nothing changed: {again:.1f} s")


def make_documents(root: Path) -> None:
    """About 1 kB of text each."""
    words = ("invoice contract report payment clause delivery term party amount date " * 14).split()
    for folder in range(FOLDERS):
        (root / f"{folder:03d}").mkdir(parents=True)
        for number in range(DOCUMENTS // FOLDERS):
            text = f"Document {folder}/{number}\n" + " ".join(words[(number % 10) :])
            (root / f"{folder:03d}" / f"{number:04d}.txt").write_text(text, encoding="utf-8")


def measured(what: str, folder: Path) -> tuple[float, float]:
    """Seconds and peak megabytes of one child process."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.build", CHILD, what, str(folder)],
        check=True,
        capture_output=True,
        text=True,
    )
    seconds, megabytes = done.stdout.split()[-2:]
    return float(seconds), float(megabytes)


def bare(folder: Path) -> None:
    """The loop to compare with."""
    with (folder / "bare.jsonl").open("w", encoding="utf-8") as out:
        for path in sorted((folder / "documents").rglob("*.txt")):
            content = f"<document>\n{path.read_text(encoding='utf-8')}\n</document>\n\n{QUESTION}"
            body = {"model": "m", "messages": [{"role": "user", "content": content}], "max_tokens": 64}
            row = {"custom_id": path.name, "method": "POST", "url": "/v1/chat/completions", "body": body}
            out.write(json.dumps(row) + "\n")


def ours(folder: Path, *, finish: bool) -> None:
    """What `orch submit` does, and the sharding that the engine does next."""
    from orchestrator.core.clock import now
    from orchestrator.pipeline.backend_admission import BatchRoom
    from orchestrator.pipeline.backend_set import open_handle
    from orchestrator.pipeline.build import submission
    from orchestrator.pipeline.plan.orders import Sending
    from orchestrator.pipeline.submit import rows_to_shards
    from orchestrator.settings.backends import LocalBackend
    from orchestrator.settings.config import load
    from orchestrator.settings.discovery import Place
    from orchestrator.settings.home import Home
    from orchestrator.store import Store

    (folder / "orch.toml").write_text(
        '[backends.local]\nupstreams = ["http://127.0.0.1:1/v1"]\nlocation = "local"\nidle = true\n', encoding="utf-8"
    )
    url = f"sqlite:///{folder / 'orch.db'}"
    config = load(Place(folder / "orch.toml", folder / "home", url, 10.0))
    home = Home(folder / "home")
    with Store.open(url) as store:
        options = submission.Options(new=False)
        taken = submission.submit(store, home, config, folder / "job.yaml", options, now, lambda *_: None)
        if finish:
            return
        settings = config.backends["local"]
        assert isinstance(settings, LocalBackend)
        sync = open_handle("local", settings, config, home.root / "none")
        order, room = Sending(DOCUMENTS, "local", None, "bench"), BatchRoom(50_000, None)
        shards = rows_to_shards.plan_shards(store, taken.job, sync, order, lambda model: room, now())
        assert sum(shard.rows for shard in shards) == DOCUMENTS
    _answer_all(folder / "orch.db", taken.job.id)


def _answer_all(path: Path, job_id: str) -> None:
    """Mark every row as answered, as if the job had run, so that the next submit finds nothing changed."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE requests SET state = 'succeeded' WHERE job_id = ?", (job_id,))
        database.execute("UPDATE jobs SET finished_at = created_at WHERE id = ?", (job_id,))


def child(what: str, folder: Path) -> None:
    """One measurement in a process of its own."""
    started = time.perf_counter()
    if what == "bare":
        bare(folder)
    else:
        ours(folder, finish=what == "again")
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(f"{seconds} {peak}\n")


if __name__ == "__main__":
    if CHILD in sys.argv:
        child(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
