"""`orch bench` on a real vLLM: its throughput against a plain client and `vllm bench serve`, in one run."""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.serving import ENDPOINT, ROOT, Unavailable, note, say
from orchestrator.server.engines import EngineDir

ROWS, WORDS, TOKENS = 512, 60, 16
LONGEST = 900.0
PANDAS = ("pandas>=2.2,<3", "python-dateutil", "pytz", "six", "tzdata")
RUN_SERVE = (
    "from vllm.benchmarks.serve import add_cli_args, main\n"
    "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
    "parser = FlexibleArgumentParser()\nadd_cli_args(parser)\nmain(parser.parse_args())"
)
"""`vllm bench serve` by what it calls: the command itself asks for the metadata of a distribution named vllm."""
Fixed = Callable[[list[dict[str, Any]], int], float]


def compare(url: str, model: str, folder: Path, chosen: argparse.Namespace, fixed: Fixed) -> None:
    """Print rows a second of each, at the concurrency that `orch bench` has found, and at twice and half of it."""
    seed = random.Random(7)
    words = [f"w{number}" for number in range(500)]
    prompts = [" ".join(seed.choices(words, k=WORDS)) for _ in range(ROWS)]
    bodies = [_body(prompt) for prompt in prompts]
    found = _orch(url, model, bodies, folder, chosen.minutes)
    knee = found["knee"]["concurrency"]
    ours = [found["knee"]["rows_per_second"]]
    note(f"orch bench: {ours[0]:.2f} rows/s at {knee}")
    plain: dict[int, list[float]] = {max(1, knee // 2): [], knee: [], 2 * knee: []}
    vllm: list[float] = []
    for _ in range(chosen.repeats):
        for concurrency, rates in plain.items():
            rates.append(fixed(bodies, concurrency))
            note(f"plain client at {concurrency}: {rates[-1]:.2f} rows/s")
        vllm.append(_vllm(url, model, prompts, folder, knee, chosen.engine_dir))
        note(f"vllm bench serve at {knee}: {vllm[-1]:.2f} rows/s")
    best = max(plain, key=lambda concurrency: statistics.median(plain[concurrency]))
    rate, theirs, own = ours[0], statistics.median(plain[best]), statistics.median(vllm)
    say(f"bench: {found['knee_reason']}; {found['verdict']['sentence']}")
    say(
        f"orch bench {rate:.2f} rows/s at {knee}; plain client {theirs:.2f} at {best}, its best: {rate / theirs:.3f}x"
    )
    say(f"vllm bench serve at {knee}: {own:.2f} rows/s: {rate / own:.3f}x (goal: within 5 % of both)")


def _body(prompt: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": prompt}]
    return {"messages": messages, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


def _orch(url: str, model: str, bodies: list[dict[str, Any]], folder: Path, minutes: float) -> Any:
    """What `orch bench` says of the rows as a ready batch file."""
    home = folder / "bench-home"
    home.mkdir(mode=0o700)
    (home / "orch.toml").write_text(f'[backends.here]\nupstreams = ["{url}"]\ncost_per_hour = 1\n')
    with (home / "rows.jsonl").open("w") as file:
        for number, body in enumerate(bodies):
            row = {"custom_id": f"r{number}", "method": "POST", "url": ENDPOINT, "body": {"model": model, **body}}
            file.write(json.dumps(row) + "\n")
    command = [sys.executable, "-m", "orchestrator.cli", "bench", "rows.jsonl", "--minutes", str(minutes), "--json"]
    environ = {**os.environ, "ORCH_HOME": str(home), "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [*command, "--modes", "continuous"], cwd=home, env=environ, capture_output=True, text=True, timeout=LONGEST,
        check=False,
    )  # fmt: skip
    if ran.returncode:
        raise Unavailable(f"orch bench ended with {ran.returncode}: {ran.stderr[-500:]}")
    return json.loads(ran.stdout)


def _pandas(python: Path, folder: Path) -> Path:
    """A folder with pandas for the engine's Python, which has none: vLLM's benchmark reads its rows with it."""
    target = folder / "pandas"
    if not target.exists():
        command = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), *PANDAS]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
        if ran.returncode:
            raise Unavailable(f"pandas cannot be installed: {ran.stderr[-500:]}")
    return target


def _vllm(url: str, model: str, prompts: list[str], folder: Path, concurrency: int, engine_dir: Path) -> float:
    """Requests a second of vLLM's own benchmark on the same prompts, as chat completions."""
    engine = EngineDir.at(engine_dir)
    data, result = folder / "prompts.jsonl", folder / "vllm-result.json"
    data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    tokenizer = next((path.parent for path in engine.models.rglob("tokenizer.json")), None)
    if tokenizer is None:
        raise Unavailable(f"{engine.models} has no tokenizer")
    options = {
        "backend": "openai-chat", "endpoint": ENDPOINT, "base-url": url.removesuffix("/v1"), "model": model,
        "tokenizer": tokenizer, "dataset-name": "custom", "dataset-path": data, "custom-output-len": TOKENS,
        "num-prompts": len(prompts), "max-concurrency": concurrency, "result-dir": folder,
        "result-filename": result.name,
        # It leaves the temperature to the model's own settings otherwise: to sample costs more than to be greedy.
        "temperature": 0,
    }  # fmt: skip
    named = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    flags = ["--ignore-eos", "--save-result", "--skip-chat-template", "--disable-shuffle", "--disable-tqdm"]
    command = [str(engine.python), "-c", RUN_SERVE, *named, *flags]
    offline = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    environ = {**os.environ, **offline, "PYTHONPATH": str(_pandas(engine.python, folder))}
    ran = subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=LONGEST, check=False
    )
    if ran.returncode:
        raise Unavailable(f"vllm bench serve ended with {ran.returncode}: {(ran.stdout + ran.stderr)[-800:]}")
    return float(json.loads(result.read_text())["request_throughput"])
