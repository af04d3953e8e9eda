"""Mistakes in job files and orch.toml, many by other tools' names."""

from __future__ import annotations

from tests.support.mistakes import ENGINES, HOSTED, JOB, TOML, Case, prompt, source, task

SIZES = "orch finds concurrency and sizes of batches"
TOLD = "[reports] and [alerts] of orch.toml"
DOLLARS = "write dollars per million tokens"
NO_VARIABLES = "variables are not filled in"
JOBS: dict[str, Case] = {
    "no-name": (JOB.replace("name: letters\n", ""), ":1: name: is required", "name: letters"),
    "role": (task("role: system"), ":7: tasks[0].role: unknown field", "`system: …` beside `prompt: …`"),
    "examples": (task("examples: [a]"), ":7: tasks[0].examples: unknown", "into `prompt` or `system`"),
    "time-out": (task("timeout: 30"), ":7: tasks[0].timeout: unknown", "`request_timeout` of a backend"),
    "limit": (f"{JOB}limit: 5\n", ":8: limit: unknown field", "`orch run FILE --limit N`"),
    "only": (f"{JOB}only: a.txt\n", ":8: only: unknown field", "`orch run FILE --only DOC`"),
    "concurrency": (f"{JOB}concurrency: 8\n", ":8: concurrency: unknown field", SIZES),
    "max-workers": (f"{JOB}max_workers: 8\n", ":8: max_workers: unknown field", SIZES),
    "batch-size": (f"{JOB}batch_size: 100\n", ":8: batch_size: unknown field", SIZES),
    "time-zone": (f"{JOB}timezone: Europe/Berlin\n", ":8: timezone: unknown", "`orch schedule add FILE --tz ZONE`"),
    "e-mail": (f"{JOB}email: a@b.de\n", ":8: email: unknown field", TOLD),
    "notify": (f"{JOB}notify: a@b.de\n", ":8: notify: unknown field", TOLD),
    "format": (f"{JOB}format: csv\n", ":8: format: unknown field", "output: {path: FILE.csv}"),
    "output-folder": (f"{JOB}output: {{path: out/}}\n", ":8: output: 'out/' is a folder", "out/answers.csv"),
    "output-variable": (f"{JOB}output: {{path: $HOME/x.csv}}\n", ":8: output.path: ", NO_VARIABLES),
    "column": (
        f"{JOB}output: {{path: o.csv, shape: wide, columns: [answr]}}\n", ":8: output.columns: the table has no",
        "did you mean 'sender.answer'? its columns: document",
    ),
    "a-row's-column": (
        f"{JOB}output: {{path: o.csv, shape: wide, columns: [why]}}\n", ":8: output.columns: the table has no",
        "a row per answer",
    ),
    "min": (task("schema: {properties: {a: {min: 1}}}"), ":7: tasks[0].schema.properties.a.min: is no", "'minimum'?"),
    "max-length": (
        task("schema: {properties: {a: {max_length: 9}}}"), ":7: tasks[0].schema.properties.a.max_length: is no",
        "'maxLength'?",
    ),
    "choices": (
        task("schema: {properties: {a: {choices: [x]}}}"), ":7: tasks[0].schema.properties.a.choices: is", "'enum'?",
    ),
    "no-choice": (
        task("schema: {properties: {a: {enum: []}}}"), ":7: tasks[0].schema.properties.a.enum: has no values",
        "list those that are allowed",
    ),
    "crossed-bounds": (
        task("schema: {properties: {a: {minLength: 9, maxLength: 3}}}"),
        ":7: tasks[0].schema.properties.a.minLength: is 9, above `maxLength` 3", "swap them",
    ),
    "crossed-limits": (
        task("schema: {properties: {a: {minimum: 1.5, maximum: 1}}}"),
        ":7: tasks[0].schema.properties.a.minimum: is 1.5, above `maximum` 1", "swap them",
    ),
    "date-format": (
        task("schema: {properties: {a: {type: string, format: dat}}}"),
        ":7: tasks[0].schema.properties.a.format: 'dat' is no", "did you mean 'date'?",
    ),
    "two-types": (task("schema: {properties: {a: {type: string|null}}}"), ":7: tasks[0].schema: is", "properties.a"),
    "empty-model": (JOB.replace("some-model", "''"), ":7: models.small: is empty", "the backend calls the model"),
    "empty-name-at-a-backend": (
        JOB.replace("some-model", "{local: ' '}"), ":7: models.small.local: is empty", "calls the model",
    ),
    "no-such-backend": (
        JOB.replace("some-model", "{locl: x}"), ":7: models.small: has names for locl", "write  small: {local: NAME}",
    ),
    "no-such-backend-in-a-list": (
        JOB.replace("some-model", "[a, {locl: x}]"), ":7: models.small: model 2 of the list is for", "known: local",
    ),
    "after-nobody": (f"{JOB}after: nobody\n", ":8: after: there is no job 'nobody'", "`orch status` lists the jobs"),
    "sources-twice": (
        source("documents:\n  - {name: a, path: documents}\n  - {name: a, path: documents, include: '*.md'}"),
        ":4: documents[1].name: two sources have", "rename one of them",
    ),
    "another-source's-path": (
        source("documents:\n  - {path: documents}\n  - {name: documents, path: documents, include: '*.md'}"),
        ":4: documents[1].name: two sources have", "rename one of them",
    ),
    "author": (prompt("'What of {{ athor }}?'"), ":6: tasks[0].prompt: the template uses {{ athor }}", "{{ path }}"),
    "nothing": ("", ":1: is empty or not a mapping", "begins with `name:`"),
    "a-list": ("- a\n- b\n", ":1: is empty or not a mapping", "begins with `name:`"),
}  # fmt: skip
SETTINGS: dict[str, Case] = {
    "a-list-of-backends": ('backends = ["local"]\n', ":1: backends: must be a table", "[backends.NAME]"),
    "a-name-with-blanks": (TOML.replace("s.local", 's."my gpu"'), ":1: backends.my gpu: ", "digits, - and _ alone"),
    "sync-without-an-address": (f'{TOML}[backends.a]\nkind = "sync"\napi_key_env = "K"\n', ":5: backends.a.base_url",
                                'base_url = "https://HOST/v1"'),
    "hours": (f'{TOML}hours = "22-6"\n', ":5: backends.local.hours: unknown", 'kind = "engines"'),
    "gpus-of-a-model": (f'{TOML}{ENGINES}gpus = "all"\n', ":10: backends.gpu.models.gpus: ", "into [backends.NAME]"),
    "empty-model": (f'{TOML}[models]\nsmall = ""\n', ":6: models.small: is empty", "the backend calls the model"),
    "half-price": (
        f"{TOML}[prices.x]\ninput = 1\noutput = 2\nbatch = 0.5\n", ":8: prices.x.batch: must be a table",
        "batch = {input = 1.25, output = 5.00}",
    ),
    "per-thousand": (f"{TOML}[prices.x]\ninput_per_1k = 1\n", ":6: prices.x.input_per_1k: unknown", DOLLARS),
    "alerts-by-mail": (f'{TOML}[alerts]\nemail_to = ["a@b.de"]\n', ":6: alerts.email_to: unknown", "in [reports]"),
    "no-sender": (
        f'{TOML}[reports]\nemail_to = ["a@b.de"]\nsmtp = {{host = "h"}}\n', ":7: reports.smtp.from: is required",
        "the address that sends",
    ),
    "processes": (f"{TOML}[documents]\nprocesses = 4\n", ":6: documents.processes: unknown", "mean 'workers'?"),
    "web": (f"{TOML}[web]\nport = 8091\n", ":5: web: unknown field", "`orch up --web HOST:PORT`"),
    "server": (f"{TOML}[server]\nport = 8080\n", ":5: server: unknown field", "`orch serve HOST:PORT`"),
    "include": (f'include = "other.toml"\n{TOML}', ":1: include: unknown field", "orch.toml is one file"),
    "orch": (f'[orch]\nhome = "x"\n{TOML}', ":1: orch: unknown field", "at the top of the file"),
    "home-by-a-variable": (f'home = "$HOME/orch"\n{TOML}', ":1: home: ", NO_VARIABLES),
    "folder-by-a-variable": (f'{TOML}[reports]\nfolder = "${{HOME}}/r"\n', ":6: reports.folder: ", NO_VARIABLES),
    "limits": (f"{TOML}{HOSTED}limits = {{max_row = 5}}\n", ":8: backends.g.limits.max_row: unknown", "'max_rows'?"),
}  # fmt: skip
