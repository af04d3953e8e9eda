"""A home in which one text stands wherever a stranger's may, and command lines of every command that shows it.

Documents, answers, errors, models, tags, events, budgets, names of files and folders, and what a provider says.
"""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest

from orchestrator.cli import COMMANDS
from orchestrator.core.events import EventKind
from orchestrator.core.model import Forecast, Outcome, Price, RequestState, Usage
from orchestrator.core.shards import ShardState
from orchestrator.server.database import FILE_NAME, ServerDatabase
from orchestrator.server.keys import Keys
from orchestrator.settings.discovery import locate
from orchestrator.settings.home import Home
from orchestrator.store import Store
from orchestrator.store.quality import Quality
from orchestrator.store.rows import Settled
from tests.support.nights import SPEC, Bad, Nights
from tests.support.scripted import Answer, Asked
from tests.support.stored import NOW, added, later, sharded

TOML = """
[backends.cloud]
kind = "openai"
base_url = "{url}"
profile = "openai"
api_key_env = "CLOUD_KEY"

[backends.gpu]
upstreams = ["{url}"]
location = "local"
idle = true

[models]
"small{name}" = {{cloud = "m{name}", gpu = "m{name}"}}

[prices."m{name}"]
input = 1
output = 2

[[budgets]]
name = "all"
amount = 5
period = "month"
tag = "team=x{name}"
"""
JOB = """
name: post
documents:
  - path: "letters"
tasks:
  - {{id: t, prompt: "{{{{ stem.nothing.at_all }}}}", model: "{model}"}}
  - {{id: u, prompt: "Who?", model: "{model}"}}
tags: {{"team": "x{name}"}}
"""


def answer(asked: Asked, text: str) -> Answer:
    """What a provider says that has nothing but that text to say."""
    if asked.path.endswith("/models"):
        return Answer({"object": "list", "data": [{"id": f"m{text}", "object": "model"}]})
    if asked.path.endswith(("/batches", "/files")) and asked.method == "GET":
        batch = {"id": f"batch_{text}", "object": "batch", "status": "in_progress", "created_at": 1, "metadata": {}}
        return Answer({"object": "list", "data": [batch], "has_more": False})
    return Answer({"error": {"message": text, "type": text, "code": text}}, 400)


def make_home(folder: Path, url: str, text: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home, whose provider is at `url`; it is this process's working directory from now on."""
    home = folder / f"home{text}"
    home.mkdir()
    name = json.dumps(text)[1:-1]
    (home / "orch.toml").write_text(TOML.format(url=url, name=name))
    for variable, value in {"ORCH_CONFIG": home / "orch.toml", "ORCH_HOME": home, "CLOUD_KEY": "sk-x"}.items():
        monkeypatch.setenv(variable, str(value))
    monkeypatch.delenv("ORCH_DATABASE_URL", raising=False)
    (home / "letters").mkdir()
    (home / "letters" / f"a{text}.txt").write_text("text")
    (home / "letters" / f"empty{text}.txt").write_text("")
    (home / f"post{text}.yaml").write_text(JOB.format(model=f"small{name}", name=name))
    monkeypatch.chdir(home)
    with Store.open(locate().database_url) as store:
        _fill(store, Home(home), text)
    (home / "serve").mkdir()
    database = ServerDatabase(home / "serve" / FILE_NAME)
    Keys(database).add("tenant")
    database.close()
    return home


def _fill(store: Store, home: Home, text: str) -> None:
    nights = Nights(store, home)
    first = {f"doc{text}": {f"party{text}": text}, "b": "plain", f"gone{text}": {}}
    second = {
        f"doc{text}": {f"party{text}": f"other {text}"}, "b": Bad(f"code{text}", f"message {text}"),
        f"new{text}": Bad("empty", text, unreadable=True),
    }  # fmt: skip
    nights.finish(nights.run(first, at=NOW), later(2))
    late = nights.run(second, at=later(24), deadline_at=later(25), cancel_reason=text)
    store.jobs.note(late.id, EventKind.WAITING, text, later(24.5))
    store.jobs.note(late.id, EventKind.RESCUED, text, later(24.6))
    store.quality.note(late.id, Quality(1, 2, 2, 0, text), later(25))
    store.forecasts.made([Forecast(late.id, "turnaround", f"gpu{text}", f"m{text}", NOW, 1.0, 2.0, text)])
    nights.finish(late, later(30))
    broken = nights.run(first, at=later(48))
    store.jobs.fail(broken.id, f"broken {text}")
    terms = {"name": "going", "series": "s2", "home": home.identity(), "spec": SPEC, "deadline_at": later(9)}
    going = added(store, 3, "going-1", built_at=NOW, **terms)
    store.jobs.note(going.id, EventKind.HELD, text, NOW, None)
    shard = sharded(store, going, state=ShardState.SUBMITTED)
    store.shards.note(shard, held=f"held {text}", provider_status="in_progress", batch_id=f"batch_{text}")
    done = Outcome(0, RequestState.SUCCEEDED, usage=Usage(10, 0, 5), model=f"model{text}", upstream=f"up{text}")
    store.rows.settle(shard.id, going.id, f"gpu{text}", [Settled(done, Price(Decimal("0.5"), text))], NOW, f"m{text}")


TRIED = """
init new! | init | run no!.yaml | run JOB --only ! | try no!.yaml | try JOB ! | try JOB --against JOB
try JOB --backend ! | plan JOB --backend ! | plan JOB | submit JOB --dry-run
submit JOB --deadline ! | submit JOB | validate JOB | validate JOB --task ! | status | status --all | status no!
status contracts-2 --all | status contracts-3 | status going-1 | show contracts-2 doc! | show contracts-2 doc! --raw
show contracts-2 b | show contracts-2 ! | show contracts-2 new! | fetch no! | fetch contracts-2 -o out!.csv
cancel no! | cancel contracts-2 | retry contracts-2 --task ! | retry contracts-3 | report cost --by model
report cost --by tag | report cost --csv --by task | report cost --by ! | report cost --html c!.html | report forecast
report night contracts-2 | report night contracts-2 --md | report night --html n!.html | report night !
diff contracts-1 contracts-2 | diff ! ! | acknowledge --list | acknowledge ! | acknowledge b --note !
quarantine list | quarantine release ! | budget | engines | engines start ! | engines --backend ! | doctor | reconcile
reconcile ! | gc --dry-run | backup b!.tar | backup b!.tar --check | keys list --dir serve | keys add !
keys revoke ! | schedule add JOB --cron ! | schedule add JOB --cron EVENING --tz UTC | schedule list | schedule nights
schedule run ! | schedule remove ! | up --webhooks ! | view ! | view 203.0.113.1:1
report backends | adopt ! | serve --upstream ! | serve --upstream http://h --gpus ! | bench no!.yaml
bench JOB --backend ! | bench JOB --modes ! | bench JOB --vs !:x | cluster status ! | cluster status | cluster up !
cluster down | mcp --budget ! | demo --! | down | help ! | help budgets | completion ! | completion fish | man
"""
"""Command lines of every command, those that fail among them; `!` stands for hostile text."""


def command_lines(text: str) -> list[list[str]]:
    """The command lines with the text in them."""
    lines = [line.split() for line in TRIED.replace("\n", " | ").split(" | ") if line]
    assert {line[0] for line in lines} == set(COMMANDS), "a command that nobody has tried"
    said = {"JOB": "post!.yaml", "EVENING": "0 22 * * *"}
    return [[said.get(word, word).replace("!", text) for word in line] for line in lines]
