"""The test upstream and the test database are themselves what the other tests believe them to be."""

from __future__ import annotations

import http.client
import json
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonschema
import psycopg
import pytest
import sqlalchemy as sa

from tests.support.answers import echo, satisfy
from tests.support.cli import Orch, write_config
from tests.support.client import chat_body, get, post, raw_post, read_answer, received_until_closed, send_raw
from tests.support.databases import MigratedDatabases
from tests.support.faults import Fault, due, faults_in
from tests.support.postgres import PostgresServer
from tests.support.process import ROOT, Upstream, wait_until

MakeUpstream = Callable[..., Upstream]


def test_a_chat_answer_is_vllm_shaped_and_a_function_of_its_prompt(upstream: Upstream) -> None:
    body = chat_body("hello", user="row-1")
    first = post(upstream, body, headers={"X-Request-Id": "abc"})
    answer = first.json()
    assert (first.status, first.headers["content-type"]) == (200, "application/json")
    assert answer["id"] == "chatcmpl-abc"
    assert answer["object"] == "chat.completion"
    assert answer["choices"][0]["message"]["content"] == echo("hello") == post(upstream, body).content
    assert answer["choices"][0]["finish_reason"] == "stop"
    used = answer["usage"]
    assert used["total_tokens"] == used["prompt_tokens"] + used["completion_tokens"]
    assert used["prompt_tokens_details"] == {"cached_tokens": 0}
    assert upstream.counts() == {"row-1": 2}


def test_the_other_routes(upstream: Upstream) -> None:
    assert get(upstream, "/v1/models").json()["data"][0]["max_model_len"] == 32768
    health = get(upstream, "/health")
    assert (health.status, health.body) == (200, b"")
    assert b"vllm:kv_cache_usage_perc{" in get(upstream, "/metrics").body
    assert get(upstream, "/nowhere").status == 404
    assert get(upstream, "/v1/chat/completions").status == 405
    tokens = post(upstream, b'{"prompt": "four times four."}', "/tokenize").json()
    assert (tokens["count"], tokens["max_model_len"]) == (4, 32768)
    many = post(upstream, b'{"prompt": ["a", "b"]}', "/v1/completions").json()
    assert [choice["text"] for choice in many["choices"]] == [echo("a"), echo("b")]


def test_a_chat_answer_is_streamed_in_events(make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(piece_ms=1)
    text = post(upstream, chat_body("hello", stream=True, stream_options={"include_usage": True})).body.decode()
    *events, last = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    *chunks, used = map(json.loads, events)
    assert last == "[DONE]"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == echo("hello")
    assert len(chunks) == 8
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert (used["choices"], used["usage"]["completion_tokens"]) == ([], 6)


def test_a_stream_that_breaks_off_has_no_end(upstream: Upstream) -> None:
    for fault in ("cut", "short"):
        received = received_until_closed(upstream, chat_body(f"[[fault:{fault}]]", stream=True))
        assert received.startswith(b"HTTP/1.1 200")
        assert b"assistant" in received
        assert not received.endswith(b"0\r\n\r\n")


def test_embeddings_depend_on_their_own_input_alone(upstream: Upstream) -> None:
    def vectors(**fields: Any) -> list[Any]:
        body = json.dumps({"model": "e", **fields}).encode()
        data = post(upstream, body, "/v1/embeddings").json()["data"]
        return [row["embedding"] for row in data]

    alone, packed = vectors(input="a"), vectors(input=["b", "a"])
    assert packed[1] == alone[0] != packed[0]
    assert len(vectors(input="a", dimensions=3)[0]) == 3
    assert isinstance(vectors(input="a", encoding_format="base64")[0], str)


def test_a_schema_is_satisfied(upstream: Upstream) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 6},
            "count": {"type": "integer", "minimum": 3},
            "share": {"type": "number"},
            "sure": {"type": "boolean"},
            "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 2},
            "none": {"type": "null"},
            "maybe": {"anyOf": [{"$ref": "#/$defs/Part"}, {"type": "null"}]},
        },
        "additionalProperties": False,
        "$defs": {"Part": {"type": "object", "properties": {"id": {"const": 7}}, "required": ["id"]}},
    }
    schema["required"] = list(schema["properties"])
    wanted = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
    value = json.loads(post(upstream, chat_body("x", response_format=wanted)).content)
    jsonschema.validate(value, schema)
    assert value == satisfy(schema, echo("x"))
    spoilt = post(upstream, chat_body("x [[fault:notjson]]", response_format=wanted)).content
    with pytest.raises(json.JSONDecodeError):
        json.loads(spoilt)


