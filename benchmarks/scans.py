"""1,000 scanned pages built into requests with pictures: how long it takes, and the most memory that it takes.

Memory is that of the command and of all its worker processes together, looked at twenty times a second; what they
share is counted once (the kernel's PSS).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image, ImageDraw

from benchmarks.serving import say

FILES = 50
PAGES = 20
A4_AT_150_DPI = 1240, 1754
LOOK_SECONDS = 0.05
CORES = len(os.sched_getaffinity(0))
LINE = "The licensee shall not transfer, sublicense or assign its rights under clause {number} of this agreement."
JOB = """
name: scans
documents: {path: in, render: image, pictures: {max_bytes: 40000000}}
tasks: [{id: what, model: small, prompt: "What does it say?"}]
models: {small: default}
"""
TOML = '[backends.local]\nupstreams = ["http://127.0.0.1:9/v1"]\nlocation = "local"\nidle = true\n'


def main() -> None:
    """Write the scans, build the job, print a line."""
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as name:
        folder = Path(name)
        (folder / "in").mkdir()
        paper = Image.effect_noise(A4_AT_150_DPI, 4).point(lambda value: min(255, value + 110))
        for number in range(FILES):
            _scan(folder / f"in/{number:03d}.pdf", number, paper)
        (folder / "job.yaml").write_text(JOB)
        (folder / "orch.toml").write_text(TOML)
        seconds, peak = _built(folder)
        [requests] = (folder / "home").rglob("requests.jsonl")
        size = requests.stat().st_size
        with requests.open("rb") as file:
            pages = sum(line.count(b"data:image/jpeg") for line in file)
    if pages != FILES * PAGES:
        raise SystemExit(f"{pages} pages were built")
    say(
        f"scans: {pages:,} pages in {FILES} PDFs built in {seconds:.1f} s ({pages / seconds:.0f} pages/s on "
        f"{CORES} cores), {size / 1e6:.0f} MB of requests, {peak / 1e6:.0f} MB of memory at most"
    )


def _built(folder: Path) -> tuple[float, int]:
    """Seconds by the clock, and the most bytes of memory. The job is queued, and nothing runs it."""
    command = [sys.executable, "-m", "orchestrator.cli", "submit", str(folder / "job.yaml"), "--quiet"]
    env = {**os.environ, "ORCH_HOME": str(folder / "home"), "ORCH_CONFIG": str(folder / "orch.toml")}
    began, peak = time.perf_counter(), 0
    with subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            peak = max(peak, sum(map(_memory, [process.pid, *_children(process.pid)])))
            time.sleep(LOOK_SECONDS)
    if process.returncode:
        raise SystemExit(f"the job was not built: exit code {process.returncode}")
    return time.perf_counter() - began, peak


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []


def _memory(pid: int) -> int:
    """Bytes in memory; 0 of a process that has ended."""
    try:
        found = re.search(r"(?m)^Pss:\s+(\d+) kB", Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _scan(path: Path, number: int, paper: Image.Image) -> None:
    """A PDF of pages that are pictures of text, as a scanner writes it."""
    pages = []
    for page in range(PAGES):
        picture = paper.copy()
        draw = ImageDraw.Draw(picture)
        for line in range(50):
            draw.text((90, 90 + 32 * line), LINE.format(number=f"{number}.{page}.{line}"), fill=20, font_size=22)
        pages.append(picture)
    pages[0].save(path, save_all=True, append_images=pages[1:], resolution=150)


if __name__ == "__main__":
    main()
