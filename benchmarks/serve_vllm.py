"""`orch serve` before a real vLLM: what it loses to the best fixed concurrency, what order and precedence give.

Four parts, each interleaved with what it is measured against, on one engine (on CPU, Gemma 3 270M, unless told
otherwise): `sweep`, `tasks`, `interactive`, and `bench`: what `orch bench` finds, against a plain client and vLLM's
own benchmark. Every server begins in an empty folder and knows nothing of the engine.
Each run has a `cache_salt` of its own, so that none finds its prompts in the cache from the run before.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2

from benchmarks import bench_vllm, peers
from benchmarks.serving import (
    ENDPOINT,
    ROOT,
    Server,
    Unavailable,
    create,
    download,
    get,
    note,
    percentile,
    say,
    scratch,
    upload,
    wait,
)
from orchestrator.core.errors import OrchError
from orchestrator.server.engines import EngineDir, VllmProcess, require_installed
from orchestrator.server.engines.cpu_launch import vllm_launch
from tools.cpu_engine.models import make_model

PARTS = ("sweep", "tasks", "interactive", "bench")
VOCABULARY = """
    party contract term date amount payment clause notice delivery law court claim agent service goods price order
    report letter account bank tax year month office state city road river field house market school hospital ship
    water fire paper stone iron gold glass wood light night morning winter summer north south east west king queen
    doctor teacher farmer driver writer player friend family child mother father brother sister and of to in with
    from under over between before after against during without through behind
""".split()  # noqa: SIM905
QUESTIONS = (
    "Which parties are named in the document above, and what does each of them owe to the other? Answer briefly.",
    "What dates and amounts does the document above give, and what does each of them stand for? Answer briefly.",
    "What happens under the document above when one of the parties does not keep its word? Answer briefly.",
)
INSTRUCTION = 200
ITEM = 30
IDLE_REQUESTS = 5
IDLE_SECONDS = 120.0

Body = dict[str, Any]


@dataclass(slots=True)
class Engine:
    """The vLLM at `url`; `runs` counts runs, for salts and folders."""

    url: str
    model: str
    folder: Path
    runs: int = 0

    def next_run(self) -> tuple[Path, str]:
        """A folder and a salt that no run had."""
        self.runs += 1
        folder = self.folder / f"run-{self.runs}"
        folder.mkdir()
        return folder, f"run-{self.runs}"

    def count(self, name: str) -> float:
        """The sum of a metric of vLLM's over all its labels."""
        page = get(self.url.removesuffix("/v1") + "/metrics").decode()
        return sum(float(value) for value in re.findall(rf"^vllm:{name}(?:{{[^}}]*}})? (\S+)$", page, re.MULTILINE))

    def wait_idle(self) -> None:
        """Return when nothing runs or waits there."""
        deadline = time.monotonic() + IDLE_SECONDS
        while self.count("num_requests_running") + self.count("num_requests_waiting"):
            if time.monotonic() > deadline:
                raise Unavailable(f"the engine is still busy after {IDLE_SECONDS:.0f} s")
            time.sleep(0.1)


@dataclass(slots=True)
class Rates:
    """Rows a second of each contender, a figure a round."""

    by_name: dict[str, list[float]] = field(default_factory=dict)

    def add(self, name: str, rate: float) -> None:
        self.by_name.setdefault(name, []).append(rate)
        note(f"{name}: {rate:.2f} rows/s")

    def median(self, name: str) -> float:
        return statistics.median(self.by_name[name])

    def tell(self) -> None:
        for name, rates in self.by_name.items():
            say(f"{name}: {self.median(name):.2f} rows/s [{min(rates):.2f}, {max(rates):.2f}]")


