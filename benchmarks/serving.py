"""What the benchmarks of `orch serve` share: processes that end with this one, their cost, a batch by the SDK."""

from __future__ import annotations

import ctypes
import http.client
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlsplit

import msgspec
import openai

ROOT = Path(__file__).resolve().parents[1]
ENDPOINT: Literal["/v1/chat/completions"] = "/v1/chat/completions"
PR_SET_PDEATHSIG = 1
TICKS = os.sysconf("SC_CLK_TCK")
START_SECONDS = 60.0
STOP_SECONDS = 30.0
LONGEST_BATCH = 3600.0
FINAL = ("completed", "failed", "expired", "cancelled")
WORDS = "the quick brown fox jumps over the lazy dog "


class Unavailable(Exception):
    """What a benchmark needs cannot be had here; the text says what and why."""


SAID: list[str] = []
"""The lines of results of this process, for the table of `make bench`."""


def say(line: str) -> None:
    """A line of results."""
    SAID.append(line)
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def note(line: str) -> None:
    """A line of progress."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@contextmanager
def scratch() -> Iterator[Path]:
    """A folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="orch-bench-") as name:
        yield Path(name)


def tied(command: Sequence[str | Path], **options: Any) -> subprocess.Popen[bytes]:
    """Start a process that the kernel kills when this one ends, however it ends."""
    parent, libc = os.getpid(), ctypes.CDLL(None)

    def tie() -> None:
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL) or os.getppid() != parent:
            os._exit(1)

    return subprocess.Popen([str(part) for part in command], preexec_fn=tie, **options)


def end(process: subprocess.Popen[bytes], seconds: float = STOP_SECONDS) -> None:
    """SIGTERM, and SIGKILL where that is not enough; returns when it is gone."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def cpu_seconds(pid: int) -> float:
    """User and system time of a process so far, all threads; in hundredths of a second."""
    # The name, in brackets, may hold spaces itself; what follows it is counted from the state on.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_mb(pid: int) -> float:
    """The most memory a process had resident, MB (2**20 bytes)."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def get_json(url: str) -> Any:
    """GET a page of JSON."""
    return json.loads(get(url))


def get(url: str) -> bytes:
    """GET a page. Raises OSError, or Unavailable for any status but 200."""
    parts = urlsplit(url)
    with closing(http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)) as connection:
        connection.request("GET", parts.path)
        response = connection.getresponse()
        if response.status != 200:
            raise Unavailable(f"{url} answers {response.status}")
        return response.read()


