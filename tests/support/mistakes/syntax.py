"""Mistakes with YAML and TOML themselves, with paths, units, words and columns."""

from __future__ import annotations

from tests.support.mistakes import HOSTED, JOB, TOML, Case, prompt, source, task

ALIAS = "an alias (*NAME) needs its anchor (&NAME)"
SLASHES = "write paths with / , or in single quotes"
UNITS = "write 8h, 90m, 06:00"
JOBS: dict[str, Case] = {
    "no-anchor": (JOB.replace("model: small", "model: *m"), ":5: is not valid YAML", ALIAS),
    "no-base": (JOB.replace("  - id", "  - <<: *base\n    id"), ":4: is not valid YAML", ALIAS),
    "tab": (JOB.replace("    model", "\tmodel"), ":5: is not valid YAML", "indent with spaces"),
    "tab-after-colon": (JOB.replace("name: ", "name:\t"), ":1: is not valid YAML", "put a space, not a tab"),
    "no-colon": (JOB.replace("name: ", "name "), ":2: is not valid YAML", "`name` of the line above:  name: letters"),
    "equals": (JOB.replace("name: ", "name = "), ":2: is not valid YAML", "`name` of the line above:  name: letters"),
    "bom": ("\ufeff" + JOB.replace("prompt", "promt"), ":6: tasks[0].promt: unknown", "mean 'prompt'?"),
    "crlf": (JOB.replace("prompt", "promt").replace("\n", "\r\n"), ":6: tasks[0].promt: unknown", "mean 'prompt'?"),
    "key-twice": (f"{JOB}name: other\n", ":8: name: the key 'name' is given twice", "first in line 1"),
    "en-dash": (JOB.replace("- id", "– id"), ":5: is not valid YAML", "with a hyphen"),
    "no-break-spaces": (JOB.replace("    model", "\u00a0   model"), ":6: is not valid YAML", "plain spaces"),
    "tag": (JOB.replace("small\n", "!ENV SMALL\n", 1), ":5: is not valid YAML", "a job file has no tags"),
    "open-brace": (JOB.replace("documents}", "documents"), ":3: is not valid YAML", "close the brace"),
    "question-in-braces-of-two-lines": (
        JOB[: JOB.index("  - id")] + "  - {id: a, model: small,\n     prompt: Is it, or not?, max_tokens: 9}\n",
        ":5: is not valid YAML", 'put the text in quotes:  prompt: "Is it, or not?"',
    ),
    "slashes-as-comment": ('{"name": "x", // hi\n "tasks": []}', ":2: is not valid YAML", "begins with #"),
    "no-id": (JOB.replace("- id: sender", "- sender:"), ":4: tasks[0].sender: unknown field", "- id: sender"),
    "empty-value": (JOB.replace("Who wrote this?", ""), ":6: tasks[0].prompt: ", "nothing follows the colon"),
    "yes-for-a-number": (task("retries: yes\n    seed: true"), ":8: tasks[0].seed: is true", "must be a number"),
    "yes-for-tokens": (task("max_tokens: true"), ":7: tasks[0].max_tokens: ", "must be a number"),
    "bool-in-german": (task("cache: nein"), ":7: tasks[0].cache: ", "write true or false"),
    "no-tokens": (task("max_tokens: none"), ":7: tasks[0].max_tokens: ", "write a whole number, such as 200"),
    "no-retries": (task("retries: lots"), ":7: tasks[0].retries: ", "write a whole number, such as 3"),
    "top-p": (task("top_p: 95"), ":7: tasks[0].top_p: ", "write 0.95"),
    "stop": (task('stop: "END"'), ":7: tasks[0].stop: must be a list", "stop: [ … ]"),
    "type-date": (task("schema: {properties: {a: {type: date}}}"), ":7: tasks[0].schema: ", "mean 'string'?"),
    "item-type": (task("schema: {type: array, items: string}"), ":7: tasks[0].schema: ", "{type: string}"),
    "kind": (task("kind: classification"), ":7: tasks[0].kind: ", "did you mean 'classify'?"),
    "hours": (f"{JOB}deadline: 8 hours\n", ":8: deadline: '8 hours' is not", UNITS),
    "six-pm": (f"{JOB}deadline: 6pm\n", ":8: deadline: '6pm' is not", UNITS),
    "no-such-day": (f"{JOB}deadline: 2027-02-30\n", ":8: deadline: '2027-02-30' is not", UNITS),
    "dollars": (f"{JOB}budget: 5 USD\n", ":8: budget: ", "write  budget: 5  (amounts are in US dollars)"),
    "budget-in-words": (f"{JOB}budget: five\n", ":8: budget: ", "write a number, such as 2.5"),
    "target": (f"{JOB}target: 99\n", ":8: target: ", "write 0.99"),
    "pattern-in-path": (source('documents: {path: "documents/*.txt"}'), ":2: documents[0].path", "into `include`"),
    "variable-in-path": (source('documents: {path: "$HOME/letters"}'), ":2: documents[0].path: ", "not filled in"),
    "backslashes": (source("documents: {path: 'C:\\letters'}"), ":2: documents[0].path: ", "write / between"),
    "capitals": (source("documents: {path: Documents}"), ":2: documents[0].path: ", "did you mean 'documents'?"),
    "bare-star": (
        source("documents:\n  - path: documents\n    include: *.txt"), ":4: is not valid YAML", 'include: "*.txt"',
    ),
    "braces": (
        source('documents: {path: documents, include: "*.{pdf,md}"}'), ":2: documents[0].include: ", "braces are not",
    ),
    "column": (source("documents: {path: x.csv, column: a}"), ":2: documents[0].column: unk", "'text_column'?"),
    "megabytes": (source("documents: {path: documents, max_bytes: 10MB}"), ":2: documents[0].max", "write 10000000"),
    "encoding": (source("documents: {path: documents, encoding: utf9}"), ":2: documents[0].encoding", "for example"),
    "models-as-a-list": (JOB.replace("{small: some-model}", "[small]"), ":7: models: must be", "{ALIAS: MODEL}"),
    "xls": (f"{JOB}output: {{path: out.xls}}\n", ":8: output: the ending", "name it .jsonl"),
    "open-template": (prompt("'Who wrote {{ text }?'"), ":6: tasks[0].prompt: is not a Jinja2", "line 1 of the text"),
    "name-with-blanks": (JOB.replace("letters", "my letters"), ":1: name: ", "letters, digits, - and _"),
}  # fmt: skip
SETTINGS: dict[str, Case] = {
    "comma-at-the-end": (TOML.replace("idle = true", "idle = true,"), ":4: is not valid TOML", "leave out the ','"),
    "semicolon": (TOML.replace("idle = true", "idle = true;"), ":4: is not valid TOML", "leave out the ';'"),
    "comma-in-braces": (f"{TOML}limits = {{a = 1,}}\n", ":5: is not valid TOML", "the comma before the }"),
    "capital-true": (TOML.replace("true", "True"), ":4: is not valid TOML", "write  idle = true"),
    "colon": (TOML.replace("idle = true", "idle: true"), ":4: is not valid TOML", "TOML writes  idle = true\n"),
    "slashes-as-comment": (TOML.replace("true", "true // free"), ":4: is not valid TOML", "begins with #"),
    "windows-path": (f'home = "C:\\Users\\me"\n{TOML}', ":1: is not valid TOML", SLASHES),
    "blank-in-a-name": (f"{TOML}[my backend]\n", ":5: is not valid TOML", "put a name with spaces in quotes"),
    "open-list": (TOML.replace('/v1"]', '/v1"'), ":3: is not valid TOML", "close the list of a line above"),
    "bom": ("\ufeff" + TOML.replace("idle", "idel"), ":4: backends.local.idel: unknown", "did you mean 'idle'?"),
    "crlf": (TOML.replace("idle", "idel").replace("\n", "\r\n"), ":4: backends.local.idel: unk", "mean 'idle'?"),
    "no-scheme": (TOML.replace("http://", ""), ":2: backends.local.upstreams: ", "such as http://127.0.0.1:8000/v1"),
    "whole-call": (TOML.replace("/v1", "/v1/chat/completions"), ":2: backends.local.upstreams: ends", "leave that"),
    "password-in-url": (
        TOML.replace("http://", "http://me:hunter2secret@"), ":2: backends.local.upstreams: ", "in api_key_env",
    ),
    "days-as-a-number": (f"{TOML}[retention]\nresults = 90\n", ":6: retention.results: 90", 'such as "90d"'),
    "days-in-words": (f'{TOML}[retention]\nresults = "90 days"\n', ":6: retention.results: ", "write 90d"),
    "offset": (f'{TOML}[reports]\ntz = "UTC+1"\n', ":6: reports.tz: ", "such as Europe/Berlin"),
    "no-address": (f'{TOML}[reports]\nemail_to = ["ab.de"]\n', ":6: reports.email_to[0]: ", "team@example.org"),
    "monthly": (
        f'{TOML}[[budgets]]\nname = "t"\namount = 5\nperiod = "monthly"\n', ":8: budgets[0].period: ", "'month'?",
    ),
    "amount": (
        f'{TOML}[[budgets]]\nname = "t"\namount = "$50"\nperiod = "month"\n', ":7: budgets[0].amount: ",
        "write  amount = 50",
    ),
    "true-for-a-number": (f"{TOML}max_concurrency = true\n", ":5: backends.local.max_concurrency: is", "a number"),
    "words-for-a-variable": (
        TOML + HOSTED.replace('"K"', '"my key"'), ":7: backends.g.api_key_env: is not", "such as OPENAI_API_KEY",
    ),
}  # fmt: skip
