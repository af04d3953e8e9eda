"""Jobs of rows through a gateway, by the command line."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from tests.support.cli import CONFIG, Orch, Process
from tests.support.gateways import KEY
from tests.support.hostedjob import table
from tests.support.process import Upstream, wait_until

KEYS = {"GATEWAY_KEY": KEY}
LONGEST_RUN = 400.0
AWAY_SECONDS = 40.0
Json = dict[str, Any]


def write_backend(home: Path, *, model: str = "m", **facts: Any) -> None:
    """An orch.toml with one backend, and a price for the model."""
    prices = {"input": 1, "output": 4, "batch": {"input": 0.5, "output": 2}}
    text = f"[backends.gateway]\n{table({'api_key_env': 'GATEWAY_KEY', **facts})}\n[prices.{model}]\n{table(prices)}"
    (home / CONFIG).write_text(text, encoding="utf-8")


def batch_file(folder: Path, *texts: str, model: str = "m") -> str:
    """Rows row-0, row-1, ... that ask these texts."""
    path = folder / "rows.jsonl"
    with path.open("w", encoding="utf-8") as file:
        for number, text in enumerate(texts):
            body = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 20}
            line = {"custom_id": f"row-{number}", "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    return str(path)


def questions(count: int) -> list[str]:
    return [f"What does page {number} say?" for number in range(count)]


@dataclass
class Job:
    """`orch run` of a batch file, and the files that it wrote."""

    orch: Orch
    source: str
    env: dict[str, str] = field(default_factory=lambda: KEYS)

    @property
    def out(self) -> Path:
        return self.orch.home.parent / "out.jsonl"

    def start(self) -> Process:
        """Leave it running."""
        return self.orch.start("run", self.source, "-o", str(self.out), env=self.env)

    def run(self) -> str:
        """Run it to its end; its exit code and all that it said."""
        ended = self.orch("run", self.source, "-o", str(self.out), env=self.env, timeout=LONGEST_RUN)
        return f"exit {ended.returncode}\n{ended.stdout}{ended.stderr}"

    def results(self) -> list[Json]:
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    def status(self) -> Json:
        newest = json.loads(self.orch("status", "--json", env=self.env).stdout)[0]["job"]
        found: Json = json.loads(self.orch("status", newest, "--json", env=self.env).stdout)
        return found

    def failed(self) -> int:
        """Rows that orch counts as failed for good."""
        return int(self.status()["requests"]["failed"])

    def quarantined(self) -> list[Json]:
        """Rows that no later run would send."""
        listed: list[Json] = json.loads(self.orch("quarantine", "list", "--json", env=self.env).stdout)
        return listed


def answered_once(job: Job, count: int) -> None:
    """Each row has one result, and it is an answer."""
    results = job.results()
    assert Counter(row["custom_id"] for row in results) == Counter(f"row-{n}" for n in range(count))
    assert [row for row in results if row["response"] is None or row["response"]["status_code"] != 200] == []


def away_for(engine: Upstream, seconds: float) -> None:
    """Kill the engine, and start it again after this time."""
    engine.kill()
    begin = monotonic()
    wait_until(lambda: monotonic() - begin >= seconds)
    engine.start()
