"""`orch init`: writes a commented orch.toml and job.yaml. Asks no questions and overwrites nothing.

In these files, `# ` starts a comment. Removing a `#` without a space turns a setting on.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import click
from msgspec import Struct

from orchestrator.cli.options import Url
from orchestrator.cli.output import json_option, print_json, say, show
from orchestrator.cli.proposed_model import ProposedModel, model_at, model_of_settings, plain_yaml
from orchestrator.core.errors import StorageError, UsageError
from orchestrator.core.near_names import meant_file

UPSTREAM = "http://127.0.0.1:8000/v1"

CONFIG = """\
# Settings of orch. All of them: `orch help configuration`.

# Folder of all state, beside this file. Default: ~/.local/share/orch.
home = "state"

# A server with OpenAI's API, such as vLLM. `orch doctor` checks it.
[backends.local]
upstreams = ["http://127.0.0.1:8000/v1"]
location = "local"                     # documents sent there stay with you
idle = true                            # it is free; or: cost_per_hour = 2.50
#api_key_env = "MY_KEY"

# A hosted Batch API at half price (`orch help backends`). Its key is in the
# variable.
#[backends.openai]
#kind = "openai"                       # or "azure", "anthropic", "gemini", …
#api_key_env = "OPENAI_API_KEY"

# A limit on the total cost of a month's jobs (`orch help budgets`).
#[[budgets]]
#name = "all"
#amount = 50
#period = "month"

# How long to keep finished jobs (`orch help retention-and-backup`).
#[retention]
#results = "90d"
#jobs = "365d"

# Reports of each job, and alerts, from `orch up` (`orch help night-reports`).
#[reports]
#folder = "reports"                    # or webhook_env; or email_to and smtp

#[alerts]
#chance = 0.8                          # alert if the deadline is less likely
#failed_share = 0.1                    # alert if more than 10 % of rows failed
#cut_share = 0.1                       # alert if more were cut at max_tokens

#[routing]
#probe = true                          # measure backends that are long unused
"""

DOCUMENTS = """\
documents:
  - path: documents                    # text, PDF, office files, mail
    #include: ["**/*.pdf", "**/*.txt"]
    #exclude: ["drafts/**"]
  #- {path: letters.csv, text_column: body}   # a table: a document for each row
"""

CONTRACTS = """\
  - id: term
    model: {alias}
    #sources: [documents]              # only these documents; default: all
    prompt: When does this contract end, and can it be renewed? Answer as JSON.
    max_tokens: 120
    #retries: 1                        # re-ask if an answer does not fit
    schema:                            # other answers are failed rows
      type: object
      properties: {end_date: {type: string}, renewable: {type: boolean}}
      required: [end_date, renewable]
"""

FACTS = """\
  - id: facts
    model: {alias}
    prompt: What kind of document is this, who wrote it, and when? Answer as
      JSON; null for what it does not say.
    max_tokens: 200
    #retries: 1                        # re-ask if an answer does not fit
    schema:                            # other answers are failed rows
      type: object
      properties:
        kind: {type: string}
        author: {type: [string, "null"]}
        date: {type: [string, "null"]}
      required: [kind, author, date]
"""

JOB = """\
# Questions and documents. `orch help job-file` has every field, and
# `orch validate job.yaml` checks this file.
name: {name}

{documents}
tasks:
  - id: summary
    model: {alias}
    prompt: What is this document about? Answer in one sentence.
    max_tokens: 120
{task}
{models}
#deadline: 8h                          # or "06:00", or an ISO time
#budget: 5                             # dollars, a hard cap
#allow: {{location: local}}              # use no hosted backend
# Or .jsonl; .xlsx needs the extra xlsx, .parquet the extra parquet.
output: {{path: answers.csv, shape: wide}}
#tags: {{team: legal}}                   # for cost reports
"""

DOCUMENT = """\
Mooring agreement between Birch Boatyard and Ida Cole.

