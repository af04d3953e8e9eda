"""Mistakes of somebody who knows OpenAI's API, vLLM or another batch tool."""

from __future__ import annotations

from tests.support.mistakes import ENGINES, HOSTED, JOB, TOML, Case, prompt, source, task

ADDRESS, UPSTREAMS = "addresses are in orch.toml", 'upstreams = ["http://HOST:8000/v1"]'
EXTRA, WHOLE = "extra: {NAME: …}", "each request has one answer"
WRAPPED = "schema: {name: x, strict: true, schema: {type: object, properties: {a: {type: string}}}}"
JOBS: dict[str, Case] = {
    "base-url": (f"{JOB}base_url: http://127.0.0.1:8000/v1\n", ":8: base_url: unknown field", ADDRESS),
    "metadata": (f"{JOB}metadata: {{team: legal}}\n", ":8: metadata: unknown field", "did you mean 'tags'?"),
    "window": (f"{JOB}completion_window: 24h\n", ":8: completion_window: unknown", "orch chooses the window"),
    "results": (f"{JOB}results: answers.csv\n", ":8: results: unknown field", "did you mean 'output'?"),
    "on-error": (f"{JOB}on_error: skip\n", ":8: on_error: unknown field", "canary: {max_failed: 0.25}"),
    "cost-limit": (f"{JOB}cost_limit: 5\n", ":8: cost_limit: unknown field", "did you mean 'budget'?"),
    "variables": (f"{JOB}variables: {{a: b}}\n", ":8: variables: unknown field", "a job file has no variables"),
    "every": (f"{JOB}every: day\n", ":8: every: unknown field", "orch schedule add FILE --cron"),
    "version": (f"version: 1\n{JOB}", ":1: version: unknown field", "as a comment:  # …"),
    "allowed-in-a-list": (f"{JOB}allow: [local]\n", ":8: allow: must be a map", "allow: {backends: [NAME]}"),
    "append": (f"{JOB}output: {{path: a.csv, append: true}}\n", ":8: output.append: unknown", "partition: night"),
    "stream": (task("stream: true"), ":7: tasks[0].stream: unknown field", WHOLE),
    "n": (task("n: 3"), ":7: tasks[0].n: unknown field", WHOLE),
    "temp": (task("temp: 0"), ":7: tasks[0].temp: unknown field", "did you mean 'temperature'?"),
    "several-temperatures": (task("temperature: [0, 1]"), ":7: tasks[0].temperature: ", "a task for each"),
    "top-k": (task("top_k: 5"), ":7: tasks[0].top_k: unknown field", EXTRA),
    "tools": (task("tools: []"), ":7: tasks[0].tools: unknown field", EXTRA),
    "extra-as-a-list": (task("extra: [a]"), ":7: tasks[0].extra: must be a map", "extra: {NAME: VALUE}"),
    "json-mode": (task("json_mode: true"), ":7: tasks[0].json_mode: unknown field", "did you mean 'schema'?"),
    "prompt-file": (task("prompt_file: p.txt"), ":7: tasks[0].prompt_file: unknown", "no other file is read"),
    "images": (task("images: true"), ":7: tasks[0].images: unknown field", "render: image"),
    "depends-on": (task("depends_on: other"), ":7: tasks[0].depends_on: unknown", "after: NAME"),
    "chunk-size": (task("long: {reduce: x, chunk_size: 9}"), ":7: tasks[0].long.chunk_size: ", "'part_tokens'?"),
    "wrapped-schema": (task(WRAPPED), ":7: tasks[0].schema: checks", 'schema: {"type": "object", "properties": {"a"'),
    "response-format-as-schema": (
        task("schema: {type: json_schema, json_schema: {name: a}}"), ":7: tasks[0].schema: is", "without OpenAI's",
    ),
    "optional": (task("schema: {properties: {a: {type: 'str?'}}}"), ":7: tasks[0].schema: ", "[string, 'null']"),
    "list-of": (
        task("schema: {properties: {a: {type: 'list[str]'}}}"), ":7: tasks[0].schema: ",
        "type: array, items: {type: string}",
    ),
    "any": (task("schema: {properties: {a: {type: any}}}"), ":7: tasks[0].schema: ", "leave `type` out"),
    "enum": (task("schema: {properties: {a: {type: enum}}}"), ":7: tasks[0].schema: ", "enum: [A, B]"),
    "maxlen": (task("schema: {properties: {a: {maxlen: 5}}}"), ":7: tasks[0].schema.properties.a.maxlen", "Length'"),
    "include": (prompt("'{% include \"x\" %}'"), ":6: tasks[0].prompt: is not", "write that template's text here"),
    "settings-of-a-model": (
        JOB.replace("{small: some-model}", "{small: {local: m, temperature: 0}}"), ":7: models.small.temperature: ",
        "settings belong in a task",
    ),
    "ext": (source("documents: {path: documents, ext: pdf}"), ":2: documents[0].ext: unknown", "write patterns"),
    "ocr": (source("documents: {path: documents, ocr: true}"), ":2: documents[0].ocr: unknown", "render: ocr"),
    "url": (source("documents: {url: 'https://a/x.pdf'}"), ":2: documents[0].url: unknown", "path: https://…"),
    "id": (source("documents: {path: x.csv, id: Name}"), ":2: documents[0].id: unknown", "mean 'id_column'?"),
    "scheme": (source("documents: {path: 'htps://a/x.pdf'}"), ":2: documents[0].path: htps:// is", "https://?"),
    "no-comma": (source('documents: {path: "documents" name: x}'), ":2: is not valid YAML", "a comma"),
    "indented-deeper": (JOB.replace("    model", "      model"), ":5: is not valid YAML", "align them"),
}  # fmt: skip
SETTINGS: dict[str, Case] = {
    "base-url": (f'{TOML}base_url = "http://a/v1"\n', ":5: backends.local.base_url: unknown", UPSTREAMS),
    "port": (f"{TOML}port = 8000\n", ":5: backends.local.port: unknown", UPSTREAMS),
    "rpm": (f"{TOML}rpm = 60\n", ":5: backends.local.rpm: unknown", "`max_concurrency` bounds"),
    "retries": (f"{TOML}max_retries = 3\n", ":5: backends.local.max_retries: unknown", "`patience`"),
    "deployment": (f'{TOML}{HOSTED}deployment = "x"\n', ":8: backends.g.deployment: unk", "{BACKEND: DEPLOYMENT}"),
    "api-version": (f'{TOML}{HOSTED}api_version = "1"\n', ":8: backends.g.api_version: unk", "/openai/v1/"),
    "vertex": (f'{TOML}[backends.a]\nkind = "vertex-ai"\n', ":6: backends.a.kind: ", 'did you mean "vertex"?'),
    "a-flag-of-vllm": (
        TOML + ENGINES.replace('"x"', '"x", max_model_len = 8192'), ":9: backends.gpu.models.a.max_model_len: unk",
        'options = ["--max-model-len", "…"]',
    ),
    "options-without-dashes": (
        TOML + ENGINES.replace('"x"', '"x", options = ["max-model-len=1"]'), ":9: backends.gpu.models.a.options: ",
        'options = ["--max-model-len", "8192"]',
    ),
    "options-with-a-blank": (
        TOML + ENGINES.replace('"x"', '"x", options = ["--max-model-len 1"]'), ":9: backends.gpu.models.a.options: ",
        "write them apart",
    ),
    "engines-without-models": (
        f'{TOML}[backends.g]\nkind = "engines"\ncost_per_hour = 1\n', ":5: backends.g.models: is required",
        "[backends.NAME.models.ALIAS]",
    ),
    "per-token": (
        f"{TOML}[prices.x]\ninput = 1\ninput_cost_per_token = 1\n", ":7: prices.x.input_cost_per_token: unknown",
        "dollars per million tokens",
    ),
    "completion": (f"{TOML}[prices.x]\ninput = 1\ncompletion = 1\n", ":7: prices.x.completion: unk", "'output'?"),
    "currency": (f'{TOML}[prices.x]\ninput = 1\ncurrency = "EUR"\n', ":7: prices.x.currency: unk", "in dollars"),
    "smtp": (f'{TOML}[reports]\nsmtp = "h"\n', ":6: reports.smtp: must be a table", "smtp = {host = "),
    "to": (f'{TOML}[reports]\nto = ["a@b.de"]\n', ":6: reports.to: unknown", "did you mean 'email_to'?"),
    "telemetry": (
        f'{TOML}[telemetry]\nendpoint = "http://a"\nlocatoin = "local"\n', ":7: telemetry.locatoin: unknown",
        "did you mean 'location'?",
    ),
    "a-provider's-table": (f'[openai]\napi_key_env = "K"\n{TOML}', ":1: openai: unknown field", "[backends.NAME]"),
    "default-backend": (f'default_backend = "local"\n{TOML}', ":1: default_backend: unknown", "orch chooses"),
    "open-table": (TOML.replace("local]", "local"), ":1: is not valid TOML", "close the bracket:  [backends.local]"),
    "quoted-table": (TOML.replace("[backends.local]", '["backends.local"]'), ":1: backends.local: ", "out quotes"),
    "letters-mixed-up": (TOML.replace("= true", "= ture"), ":4: is not valid TOML", "write  idle = true"),
    "no-equals": (TOML.replace("idle = true", "idle true"), ":4: is not valid TOML", "write  idle = VALUE"),
    "no-value": (TOML.replace("idle = true", "idle ="), ":4: is not valid TOML", "nothing follows the equals sign"),
    "two-equals": (TOML.replace("idle = true", "idle == true"), ":4: is not valid TOML", "one equals sign"),
    "zero-in-front": (TOML.replace("idle = true", "cost_per_hour = 02.5"), ":4: is not valid TOML", "= 2.5, without"),
    "environ": (TOML + HOSTED.replace('"K"', 'os.environ["K"]'), ":7: is not valid TOML", "name the variable alone"),
    "braces-over-lines": (f"{TOML}limits = {{\n max_rows = 5\n}}\n", ":5: is not valid TOML", "stands on one line"),
}  # fmt: skip
