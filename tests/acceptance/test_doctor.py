"""`orch doctor` as its users have it: each backend looked at, nothing spent, no key shown."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.emulator.client import Emulator
from tests.support.cli import CONFIG, Orch
from tests.support.process import Upstream

KEY = "sk-doctor-0123456789"
KEYS = {"CLOUD_API_KEY": KEY, "CLAUDE_API_KEY": KEY, "AZURE_API_KEY": KEY}


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulator]:
    with Emulator(tmp_path_factory.mktemp("provider")) as found:
        found.settings(models=["gpt-5-nano", "claude-haiku-5-5", "our-deployment"])
        yield found


def write(home: Path, text: str) -> None:
    (home / CONFIG).write_text(text, encoding="utf-8")


def doctor(
    orch: Orch, emulator: Emulator, env: dict[str, str] | None = None
) -> tuple[int, dict[str, tuple[bool, str]]]:
    """The exit code, and what was found."""
    ran = orch("doctor", "--json", env=emulator.environment | (KEYS if env is None else env))
    assert KEY not in ran.stdout + ran.stderr
    return ran.returncode, {found["check"]: (found["ok"], found["found"]) for found in json.loads(ran.stdout)}


@pytest.mark.long
def test_every_kind_of_backend_is_looked_at_and_nothing_is_spent(
    run_orch: Orch, emulator: Emulator, upstream: Upstream
) -> None:
    write(
        run_orch.home,
        f"""
[backends.cloud]
kind = "openai"
base_url = "{emulator.url_openai}"
profile = "openai"
api_key_env = "CLOUD_API_KEY"
limits = {{enqueued_tokens = 2000000}}
[backends.azure]
kind = "azure"
base_url = "{emulator.url_azure}"
api_key_env = "AZURE_API_KEY"
[backends.claude]
kind = "anthropic"
base_url = "{emulator.url_anthropic}"
api_key_env = "CLAUDE_API_KEY"
[backends.flex]
kind = "sync"
base_url = "{emulator.url_openai}"
api_key_env = "CLOUD_API_KEY"
provider = "openai"
service_tier = "flex"
[backends.gpu]
upstreams = ["{upstream.base_url}"]
idle = true
[models]
small = {{cloud = "gpt-5-nano", flex = "gpt-5-nano", claude = "claude-haiku-5-5", azure = "our-deployment"}}
[prices.our-deployment]
input = 0.05
output = 0.4
batch = {{input = 0.025, output = 0.2}}
""",
    )
    code, found = doctor(run_orch, emulator)
    assert not [item for item in found.items() if not item[1][0]]
    assert code == 0
    assert found["backend cloud"] == (
        True,
        "openai, location hosted, 24h, 50,000 rows and 209,715,200 bytes a batch, 50,000 embedding inputs a batch, "
        "2,000 batches an hour, 2,000,000 tokens of a model enqueued",
    )
    assert found["cloud: batches"][1].startswith("can be listed, as org:")
    assert found["cloud: model gpt-5-nano"] == (True, "is there")
    assert "$0.025 in, $0.2 out per million tokens" in found["cloud: price of gpt-5-nano"][1]
    assert found["azure: model our-deployment"] == (True, "is a deployment's name, which cannot be listed")
    assert "$0.025 in, $0.2 out per million tokens" in found["azure: price of our-deployment"][1]
    assert any(name.startswith("claude: ") for name in found)
    assert found["backend flex"] == (True, "sync, location hosted, service tier flex")
    assert found["flex: model gpt-5-nano"] == (True, "is there")
    assert found["flex: price of gpt-5-nano"][0]
    assert found["backend gpu"] == (True, "local, location hosted, idle, so free")
    assert found[f"upstream {upstream.base_url}"][0]
    state = emulator.state()
    assert (state["batches"], state["files"]) == ([], [])
    assert upstream.requests() == []


def test_what_is_wrong_is_said_with_the_code_of_the_worst(run_orch: Orch, emulator: Emulator) -> None:
    cloud = f'kind = "openai"\nbase_url = "{emulator.url_openai}"\napi_key_env = "CLOUD_API_KEY"\n'
    aliases = '[models]\nsmall = {cloud = "gpt-5-nana"}\n'
    write(run_orch.home, f"[backends.cloud]\n{cloud}")
    code, found = doctor(run_orch, emulator, {})
    assert code == 2
    assert found["backend cloud"][0] is False
    assert "the environment variable CLOUD_API_KEY is not set" in found["backend cloud"][1]
    write(run_orch.home, f'[backends.cloud]\n{cloud}profile = "opnai"\n')
    assert doctor(run_orch, emulator)[0] == 2
    write(run_orch.home, f"[backends.cloud]\n{cloud}")
    code, found = doctor(run_orch, emulator)
    assert (code, found["cloud: prices"][0]) == (2, False)
    assert 'name it (provider = "openai")' in found["cloud: prices"][1]
    for priced in ('provider = "openai"\n', 'profile = "openai"\n', "[prices.x]\ninput = 1\noutput = 2\n"):
        write(run_orch.home, f"[backends.cloud]\n{cloud}{priced}")
        code, found = doctor(run_orch, emulator)
        assert (code, "cloud: prices" in found) == (0, False)
    write(run_orch.home, f"[backends.cloud]\n{cloud}{aliases}")
    code, found = doctor(run_orch, emulator)
    assert code == 4
    assert found["cloud: model gpt-5-nana"] == (False, "is not there; near to it: gpt-5-nano; named in orch.toml")
    assert found["cloud: price of gpt-5-nana"][0] is False
    emulator.script({"do": "status", "status": 401, "code": "invalid_api_key", "message": f"Incorrect key: {KEY}"})
    code, found = doctor(run_orch, emulator)
    assert code == 4
    assert found["cloud: batches"][0] is False
    assert "Incorrect key: [key]" in found["cloud: batches"][1]


def test_a_backend_that_is_away_keeps_no_other_from_being_looked_at(run_orch: Orch, emulator: Emulator) -> None:
    write(
        run_orch.home,
        f"""