The berth at pier 3 is let from 1 April 2026 to 31 March 2028. The agreement is renewed for one more year unless
either party gives notice in writing three months before it ends. The rent is 840 dollars a year, due on 1 April.
"""


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@click.option(
    "--upstream", type=Url(), default=UPSTREAM, show_default=True, metavar="URL", help="The server with the model."
)
@json_option
def init_folder(folder: Path, upstream: str, as_json: bool) -> int:
    """Write a starter orch.toml and job.yaml into FOLDER (default: the current folder).

    If FOLDER holds documents, both files are written beside it. The job then names the documents' kinds and a model
    that the server has. An existing orch.toml is kept, and the job names a model of its backends. If FOLDER holds no
    documents, a sample is added. Both files are commented and pass `orch validate`. The command asks no questions and
    never overwrites a file. FOLDER must exist: for a new folder, run `mkdir FOLDER` first.
    """
    if not folder.exists():
        near = meant_file(str(folder))
        raise UsageError(
            f"{folder}: there is no such folder; nothing was written",
            hint=near or f"`mkdir {shlex.quote(str(folder))}` first, to begin in a new folder with a sample document",
        )
    scaffold = _propose(folder, upstream)
    target, summary = scaffold.target, scaffold.summary
    files = {target / "orch.toml": CONFIG.replace(UPSTREAM, upstream), target / "job.yaml": scaffold.job}
    documents = target / "documents"
    if summary is None and (not documents.is_dir() or not any(documents.iterdir())):
        files[documents / "example.txt"] = DOCUMENT
    if summary is not None and (target / "orch.toml").is_file():
        del files[target / "orch.toml"]  # keep the existing settings
    if existing := [str(path) for path in files if path.exists() or path.is_symlink()]:
        raise UsageError(
            f"{', '.join(existing)}: already there; nothing was written",
            hint="name an empty folder: `orch init FOLDER`",
        )
    _write(files)
    if as_json:
        print_json({"folder": str(target), "files": [str(path) for path in files]})
        return 0
    for path in files:
        show(str(path))
    if summary is not None:
        say(f"orch: {folder}: {summary}")
    for table, column in scaffold.columns.items():
        say(f"orch: {table}: column {column!r} is taken as the text, a guess; correct text_column if it is wrong")
    where = "" if target == Path() else f"in {target}: "
    before = "set your model in orch.toml" if summary is None else scaffold.model.missing
    before = f"{before}, then " if before else ""
    say(f"orch: {where}{before}`orch doctor` and `orch run job.yaml --limit 5`")
    return 0


class _Scaffold(Struct, frozen=True):
    """The target folder, the job file, and a summary of the folder's documents, None without documents.

    `columns` maps each table's path in the folder to its guessed text column.
    """

    target: Path
    job: str
    summary: str | None = None
    model: ProposedModel = ProposedModel()
    columns: Mapping[str, str] = {}


def _propose(folder: Path, upstream: str) -> _Scaffold:
    from orchestrator.cli import proposal

    is_here = folder == Path()
    is_ours = any((folder / name).exists() for name in ("documents", "orch.toml", "job.yaml"))
    found = None if is_ours or not folder.is_dir() else proposal.scan(folder, deep=not is_here)
    if found is None or not found.is_any:
        return _Scaffold(folder, _job("example", DOCUMENTS, CONTRACTS, ProposedModel()))
    target, path = (folder, ".") if is_here else (folder.parent, folder.name)
    model = model_of_settings(target) if (target / "orch.toml").is_file() else model_at(upstream)
    columns = proposal.text_columns(found, folder)
    documents = proposal.sources(found, columns, path, deep=not is_here)
    job = _job(proposal.name_of(folder.resolve()), documents, FACTS, model)
    guessed = {f"{path}/{name}": column for name, column in columns.items() if column is not None}
    return _Scaffold(target, job, str(found), model, guessed)


def _job(name: str, documents: str, task: str, model: ProposedModel) -> str:
    alias = plain_yaml(model.alias)
    return JOB.format(
        name=name, documents=documents, task=task.replace("{alias}", alias), alias=alias, models=model.section
    )


def _write(files: dict[Path, str]) -> None:
    written: list[Path] = []
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except OSError as error:
        for path in written:
            with suppress(OSError):
                path.unlink()
        raise StorageError(f"cannot write {error.filename}: {error.strerror}") from error