def test_what_is_refused(make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(api_key="k", model="m", max_model_len=100)
    key = {"Authorization": "Bearer k"}

    def error(body: bytes, headers: dict[str, str] = key) -> tuple[int, Any]:
        status, _, text = post(upstream, body, headers=headers)
        return status, json.loads(text)["error"]

    assert error(chat_body("x"), {}) == (401, "Unauthorized")
    status, wrong = error(chat_body("x", model="other"))
    assert (status, wrong["type"], wrong["code"]) == (404, "NotFoundError", 404)
    assert wrong["message"] == "The model `other` does not exist."
    assert "maximum context length is 100 tokens" in error(chat_body("x", max_tokens=99))[1]["message"]
    assert error(b"{")[0] == error(b"{}")[0] == error(b"[]")[0] == 400
    assert error(chat_body("x [[fault:typo]]"))[0] == error(chat_body("[[fault:cut"))[0] == 400
    assert post(upstream, b'{"prompt": "x", "stream": true}', "/v1/completions", headers=key).status == 501
    assert post(upstream, chat_body("x"), headers=key).status == 200
    assert upstream.requests()[0]["outcome"] == "unauthorized"


def test_pipelined_requests_are_answered_in_order(make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(latency_ms=1)
    texts = ["[[fault:slow:80]] one", "two", "three"] * 4
    bodies = [chat_body(text, user=str(n)) for n, text in enumerate(texts)]
    with send_raw(upstream, *bodies) as raw, raw.makefile("rb") as stream:
        for text in texts:
            assert read_answer(stream).content == echo(text)


def test_bodies_may_come_in_pieces_and_nonsense_is_refused(upstream: Upstream) -> None:
    whole = raw_post(chat_body("é" * 300_000))
    with socket.create_connection(("127.0.0.1", upstream.port), timeout=10) as raw:
        for start in range(0, len(whole), 700_001):
            raw.sendall(whole[start : start + 700_001])
        assert raw.recv(12) == b"HTTP/1.1 400"  # far beyond the context length
    with socket.create_connection(("127.0.0.1", upstream.port), timeout=10) as raw:
        raw.sendall(b"hello there\r\n\r\n")
        assert raw.recv(12) == b"HTTP/1.1 400"


def test_slots_are_given_in_order_of_arrival_and_the_gauges_say_so(make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(slots=2)

    def gauges() -> tuple[float, ...]:
        now = upstream.metrics()
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return tuple(now[f"vllm:{name}"] for name in names)

    with ExitStack() as stack:

        def queue(text: str) -> socket.socket:
            before = len(upstream.requests())
            raw = stack.enter_context(send_raw(upstream, chat_body(text)))
            upstream.wait_for_requests(before + 1)
            return raw

        assert gauges() == (0, 0, 0)
        queue("[[fault:hang]] until the end")
        assert gauges() == (1, 0, 0.5)
        hang = queue("[[fault:hang]]")
        first, second_hang, last = queue("first"), queue("[[fault:hang]]"), queue("last")
        assert gauges() == (2, 3, 1)
        hang.close()
        # The first in line is answered, the second has the slot now, the last still waits.
        assert first.recv(12) == b"HTTP/1.1 200"
        assert gauges() == (2, 1, 1)
        second_hang.close()
        assert last.recv(12) == b"HTTP/1.1 200"
        assert gauges() == (1, 0, 0.5)
    wait_until(lambda: gauges() == (0, 0, 0))
    assert upstream.metrics()["vllm:request_success_total:abort"] == 3
    assert upstream.metrics()["vllm:request_success_total:stop"] == 2


def test_a_client_that_leaves_leaves_the_queue(make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(slots=1)
    with send_raw(upstream, chat_body("[[fault:hang]]")):
        upstream.wait_for_requests(1)
        with send_raw(upstream, chat_body("never answered")):
            wait_until(lambda: upstream.metrics()["vllm:num_requests_waiting"] == 1)
        wait_until(lambda: upstream.metrics()["vllm:num_requests_waiting"] == 0)


def test_503_beyond_the_cap(make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(slots=1, max_queued=2)
    with send_raw(upstream, chat_body("[[fault:hang]]")), send_raw(upstream, chat_body("waits")):
        upstream.wait_for_requests(2)
        answer = post(upstream, chat_body("too many"))
    wrong = answer.json()["error"]
    assert (answer.status, wrong["code"], wrong["type"]) == (503, 503, "Service Unavailable")
    assert [entry["outcome"] for entry in upstream.requests()] == ["fault:hang", "ok", "refused:503"]


def test_a_shared_prefix_is_cached(upstream: Upstream) -> None:
    document = "the same document " * 40
    for question in ("first?", "second?"):
        used = post(upstream, chat_body(document + question)).json()["usage"]
    cached = used["prompt_tokens_details"]["cached_tokens"]
    assert 0.8 * used["prompt_tokens"] < cached < used["prompt_tokens"]
    assert upstream.metrics()["vllm:prefix_cache_hits_total"] == cached


def test_latency_and_slots_bound_the_throughput(make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(slots=1, latency_ms=40)
    began = time.monotonic()
    with send_raw(upstream, chat_body("a")) as one, send_raw(upstream, chat_body("b")) as two:
        assert one.recv(12) == two.recv(12) == b"HTTP/1.1 200"
    assert time.monotonic() - began >= 0.08


def test_directives_follow_one_another() -> None:
    faults = faults_in("x [[fault:cut:1]][[fault:status:429:2:retry-after=1]] y [[fault:html:502:1]]")
    tries = Fault("cut", 0, 1), Fault("status", 429, 2, {"retry-after": "1"}), Fault("html", 502, 1)
    assert tuple(faults) == tries
    names = [fault.name if (fault := due(faults, n)) else None for n in range(1, 6)]
    assert names == ["cut", "status", "status", "html", None]
    assert faults_in("[[fault:html:1]]") == [Fault("html", 200, 1)]
    for wrong in ("[[fault:nope]]", "[[fault:status]]", "[[fault:cut:1:2]]", "[[fault:cut:x]]", "[[fault:cut]"):
        with pytest.raises(ValueError, match=r"fault|literal"):
            faults_in(wrong)


def test_a_status_holds_for_its_tries_of_this_body(upstream: Upstream) -> None:
    body = chat_body("[[fault:status:500:2]]")
    assert [post(upstream, body).status for _ in range(3)] == [500, 500, 200]
    assert post(upstream, chat_body("[[fault:status:500:2]] another")).status == 500
    assert [entry["try"] for entry in upstream.requests()] == [1, 2, 3, 1]
    status, headers, text = post(upstream, chat_body("[[fault:status:429:1:retry-after=1]]"))
    assert (status, headers["retry-after"], json.loads(text)["error"]["code"]) == (429, "1", 429)
    for _ in range(3):
        assert post(upstream, chat_body("[[fault:status:400]]")).status == 400


def test_faults_inside_http(upstream: Upstream) -> None:
    status, _, text = post(upstream, chat_body("[[fault:context]]"))
    wrong = json.loads(text)["error"]
    assert (status, wrong["type"], wrong["code"]) == (400, "BadRequestError", 400)
    assert wrong["message"].startswith("This model's maximum context length is 32768 tokens.")
    for directive, status in (("html", 200), ("html:502", 502)):
        answer = post(upstream, chat_body(f"[[fault:{directive}]]"))
        assert answer[0] == status
        assert answer[1]["content-type"].startswith("text/html")
        assert answer[2].startswith(b"<html>")
    assert post(upstream, chat_body("[[fault:empty]]")).content == ""
    choice = post(upstream, chat_body("[[fault:length]]")).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    began = time.monotonic()
    assert post(upstream, chat_body("[[fault:slow:60]]")).content == echo("[[fault:slow:60]]")
    assert time.monotonic() - began >= 0.06


def test_truncated_is_half_a_json_with_the_right_length(upstream: Upstream) -> None:
    status, headers, text = post(upstream, chat_body("[[fault:truncated]]"))
    assert (status, int(headers["content-length"])) == (200, len(text))
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)


def test_short_promises_more_than_it_sends(upstream: Upstream) -> None:
    head, _, body = received_until_closed(upstream, chat_body("[[fault:short]]")).partition(b"\r\n\r\n")
    claimed = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    assert 0 < len(body) < claimed


def test_cut_garbage_and_reset(upstream: Upstream) -> None:
    assert received_until_closed(upstream, chat_body("[[fault:cut:1]]")) == b""
    assert post(upstream, chat_body("[[fault:cut:1]]")).status == 200
    garbage = received_until_closed(upstream, chat_body("[[fault:garbage]]"))
    assert garbage
    assert not garbage.startswith(b"HTTP/")
    with pytest.raises(ConnectionResetError):
        received_until_closed(upstream, chat_body("[[fault:reset]]"))
    outcomes = [entry["outcome"] for entry in upstream.requests()]
    assert outcomes == ["fault:cut", "ok", "fault:garbage", "fault:reset"]


def test_hang_never_answers(upstream: Upstream) -> None:
    with send_raw(upstream, chat_body("[[fault:hang]]")) as raw:
        upstream.wait_for_requests(1)
        raw.settimeout(0.2)
        with pytest.raises(TimeoutError):
            raw.recv(1)
        assert upstream.metrics()["vllm:num_requests_running"] == 1


def test_die_ends_the_process_once_and_the_script_goes_on_after_a_restart(upstream: Upstream) -> None:
    body = chat_body("[[fault:die:1]]", user="killer")
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        post(upstream, body)
    assert upstream.wait_dead() == 1
    assert not upstream.alive
    upstream.restart()
    assert post(upstream, body).status == 200
    assert upstream.counts() == {"killer": 2}


def test_restart_keeps_port_and_log(upstream: Upstream) -> None:
    port = upstream.port
    with send_raw(upstream, chat_body("[[fault:hang]]", user="in flight")) as raw:
        upstream.wait_for_requests(1)
        upstream.kill()
        assert raw.recv(1) == b""
    with pytest.raises(ConnectionRefusedError):
        post(upstream, chat_body("nobody is there"))
    upstream.start()
    assert upstream.port == port
    assert post(upstream, chat_body("again")).status == 200
    assert list(upstream.counts()) == ["in flight", "again"]


def test_the_log_outlives_a_killed_client_and_may_hold_bodies(make_upstream: MakeUpstream) -> None:
    upstream = make_upstream(log_bodies=True)
    body = chat_body("[[fault:hang]]", user="client dies")
    client = (
        "import socket, sys, time\n"
        "s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n"
        "s.sendall(sys.argv[2].encode()); s.recv(1)\n"
    )
    arguments = [sys.executable, "-c", client, str(upstream.port), raw_post(body).decode()]
    with subprocess.Popen(arguments) as process:
        upstream.wait_for_requests(1)
        process.kill()
    assert upstream.counts()["client dies"] == 1
    assert upstream.requests()[0]["body"] == body.decode()


@pytest.mark.long
def test_the_servers_die_with_the_test_run(tmp_path: Path) -> None:
    run = (
        "import sys, time\n"
        "from pathlib import Path\n"
        "from tests.support.postgres import postgres_server\n"
        "from tests.support.process import Upstream\n"
        "with postgres_server() as postgres, Upstream(Path(sys.argv[1])) as upstream:\n"
        "    sys.stdout.write(f'{upstream.port} {postgres.folder}\\n')\n"
        "    sys.stdout.flush()\n"
        "    time.sleep(60)\n"
    )
    arguments = [sys.executable, "-c", run, str(tmp_path / "log")]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port, folder = process.stdout.readline().split()
        assert Path(folder).exists()
        process.kill()
    wait_until(lambda: not _listens(int(port)))
    wait_until(lambda: not Path(folder).exists())


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_each_database_is_real_and_empty(database_url: str) -> None:
    engine = sa.create_engine(database_url)
    try:
        with engine.begin() as connection:
            assert sa.inspect(connection).get_table_names() == []
            connection.execute(sa.text("CREATE TABLE t (n INTEGER)"))
            connection.execute(sa.text("INSERT INTO t VALUES (41), (1)"))
            assert connection.scalar(sa.text("SELECT sum(n) FROM t")) == 42
    finally:
        engine.dispose()


def test_a_postgres_database_goes_with_its_test_though_somebody_is_connected(postgres: PostgresServer) -> None:
    with postgres.database() as url:
        connection = psycopg.connect(url.replace("+psycopg", ""))
    with connection, pytest.raises(psycopg.OperationalError):
        connection.execute("SELECT 1")


ALERT = "INSERT INTO alerts (key, at, kind, message, action) VALUES ('k', 0, 'late', 'm', 'a')"


@pytest.mark.long
def test_a_database_is_used_again_if_its_rows_are_all_that_changed(migrated_databases: MigratedDatabases) -> None:
    def written(*statements: str) -> str:
        with migrated_databases.one() as url:
            engine = sa.create_engine(url)
            with engine.begin() as connection:
                assert connection.scalar(sa.text("SELECT count(*) FROM alerts")) == 0
                assert connection.scalar(sa.text("SELECT count(*) FROM pg_stats WHERE tablename = 'alerts'")) == 0
                connection.execute(sa.text(ALERT))
                assert connection.scalar(sa.text("SELECT id FROM alerts")) == 1
                for statement in statements:
                    connection.execute(sa.text(statement))
            engine.dispose()
        return url

    first = written("ANALYZE alerts")
    assert written("ALTER TABLE alerts ADD COLUMN more INTEGER") == first
    second = written("GRANT SELECT ON alerts TO PUBLIC")
    third = written("UPDATE alembic_version SET version_num = '0001'")
    assert len({first, second, third, written()}) == 4


def test_the_command_line_runs_apart_from_the_developers_settings(
    run_orch: Orch, orch_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCH_DATABASE", "theirs")
    monkeypatch.setenv("OPENAI_API_KEY", "theirs")
    seen = run_orch.environment({"ORCH_CLOCK": "2026-01-01T00:00:00Z"})
    assert {name: value for name, value in seen.items() if name.startswith(("ORCH_", "OPENAI_"))} == {
        "ORCH_HOME": str(orch_home),
        "ORCH_CONFIG": str(orch_home / "orch.toml"),
        "ORCH_CLOCK": "2026-01-01T00:00:00Z",
    }


def test_the_configuration_is_toml(orch_home: Path) -> None:
    path = write_config(orch_home, ["http://h/v1"], idle=None, limits={"rows": 5}, note='a "ü" \n b')
    assert tomllib.loads(path.read_text(encoding="utf-8"))["backends"]["local"] == {
        "upstreams": ["http://h/v1"],
        "location": "local",
        "limits": {"rows": 5},
        "note": 'a "ü" \n b',
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temperature": -1}, "temperature must be non-negative, got -1."),
        ({"top_p": 0}, "top_p must be in (0, 1], got 0."),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0."),
        ({"stop": ["a", ""]}, "stop cannot contain an empty string."),
        ({"top_logprobs": 3}, "when using `top_logprobs`, `logprobs` must be set to true."),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "'json_schema'"),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "only use one kind"),
        ({"tools": []}, "`tools` must not be an empty array."),
        ({"tool_choice": "required"}, "When using `tool_choice`, `tools` must be set."),
    ],
)
def test_it_refuses_what_vllm_refuses(upstream: Upstream, fields: dict[str, Any], words: str) -> None:
    refused = post(upstream, chat_body("hello", **fields))
    assert refused.status == 400
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("BadRequestError", 400)
    assert words in error["message"]
