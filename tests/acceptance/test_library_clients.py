"""Jobs from what OpenAI's client takes: bodies of each endpoint, its own arguments, the backend at its address."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import NOT_GIVEN, AsyncOpenAI, OpenAI, Timeout, omit
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion
from openai.types.responses import Response

import orchestrator as orch
from tests.conftest import MakeUpstream
from tests.emulator.client import Emulator
from tests.support.cli import CONFIG, write_config
from tests.support.hostedjob import KEY, USUAL, settings_of, write_toml
from tests.support.library import use_home
from tests.support.process import Upstream

MODELS = '[models]\nsmall = "some-model"\n'
SPEED = 1200.0


@pytest.fixture
def upstream(make_upstream: MakeUpstream) -> Upstream:
    return make_upstream(log_bodies=True)


@pytest.fixture
def home(orch_home: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_config(orch_home, [upstream.base_url], retry_delay=0.01, extra=MODELS)
    use_home(orch_home, monkeypatch)
    return orch_home


def bodies(*texts: str) -> list[dict[str, Any]]:
    return [{"model": "small", "messages": [{"role": "user", "content": text}]} for text in texts]


@pytest.mark.long
def test_request_dicts_come_back_as_completions_or_errors(home: Path, upstream: Upstream) -> None:
    answers = orch.requests(bodies("a", "b", "a", "[[fault:status:400]]"), deadline="2h")

    assert [type(one) for one in answers] == [ChatCompletion] * 3 + [orch.RowError]
    assert answers[0].choices[0].message.content.startswith("echo:")
    asked = len(upstream.requests())
    again = orch.requests(bodies("new", "a", "b"))
    assert again[1].id == answers[0].id
    assert len(upstream.requests()) == asked + 1
    with pytest.raises(orch.RowError, match="1 of 1 row failed"):
        orch.requests(bodies("[[fault:status:400]]"), raise_on_error=True)
    assert orch.requests([]) == []
    with pytest.raises(orch.InputError, match=r"params\[0\]: is str"):
        orch.requests(["a"])  # type: ignore[list-item]


def test_a_client_s_calls_go_to_the_backend_at_its_address_without_its_key(home: Path, upstream: Upstream) -> None:
    with OpenAI(base_url=upstream.base_url, api_key="sk-secret") as client:
        (answer,) = orch.batch(client.chat.completions.create, bodies("a"))
        assert isinstance(answer, ChatCompletion)
        with pytest.raises(orch.UsageError, match="bound method"):
            orch.batch(client.models.list, [])
    with (
        OpenAI(base_url="https://elsewhere.example/v1", api_key="sk-secret") as client,
        pytest.raises(orch.UsageError) as caught,
    ):
        orch.batch(client.embeddings.create, [])
    assert 'base_url = "https://elsewhere.example/v1"' in str(caught.value)
    assert not [path for path in home.rglob("*") if path.is_file() and b"sk-secret" in path.read_bytes()]


@pytest.fixture
def provider(orch_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """A hosted Batch API whose time runs fast, and a home before it."""
    use_home(orch_home, monkeypatch)
    with Emulator(tmp_path / "provider", speed=SPEED) as provider:
        provider.settings(**USUAL)
        facts = settings_of(provider, "openai", poll_seconds=0.2)
        write_toml(orch_home / CONFIG, {"openai": facts})
        for name, value in {**provider.environment, facts["api_key_env"]: KEY}.items():
            monkeypatch.setenv(name, value)
        yield provider


MODEL = "gpt-5-nano"
CHAT = {"messages": [{"role": "user", "content": "Name a city."}], "max_completion_tokens": 40}
ENDPOINTS: dict[str, tuple[Callable[[OpenAI], Any], dict[str, Any], type, Callable[[Any], Any]]] = {
    "/v1/chat/completions": (
        lambda c: c.chat.completions.create,
        CHAT,
        ChatCompletion,
        lambda a: a.choices[0].message.content,
    ),
    "/v1/responses": (lambda c: c.responses.create, {"input": "Name a city."}, Response, lambda a: a.output_text),
    "/v1/embeddings": (
        lambda c: c.embeddings.create,
        {"input": "a city"},
        CreateEmbeddingResponse,
        lambda a: a.data[0].embedding,
    ),
}


@pytest.mark.long
def test_bodies_of_each_endpoint_come_back_as_the_client_s_own_types(provider: Emulator) -> None:
    with OpenAI(base_url=provider.url_openai, api_key="unused") as client:
        for endpoint, (method, body, type_, answered) in ENDPOINTS.items():
            model = "text-embedding-3-small" if "embeddings" in endpoint else MODEL
            many = [{"model": model, **body}, {"model": model, **body, "user": "b"}]

            answers = orch.requests(many, endpoint=endpoint, deadline="2h", progress=False)

            assert [type(one) for one in answers] == [type_, type_], answers
            assert answered(answers[0])
            billed = provider.bill()["lines"]
            assert orch.batch(method(client), many, progress=False) == answers
            assert provider.bill()["lines"] == billed, "the same bodies are not paid again"


def sent(upstream: Upstream) -> list[dict[str, Any]]:
    bodies = [json.loads(one["body"]) for one in upstream.requests()]
    return [
        {name: value for name, value in body.items() if name not in ("messages", "model", "priority")}
        for body in bodies
    ]


OWN_ARGUMENTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "further fields": ({"extra_body": {"top_k": 5, "seed": 2}, "seed": 1}, {"top_k": 5, "seed": 2}),
    "no further fields": ({"extra_body": None}, {}),
    "a time limit": ({"timeout": 3.0}, {}),
    "a time limit of the client's kind": ({"timeout": Timeout(3.0)}, {}),
    "left out": ({"temperature": omit, "seed": NOT_GIVEN, "top_p": 0.5}, {"top_p": 0.5}),
    "no headers": ({"extra_headers": None, "extra_query": {}}, {}),
}


@pytest.mark.parametrize("name", OWN_ARGUMENTS)
def test_arguments_of_the_client_itself_are_no_fields_of_the_body(name: str, home: Path, upstream: Upstream) -> None:
    arguments, fields = OWN_ARGUMENTS[name]
    many = [{**body, **arguments} for body in bodies("a", "b")]

    with OpenAI(base_url=upstream.base_url, api_key="unused") as client:
        answers = orch.batch(client.chat.completions.create, many, progress=False)

    assert [type(one) for one in answers] == [ChatCompletion] * 2
    assert sent(upstream) == [fields] * 2
    assert orch.requests(many, progress=False) == answers, "the same bodies"
    assert len(sent(upstream)) == 2


@pytest.mark.parametrize(
    "arguments",
    [{"extra_headers": {"X-Team": "a"}}, {"extra_query": {"api-version": "1"}}, {"extra_body": [1]}],
    ids=str,
)
def test_what_a_request_in_a_batch_cannot_have_is_refused(
    arguments: dict[str, Any], home: Path, upstream: Upstream
) -> None:
    with pytest.raises(orch.UsageError, match=next(iter(arguments))):
        orch.requests([{**body, **arguments} for body in bodies("a")], progress=False)
    assert sent(upstream) == []


@pytest.mark.long
def test_a_backend_is_found_however_its_address_is_written(home: Path, upstream: Upstream) -> None:
    written = upstream.base_url.removeprefix("http://")
    for number, address in enumerate((f"http://{written}/", f"HTTP://{written}", upstream.base_url)):
        with OpenAI(base_url=address, api_key="unused") as client:
            orch.batch(client.chat.completions.create, bodies(str(number)), progress=False)
    asynchronous = AsyncOpenAI(base_url=upstream.base_url, api_key="unused")
    orch.batch(asynchronous.chat.completions.create, bodies("later"), progress=False)
    assert len(upstream.requests()) == 4
    write_toml(
        home / CONFIG,
        {"openai": {"kind": "openai", "base_url": "https://API.openai.com:443/v1/", "api_key_env": "NO_KEY"}},
    )
    with OpenAI(base_url="https://api.openai.com/v1", api_key="unused") as client:
        assert orch.batch(client.chat.completions.create, []) == []


@pytest.mark.parametrize(
    "address", ["https://elsewhere.example/v1", "http://localhost:9/v1", "http://127.0.0.1:9/other/v1"]
)
def test_without_a_backend_at_its_address_the_lines_to_add_are_settings(
    address: str, home: Path, upstream: Upstream
) -> None:
    with OpenAI(base_url=address, api_key="sk-secret") as client, pytest.raises(orch.UsageError) as told:
        orch.batch(client.chat.completions.create, bodies("a"))
    _, _, lines = str(told.value.hint).partition("\n")
    [added] = tomllib.loads(lines)["backends"].values()
    assert added == (
        {"kind": "openai", "base_url": address, "api_key_env": "NAME_OF_THE_VARIABLE"}
        if "elsewhere" in address
        else {"upstreams": [address], "location": "local", "idle": True}
    ), "a server of this machine has no Batch API"
    (home / CONFIG).write_text(lines)
    with OpenAI(base_url=address, api_key="sk-secret") as client:
        assert orch.batch(client.chat.completions.create, []) == []
