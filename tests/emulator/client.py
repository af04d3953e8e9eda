"""The emulator as a process of its own, as a test drives it."""

from __future__ import annotations

import json
import os
import select
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.request import Request, urlopen

from tests.emulator.clock import START, ClockFile
from tests.support.forking import Forked, fork

ROOT = Path(__file__).resolve().parents[2]
START_SECONDS = 120.0


class Emulator:
    """`with Emulator(tmp_path) as provider:`; its clock stands still until `provider.clock` is moved.

    `speed` are virtual seconds a second from the start. `environment` is what a program under test needs to live in
    the same time.
    """

    def __init__(self, folder: Path, *, seed: int = 0, speed: float = 0.0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.seed = seed
        self.port = 0
        self._speed = speed
        self.clock = ClockFile(folder / "clock.json", speed=speed)
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
    def url_openai(self) -> str:
        return f"{self.root_url}/v1"

    @property
    def url_azure(self) -> str:
        return f"{self.root_url}/azure/openai/v1/"

    @property
    def url_anthropic(self) -> str:
        """The SDK puts /v1 behind it."""
        return f"{self.root_url}/anthropic"

    @property
    def environment(self) -> dict[str, str]:
        return {"ORCH_CLOCK": str(self.clock.path)}

    @property
    def pid(self) -> int:
        assert self._process is not None, "the emulator is not running"
        return self._process.pid

    def start(self) -> None:
        """Returns once it listens."""
        assert self._process is None, "the emulator runs already"
        options = ["--folder", self.folder / "files", "--seed", self.seed, "--clock", self.clock.path]
        (given, self._stdin), (told, output) = os.pipe(), os.pipe()
        # Forked from a process that has imported it: hundreds of tests start one, and its imports take a second.
        arguments, files = [str(one) for one in options], (given, output, 2)
        self._process = fork("tests.emulator.__main__", arguments, files=files, env=os.environ, cwd=ROOT, alone=True)
        os.close(given)
        os.close(output)
        with open(told, "rb") as lines:  # noqa: PTH123 (a pipe)
            ready, _, _ = select.select([lines], [], [], START_SECONDS)
            line = lines.readline() if ready else b""
        if not line:
            self.stop()
            raise RuntimeError("the emulator did not start")
        self.port = int(json.loads(line)["port"])

    def stop(self) -> None:
        """End it at once, whatever it does: it has nothing to save. Harmless when it is gone."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        os.close(self._stdin)
        process.wait(START_SECONDS)

    def reset(self, seed: int = 0) -> None:
        """As if it had just been started: for the next test, or the next example."""
        self.clock.set(START, speed=self._speed)
        self._ask("POST", f"reset?seed={seed}")

    def script(self, *faults: dict[str, Any]) -> None:
        """Add to the script: `script({"do": "cut_after", "match": {"verb": "create"}})`."""
        self._ask("POST", "script", list(faults))

    def clear(self) -> None:
        """Forget the script; what it has done to batches stays."""
        self._ask("DELETE", "script")

    def settings(self, **settings: Any) -> None:
        """Change some: `settings(turnaround_s=[60, 60], enqueued_tokens={"gpt-4o-mini": 900_000})`."""
        self._ask("POST", "settings", settings)

    def bill(self, *, rows: bool = False) -> dict[str, Any]:
        return self._ask("GET", "bill?rows=1" if rows else "bill")

    def state(self) -> dict[str, Any]:
        return self._ask("GET", "state")

    def refused(self) -> list[str]:
        """Each request that it does not take, as "model: words", once a distinct one."""
        return [f"{one['model']}: {one['message']}" for one in self.state()["refused"]]

    def url_of(self, flavour: str) -> str:
        """The address of one of the providers that are asked synchronously, as groq or mistral."""
        versions = {"gemini": "/v1beta", "bedrock": "", "vertex": "", "fireworks": "", "cohere": "", "zhipu": "/v4"}
        return f"{self.root_url}/{flavour}{versions.get(flavour, '/v1')}"

    def calls(self, verb: str) -> dict[int, int]:
        """How often a verb was called, by status; 0 are those that got no answer."""
        found: dict[int, int] = {}
        for entry in self.state()["requests"]:
            if entry["verb"] == verb:
                found[entry["status"]] = found.get(entry["status"], 0) + entry["count"]
        return found

    def _ask(self, method: str, name: str, body: Any = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(f"{self.root_url}/_emulator/{name}", data, method=method), timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
