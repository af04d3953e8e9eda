"""The demo: a real engine reads the licence files of the installed packages, and the answers are scored.

`make demo` runs it. State lies in `.demo/`; what is unchanged since the last run is not asked again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.core.errors import OrchError

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STATE = ROOT / ".demo"
JOB = HERE / "job.yaml"
# What an hour of such a two-core machine costs, about; so that the cost report has something to show.
COST_PER_HOUR = "0.08"
SHOWN = 8
# The names that the job's schema offers, by what they are called in package metadata.
FAMILIES = {
    "APACHE": "Apache", "BSD": "BSD", "MIT": "MIT", "MPL": "Mozilla", "MOZILLA": "Mozilla", "PSF": "Python",
    "PYTHON": "Python", "GPL": "GNU", "GNU": "GNU", "ISC": "other",
}  # fmt: skip

# What models and paths say is shown as it is: styles come as Text or `style=`.
console = Console(highlight=False, markup=False, emoji=False)


def main() -> int:
    """Run the demo; the exit code is that of `orch run`, where failed rows are shown but are not a failure here."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--upstream", help="an OpenAI-compatible server to use instead of starting one")
    arguments.add_argument("--model", default="default", help="the model's name there")
    chosen = arguments.parse_args()
    STATE.mkdir(exist_ok=True)
    # A first plan needs no engine: where nothing changed, none is started.
    configure(chosen.upstream or "http://127.0.0.1:1/v1", chosen.model)
    plan = json.loads(orch("submit", "--dry-run", "--json", str(JOB), capture=True).stdout)
    asked = f"{plan['documents']} licence files, {plan['requests']} questions"
    console.print(Text.assemble((asked, "bold"), f" ({plan['unchanged']} answered in an earlier run)"))
    if plan["unchanged"] == plan["requests"]:
        code = orch("run", str(JOB)).returncode
    else:
        try:
            with upstream(chosen.upstream) as url:
                configure(url, chosen.model)
                code = orch("run", str(JOB)).returncode
        except OrchError as error:
            console.print(str(error), style="red")
            return error.exit_code
    if code > 1:
        return code
    show()
    return 0


def configure(url: str, model: str) -> None:
    """Write the orch.toml of the demo."""
    (STATE / "orch.toml").write_text(
        f'home = "home"\n[backends.local]\nupstreams = ["{url}"]\nlocation = "local"\n'
        f'cost_per_hour = {COST_PER_HOUR}\n[models]\nsmall = "{model}"\n',
        encoding="utf-8",
    )


def orch(*arguments: str, capture: bool = False) -> subprocess.CompletedProcess[str]:
    """The command line, as a user has it."""
    environment = {**os.environ, "ORCH_CONFIG": str(STATE / "orch.toml")}
    environment.pop("ORCH_HOME", None)
    command = [sys.executable, "-m", "orchestrator.cli", *arguments]
    if not capture:
        console.print(f"$ orch {' '.join(arguments).replace(str(ROOT) + '/', '')}", style="dim")
    done = subprocess.run(
        command, env=environment, text=True, stdout=subprocess.PIPE if capture else None, check=False
    )
    if capture and done.returncode > 1:
        sys.exit(done.returncode)
    return done


@contextmanager
def upstream(given: str | None) -> Iterator[str]:
    """The base URL of an upstream: the given one, or a real vLLM on this machine's CPU while it is needed."""
    if given is not None:
        yield given
        return
    sys.path.insert(0, str(ROOT))  # for the tools of the checkout
    from orchestrator.server.engines.install import install
    from orchestrator.server.engines.layout import EngineDir
    from orchestrator.server.engines.process import VllmProcess
    from tools.cpu_engine.launch import vllm_launch
    from tools.cpu_engine.models import make_model

    engine = EngineDir.at(ROOT / ".engine")
    install(engine)
    model = make_model(engine, "gemma")
    launch = vllm_launch(engine, model)
    console.print(f"starting vLLM with {model.name} on the CPU (about a minute; log: .engine/logs/)")
    with VllmProcess(launch, log=engine.logs / f"demo-{launch.port}.log") as process:
        yield process.base_url


def show() -> None:
    """The answers, how many are right, what it cost, and where the rows are."""
    job = json.loads(orch("status", "--json", capture=True).stdout)[0]
    rows = [json.loads(line) for line in orch("fetch", job["job"], capture=True).stdout.splitlines()]
    by_document: dict[str, dict[str, Any]] = {}
    for row in rows:
        by_document.setdefault(row["document"], {})[row["task"]] = row
    declared = {str(path): family for path, family in declared_families()}
    table = Table(box=None, padding=(0, 2, 0, 0))
    widths = {"package": 18, "declared": 8, "family": 8, "holder": 18, "summary": max(18, console.width - 62)}
    for name, width in widths.items():
        table.add_column(name, no_wrap=True, width=width)
    for document, answers in list(by_document.items())[:SHOWN]:
        said = [Text(text(answers[task])) for task in ("family", "holder", "summary")]
        table.add_row(package(document), declared.get(key(document)) or "—", *said)
    console.print(table)
    scored = [
        (declared[key(document)], text(answers["family"]))
        for document, answers in by_document.items()
        if declared.get(key(document))
    ]
    right = sum(want == got for want, got in scored)
    console.print(f"\nfamily: {right} of {len(scored)} as the package declares it", style="bold")
    failed = [row for row in rows if row["status"] != "succeeded"]
    console.print(f"rows: {len(rows) - len(failed)} of {len(rows)} succeeded")
    for row in failed[:3]:
        console.print(f"  {package(row['document'])} {row['task']}: {row['error']['code']}")
    orch("report", "cost", "--job", job["job"])
    console.print(f"\nmerged rows: {os.path.relpath(job['output'])}")


def text(row: dict[str, Any]) -> str:
    """An answer on one line."""
    output = row["output"]
    if isinstance(output, dict):
        output = next(iter(output.values()))
    shown = " ".join(str(output if output is not None else "—").split())
    return shown if len(shown) <= 60 else shown[:59] + "…"


def key(document: str) -> str:
    """A document's path below the folder that the job reads."""
    return document.split("site-packages/", 1)[-1]


def package(document: str) -> str:
    """The package that a licence file belongs to."""
    return key(document).split(".dist-info")[0]


def declared_families() -> Iterator[tuple[str, str]]:
    """The family that each installed package's own metadata declares, by the path of its licence files."""
    for found in distributions():
        declared = declaration(found)
        for path in found.files or ():
            if ".dist-info/" in str(path) and path.name.upper().startswith(("LICENSE", "LICENCE")):
                yield str(path), family(declared)


def declaration(found: Distribution) -> str:
    """What a package says of its licence, in the first place where it says anything short."""
    meta = found.metadata
    classifiers = [line for line in meta.get_all("Classifier") or () if line.startswith("License ::")]
    said = [meta.get("License-Expression"), *classifiers, meta.get("License")]
    return next((one for one in said if one and len(one) < 120 and family(one)), "")


def family(name: str) -> str:
    """The family that a licence's name belongs to; empty where it cannot be told."""
    return next((known for sign, known in FAMILIES.items() if sign in name.upper()), "")


if __name__ == "__main__":
    sys.exit(main())
