"""`orch init`: writes an orch.toml and a job.yaml to start from, without questions, and overwrites nothing.

In these files, `# ` begins a comment, and `#` without a blank a setting that may be turned on as it stands.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from orchestrator.cli.output import json_option, print_json, say, show
from orchestrator.core.errors import StorageError, UsageError

CONFIG = """\
# Settings of orch: where models are, what they cost, where reports go. All of them: docs/reference/configuration.md.

# Where all state lies, beside this file; without it, in ~/.local/share/orch.
home = "state"

# A server that speaks OpenAI's API, such as vLLM. `orch doctor` says whether it answers.
[backends.local]
upstreams = ["http://127.0.0.1:8000/v1"]
location = "local"                     # what is sent there stays with you
idle = true                            # its hours cost nothing; or: cost_per_hour = 2.50
#api_key_env = "MY_KEY"

# A hosted Batch API at half price (docs/reference/backends/README.md). The key itself stands in the environment.
#[backends.openai]
#kind = "openai"                       # or "azure", "anthropic"; most others: "openai" with a base_url
#api_key_env = "OPENAI_API_KEY"

# What all jobs of a month may cost together (docs/how-to/budgets.md).
#[[budgets]]
#name = "all"
#amount = 50
#period = "month"

# How long what finished jobs leave is kept (docs/how-to/retention-and-backup.md).
#[retention]
#results = "90d"
#jobs = "365d"

# Where `orch up` sends the report of each job, and alerts (docs/how-to/night-reports.md).
#[reports]
#folder = "reports"                    # or webhook_env = "SLACK_WEBHOOK"; or email_to and smtp

#[alerts]
#chance = 0.8                          # tell when the deadline is kept with less than this
#failed_share = 0.1                    # and when more than a tenth of the rows have failed
#cut_share = 0.1                       # and when more than a tenth of the answers ended at max_tokens

#[routing]
#probe = true                          # measure backends long unused (docs/explanation/planning.md)
"""

JOB = """\
# What to ask of which documents. Every field: docs/reference/job-file.md; `orch validate job.yaml` checks this one.
name: example

documents:
  - path: documents                    # txt md html pdf docx; csv jsonl parquet by rows
    #include: ["**/*.pdf", "**/*.txt"]
    #exclude: ["drafts/**"]
  #- {path: letters.csv, text_column: body}   # a table: a document for each row

tasks:
  - id: summary
    model: small
    prompt: What is this document about? Answer in one sentence.
    max_tokens: 120
  - id: term
    model: small
    #sources: [documents]              # which of the documents above it is asked of; default: all
    prompt: When does this contract end, and can it be renewed? Answer as JSON.
    max_tokens: 120
    #retries: 1                        # an answer that does not fit is asked again, with what was wrong
    schema:                            # answers that do not fit are failed rows with a reason
      type: object
      properties: {end_date: {type: string}, renewable: {type: boolean}}
      required: [end_date, renewable]

models:
  small: {local: default}              # `default`: whatever the upstream serves
  #small: {local: default, openai: gpt-5-nano}

#deadline: 8h                          # or "06:00", or an ISO time
#budget: 5                             # dollars, a hard cap
#allow: {location: local}              # nothing leaves for a hosted backend
output: {path: answers.csv, shape: wide}   # a row per document; .xlsx, .parquet and .jsonl too
#tags: {team: legal}                   # for cost reports
"""

DOCUMENT = """\
Mooring agreement between Birch Boatyard and Ida Cole.

The berth at pier 3 is let from 1 April 2026 to 31 March 2028. The agreement is renewed for one more year unless
either party gives notice in writing three months before it ends. The rent is 840 dollars a year, due on 1 April.
"""


@click.command("init")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False), default=Path())
@json_option
def init_folder(folder: Path, as_json: bool) -> int:
    """Write an orch.toml and a job.yaml to start from into FOLDER (default: this one).

    Both are commented and pass `orch validate`. A sample document is added to a folder without documents. Asks no
    questions and never overwrites a file.
    """
    files = {folder / "orch.toml": CONFIG, folder / "job.yaml": JOB}
    documents = folder / "documents"
    if not documents.is_dir() or not any(documents.iterdir()):
        files[documents / "example.txt"] = DOCUMENT
    if there := [str(path) for path in files if path.exists() or path.is_symlink()]:
        raise UsageError(
            f"{', '.join(there)}: already there; nothing was written",
            hint="name an empty folder: `orch init FOLDER`",
        )
    _write(files)
    if as_json:
        print_json({"folder": str(folder), "files": [str(path) for path in files]})
        return 0
    for path in files:
        show(str(path))
    where = "" if folder == Path() else f"in {folder}: "
    say(f"orch: {where}set your model in orch.toml, then `orch doctor` and `orch run job.yaml --limit 5`")
    return 0


def _write(files: dict[Path, str]) -> None:
    """Write all files or none. Raises StorageError."""
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