class Constant:
    """The constant-answer endpoint of constant.py in a process of its own."""

    def __init__(self, *options: str) -> None:
        self._options = options

    def __enter__(self) -> Self:
        command = (sys.executable, "-m", "benchmarks.constant", *self._options)
        self._process = tied(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        self._root = f"http://127.0.0.1:{json.loads(self._process.stdout.readline())['port']}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self._process)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()

    @property
    def url(self) -> str:
        return f"{self._root}/v1"

    def seen(self) -> dict[str, Any]:
        """What it saw since it began."""
        found: dict[str, Any] = get_json(f"{self._root}/seen")
        return found

    def begin(self) -> None:
        """Count anew from here."""
        get(f"{self._root}/begin")


class Server:
    """`orch serve` in a process of its own, as its command line starts it. Nothing is set but sizes and addresses.

    `started_at` is when the process was started, `ready_at` when it said where it serves (time.monotonic()).
    """

    def __init__(self, folder: Path, upstream: str, *options: str) -> None:
        self._folder = folder
        self._command = (
            *(sys.executable, "-m", "orchestrator.cli", "serve", "--upstream", upstream),
            *("--port", "0", "--dir", str(folder), "--max-rows", "5000000", "--max-file-size", "8GiB", *options),
        )

    def __enter__(self) -> Self:
        self._folder.mkdir(parents=True, exist_ok=True)
        log = self._folder / "serve.log"
        with log.open("wb") as file:
            self.started_at = time.monotonic()
            self._process = tied(self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        try:
            self.url = self._address(log)
        except BaseException:
            end(self._process)
            raise
        self.ready_at = time.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end(self._process)

    def _address(self, log: Path) -> str:
        while (found := re.search(r"^orch: serving .* at (http://\S+),", log.read_text(), re.MULTILINE)) is None:
            if self._process.poll() is not None or time.monotonic() - self.started_at > START_SECONDS:
                raise Unavailable(f"`orch serve` did not start: {log.read_text().strip()[-500:]}")
            time.sleep(0.01)
        return found[1]

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_ready(self) -> None:
        """Return when it has found its upstream well."""
        while True:
            try:
                get(f"{self.url}/ready")
                return
            except Unavailable:
                if time.monotonic() - self.started_at > START_SECONDS:
                    raise
                time.sleep(0.05)

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.wait()

    def sdk(self) -> openai.OpenAI:
        """The official client, to be closed."""
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none-needed", max_retries=0, timeout=600)


@dataclass(frozen=True, slots=True)
class Moment:
    """`at` by time.monotonic(), `cpu`: seconds the server has used by then."""

    at: float
    cpu: float


class Stages:
    """When a batch came to its stages, in order: begin, uploaded, in_progress, completed, downloaded."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.moments: dict[str, Moment] = {}

    def mark(self, name: str) -> None:
        """The batch is here, if it was not yet."""
        if name not in self.moments:
            self.moments[name] = Moment(time.monotonic(), cpu_seconds(self._pid))

    def seconds(self, first: str, last: str) -> float:
        """Wall time between two stages."""
        return self.moments[last].at - self.moments[first].at

    def cpu(self, first: str, last: str) -> float:
        """CPU seconds of the server between two stages."""
        return self.moments[last].cpu - self.moments[first].cpu


def upload(sdk: openai.OpenAI, path: Path) -> str:
    """The file's id."""
    with path.open("rb") as file:
        return sdk.files.create(file=file, purpose="batch").id


def create(sdk: openai.OpenAI, file_id: str) -> str:
    """The id of a batch of the whole file."""
    return sdk.batches.create(input_file_id=file_id, endpoint=ENDPOINT, completion_window="24h").id


def wait(
    sdk: openai.OpenAI, batch_id: str, look: Callable[[Any], None] = lambda batch: None, every: float = 0.25
) -> Any:
    """Return the batch when it is at its end; `look` sees it every so many seconds, and oftener close to the end.

    Asking often would cost the server what it shall be measured without.
    """
    deadline = time.monotonic() + LONGEST_BATCH
    while time.monotonic() < deadline:
        batch = sdk.batches.retrieve(batch_id)
        look(batch)
        if batch.status in FINAL:
            return batch
        counts = batch.request_counts
        is_near = counts is not None and 0 < 0.9 * counts.total <= counts.completed
        time.sleep(min(every, 0.02) if is_near else every)
    raise Unavailable(f"the batch is not done after {LONGEST_BATCH:.0f} s")


class _Row(msgspec.Struct):
    custom_id: str


def download(sdk: openai.OpenAI, batch: Any, rows: int) -> None:
    """Read the output file to its end. Unavailable unless every row has one good answer."""
    if batch.status != "completed" or batch.request_counts.failed or batch.output_file_id is None:
        raise Unavailable(f"the batch ended as {batch.status}: {batch.request_counts}, {batch.errors}")
    decode = msgspec.json.Decoder(_Row).decode
    ids: set[str] = set()
    lines, rest = 0, b""
    with sdk.files.with_streaming_response.content(batch.output_file_id) as response:
        for chunk in response.iter_bytes(1 << 20):
            *whole, rest = (rest + chunk).split(b"\n")
            ids.update(decode(line).custom_id for line in whole)
            lines += len(whole)
    if rest or lines != rows or len(ids) != rows:
        raise Unavailable(f"{rows} rows gave {lines} lines with {len(ids)} ids")


def run_batch(server: Server, path: Path, rows: int, every: float = 0.25) -> Stages:
    """Upload, run, download and check a batch of so many rows."""
    stages = Stages(server.pid)

    def look(batch: Any) -> None:
        if batch.status in ("in_progress", "finalizing", "completed"):
            stages.mark("in_progress")

    with closing(server.sdk()) as sdk:
        stages.mark("begin")
        file_id = upload(sdk, path)
        stages.mark("uploaded")
        batch = wait(sdk, create(sdk, file_id), look, every)
        stages.mark("completed")
        download(sdk, batch, rows)
        stages.mark("downloaded")
    return stages


def write_rows(path: Path, rows: int, line_bytes: int = 420) -> None:
    """A batch file of chat completions, each line of about so many bytes (the least is about 300)."""
    line = {
        "custom_id": "row-@@@@@@@",
        "method": "POST",
        "url": ENDPOINT,
        "body": {
            "model": "m",
            "messages": [
                {"role": "system", "content": "You are a careful analyst."},
                {"role": "user", "content": "Document @@@@@@@: !"},
            ],
            "max_tokens": 200,
        },
    }
    bare = json.dumps(line) + "\n"
    text = (WORDS * (line_bytes // len(WORDS) + 1))[: max(1, line_bytes - len(bare) + 1)]
    template = bare.replace("!", text.replace("%", "")).replace("@@@@@@@", "%(number)07d")
    with path.open("w", encoding="utf-8") as file:
        file.writelines(template % {"number": number} for number in range(rows))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that this share of all values does not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
