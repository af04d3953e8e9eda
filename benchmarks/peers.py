"""The clients that `orch serve` is measured beside, each in a process of its own: `saturate`, and a plain one.

`saturate` comes from the package index and lives in an environment of its own, which is made on first use in
benchmarks/.peers. So this file is also run by path, in that environment, with nothing but the standard library:

    python peers.py saturate INPUT OUTPUT URL CONCURRENCY|auto
    python peers.py plain INPUT OUTPUT URL CONCURRENCY

prints what it did as a line of JSON and waits for the end of its stdin, so that others can look at what it cost.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
FOLDER = HERE / ".peers"
SATURATE = "saturate==0.2.0"
FLUSH_ROWS = 1000
"""Rows in a part of saturate's output. Its default is 10, which costs it a fifth more."""
INSTALL_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Ran:
    """What a client did and what it cost. Times in seconds, memory in MB.

    `cpu` is that of the whole process; `import_cpu` is the part of it that went before the first row was read.
    `seconds` is from the first request to the last answer, results written.
    """

    rows: int
    failed: int
    seconds: float
    cpu: float
    import_cpu: float
    import_seconds: float
    peak_mb: float
    limit: int


def saturate_python() -> Path:
    """The Python that has saturate; installed where it is not. Raises Unavailable where it cannot be."""
    from benchmarks.serving import Unavailable, note

    venv = FOLDER / SATURATE.replace("==", "-")
    python, stamp = venv / "bin" / "python", venv / "complete"
    if stamp.is_file():
        return python
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / ".gitignore").write_text("*\n")
    note(f"installing {SATURATE} in {venv}")
    pip = (str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "2")
    for command in ((sys.executable, "-m", "venv", "--clear", str(venv)), (*pip, "--only-binary", ":all:", SATURATE)):
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"{SATURATE} cannot be installed: {error}") from error
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [done.stderr[-300:]]
            raise Unavailable(f"{SATURATE} cannot be installed: {said[-1]}")
    stamp.write_text("")
    return python


def saturate(rows: Path, output: Path, url: str, concurrency: int | None = None) -> Ran:
    """Run every row with saturate: `Fixed(concurrency)`, or `Auto()` where that is None."""
    return _ran([saturate_python(), "-I", __file__, "saturate", rows, output, url, concurrency or "auto"], output)


def plain(rows: Path, output: Path, url: str, concurrency: int) -> Ran:
    """Run every row with aiohttp and nothing else, so many at a time; results are not made durable."""
    return _ran([sys.executable, "-P", __file__, "plain", rows, output, url, concurrency], output)


@contextmanager
def plain_load(rows: Path, output: Path, url: str, concurrency: int) -> Iterator[None]:
    """The plain client at work while the block lasts; how far it comes does not matter."""
    with _started([sys.executable, "-P", __file__, "plain", rows, output, url, concurrency], output) as process:
        yield
        if process.poll() is not None:
            raise _failure(process, output)


@contextmanager
def _started(command: list[Any], output: Path) -> Iterator[subprocess.Popen[bytes]]:
    from benchmarks.serving import end, tied

    # Peers look at the environment for who is watching, and change what they print.
    env = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    with _log(output).open("wb") as log:
        process = tied(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
    with process:
        try:
            yield process
        finally:
            end(process)


def _log(output: Path) -> Path:
    return output.with_name(output.name + ".log")


def _failure(process: subprocess.Popen[bytes], output: Path) -> Exception:
    from benchmarks.serving import Unavailable

    return Unavailable(f"a client ended with code {process.wait()}: {_log(output).read_text()[-500:].strip()}")


def _ran(command: list[Any], output: Path) -> Ran:
    from benchmarks.serving import cpu_seconds, peak_mb

    with _started(command, output) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        if not said:
            raise _failure(process, output)
        return Ran(cpu=cpu_seconds(process.pid), peak_mb=peak_mb(process.pid), **json.loads(said))


def _read(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            row = json.loads(line)
            yield row["custom_id"], row["body"]


def _run_saturate(rows: str, output: str, url: str, concurrency: str) -> dict[str, Any]:
    began = time.perf_counter()
    from saturate import Auto, Fixed, pump  # type: ignore[import-not-found]

    imported, import_cpu = time.perf_counter() - began, time.process_time()
    window = Auto() if concurrency == "auto" else Fixed(int(concurrency))

    def parse(row: dict[str, Any], answer: dict[str, Any]) -> dict[str, Any]:
        usage = answer["usage"]
        tokens = {name: usage[name] for name in ("prompt_tokens", "completion_tokens")}
        return {"content": answer["choices"][0]["message"]["content"], **tokens}

    started = time.perf_counter()
    stats = pump(_read(rows), dict, parse, endpoint=url, output=output, window=window, flush_every=FLUSH_ROWS)
    return {
        "rows": stats.rows_processed,
        "failed": stats.rows_failed,
        "seconds": time.perf_counter() - started,
        "import_cpu": import_cpu,
        "import_seconds": imported,
        "limit": stats.final_limit,
    }


def _run_plain(rows: str, output: str, url: str, concurrency: str) -> dict[str, Any]:
    began = time.perf_counter()
    import asyncio

    import aiohttp

    imported, import_cpu = time.perf_counter() - began, time.process_time()
    todo, answered = _read(rows), 0

    async def work(session: aiohttp.ClientSession, file: Any) -> None:
        nonlocal answered
        for custom_id, body in todo:
            async with session.post(f"{url}/chat/completions", json=body) as response:
                text = await response.text()
                if response.status != 200:
                    raise RuntimeError(f"{response.status}: {text[:300]}")
            file.write(json.dumps({"custom_id": custom_id, "response": json.loads(text)}) + "\n")
            answered += 1

    async def all_rows() -> float:
        timeout = aiohttp.ClientTimeout(total=None)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            with Path(output).open("w", encoding="utf-8") as file:
                started = time.perf_counter()
                await asyncio.gather(*(work(session, file) for _ in range(int(concurrency))))
        return time.perf_counter() - started

    seconds = asyncio.run(all_rows())
    return {
        "rows": answered,
        "failed": 0,
        "seconds": seconds,
        "import_cpu": import_cpu,
        "import_seconds": imported,
        "limit": int(concurrency),
    }


if __name__ == "__main__":
    run = {"saturate": _run_saturate, "plain": _run_plain}[sys.argv[1]]
    sys.stdout.write(json.dumps(run(*sys.argv[2:6])) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
