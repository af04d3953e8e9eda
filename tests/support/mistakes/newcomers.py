"""Mistakes in files as newcomers make them."""

from __future__ import annotations

from tests.support.mistakes import HOSTED, JOB, TOML, Case, prompt, source, task

EXTRA = "belong in `extra`"
BRACES = "quote the texts in braces and brackets"
NOTHING = "in quotes if it begins with #"
PATTERNS = "write patterns:  include:"
JOBS: dict[str, Case] = {
    "file-scheme": (source("documents: {path: file:///srv/a}"), ":2: documents[0].path: ", "without file://"),
    "patterns-in-one": (source("documents: {path: documents, include: '*.md;*.pdf'}"), ":2: doc", "list of patterns"),
    "regex": (source("documents: {path: documents, include: '.*\\.md$'}"), ":2: documents[0].inc", "not a regular"),
    "star-unquoted": (source("documents: {path: documents, include: [*.txt]}"), ":2: is not valid YAML", BRACES),
    "extensions": (source("documents: {path: documents, extensions: [txt]}"), ":2: documents[0].ext", PATTERNS),
    "recursive": (source("documents: {path: documents, recursive: true}"), ":2: documents[0].rec", "leave it out"),
    "sheet": (source("documents: {path: documents, sheet: 1}"), ":2: documents[0].sheet", "all sheets"),
    "delimiter": (source("documents: {path: documents, delimiter: ','}"), ":2: documents[0].del", "by itself"),
    "text-columns": (source("documents: {path: documents, text_columns: [a]}"), ":2: doc", "mean 'text_column'?"),
    "prompts-in-brackets": (prompt("[Who wrote this?, When?]"), ":6: is not valid YAML", BRACES),
    "messages": (JOB.replace("prompt:", "messages:"), ":6: tasks[0].messages: unknown", "did you mean 'prompt'?"),
    "json": (task("json: true"), ":7: tasks[0].json: unknown", "did you mean 'schema'?"),
    "thinking": (task("thinking: off"), ":7: tasks[0].thinking: unknown", EXTRA),
    "reasoning": (task("reasoning_effort: low"), ":7: tasks[0].reasoning_effort: unknown", EXTRA),
    "optional-type": (
        task("schema: {properties: {a: {type: string?}}}"), ":7: is not valid YAML", 'quotes:  type: "string?"',
    ),
    "python-type": (task("schema: {properties: {a: List[str]}}"), ":7: is not valid YAML", BRACES),
    "priority": (f"{JOB}priority: high\n", ":8: priority: unknown", "give the job a `deadline`"),
    "midnight": (f"{JOB}deadline: '24:00'\n", ":8: deadline: '24:00'", "write 00:00 to 23:59"),
    "models-of-nothing": (JOB.replace(" {small: some-model}", ""), ":7: models: must be a mapping", NOTHING),
    "number-sign": (prompt("#1 question"), ":6: tasks[0].prompt: ", NOTHING),
    "half-a-block": (prompt("|\n    Who?\n  When?"), ":8: is not valid YAML", "as the line above it in its block"),
}  # fmt: skip
SETTINGS: dict[str, Case] = {
    "model": (f'{TOML}model = "qwen"\n', ":5: backends.local.model: unknown", "named in the job file"),
    "chatgpt": (TOML + HOSTED.replace('"openai"', '"chatgpt"'), ":6: backends.g.kind", 'did you mean "openai"?'),
    "google": (TOML + HOSTED.replace('"openai"', '"google"'), ":6: backends.g.kind", 'did you mean "gemini"?'),
    "lmstudio": (TOML + HOSTED.replace('"openai"', '"lmstudio"'), ":6: backends.g.kind", 'did you mean "local"?'),
    "limit": (f'{TOML}[[budgets]]\nname = "a"\nlimit = 5\nperiod = "month"\n', ":7: budgets[0].limit", "'amount'?"),
    "slack": (f'{TOML}[reports]\nslack = "x"\n', ":6: reports.slack: unknown", "did you mean 'webhook_env'?"),
    "address-of-reports": (f'{TOML}[reports]\nurl = "http://x"\n', ":6: reports.url: unknown", "known fields: chan"),
    "address-of-a-mail-server": (
        f'{TOML}[reports]\nsmtp = {{address = "x", from = "a@b.de"}}\n', ":6: reports.smtp.host: is", "fields: from,"
    ),
    "no-variable": (f'{TOML}[backends.c]\nkind = "anthropic"\n', ":5: backends.c.api_key_env", 'env = "MY_KEY"'),
    "in": (f"{TOML}[prices.x]\nin = 2\noutput = 8\n", ":6: prices.x.in: unknown", "did you mean 'input'?"),
    "logging": (f'{TOML}[logging]\nlevel = "debug"\n', ":5: logging: unknown", "`orch up` logs to stderr"),
    "colon-in-braces": (f"{TOML}limits = {{rows: 1}}\n", ":5: is not valid TOML", "TOML writes  rows = …"),
    "a-day": (f"{TOML}[retention]\nresults = 2026-01-01\n", ":6: retention.results: 2026-01-01 is not", '"90d"'),
}  # fmt: skip