[backends.away]
kind = "openai"
base_url = "http://127.0.0.1:9/v1"
api_key_env = "CLOUD_API_KEY"
[backends.flex]
kind = "sync"
base_url = "http://127.0.0.1:9/v1"
api_key_env = "CLOUD_API_KEY"
[backends.cloud]
kind = "openai"
base_url = "{emulator.url_openai}"
api_key_env = "CLOUD_API_KEY"
""",
    )
    code, found = doctor(run_orch, emulator)
    assert code == 4
    assert found["away: batches"][0] is False
    assert "refused" in found["away: batches"][1]
    assert found["upstream http://127.0.0.1:9/v1"][0] is False
    assert found["cloud: batches"][0] is True
    plain = run_orch("doctor", env=KEYS | emulator.environment)
    assert plain.returncode == 4
    assert "BAD  away: batches: cannot list batches: " in plain.stdout
    assert "ok   cloud: batches: can be listed, as " in plain.stdout


@pytest.mark.long
def test_the_models_of_open_jobs_and_schedules_are_looked_at(
    run_orch: Orch, emulator: Emulator, upstream: Upstream, tmp_path: Path
) -> None:
    cloud = f'[backends.cloud]\nkind = "openai"\nbase_url = "{emulator.url_openai}"\n'
    cloud += 'profile = "openai"\napi_key_env = "CLOUD_API_KEY"\n'
    gpu = f'[backends.gpu]\nupstreams = ["{upstream.base_url}"]\nidle = true\n'
    price = "[prices.{}]\ninput = 1\noutput = 1\nbatch = {{input = 1, output = 1}}\n"
    write(run_orch.home, cloud + gpu + '[models]\nsmall = {gpo = "x"}\n')
    told = doctor(run_orch, emulator)[1]["models.small.gpo"][1]
    assert ": models.small.gpo: there is no backend 'gpo'; did you mean 'gpu'?" in told
    write(run_orch.home, cloud + gpu + price.format("typed-wrong"))
    code, found = doctor(run_orch, emulator)
    assert code == 0
    assert "none checked: orch.toml, open jobs and schedules name none" in found["models"][1]
    (tmp_path / "letter.txt").write_text("A letter.", encoding="utf-8")
    task = "tasks: [{{id: t, prompt: Who, model: s, max_tokens: 9}}]\n"
    job = f"name: {{}}\ndocuments: letter.txt\n{task}models: {{{{s: {{}}}}}}\n"
    for name, models in {"queued": "{cloud: typed-wrong}", "nightly": "{gpu: nobody, cloud: gpt-5-nano}"}.items():
        (tmp_path / f"{name}.yaml").write_text(job.format(name, models), encoding="utf-8")
    queued = json.loads(run_orch("submit", str(tmp_path / "queued.yaml"), "--json", env=KEYS).stdout)["job"]
    run_orch("schedule", "add", str(tmp_path / "nightly.yaml"), "--cron", "0 22 * * *", env=KEYS)
    code, found = doctor(run_orch, emulator)
    assert code == 4
    assert "models" not in found
    assert found["cloud: model typed-wrong"] == (False, f"is not there; named by job {queued}")
    assert found["cloud: model gpt-5-nano"] == (True, "is there")
    assert found["gpu: model nobody"] == (False, "is not there; named by schedule nightly")
    write(run_orch.home, cloud + price.format("another"))
    (tmp_path / "nightly.yaml").write_text("name: [", encoding="utf-8")
    code, found = doctor(run_orch, emulator)
    assert code == 3
    assert found[f"job {queued}"][0] is False
    assert "no price" in found[f"job {queued}"][1]
    assert "nightly.yaml:" in found["schedule nightly"][1]
