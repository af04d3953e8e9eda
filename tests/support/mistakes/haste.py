"""Mistakes made in haste: open quotes and blocks, near names of keywords, and values without their form."""

from __future__ import annotations

from tests.support.mistakes import HOSTED, JOB, TOML, Case, prompt, source, task

JOBS: dict[str, Case] = {
    "wide": (f"{JOB}output: {{path: a.csv, wide: true}}\n", ":8: output.wide: unknown field", "shape: wide"),
    "a-type-of-none": (
        task("schema: {type: object, properties: {a: {type: [string, none]}}}"), ":7: tasks[0].schema: is not",
        "did you mean 'null'?",
    ),
    "a-type-of-str": (
        task("schema: {type: object, properties: {a: {type: [str, 'null']}}}"), ":7: tasks[0].schema: is not",
        "did you mean 'string'?",
    ),
    "property": (
        task("schema: {type: object, property: {a: {type: string}}}"), ":7: tasks[0].schema.property: is not",
        "did you mean 'properties'?",
    ),
    "words-for-a-schema": (
        task("schema: {type: object, properties: {a: The end date}}"), ":7: tasks[0].schema: is not",
        "write  {type: string, description: …}",
    ),
    "a-type-for-a-schema": (
        task("schema: {type: object, properties: {a: Boolean}}"),
        ":7: tasks[0].schema: is not a JSON Schema: properties.a: is not a schema", "write  {type: boolean}",
    ),
    "a-type-of-python-for-a-schema": (
        task("schema: {type: object, properties: {a: int}}"), ":7: tasks[0].schema: is not", "write  {type: integer}",
    ),
    "labels-alone": (task("labels: [bill, letter]"), ":7: tasks[0].labels: is for `kind", "kind: classify  above it"),
    "an-ending-for-a-pattern": (
        source("documents: {path: documents, include: .txt}"), ":2: documents[0].include: ", "write *.txt",
    ),
    "nothing-left": (
        source("documents: {path: documents, exclude: '*'}"), ":2: documents[0].exclude: There are",
        "correct `exclude`",
    ),
    "an-open-quote": (prompt('"Who wrote this?'), ":6: is not valid YAML", "close the quote"),
    "a-block-at-the-margin": (prompt("|\nWho wrote this?"), ":8: is not valid YAML", "indent the text of the block"),
    "a-text-beside-the-bar": (prompt("| Who wrote this?"), ":6: is not valid YAML", "begins in the next line"),
    "no-tasks": (f"{JOB[: JOB.index('tasks')]}tasks: []\n", ":3: tasks: must not be empty", "tasks: [{id: NAME"),
}  # fmt: skip
SETTINGS: dict[str, Case] = {
    "a-budget-without-a-name": (
        f'{TOML}[[budgets]]\namount = 50\nperiod = "month"\n', ":5: budgets[0].name: is required", 'name = "legal"',
    ),
    "never": (f'{TOML}[retention]\nresults = "never"\n', ":6: retention.results: ", "leave it out"),
    "months-as-minutes": (
        f'{TOML}[retention]\nresults = "3m"\n', ":6: retention.results: '3m' is not a time such as", "write 90d",
    ),
    "months": (f'{TOML}[retention]\njobs = "12 months"\n', ":6: retention.jobs: ", "write 360d"),
    "weeks": (f'{TOML}[routing]\nprobe_after = "2w"\n', ":6: routing.probe_after: ", "write 14d"),
    "models-of-engines-as-a-list": (
        f'{TOML}[backends.gpu]\nkind = "engines"\ncost_per_hour = 1\nmodels = ["qwen"]\n',
        ":8: backends.gpu.models: must be a table", 'write  [backends.gpu.models.ALIAS]  model = …',
    ),
    "models-as-a-text": (
        f'models = "qwen"\n{TOML}', ":1: models: must be a table", 'write  [models]  ALIAS = {BACKEND = "NAME"}',
    ),
    "a-deadline-of-all-jobs": (f'deadline = "06:00"\n{TOML}', ":1: deadline: unknown", "belongs in the job file"),
    "bytes-without-quotes": (
        f"{TOML}[retention]\nmax_bytes = 50GB\n", ":6: is not valid TOML", 'write  max_bytes = "50GB"',
    ),
    "a-time-without-quotes": (
        f"{TOML}[retention]\nresults = 90d  # days\n", ":6: is not valid TOML", 'write  results = "90d"',
    ),
    "upstreams-of-a-provider": (
        f'{TOML}{HOSTED}upstreams = ["https://a/v1"]\n', ":8: backends.g.upstreams: unk", "mean 'base_url'?",
    ),
    "org": (f'{TOML}{HOSTED}org = "x"\n', ":8: backends.g.org: unknown field", "did you mean 'organization'?"),
    "dollars": (
        TOML.replace("idle = true", "cost_per_hour = $2.50"), ":4: is not valid TOML", "write  cost_per_hour = 2.50",
    ),
    "percent": (f"{TOML}[alerts]\nchance = 80%\n", ":6: is not valid TOML", "write  chance = 0.8"),
    "an-open-quote": (TOML.replace('"local"', "'local"), ":3: is not valid TOML", "a quote is not closed"),
    "an-open-double-quote": (TOML.replace('"local"', '"local'), ":3: is not valid TOML", "a quote is not closed"),
    "no-comma": (
        TOML.replace('9/v1"', '9/v1" "http://b/v1"'), ":2: is not valid TOML", "put a comma between the values",
    ),
}  # fmt: skip
