"""What `orch.map` of a frame costs beside `orch run` of the same rows: CPU, in pairs of fresh homes.

Both read the rows from the same file, ask the same question of an upstream that answers at once, and end with an
answer for each row. The caller's own `import pandas` is measured beside them, and taken off.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.databases import SETTINGS
from benchmarks.serving import WORDS, Constant, note, say, scratch
from benchmarks.startup import seconds_of

GOAL = 1.1
MODELS = '\n[models]\nsmall = "m"\n'
PROMPT = "What is it?"
JOB = {
    "name": "rows",
    "documents": [{"path": "rows.jsonl", "text_column": "text", "id_column": "id"}],
    "tasks": [{"id": "answer", "model": "small", "prompt": PROMPT}],
}
READ = {
    "list": "import json; rows = [json.loads(line) for line in open('rows.jsonl')]",
    "pandas": "import pandas; rows = pandas.read_json('rows.jsonl', lines=True, dtype=False)",
}
MAP = f"""
import orchestrator as orch
out = orch.map(rows, {PROMPT!r}, model="small", id="id", progress=False)
answers = list(out["answer"]) if hasattr(out, "columns") else [row["answer"] for row in out]
assert len(answers) == len(rows) and None not in answers
"""


def main(argv: Sequence[str] = ()) -> None:
    """Measure the pairs and print a line for each kind of frame."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks frames", description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    chosen = parser.parse_args(argv)
    python = (sys.executable, "-c")
    commands = {"orch run": (sys.executable, "-m", "orchestrator.cli", "run", "job.yaml", "-q", "-o", "out.jsonl")}
    for kind, read in READ.items():
        commands |= {f"reading the {kind}": (*python, read), kind: (*python, read + MAP)}
    taken: dict[str, list[float]] = {name: [] for name in commands}
    with scratch() as folder, Constant() as upstream:
        for number in range(chosen.rounds):
            for at, (name, command) in enumerate(commands.items()):
                place = folder / f"{number}-{at}"
                _write(place, upstream.url, chosen.rows)
                taken[name].append(seconds_of(command, place, "orch.toml", place / "home")[1])
            note(f"round {number + 1}: " + ", ".join(f"{name} {cpu[-1]:.2f} s" for name, cpu in taken.items()))
    for kind in READ:
        own = [all_ - read for all_, read in zip(taken[kind], taken[f"reading the {kind}"], strict=True)]
        ratios = [mapped / ran for mapped, ran in zip(own, taken["orch run"], strict=True)]
        say(
            f"frames {chosen.rows:,} rows, {kind}: {median(ratios):.2f}x [{min(ratios):.2f}, {max(ratios):.2f}] of "
            f"`orch run` (goal {GOAL}); {median(own):.2f} s of CPU against {median(taken['orch run']):.2f}, and "
            f"{median(taken[f'reading the {kind}']):.2f} for what the caller does itself"
        )


def _write(place: Path, url: str, rows: int) -> None:
    (place / "home").mkdir(parents=True, mode=0o700)
    (place / "orch.toml").write_text(SETTINGS.format(url=url) + MODELS, encoding="utf-8")
    (place / "job.yaml").write_text(json.dumps(JOB), encoding="utf-8")
    with (place / "rows.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(
            json.dumps({"id": f"r{number}", "text": f"{number} {WORDS * 4}"}) + "\n" for number in range(rows)
        )


if __name__ == "__main__":
    main(sys.argv[1:])
