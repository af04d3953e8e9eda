"""Mistakes as people make them, in job files and orch.toml."""

from __future__ import annotations

from tests.support.mistakes import ENGINES, HOSTED, JOB, KEY, PASSWORD, TOML, Case, prompt, source, task

A_BLOCK = "put the text into a block"
SHAPE = "write the schema itself here"
JOBS: dict[str, Case] = {
    "documents-as-names": (source("documents: [documents]"), ":2: documents[0]: must be a map", "- path: …"),
    "a-document": (source("document: documents"), ":2: document: unknown field", "did you mean 'documents'?"),
    "includes": (source("documents: {path: documents, includes: x}"), ":2: documents[0].includes", "'include'?"),
    "a-folder-field": (source("documents: {folder: documents}"), ":2: documents[0].folder: unk", "mean 'path'?"),
    "windows-path": (source('documents: {path: "C:\\Users\\me"}'), ":2: is not valid YAML", "in single quotes"),
    "address-for-variable": (
        source(f'documents: {{name: m, query: SELECT 1, text_column: a, url_env: "postgresql://me:{PASSWORD}@db/x"}}'),
        ":2: documents[0].url_env: is not the name", "such as OPENAI_API_KEY",
    ),
    "tasks-by-name": (
        JOB.replace("  - id: sender\n", "  sender:\n"), ":3: tasks: must be a list", "begin each with a dash",
    ),
    "a-task-of-words": (
        "name: x\ndocuments: documents\ntasks:\n  - Who wrote this?\n", ":4: tasks[0]: must be a map", "- id: NAME",
    ),
    "question": (JOB.replace("prompt:", "question:"), ":6: tasks[0].question: unk", "did you mean 'prompt'?"),
    "no-prompt": (
        JOB.replace("    prompt: Who wrote this?\n", ""), ":4: tasks[0].prompt: is required", "asked about every",
    ),
    "no-model": (JOB.replace("    model: small\n", ""), ":4: tasks[0].model: is required", "an alias declared"),
    "id-of-words": (JOB.replace("id: sender", "id: the sender"), ":4: tasks[0].id: ", "letters, digits, - and _"),
    "id-twice": (
        JOB.replace("models:", "  - {id: sender, model: small, prompt: x}\nmodels:"), ":7: tasks[1].id: tw", "rename",
    ),
    "model-of-a-provider": (
        JOB.replace("model: small", "model: openai:gpt-5-mini"), ":5: tasks[0].model: the model alias",
        "models: {small: {openai: gpt-5-mini}}",
    ),
    "thousands": (task("max_tokens: 1,000"), ":7: tasks[0].max_tokens: ", "write 1000, without separators"),
    "kilo": (task("max_tokens: 2k"), ":7: tasks[0].max_tokens: ", "write 2000"),
    "a-part-of-a-token": (task("max_tokens: 200.5"), ":7: tasks[0].max_tokens: ", "write 200"),
    "decimal-comma": (task("temperature: 0,7"), ":7: tasks[0].temperature: ", "write 0.7, with a point"),
    "temperature-in-words": (task("temperature: low"), ":7: tasks[0].temperature: ", "write a number, such as"),
    "the-shape-of-the-output": (f"{JOB}shape: wide\n", ":8: shape: unknown", "in `output`"),
    "temperature-of-the-job": (f"{JOB}temperature: 0\n", ":8: temperature: unknown", "in an entry of `tasks`"),
    "response-format": (task("response_format: {type: json_object}"), ":7: tasks[0].response", "mean 'schema'?"),
    "schema-in-a-file": (task("schema: schema.json"), ":7: tasks[0].schema: must be a mapping", SHAPE),
    "schema-of-names": (task("schema: [end_date, parties]"), ":7: tasks[0].schema: must be a mapping", SHAPE),
    "required-as-a-mark": (
        task("schema: {properties: {a: {type: string, required: true}}}"), ":7: tasks[0].schema: is not", "beside",
    ),
    "enum-as-text": (task('schema: {properties: {a: {enum: "yes, no"}}}'), ":7: tasks[0].schema: ", "list of values"),
    "properties-as-a-list": (task("schema: {properties: [a, b]}"), ":7: tasks[0].schema: ", "{NAME: {type: string}}"),
    "item": (
        task("schema: {type: array, item: {type: string}}"), ":7: tasks[0].schema.item: is not a keyword", "'items'?",
    ),
    "required-and-not-allowed": (
        task("schema: {properties: {a: {}}, required: [b], additionalProperties: false}"),
        ":7: tasks[0].schema.required: 'b' is required", "`properties` lacks it",
    ),
    "required-and-misspelt": (
        task("schema: {properties: {end_date: {}, b: {}}, required: [enddate, b]}"),
        ":7: tasks[0].schema.required: 'enddate' is required", "mean 'end_date'?",
    ),
    "labels-as-text": (task("labels: bill, letter"), ":7: tasks[0].labels: must be", "write a list of labels"),
    "a-key-in-extra": (task(f"extra: {{api_key: {KEY}}}"), ":7: tasks[0].extra: `api_key`", "names its variable"),
    "a-key": (f"{JOB}api_key: {KEY}\n", ":8: api_key: unknown field", "no key belongs in a job file"),
    "cron": (f'{JOB}cron: "0 22 * * *"\n', ":8: cron: unknown field", "orch schedule add FILE --cron"),
    "deadline-as-a-number": (f"{JOB}deadline: 8\n", ":8: deadline: ", "hint: write 8h\n"),
    "deadline-as-a-part": (f"{JOB}deadline: 1.5\n", ":8: deadline: ", "hint: write 1.5h\n"),
    "deadline-as-a-switch": (f"{JOB}deadline: true\n", ":8: deadline: ", "hint: write 8h\n"),
    "model-misspelt": (
        JOB.replace("model: small", "model: smal"), ":5: tasks[0].model: the model alias", "did you mean 'small'?",
    ),
    "model-of-another-name": (
        JOB.replace("model: small", "model: gpt"), ":5: tasks[0].model: the model alias", "models: {gpt: NAME",
    ),
    "backend-misspelt": (
        f"{JOB}allow: {{backends: [locl]}}\n", ":8: allow.backends: there is no backend", "did you mean 'local'?",
    ),
    "deadline-in-german": (f"{JOB}deadline: 27.11.2026 06:00\n", ":8: deadline: '27.11.2026 06:00' is", "write 8h"),
    "euros": (f"{JOB}budget: 12€\n", ":8: budget: ", "as in  budget: 12"),
    "budget-with-a-comma": (f"{JOB}budget: 12,50\n", ":8: budget: ", "write 12.50, with a point"),
    "allow-in-a-word": (f"{JOB}allow: local\n", ":8: allow: must be a map", "write  allow: {location: …}"),
    "output-in-a-word": (f"{JOB}output: answers.csv\n", ":8: output: must be a map", "write  output: {path: …}"),
    "clean-as-a-switch": (f"{JOB}clean: true\n", ":8: clean: must be a map", "{whitespace: …}"),
    "canary-as-a-number": (f"{JOB}canary: 20\n", ":8: canary: must be a map", "write  canary: {rows: …}"),
    "percent": (f"{JOB}canary: {{max_failed: 25%}}\n", ":8: canary.max_failed: ", "a share of 1: write 0.25"),
    "percent-as-a-number": (
        f"{JOB}gold: documents/1.txt\nquality_threshold: 90\n", ":9: quality_threshold: ", "a share of 1: write 0.9",
    ),
    "tags-as-a-list": (f"{JOB}tags: [legal]\n", ":8: tags: must be a map", "write  tags: {KEY: VALUE}"),
    "tag-as-a-number": (f"{JOB}tags: {{case: 42}}\n", ":8: tags.case: ", 'put it in quotes: "42"'),
    "preflight-never": (f"{JOB}preflight: never\n", ":8: preflight: ", "write false"),
    "gold-elsewhere": (f"{JOB}gold: gold.jsonl\n", ":8: gold: there is no such file", "known answers are looked for"),
    "a-template-first": (prompt("{{ text }} Who wrote?"), ":6: is not valid YAML", A_BLOCK),
    "an-apostrophe": (prompt("'Who's the sender?'"), ":6: is not valid YAML", A_BLOCK),
    "a-question-in-braces": (
        JOB.replace("  - id", "  - {id: a, model: small, prompt: Who?, retries: 1}\n  - id"),
        ":4: is not valid YAML", 'put the text in quotes:  prompt: "Who?"',
    ),
    "an-address-with-a-colon": (
        source(f"documents:\n  - name: m\n    url_env: postgresql://me:{PASSWORD}@db: 5432/x"),
        ":4: is not valid YAML", 'url_env: "…"',
    ),
    "several-prompts": (prompt("[Who, When]"), ":6: tasks[0].prompt: ", "write one text"),
    "no-blank-after-the-colon": (JOB.replace("name: ", "name:"), ":2: is not valid YAML", "the colon:  name: …"),
    "no-blank-after-the-dash": (JOB.replace("- id", "-id"), ":5: is not valid YAML", "a space after the dash"),
    "indented-by-three": (JOB.replace("    model", "   model"), ":5: is not valid YAML", "by 3 where the line above"),
    "smart-quotes": (JOB.replace("letters", "“letters”"), ":1: name: ", "use straight quotes"),
    "two-jobs": (f"{JOB}---\n{JOB}", ":8: is not valid YAML", "one file is one job"),
}  # fmt: skip
SETTINGS: dict[str, Case] = {
    "no-name": (TOML.replace(".local", ""), ":3: backends.location: must be a table", "[backends.NAME]"),
    "double-brackets": (
        TOML.replace("[backends.local]", "[[backends]]"), ":1: backends: must be a table", "in single brackets",
    ),
    "a-field-of-reports": (f'{TOML}[report]\nfolder = "x"\n', ":6: report.folder: unknown", "belongs in [reports]"),
    "singular": (TOML.replace("backends", "backend"), ":1: backend: unknown field", "did you mean 'backends'?"),
    "one-upstream": (TOML.replace('["http://127.0.0.1:9/v1"]', '"x"'), ":2: backends.local.upstreams: ", '= ["…"]'),
    "kind-missing": (f'{TOML}[backends.o]\napi_key_env = "K"\n', ":5: backends.o.upstreams: is", 'kind = "openai"'),
    "vllm": (f'{TOML}[backends.o]\nkind = "vllm"\n', ":6: backends.o.kind: kind must be one of", 'mean "local"'),
    "claude": (f'{TOML}[backends.o]\nkind = "claude"\n', ":6: backends.o.kind: ", 'did you mean "anthropic"?'),
    "capitals": (f'{TOML}[backends.o]\nkind = "OpenAI"\n', ":6: backends.o.kind: ", 'did you mean "openai"?'),
    "a-key": (f'{TOML}[backends.o]\nkind = "openai"\napi_key = "{KEY}"\n', ":7: backends.o.api_key: ", "_env'?"),
    "a-key-for-a-variable": (
        TOML + HOSTED.replace('"K"', f'"{KEY}"'), ":7: backends.g.api_key_env: is not the name", "such as OPENAI_API",
    ),
    "a-key-without-quotes": (
        TOML + HOSTED.replace('"K"', KEY), ":7: is not valid TOML", 'write  api_key_env = "…"',
    ),
    "a-key-as-in-yaml": (
        TOML + HOSTED.replace('= "K"', f': "{KEY}"').replace("api_key_env ", "api_key_env"), ":7: is not valid TOML",
        'TOML writes  api_key_env = "…"',
    ),
    "a-reference": (
        TOML + HOSTED.replace('"K"', '"${OPENAI_API_KEY}"'), ":7: backends.g.api_key_env: is not the name",
        "write OPENAI_API_KEY alone",
    ),
    "profile": (f'{TOML}{HOSTED}profile = "grok"\n', ":8: backends.g.profile: is not", "did you mean 'groq'?"),
    "discount": (f"{TOML}{HOSTED}discount = 50\n", ":8: backends.g.discount: ", "a share of 1: write 0.5"),
    "windows": (f'{TOML}{HOSTED}windows = "24h"\n', ":8: backends.g.windows: must be a list", 'windows = ["…"]'),
    "time-out": (f'{TOML}request_timeout = "10m"\n', ":5: backends.local.request_timeout: ", "write 600: it is in"),
    "home-below": (f'{TOML}home = "state"\n', ":5: backends.local.home: unknown field", "at the top of the file"),
    "home-as-a-number": (f"home = 1\n{TOML}", ":1: home: ", "put it in quotes"),
    "mysql": (f'database_url = "mysql://me:{PASSWORD}@h/db"\n{TOML}', ":1: database_url: is not", "postgresql://HOST"),
    "a-name-with-dots": (f"{TOML}[prices.gpt-4.1]\ninput = 1\n", ":5: prices.gpt-4.1: unknown", '[prices."gpt-4.1"]'),
    "prices-of-no-model": (f"{TOML}[prices]\ninput = 1\n", ":6: prices.input: must be a table", "[prices.NAME]"),
    "a-comma": (TOML.replace("idle = true", "cost_per_hour = 2,50"), ":4: is not valid TOML", "cost_per_hour = 2.50"),
    "smart-quotes": (TOML.replace('"local"', "“local”"), ":3: is not valid TOML", "use straight quotes"),
    "open-quote": (TOML.replace('"local"', '"local'), ":3: is not valid TOML", "a quote is not closed"),
    "yaml": ("backends:\n  local: {}\n", ":1: is not valid TOML", "orch.toml is TOML"),
    "twice": (f"{TOML}idle = false\n", ":5: is not valid TOML", "remove one of the two definitions"),
    "table-twice": (f"{TOML}[backends.local]\n", ":5: is not valid TOML", "put its keys together"),
    "budgets-table": (f'{TOML}[budgets]\nname = "t"\n', ":5: budgets: must be a list", "write  [[budgets]]"),
    "budget-tag": (
        f'{TOML}[[budgets]]\nname = "t"\namount = 5\nperiod = "month"\ntag = "legal"\n', ":9: budgets[0].tag: ",
        "write KEY=VALUE",
    ),
    "warn-at": (
        f'{TOML}[[budgets]]\nname = "t"\namount = 5\nperiod = "month"\nwarn_at = 80\n', ":9: budgets[0].warn_at: ",
        "a share of 1: write 0.8",
    ),
    "summer-time": (f'{TOML}[reports]\ntz = "CEST"\n', ":6: reports.tz: 'CEST' is not", "such as Europe/Berlin"),
    "time-zone": (f'{TOML}[reports]\ntimezone = "UTC"\n', ":6: reports.timezone: unknown", "did you mean 'tz'?"),
    "one-receiver": (f'{TOML}[reports]\nemail_to = "a@b.de"\n', ":6: reports.email_to: must", 'email_to = ["…"]'),
    "host-with-port": (
        f'{TOML}[reports]\nemail_to = ["a@b.de"]\nsmtp = {{host = "h:587", from = "a@b.de"}}\n',
        ":7: reports.smtp.host: is not", "port = 587",
    ),
    "a-password": (
        f'{TOML}[reports]\nsmtp = {{host = "h", from = "a@b.de", password = "{PASSWORD}"}}\n',
        ":6: reports.smtp.password: unknown", "did you mean 'password_env'?",
    ),
    "a-hook-for-a-variable": (
        f'{TOML}[reports]\nwebhook_env = "https://hooks.example/{PASSWORD}"\n', ":6: reports.webhook_env: ",
        "such as OPENAI_API_KEY",
    ),
    "compare": (f'{TOML}[report]\ncompare = "gpt-5"\n', ":6: report.compare: ", "write PROVIDER:MODEL"),
    "options-as-text": (
        TOML + ENGINES.replace('"x"', '"x", options = "--max-model-len 1"'), ":9: backends.gpu.models.a.options: ",
        'options = ["…"]',
    ),
}  # fmt: skip
