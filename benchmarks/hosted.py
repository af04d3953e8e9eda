"""1,000,000 rows through an emulated provider and back, against a script that tracks nothing.

Ours is `orch run` of a ready batch file with `kind = "openai"`: read, checked, recorded, cut into batches, uploaded,
polled, downloaded, ticked off, priced, and merged in input order. The script does with the official SDK what has to
be done at the least: it cuts the file by lines, uploads, creates, polls and downloads to disk. The provider is the
tests' emulator, in a process of its own, whose clock runs so fast that little is waited for.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from benchmarks.serving import ENDPOINT, ROOT, Unavailable, note, say, scratch
from tests.emulator.client import Emulator

MODEL = "gpt-5.4-mini"
ROWS_A_BATCH = 50_000
SPEED = 60.0
"""Seconds of the emulated clock, which orch shares, in a second. While an ended batch is settled nobody polls: if the
batches that wait for it took more than SILENT_AFTER of that clock, the provider would count as silent, and all open
rows would be planned again.
"""
FINAL = ("completed", "failed", "expired", "cancelled")
CONFIG = """\
[backends.openai]
kind = "openai"
base_url = "{url}"
profile = "openai"
api_key_env = "ORCH_BENCH_KEY"
"""


@dataclass(frozen=True, slots=True)
class Cost:
    """What a child process took: wall and CPU seconds, and its peak of resident memory in MB (2**20 bytes)."""

    seconds: float
    cpu: float
    peak: float


def main(argv: Sequence[str] = ()) -> None:
    """Measure and print."""
    chosen = _parser().parse_args(argv)
    with scratch() as folder, Emulator(folder / "provider", speed=SPEED) as provider:
        provider.settings(validating_s=[1, 1], turnaround_s=[1, 1], finalizing_s=[1, 1])
        for rows in chosen.rows:
            source = folder / f"rows-{rows}.jsonl"
            write(source, rows)
            note(f"{rows:,} rows, {source.stat().st_size / 2**20:.0f} MB")
            ours, plain = list[Cost](), list[Cost]()
            for number in range(chosen.rounds):
                ours.append(_ours(folder / f"home-{rows}-{number}", source, provider))
                plain.append(_plain(folder / f"plain-{rows}-{number}", source, provider))
            ratio = statistics.median(one.cpu / other.cpu for one, other in zip(ours, plain, strict=True))
            say(
                f"hosted {rows:,} rows, {chosen.rounds} rounds: orch {_told(ours, rows)}; a script that tracks "
                f"nothing {_told(plain, rows)}; ratio {ratio:.1f}x"
            )


def _told(found: Sequence[Cost], rows: int) -> str:
    cpus = [one.cpu / rows * 1e6 for one in found]
    seconds, peak = (statistics.median(values) for values in ([c.seconds for c in found], [c.peak for c in found]))
    return (
        f"{statistics.median(cpus):.0f} µs of CPU a row [{min(cpus):.0f}, {max(cpus):.0f}], {seconds:.0f} s, "
        f"{peak:.0f} MB peak"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks hosted", description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[100_000, 1_000_000])
    parser.add_argument("--rounds", type=int, default=1, help="of both in turn")
    return parser


def write(path: Path, rows: int) -> None:
    """A ready batch file."""
    text = "What does this clause say of notice and of payment? " * 4
    with path.open("w", encoding="utf-8") as file:
        for number in range(rows):
            messages = [{"role": "user", "content": f"{number}: {text}"}]
            body = {"model": MODEL, "max_completion_tokens": 32, "messages": messages}
            line = {"custom_id": f"row-{number:07d}", "method": "POST", "url": ENDPOINT, "body": body}
            file.write(json.dumps(line) + "\n")


def _ours(home: Path, source: Path, provider: Emulator) -> Cost:
    home.mkdir()
    (home / "orch.toml").write_text(CONFIG.format(url=provider.url_openai), encoding="utf-8")
    command = [sys.executable, "-m", "orchestrator.cli", "run", str(source), "--quiet", "-o", str(home / "out.jsonl")]
    cost = _measured(command, {"ORCH_CONFIG": str(home / "orch.toml"), "ORCH_HOME": str(home)}, provider)
    _check(home / "out.jsonl", source)
    return cost


def _plain(folder: Path, source: Path, provider: Emulator) -> Cost:
    folder.mkdir()
    command = [sys.executable, "-m", "benchmarks.hosted", "--plain", str(source), str(folder), provider.url_openai]
    return _measured(command, {}, provider)


def _measured(command: list[str], more: dict[str, str], provider: Emulator) -> Cost:
    began = time.monotonic()
    environment = {**os.environ, **provider.environment, "ORCH_BENCH_KEY": "sk-bench", **more}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise Unavailable(f"{' '.join(command[1:4])} ended with {process.returncode}")
    return Cost(time.monotonic() - began, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)


def _check(merged: Path, source: Path) -> None:
    """Raises Unavailable where a row is lost or out of place."""
    with merged.open("rb") as results, source.open("rb") as rows:
        for result, row in zip(results, rows, strict=True):
            if json.loads(result)["custom_id"] != json.loads(row)["custom_id"]:
                raise Unavailable("the merged rows are not those of the input")


def plain(source: Path, folder: Path, url: str) -> None:
    """The script to compare with."""
    import openai

    with openai.OpenAI(base_url=url, api_key="sk-bench") as sdk, source.open("rb") as lines:
        number = 0
        while chunk := list(islice(lines, ROWS_A_BATCH)):
            number += 1
            part = folder / f"{number}.jsonl"
            part.write_bytes(b"".join(chunk))
            del chunk
            with part.open("rb") as content:
                file_id = sdk.files.create(file=content, purpose="batch").id
            batch = sdk.batches.create(input_file_id=file_id, endpoint=ENDPOINT, completion_window="24h")
            while batch.status not in FINAL:
                time.sleep(0.05)
                batch = sdk.batches.retrieve(batch.id)
            assert batch.output_file_id is not None
            with sdk.files.with_streaming_response.content(batch.output_file_id) as response:
                response.stream_to_file(folder / f"{number}.output.jsonl")
            for done in (file_id, batch.output_file_id):
                sdk.files.delete(done)


if __name__ == "__main__":
    plain(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
