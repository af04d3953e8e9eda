"""Mistakes in values: out of their bounds, of another kind, too long, or with characters that do not belong there."""

from __future__ import annotations

import json

from tests.support.mistakes import ENGINES, HOSTED, JOB, SECRETS, TOML, Case, prompt, source, task

BUDGET = '[[budgets]]\nname = "t"\namount = 5\nperiod = "month"\n'
DOLLARS, ONLY = "amounts are in US dollars", "convert the amount, and write only the number, as in  budget: "
NO_ANSWER = "so no answer has it"
UPSTREAMS = '["http://127.0.0.1:9/v1"]'
JOBS: dict[str, Case] = {
    "no-tokens": (task("max_tokens: 0"), ":7: tasks[0].max_tokens: ", "greater than or equal to 1"),
    "cold": (task("temperature: -1"), ":7: tasks[0].temperature: ", "greater than or equal to 0"),
    "nothing-of-top-p": (task("top_p: 0"), ":7: tasks[0].top_p: ", "be greater than 0"),
    "too-many-retries": (task("retries: 1000"), ":7: tasks[0].retries: ", "less than or equal to 3"),
    "a-debt": (f"{JOB}budget: -5\n", ":8: budget: ", "greater than or equal to 0"),
    "a-fortune": (f"{JOB}budget: 1e30\n", ":8: budget: ", "less than or equal to 9000000"),
    **{
        f"an-amount-of-{text}": (f"{JOB}budget: {text}\n", ":8: budget: ", f"write  budget: {number}  ({DOLLARS})")
        for text, number in {
            "$5": "5", "US$ 5": "5", "USD 5": "5", "5 USD": "5", "5 dollars": "5", "$1,000.50": "1000.50",
            "USD 5,00": "5.00", "$1,000": "1000", "$1,000,000": "1000000",
        }.items()
    },
    **{
        f"an-amount-of-{text}": (
            f"{JOB}budget: {text}\n", ":8: budget: ", f"{DOLLARS}, not {sign}: {ONLY}{number}\n",
        )
        for text, sign, number in (
            ("5 EUR", "EUR", "5"), ("€5", "€", "5"), ("€ 5,50", "€", "5.50"), ("5 euros", "euros", "5"),
            ("GBP 1.000,50", "GBP", "1000.50"), ("CHF 1'000", "CHF", "1000"), ("2 EUR per hour", "EUR", "2"),
        )
    },
    "no-canary": (f"{JOB}canary: {{rows: -1}}\n", ":8: canary.rows: ", "greater than or equal to 1"),
    "no-target": (f"{JOB}target: 0\n", ":8: target: ", "be greater than 0"),
    "no-bytes": (source("documents: {path: documents, max_bytes: 0}"), ":2: documents[0].max_", "or equal to 1"),
    "a-long-name": (JOB.replace("letters", "a" * 60, 1), ":1: name: ", "shorten it: it has 60 characters"),
    "a-long-id": (JOB.replace("id: sender", f"id: {'a' * 41}"), ":4: tasks[0].id: ", "it has 41 characters"),
    "a-number-for-a-model": (JOB.replace("some-model", "7"), ":7: models.small: ", 'put it in quotes: "7"'),
    "always": (f"{JOB}reask: always\n", ":8: reask: ", "write model_changed, or leave the field out"),
    "a-wide-colon": (JOB.replace("name: letters", "name：letters"), ":2: is not valid YAML", "colon and a space"),
    **{
        f"an-enum-of-{words}": (task(f"schema: {{properties: {{a: {{{words}}}}}}}"), ":7: tasks[0].schema.", cure)
        for words, cure in {
            "type: string, enum: [1, 2]": f'1 is not of type string, {NO_ANSWER}; put it in quotes: "1"',
            "type: string, enum: [a, true]": 'properties.a.enum: true is not of type string',
            "type: string, enum: [a, null]": f'null is not of type string, {NO_ANSWER}; write  type: [str',
            'type: integer, enum: ["1", 2]': f'"1" is not of type integer, {NO_ANSWER}; write 1, without quotes',
            "type: integer, enum: [1.5]": f"1.5 is not of type integer, {NO_ANSWER}; correct the value or `type`",
            "type: number, enum: [a]": f'"a" is not of type number, {NO_ANSWER}; correct the value or `type`',
            "type: number, enum: [true]": "true is not of type number",
            "type: boolean, const: 1": "properties.a.const: 1 is not of type boolean",
            'type: [string, "null"], enum: [a, [b]]': '["b"] is not of type string or null',
        }.items()
    },
    "an-exception-in-include": (
        source('documents: {path: documents, include: ["*", "!old/**"]}'), ":2: documents[0].include[1]: '!old/**'",
        'leave the files out with  exclude: ["old/**"]',
    ),
    "an-exception-in-exclude": (
        source('documents: {path: documents, exclude: ["*.txt", "!a.txt"]}'), ":2: documents[0].exclude[1]: '!a.txt'",
        "`exclude` has no exceptions: write patterns that do not match a.txt",
    ),
    "a-map-for-a-prompt": (prompt("{text: hello}"), ":6: tasks[0].prompt: ", "write one text"),
    "numbers-for-patterns": (
        source("documents: {path: documents, exclude: [1]}"), ":2: documents[0].exclude[0]: ", 'quotes: "1"',
    ),
}  # fmt: skip
SETTINGS: dict[str, Case] = {
    "a-negative-price": (TOML.replace("idle = true", "cost_per_hour = -1"), ":4: backends.local.cost_", "equal to 0"),
    "no-patience": (f"{TOML}patience = -1\n", ":5: backends.local.patience: ", "be greater than 0"),
    "no-concurrency": (f"{TOML}max_concurrency = 0\n", ":5: backends.local.max_c", "greater than or equal to 1"),
    "no-seconds": (f"{TOML}{HOSTED}poll_seconds = 0\n", ":8: backends.g.poll_seconds: ", "be greater than 0"),
    "no-amount": (TOML + BUDGET.replace("5", "0"), ":7: budgets[0].amount: ", "be greater than 0"),
    **{
        f"an-amount-of-{text}": (TOML + BUDGET.replace("5", text), ":7: is not valid TOML", f"{DOLLARS}, not {sign}")
        for text, sign in (("5 EUR", "EUR"), ("€5", "€"), ("EUR 5,50", "EUR"), ("5EUR", "EUR"))
    },
    **{
        f"an-amount-of-{text}": (TOML + BUDGET.replace("5", text), ":7: is not valid TOML", "write  amount = 5  (amo")
        for text in ("$5", "USD 5", "5 USD", "5 dollars")
    },
    "an-amount-in-quotes": (TOML + BUDGET.replace("5", '"5 EUR"'), ":7: budgets[0].amount: ", "as in  amount = 5\n"),
    "no-period": (TOML + BUDGET.replace('period = "month"\n', ""), ":5: budgets[0].period: ", 'period = "month"'),
    "no-workers": (f"{TOML}[documents]\nworkers = 0\n", ":6: documents.workers: ", "greater than or equal to 1"),
    "a-port": (
        f'{TOML}[reports]\nemail_to = ["a@b.de"]\nsmtp = {{host = "h", from = "a@b.de", port = 70000}}\n',
        ":7: reports.smtp.port: ", "less than or equal to 65535",
    ),
    "an-engine-without-a-model": (
        TOML + ENGINES.replace('{model = "x"}', "{}"), ":9: backends.gpu.models.a.model: is required", "vLLM loads",
    ),
    **{
        f"an-upstream-{url!r}": (
            TOML.replace(UPSTREAMS, f"[{json.dumps(url)}]"), ":2: backends.local.upstreams: ", "the whitespace in it",
        )
        for url in ("http://127.0.0.1:9/v1 ", " http://127.0.0.1:9/v1", "http://my host:9/v1", "http://a/v1\n")
    },
    **{
        f"a-secret-for-a-variable-{number}": (
            TOML + HOSTED.replace('"K"', f'"{secret}"'), ":7: backends.g.api_key_env: is not", "the secret itself",
        )
        for number, secret in enumerate(SECRETS)
    },
    "a-secret-of-webhooks": (
        f'{TOML}{HOSTED}webhook_secret_env = "{SECRETS[0]}"\n', ":8: backends.g.webhook_secret_env: is not the",
        "write that variable's name, such as OPENAI_API_KEY",
    ),
    "a-map-of-upstreams": (
        TOML.replace(UPSTREAMS, '{a = "http://127.0.0.1:9/v1"}'), ":2: backends.local.upstr", 'upstreams = ["…"]',
    ),
    "a-list-without-quotes": (
        TOML.replace(UPSTREAMS, "[http://127.0.0.1:9/v1]"), ":2: is not valid TOML", 'upstreams = ["…"]',
    ),
    "a-bracket-too-many": (TOML.replace("local]", "local]]"), ":1: is not valid TOML", "[backends.local]"),
    "a-line-of-a-shell": (f"export OPENAI_API_KEY=abc\n{TOML}", ":1: is not valid TOML", "where orch starts"),
    "a-control-character": (TOML.replace('"local"', '"lo\x07cal"'), ":3: is not valid TOML", "remove the control"),
    "xml": ("<orch></orch>", ":1: is not valid TOML", "orch.toml is TOML"),
    "alerts-in-a-backend": (f"{TOML}alerts = true\n", ":5: backends.local.alerts: unk", "at the top of the file"),
}  # fmt: skip
