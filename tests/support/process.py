"""The upstream as a process of its own, as a test drives it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar
from urllib.request import urlopen

from tests.support.accesslog import read_log
from tests.support.forking import Forked, fork

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120.0
"""Seconds that a condition is waited for: many, as only a test that fails takes them."""
T = TypeVar("T")
_SAMPLE = re.compile(r"^(vllm:\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)
_REASON = re.compile(r'finished_reason="(\w+)"')


class Upstream:
    """Options are the program's flags as keywords: `Upstream(log, slots=4, latency_ms=20, api_key="k")`.

    A True is a bare flag, a tuple or list repeats it. The log outlives every stop, kill and restart.
    """

    def __init__(self, log: Path, **options: Any) -> None:
        self.log = log
        self.port = int(options.pop("port", 0))
        self._options = options
        self._process: Forked | None = None
        self._stdin = -1

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def root_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return f"{self.root_url}/v1"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the upstream is not running"
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start on the port held before, or on a free one; returns once it listens."""
        assert self._process is None, "the upstream runs already"
        (given, self._stdin), (told, output) = os.pipe(), os.pipe()
        # Forked from a process that has imported it: hundreds of tests start one, and its imports take 0.1 s.
        arguments, files = list(self._arguments()), (given, output, 2)
        self._process = fork("tests.support.upstream", arguments, files=files, env=os.environ, cwd=ROOT, alone=True)
        os.close(given)
        os.close(output)
        try:
            self.port = self._announced_port(told, self._process)
        except BaseException:
            self.kill()
            raise

    def _arguments(self) -> Iterator[str]:
        for name, value in {"port": self.port, "log": self.log, **self._options}.items():
            flag = "--" + name.replace("_", "-")
            if value is True:
                yield flag
            elif value is not None and value is not False:
                for one in value if isinstance(value, tuple | list) else (value,):
                    yield from (flag, str(one))

    def _announced_port(self, told: int, process: Forked) -> int:
        with open(told, "rb") as lines:
            ready, _, _ = select.select([lines], [], [], PATIENCE)
            if not ready:
                raise TimeoutError(f"the upstream did not listen within {PATIENCE:g} s")
            line = lines.readline()
        if not line:
            raise RuntimeError(f"the upstream ended before it listened, exit status {process.wait()}")
        return int(json.loads(line)["port"])

    def stop(self) -> None:
        """End it by closing its stdin, as the death of the test would; harmless when it is gone."""
        self._end(lambda process: None)

    def kill(self) -> None:
        """SIGKILL, as the kernel does it to an engine out of memory."""
        self._end(lambda process: process.kill())

    @contextmanager
    def held(self) -> Iterator[None]:
        """Nothing is answered meanwhile: what only work under way tells can be looked at for as long as it takes."""
        os.kill(self.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill it and start it on the same port, its log and the state of its scripts kept."""
        self.kill()
        self.start()

    def wait_dead(self, timeout: float = PATIENCE) -> int:
        """Wait until it ended by itself (fault `die`) and return its exit status."""
        assert self._process is not None
        return self._process.wait(timeout)

    def _end(self, blow: Callable[[Forked], None]) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        blow(process)
        os.close(self._stdin)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def requests(self) -> list[dict[str, Any]]:
        """The access log so far, in order of arrival: one entry for each POST; see `read_log`."""
        return read_log(self.log)

    def counts(self) -> Counter[str]:
        """How often each marker (a body's `user`, or the first 80 characters of its last text) arrived."""
        return Counter(entry["marker"] for entry in self.requests())

    def wait_for_requests(self, number: int, timeout: float = PATIENCE) -> list[dict[str, Any]]:
        """The log as soon as it holds `number` entries."""
        return wait_until(lambda: _at_least(self.requests(), number), timeout)

    def metrics(self) -> dict[str, float]:
        """Samples of /metrics by name; request_success_total as `name:reason`."""
        with urlopen(f"{self.root_url}/metrics", timeout=10) as answer:
            page = answer.read().decode()
        samples = {}
        for name, labels, value in _SAMPLE.findall(page):
            reason = _REASON.search(labels)
            samples[f"{name}:{reason[1]}" if reason else name] = float(value)
        return samples


def _at_least(entries: list[dict[str, Any]], number: int) -> list[dict[str, Any]] | None:
    return entries if len(entries) >= number else None


def wait_until(condition: Callable[[], T | None], timeout: float = PATIENCE) -> T:
    """The first true value of `condition`, asked every 10 to 100 ms; TimeoutError after `timeout` seconds.

    The longer it has waited, the longer the pauses: to ask a server takes what the servers could work with. So does a
    condition that runs a command, which is asked a quarter of the time.
    """
    began = time.monotonic()
    while True:
        asked = time.monotonic()
        value = condition()
        if value:
            return value
        now = time.monotonic()
        waited = now - began
        if waited > timeout:
            raise TimeoutError(f"still waiting after {timeout:g} s")
        time.sleep(max(min(max(waited / 20, 0.01), 0.1), min(3 * (now - asked), 1.0)))


@contextmanager
def upstreams(folder: Path) -> Iterator[Callable[..., Upstream]]:
    """A factory of running upstreams, all of them ended together."""
    started: list[Upstream] = []

    def make(**options: Any) -> Upstream:
        upstream = Upstream(folder / f"upstream-{len(started)}.log", **options)
        started.append(upstream)
        upstream.start()
        return upstream

    try:
        yield make
    finally:
        for upstream in started:
            upstream.stop()
