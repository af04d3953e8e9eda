"""What answers used without a price is told by run, status and the reports, and costs are marked as estimates."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import CONFIG, Orch
from tests.support.scripted import Answer, Asked, scripted

PLAIN = {"prompt_tokens": 90, "completion_tokens": 30, "total_tokens": 120}
LEFT_OUT = "the cost leaves out something without a price in {} rows"
# By the row's own text: its usage, and what its answer used without a price.
USAGES: dict[str, tuple[dict[str, Any] | None, bool]] = {
    "plain": (PLAIN, False),
    "no usage": (None, False),
    "an hour": (
        {
            **PLAIN,
            "cache_creation_input_tokens": 50,
            "cache_creation": {"ephemeral_1h_input_tokens": 50, "ephemeral_5m_input_tokens": 0},
        },
        True,
    ),
    "an hour by a gateway": (
        {
            **PLAIN,
            "prompt_tokens_details": {
                "cache_creation_tokens": 50,
                "cache_creation_token_details": {"ephemeral_1h_input_tokens": 50},
            },
        },
        True,
    ),
    "sound": ({**PLAIN, "prompt_tokens_details": {"audio_tokens": 80}}, True),
    "a voice": ({**PLAIN, "completion_tokens_details": {"audio_tokens": 20}}, True),
    "searches": ({**PLAIN, "num_search_queries": 2}, True),
    "a tool": ({**PLAIN, "server_tool_use": {"web_search_requests": 1}}, True),
    "citations": ({**PLAIN, "citation_tokens": 200}, True),
    "tools without usage": (None, True),
}
WITHOUT_USAGE = [name for name, (usage, _) in USAGES.items() if usage is None]
ROWS = sum(is_left_out for _, is_left_out in USAGES.values())


def answer(asked: Asked) -> Answer:
    if asked.path != "/v1/chat/completions":
        return Answer({"object": "list", "data": [{"id": "m", "object": "model"}]})
    body = json.loads(asked.body)
    name = body["messages"][-1]["content"]
    message = {"role": "assistant", "content": "well"}
    if name.startswith("tools"):
        message["executed_tools"] = [{"type": "search"}]
    found = {"object": "chat.completion", "model": "m"}
    usage, _ = USAGES[name]
    more = {} if usage is None else {"usage": usage}
    return Answer({**found, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **more})


@pytest.fixture
def folder(orch_home: Path) -> Iterator[Path]:
    with scripted(answer) as at:
        backend = f'kind = "sync"\nlocation = "hosted"\napi_key_env = "KEY"\nbase_url = "{at.base_url}"'
        prices = "input = 1\noutput = 4\ncache_write = 1.25"
        (orch_home / CONFIG).write_text(f'[backends.x]\n{backend}\nprovider = "x"\n[prices.m]\n{prices}\n')
        with (orch_home / "rows.jsonl").open("w") as file:
            for name in USAGES:
                body = {"model": "m", "messages": [{"role": "user", "content": name}], "max_tokens": 40}
                line = {"custom_id": name, "method": "POST", "url": "/v1/chat/completions", "body": body}
                file.write(json.dumps(line) + "\n")
        yield orch_home


@pytest.mark.long
def test_what_has_no_price_is_told_everywhere(run_orch: Orch, folder: Path) -> None:
    env = {"KEY": "k"}

    def said(*words: str) -> str:
        done = run_orch(*words, cwd=folder, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert LEFT_OUT.format(ROWS) in said("run", "rows.jsonl", "-o", "out.jsonl")
    [job] = json.loads(said("status", "--json"))
    for words in (("status", job["job"]), ("report", "cost"), ("report", "night")):
        told = said(*words)
        assert LEFT_OUT.format(ROWS) in told, words
        assert "≈$" in told, words
    detail = json.loads(said("status", job["job"], "--json"))
    assert (detail["cost_estimated"], detail["unpriced_rows"]) == (True, ROWS)
    assert json.loads(said("report", "cost", "--json"))["total"]["unpriced_rows"] == ROWS
    [night] = json.loads(said("report", "night", "--json"))["jobs"]
    assert [route["unpriced_rows"] for route in night["routes"]] == [ROWS]
    assert "the one-hour cache has no price of its own" in " ".join(said("show", job["job"], "an hour").split())
    [shown] = json.loads(said("show", job["job"], "a tool", "--json"))["rows"]
    assert shown["price"]["unpriced"], "the row itself says so"
    assert "1 web search without a price" in shown["price"]["source"]
    rows = map(json.loads, said("fetch", job["job"], "--format", "jsonl").splitlines())
    origins = {row["custom_id"]: row["provenance"] for row in rows}
    costs = [float(origin["cost_usd"]) for origin in origins.values()]
    assert all(cost > 0 for cost in costs), "an answer without usage is booked by its length"
    guessed = {name: origin["cost_estimated"] for name, origin in origins.items() if "cost_estimated" in origin}
    assert guessed == dict.fromkeys(WITHOUT_USAGE, True)
    assert [json.loads(said("show", job["job"], name, "--json"))["rows"][0]["provenance"] for name in origins] == [
        *origins.values()
    ]
    assert "cost_estimated" not in said("fetch", job["job"], "--format", "csv").splitlines()[0]
    table = said("fetch", job["job"], "--format", "csv", "--columns", "custom_id,cost_estimated").split()
    assert "".join(table).count("true") == len(WITHOUT_USAGE)


def test_a_list_price_stays_when_prices_are_edited(run_orch: Orch, folder: Path) -> None:
    env = {"KEY": "k"}
    assert run_orch("run", "rows.jsonl", "-o", "out.jsonl", cwd=folder, env=env).returncode == 0

    def total() -> Any:
        done = run_orch("report", "cost", "--json", cwd=folder, env=env)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)["total"]
        return found["list_usd"], found["list_estimated"], found["saved_usd"]

    before = total()
    assert float(before[0]) > 0
    settings = (folder / CONFIG).read_text()
    (folder / CONFIG).write_text(settings.replace("input = 1\noutput = 4", "input = 100\noutput = 400"))
    assert total() == before
    (folder / CONFIG).write_text(settings.split("[prices")[0])
    assert total() == before