def main(argv: Sequence[str] = ()) -> None:
    """Measure and print."""
    chosen = _parser().parse_args(argv)
    with scratch() as folder, _engine(chosen, folder) as engine:
        say(f"vLLM, model {engine.model}")
        # The first requests warm up what is compiled or allocated on first use.
        _fixed(engine, _items(32), 16)
        best = _sweep(engine, chosen) if "sweep" in chosen.parts else chosen.plain_concurrency
        if "tasks" in chosen.parts:
            _tasks(engine, chosen)
        if "interactive" in chosen.parts:
            _interactive(engine, chosen, best)
        if "bench" in chosen.parts:
            bench_vllm.compare(engine.url, engine.model, folder, chosen, partial(_fixed, engine))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks serve_vllm", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--model", default="gemma", help="gemma or tiny; with --upstream its name there")
    parser.add_argument("--upstream", metavar="URL", help="a vLLM that runs (http://.../v1) instead of one on CPU")
    parser.add_argument("--engine-dir", type=Path, default=ROOT / ".engine", help="where the CPU engine is installed")
    parser.add_argument("--repeats", type=int, default=3, help="rounds of sweep and tasks (3)")
    parser.add_argument("--sweep-rows", type=int, default=160)
    parser.add_argument("--concurrencies", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--documents", type=int, default=24, help="with three questions each (24)")
    parser.add_argument("--words", type=int, default=700, help="in a document (700)")
    parser.add_argument("--plain-concurrency", type=int, default=16, help="of the plain client in tasks (16)")
    parser.add_argument("--requests", type=int, default=24, help="interactive ones, on each side (24)")
    parser.add_argument("--every", type=float, default=2.0, help="seconds from one to the next (2)")
    parser.add_argument("--minutes", type=float, default=3.0, help="of orch bench (3)")
    parser.add_argument("--load-rows", type=int, default=3000, help="of the batch beside them; cut off at the end")
    return parser


@contextmanager
def _engine(chosen: argparse.Namespace, folder: Path) -> Iterator[Engine]:
    if chosen.upstream:
        yield Engine(chosen.upstream.rstrip("/"), chosen.model, folder)
        return
    try:
        engine = EngineDir.at(chosen.engine_dir)
        require_installed(engine)
        launch = vllm_launch(engine, make_model(engine, chosen.model))
        note("starting vLLM: about a minute")
        with VllmProcess(launch, log=folder / "vllm.log") as process:
            yield Engine(process.base_url, process.model, folder)
    except OrchError as error:
        raise Unavailable(f"vLLM: {error}") from error


def _sweep(engine: Engine, chosen: argparse.Namespace) -> int:
    """Print the rates of fixed concurrencies and of the server; returns the best fixed one."""
    rates, bodies = Rates(), _items(chosen.sweep_rows)
    contenders: list[tuple[str, Callable[[], float]]] = [
        (_fixed_name(number), partial(_fixed, engine, bodies, number)) for number in chosen.concurrencies
    ]
    contenders.insert(len(contenders) // 2, ("orch serve, nothing set", partial(_ours, engine, bodies)))
    for turn in range(chosen.repeats):
        # Each round begins with another one: what drifts over a round meets all of them.
        first = turn * len(contenders) // chosen.repeats
        for name, run in contenders[first:] + contenders[:first]:
            rates.add(name, run())
    say(f"sweep: {len(bodies)} rows, medians of {chosen.repeats}, least and most in brackets")
    rates.by_name = {name: rates.by_name[name] for name, _ in contenders}
    rates.tell()
    best: int = max(chosen.concurrencies, key=lambda number: rates.median(_fixed_name(number)))
    ratio = rates.median("orch serve, nothing set") / rates.median(_fixed_name(best))
    say(f"orch serve to the best fixed concurrency ({best}): {ratio:.3f}x (goal 0.98x)")
    return best


def _fixed_name(number: int) -> str:
    return f"plain client, fixed {number}"


def _tasks(engine: Engine, chosen: argparse.Namespace) -> None:
    rates = Rates()
    seed = random.Random(5)
    documents = [_text(seed, chosen.words) for _ in range(chosen.documents)]
    pairs = [(document, question) for document in documents for question in QUESTIONS]
    seed.shuffle(pairs)
    ours = [_body(f"{document}\n\n{question}", 16) for document, question in pairs]
    theirs = [_body(f"{question}\n\n{document}", 16) for document, question in pairs]
    number = chosen.plain_concurrency
    ours_name, shuffled = "orch serve, document first", f"plain client at {number}, document first"
    first_name = f"plain client at {number}, instruction first"
    for _ in range(chosen.repeats):
        rates.add(ours_name, _ours(engine, ours))
        rates.add(first_name, _fixed(engine, theirs, number))
        rates.add(shuffled, _fixed(engine, ours, number))
    say(
        f"three tasks a document: {chosen.documents} documents of {chosen.words} words, rows shuffled, medians of "
        f"{chosen.repeats}, least and most in brackets"
    )
    rates.tell()
    say(
        f"orch serve to a plain client with the instruction first: "
        f"{rates.median(ours_name) / rates.median(first_name):.2f}x (goal 1.8x); with the document first: "
        f"{rates.median(ours_name) / rates.median(shuffled):.2f}x"
    )


def _interactive(engine: Engine, chosen: argparse.Namespace, best: int) -> None:
    """Latency of short requests beside a batch: through the server, and straight to vLLM beside a plain client."""
    load = _items(chosen.load_rows)
    engine.wait_idle()
    idle = _latencies(engine, f"{engine.url}/chat/completions", IDLE_REQUESTS, 0.5)
    say(f"interactive, nothing else running: median {statistics.median(idle):.2f} s")
    found = {}
    for name, beside in (("through orch serve", _batch_beside), (f"straight to vLLM, fixed {best}", _plain_beside)):
        engine.wait_idle()
        with beside(engine, load, best) as url:
            _wait_busy(engine, best)
            began, tokens = time.monotonic(), engine.count("generation_tokens_total")
            taken = _latencies(engine, f"{url}/chat/completions", chosen.requests, chosen.every)
            rate = (engine.count("generation_tokens_total") - tokens) / (time.monotonic() - began)
        found[name] = percentile(taken, 0.95)
        say(
            f"interactive, {name}: P50 {percentile(taken, 0.5):.2f} s, P95 {found[name]:.2f} s of {len(taken)}; "
            f"engine at {rate:.0f} tokens/s meanwhile"
        )
    with_, without = found.values()
    say(f"interactive P95 with precedence to without: {with_ / without:.2f}x ({without / with_:.1f}x less)")


@contextmanager
def _batch_beside(engine: Engine, bodies: list[Body], best: int) -> Iterator[str]:
    folder, salt = engine.next_run()
    file = _write(folder / "rows.jsonl", engine, bodies, salt)
    with Server(folder / "serve", engine.url) as server, closing(server.sdk()) as sdk:
        batch_id = create(sdk, upload(sdk, file))
        yield f"{server.url}/v1"
        if sdk.batches.retrieve(batch_id).status != "in_progress":
            raise Unavailable("the batch was over before the interactive requests; take more --load-rows")
        server.kill()


@contextmanager
def _plain_beside(engine: Engine, bodies: list[Body], best: int) -> Iterator[str]:
    folder, salt = engine.next_run()
    file = _write(folder / "rows.jsonl", engine, bodies, salt)
    with peers.plain_load(file, folder / "out.jsonl", engine.url, best):
        yield engine.url


def _wait_busy(engine: Engine, rows: int) -> None:
    """Return when the batch has come so far that it runs as it will go on."""
    wanted, deadline = engine.count("request_success_total") + 2 * rows, time.monotonic() + IDLE_SECONDS
    while engine.count("request_success_total") < wanted:
        if time.monotonic() > deadline:
            raise Unavailable("the batch beside the interactive requests does not move")
        time.sleep(0.2)


def _latencies(engine: Engine, url: str, requests: int, every: float) -> list[float]:
    """Seconds of so many requests, one each `every` seconds whether the one before is answered or not."""
    seed = random.Random(engine.runs)

    def ask(client: httpx2.Client) -> float:
        body = {"model": engine.model, **_body(f"{_text(seed, 20)}?", 16)}
        began = time.perf_counter()
        client.post(url, json=body).raise_for_status()
        return time.perf_counter() - began

    with httpx2.Client(timeout=600) as client, ThreadPoolExecutor(requests) as pool:
        begun, asked = time.monotonic(), []
        for number in range(requests):
            time.sleep(max(0.0, begun + number * every - time.monotonic()))
            asked.append(pool.submit(ask, client))
        return [one.result() for one in asked]


def _fixed(engine: Engine, bodies: list[Body], concurrency: int) -> float:
    """Rows a second of the plain client, from its first request to its last answer."""
    folder, salt = engine.next_run()
    file = _write(folder / "rows.jsonl", engine, bodies, salt)
    engine.wait_idle()
    ran = peers.plain(file, folder / "out.jsonl", engine.url, concurrency)
    return ran.rows / ran.seconds


def _ours(engine: Engine, bodies: list[Body]) -> float:
    """Rows a second of a batch, from its creation until a client is told that it is completed.

    The server has just begun, and knows of the engine that it is there, no more.
    """
    folder, salt = engine.next_run()
    file = _write(folder / "rows.jsonl", engine, bodies, salt)
    engine.wait_idle()
    with Server(folder / "serve", engine.url) as server, closing(server.sdk()) as sdk:
        file_id = upload(sdk, file)
        server.wait_ready()
        began = time.perf_counter()
        batch = wait(sdk, create(sdk, file_id))
        seconds = time.perf_counter() - began
        page = get(f"{server.url}/metrics").decode()
        note(" ".join(re.findall(r"^(orch_concurrency_limit(?:_moves_total)?\{.*)$", page, re.MULTILINE)))
        download(sdk, batch, len(bodies))
    return len(bodies) / seconds


def _items(rows: int) -> list[Body]:
    """Rows with a long instruction in common, a short item of their own, and answers of 12 to 36 tokens."""
    seed = random.Random(3)
    instruction = _text(seed, INSTRUCTION)
    return [_body(f"{instruction}\n\n{_text(seed, ITEM)}", seed.randint(12, 36)) for _ in range(rows)]


def _text(seed: random.Random, words: int) -> str:
    return " ".join(seed.choices(VOCABULARY, k=words))


def _body(content: str, tokens: int) -> Body:
    """Exactly so many tokens come back: where an answer ends would else be chance."""
    return {
        "messages": [{"role": "user", "content": content}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
    }


def _write(path: Path, engine: Engine, bodies: list[Body], salt: str) -> Path:
    with path.open("w", encoding="utf-8") as file:
        for number, body in enumerate(bodies):
            whole = {"model": engine.model, **body, "cache_salt": salt}
            row = {"custom_id": f"row-{number}", "method": "POST", "url": ENDPOINT, "body": whole}
            file.write(json.dumps(row) + "\n")
    return path
