"""Webhooks over real HTTP: what is passed on, what is not whatever comes, and what a look makes of it."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.cli.up import up
from orchestrator.core.client_limits import ClientTimeouts
from orchestrator.core.errors import BackendError, UsageError
from orchestrator.core.shards import Shard, ShardState
from orchestrator.daemon.provider_webhooks import MAX_BODY, MOST_CONNECTIONS, PATIENCE, listening, secrets_of
from orchestrator.pipeline.poll_schedule import MOST_PUSHED, PollSchedule
from orchestrator.server.webhooks import signed_headers, target_of
from orchestrator.settings.backend_packages import hosted_kinds
from orchestrator.settings.config import Config, load
from orchestrator.settings.discovery import Place
from tests.support.examples import ample
from tests.support.handles import handle
from tests.support.process import wait_until
from tests.support.signing import SECRET, deliver, event, signed, tell
from tests.support.stored import job, shard

PLAIN = "any text at all"
ENDED = event("batch.completed", "batch_1")
NOW = datetime(2026, 12, 1, tzinfo=UTC)


class Hooks:
    """A listener of two backends, and what it has passed on."""

    def __init__(self, stack: ExitStack, patience: ClientTimeouts = PATIENCE) -> None:
        self.pushed: list[str] = []
        secrets = {"cloud": SECRET, "plain": PLAIN}
        self.root = stack.enter_context(listening("127.0.0.1", 0, secrets, self.pushed.append, patience))
        self.url = f"{self.root}cloud"

    def sent(self, body: bytes = ENDED, headers: dict[str, str] | None = None, backend: str = "cloud") -> int:
        """What an event is answered with, signed as it should be unless its headers are given."""
        status, answer = deliver(self.root + backend, body, signed(body) if headers is None else headers)
        assert answer == b""
        return status

    def connection(self, sent: bytes = b"") -> socket.socket:
        parts = urlsplit(self.root)
        opened = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=30)
        opened.sendall(sent)
        return opened


@pytest.fixture(scope="module")
def listener() -> Iterator[Hooks]:
    with ExitStack() as stack:
        yield Hooks(stack)


@pytest.fixture
def hooks(listener: Hooks) -> Hooks:
    listener.pushed.clear()
    return listener


@pytest.mark.parametrize("status", ["completed", "succeeded", "failed", "expired", "cancelled"])
@pytest.mark.parametrize(("backend", "secret"), [("cloud", SECRET), ("plain", PLAIN)], ids=["cloud", "plain"])
def test_every_end_of_a_batch_is_passed_on(hooks: Hooks, status: str, backend: str, secret: str) -> None:
    assert tell(hooks.root + backend, f"batch.{status}", "batch_1", secret) == 200
    assert hooks.pushed == ["batch_1"]


@pytest.mark.parametrize(("backend", "secret"), [("cloud", SECRET), ("plain", PLAIN)], ids=["cloud", "plain"])
def test_our_own_server_signs_so_that_it_is_taken(hooks: Hooks, backend: str, secret: str) -> None:
    target = target_of("http://127.0.0.1/", secret)
    assert target is not None
    headers = signed_headers(target, f"evt_{backend}", int(datetime.now(UTC).timestamp()), ENDED)
    assert hooks.sent(ENDED, headers, backend) == 200
    assert hooks.pushed == ["batch_1"]


def without(name: str) -> dict[str, str]:
    return {key: value for key, value in signed(ENDED).items() if key != name}


# Signed when they are sent: in a long run of tests, what was signed at its begin is old.
REFUSED: dict[str, Callable[[], tuple[bytes, dict[str, str]]]] = {
    "no headers": lambda: (ENDED, {}),
    "without its id": lambda: (ENDED, without("webhook-id")),
    "without its time": lambda: (ENDED, without("webhook-timestamp")),
    "without its signature": lambda: (ENDED, without("webhook-signature")),
    "an empty signature": lambda: (ENDED, signed(ENDED) | {"webhook-signature": ""}),
    "signed by another": lambda: (ENDED, signed(ENDED, "whsec_AAAA")),
    "signed for another backend": lambda: (ENDED, signed(ENDED, PLAIN)),
    "signed with no key": lambda: (ENDED, signed(ENDED, "whsec_")),
    "another body": lambda: (event("batch.completed", "batch_2"), signed(ENDED)),
    "another id": lambda: (ENDED, signed(ENDED) | {"webhook-id": "wh_other"}),
    "another time": lambda: (ENDED, signed(ENDED, age=400) | {"webhook-timestamp": str(int(time.time()))}),
    "older than five minutes": lambda: (ENDED, signed(ENDED, age=301)),
    "of the future": lambda: (ENDED, signed(ENDED, age=-330)),
    "a time that is none": lambda: (ENDED, signed(ENDED) | {"webhook-timestamp": "now"}),
    "a signature that is not ASCII": lambda: (ENDED, signed(ENDED) | {"webhook-signature": "v1,\xe9"}),
    "a body that is not UTF-8": lambda: (b"\xff\xfe", signed(b"\xff\xfe")),
}


@pytest.mark.parametrize("forged", REFUSED.values(), ids=REFUSED)
def test_a_forged_or_old_event_is_refused(hooks: Hooks, forged: Callable[[], tuple[bytes, dict[str, str]]]) -> None:
    assert hooks.sent(*forged()) == 400
    assert hooks.pushed == []


@pytest.mark.slow
@settings(max_examples=ample(60))
@given(st.sampled_from(["body", "webhook-id", "webhook-timestamp", "webhook-signature"]), st.data())
def test_no_change_of_what_was_signed_is_taken(listener: Hooks, part: str, data: st.DataObject) -> None:
    listener.pushed.clear()
    headers, body = signed(ENDED), bytearray(ENDED)
    text = headers.get(part, "")
    # What is drawn does not hang on the headers: they have the time and a number in them, which go on.
    place = data.draw(st.integers(0, 999)) % len(text or body)
    if part == "body":
        body[place] ^= data.draw(st.integers(1, 127))
    else:
        other = chr(33 + (ord(text[place]) - 33 + data.draw(st.integers(1, 93))) % 94)
        headers[part] = text[:place] + other + text[place + 1 :]
    assert listener.sent(bytes(body), headers) == 400
    assert listener.pushed == []


def test_while_a_secret_is_changed_an_event_has_two_signatures(hooks: Hooks) -> None:
    headers = signed(ENDED)
    headers["webhook-signature"] = f"v1,AAAA {headers['webhook-signature']}"
    assert hooks.sent(ENDED, headers) == 200
    assert hooks.pushed == ["batch_1"]


NOTHING = {
    "of something else": event("response.completed", "resp_1"),
    "of a kind that nobody knows": event("batch.paused", "batch_1"),
    "of an empty id": event("batch.completed", ""),
    "of an id that is none": event("batch.completed", "b" * 201),
    "without a batch": b'{"type": "batch.completed"}',
    "no JSON": b"{",
    "no object": b"17",
    "deep": b'{"more": ' + b"[" * 100_000,
    "empty": b"",
}


@pytest.mark.parametrize("body", NOTHING.values(), ids=NOTHING)
def test_a_signed_event_of_nothing_that_concerns_us_is_taken_and_does_nothing(hooks: Hooks, body: bytes) -> None:
    assert hooks.sent(body) == 200
    assert hooks.pushed == []


def test_an_event_counts_once_however_often_it_comes(hooks: Hooks) -> None:
    first = signed(ENDED)
    assert [hooks.sent(ENDED, first) for _ in range(3)] == [200, 200, 200]
    assert hooks.sent(ENDED, signed(ENDED, age=5, id=first["webhook-id"])) == 200, "a provider tries again"
    assert hooks.pushed == ["batch_1"]
    assert hooks.sent(ENDED) == 200, "another event of the same batch"
    assert hooks.pushed == ["batch_1", "batch_1"]


def test_a_forged_event_does_not_stand_in_the_way_of_the_true_one(hooks: Hooks) -> None:
    true = signed(ENDED)
    assert hooks.sent(ENDED, true | {"webhook-signature": "v1,AAAA"}) == 400
    assert hooks.sent(ENDED, true) == 200
    assert hooks.pushed == ["batch_1"]


@pytest.mark.parametrize("backend", ["nobody", "Cloud", "cloud/", "cloud/more", ""])
def test_a_backend_without_a_secret_is_not_there(hooks: Hooks, backend: str) -> None:
    status, _ = deliver(hooks.root + backend, ENDED, signed(ENDED))
    assert (status, hooks.pushed) == (404, [])


def test_only_a_post_is_one(hooks: Hooks) -> None:
    status, _ = deliver(hooks.url, b"", {}, "GET")
    assert status == 405


def test_a_body_of_more_than_an_event_has_is_refused(hooks: Hooks) -> None:
    body = ENDED.ljust(MAX_BODY)
    assert hooks.sent(body) == 200
    assert hooks.pushed == ["batch_1"]
    assert hooks.sent(body + b" ") == 413
    assert hooks.pushed == ["batch_1"]


BEGUN = b"POST /webhooks/cloud HTTP/1.1\r\nhost: orch\r\ncontent-length: 100\r\n\r\n{"


def test_clients_that_leave_amid_a_request_are_no_error(hooks: Hooks, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        hooks.connection(BEGUN).close()
    assert hooks.sent() == 200
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_the_end_waits_for_no_client_that_never_ends(caplog: pytest.LogCaptureFixture) -> None:
    with ExitStack() as stack:
        hooks = Hooks(stack)
        stalled = [hooks.connection(BEGUN) for _ in range(3)]
        assert hooks.sent() == 200
    assert [ends(connection) for connection in stalled] == [True] * 3
    with pytest.raises(ConnectionRefusedError):
        hooks.sent()
    for connection in stalled:
        connection.close()
    # Of each of them there is nothing to say; of all together, how many there were.
    told = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert told == ["Cancel 3 running task(s), timeout graceful shutdown exceeded"]


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", BEGUN[:20], BEGUN], ids=["nothing", "half a head", "half a body"])
def test_no_number_of_idle_clients_keeps_an_event_out(sent: bytes) -> None:
    with ExitStack() as stack:
        hooks = Hooks(stack)
        idle = [stack.enter_context(hooks.connection(sent)) for _ in range(MOST_CONNECTIONS + 20)]
        for number in range(5):
            assert hooks.sent(event("batch.completed", f"batch_{number}")) == 200
        # Each newcomer took the place of the one that had waited longest.
        assert [ends(connection) for connection in idle[:20]] == [True] * 20
        assert len(hooks.pushed) == 5


@pytest.mark.parametrize("sent", [b"", BEGUN[:20], BEGUN], ids=["nothing", "half a head", "half a body"])
def test_who_says_nothing_more_is_left(sent: bytes) -> None:
    with ExitStack() as stack:
        hooks = Hooks(stack, ClientTimeouts(head=0.2, body=0.2))
        connection = stack.enter_context(hooks.connection(sent))
        answer = b""
        while part := connection.recv(1000):
            answer += part
        assert answer.startswith(b"HTTP/1.1 408 ") == (sent is BEGUN)


def ends(connection: socket.socket) -> bool:
    """Whether the other side has ended it."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def test_the_log_says_why_one_was_refused_once_and_nothing_secret(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    body = event("batch.completed", "batch_1")[:-1] + b', "note": "what-nobody-is-to-read"}'
    headers = signed(body)
    with ExitStack() as stack:
        hooks = Hooks(stack)
        for _ in range(3):
            assert hooks.sent(body, signed(body, age=400)) == 400
            assert hooks.sent(body, headers | {"webhook-id": "wh_other"}) == 400
            assert hooks.sent(body, {}) == 400
        assert hooks.sent(body, headers) == 200
    told = [
        record.getMessage() for record in caplog.records if record.name == "orchestrator.daemon.provider_webhooks"
    ]
    reasons = (
        "Webhook timestamp is too old",
        "The given webhook signature does not match the expected signature",
        "it is not a signed event",
    )
    refused = [f"a webhook for cloud was rejected: {reason} (others like it are not logged)" for reason in reasons]
    assert told == [*refused, "cloud reports batch.completed of batch batch_1"]
    for secret in (SECRET, SECRET.removeprefix("whsec_"), headers["webhook-signature"], "what-nobody-is-to-read"):
        assert secret not in caplog.text


def test_an_address_that_cannot_be_had_is_an_error_that_says_so() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BackendError, match=rf"^cannot listen at 127\.0\.0\.1:{port}: Address already in"):
            listening("127.0.0.1", port, {}, print).__enter__()
    with pytest.raises(BackendError, match=r"^cannot listen at 192\.0\.2\.1:0: Cannot assign requested"):
        listening("192.0.2.1", 0, {}, print).__enter__()
    with pytest.raises(UsageError, match=r"is not an address to listen on"):
        listening("h" * 64, 0, {}, print).__enter__()


def test_an_ipv6_address() -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listening("::1", 0, {"cloud": SECRET}, print) as root:
        assert root.startswith("http://[::1]:")
        assert tell(f"{root}cloud", "batch.completed", "batch_1") == 200


ADDRESSES = {
    "127.0.0.1:8090": ("127.0.0.1", 8090),
    "localhost:0": ("localhost", 0),
    "hooks.example.org:65535": ("hooks.example.org", 65535),
    "[::1]:8090": ("::1", 8090),
    "127.0.0.1": None,
    "8090": None,
    ":8090": None,
    "127.0.0.1:": None,
    "127.0.0.1:http": None,
    "127.0.0.1:-1": None,
    "127.0.0.1:65536": None,
    "127.0.0.1:" + "9" * 5000: None,
    "127.0.0.1:8090\n": None,
    "127.0.0.1:٨": None,
    "::1:8090": None,
    "[]:8090": None,
    "http://127.0.0.1:8090": None,
    "127.0.0.1:8090/webhooks": None,
}


@pytest.mark.parametrize(("text", "address"), ADDRESSES.items(), ids=[text[:30] for text in ADDRESSES])
def test_an_address_is_a_host_and_a_port(text: str, address: tuple[str, int] | None) -> None:
    option = next(option for option in up.params if "--webhooks" in option.opts)
    if address is not None:
        assert option.type.convert(text, option, None) == address
        return
    with pytest.raises(click.BadParameter, match=r"is not an address such as 127\.0\.0\.1:8090 or \[::1\]:8090"):
        option.type.convert(text, option, None)


CLOUD = '[backends.{name}]\nkind = "openai"\napi_key_env = "KEY"\n'


def config(folder: Path, **variables: str | None) -> Config:
    """Backends of these names, each with a variable of its secret or without one."""
    path = folder / "orch.toml"
    lines = ['[backends.claude]\nkind = "anthropic"\napi_key_env = "KEY"\n']
    for name, variable in variables.items():
        lines.append(CLOUD.format(name=name) + (f'webhook_secret_env = "{variable}"\n' if variable else ""))
    path.write_text("".join(lines))
    return load(Place(path, folder, "sqlite:///x", 1.0))


def test_secrets_are_those_of_the_backends_that_name_one(tmp_path: Path) -> None:
    found = secrets_of(config(tmp_path, one="ONE", two=None, three="THREE"), {"ONE": f"{SECRET}\n", "THREE": PLAIN})
    assert found == {"one": SECRET, "three": PLAIN}


def test_kinds_whose_providers_sign_webhooks_take_a_secret_and_no_others() -> None:
    taking = {kind for kind, settings in hosted_kinds().items() if "webhook_secret_env" in settings.model_fields}
    assert taking == {"openai", "azure", "gemini"}


SECRETS: dict[str, tuple[dict[str, str | None], dict[str, str], str]] = {
    "none is named": ({"one": None}, {}, "no backend has a webhook secret"),
    "it is not set": ({"one": "ONE"}, {}, "the environment variable ONE is not set.* of one"),
    "it is empty": ({"one": "ONE"}, {"ONE": " \n"}, "the environment variable ONE is not set"),
    "another's is not set": ({"one": "ONE", "two": "TWO"}, {"ONE": PLAIN}, "TWO is not set.* of two"),
    "it is not base64": ({"one": "ONE"}, {"ONE": "whsec_secret-secret"}, "follows whsec_ in .* ONE is not base64"),
    "it is not ASCII": ({"one": "ONE"}, {"ONE": "whsec_secr\xe9t="}, "follows whsec_ in .* ONE is not base64"),
    "it is a key that everybody has": ({"one": "ONE"}, {"ONE": "whsec_"}, "follows whsec_ in .* ONE is not base64"),
}


@pytest.mark.parametrize(("variables", "environ", "message"), SECRETS.values(), ids=SECRETS)
def test_a_secret_that_is_missing_or_none_is_an_error_that_does_not_tell_it(
    tmp_path: Path, variables: dict[str, str | None], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        secrets_of(config(tmp_path, **variables), environ)
    assert "secret-secret" not in str(caught.value)
    assert "secr\xe9t" not in str(caught.value)


HOSTED = handle(is_own=False, poll_seconds=3600.0)


def running(number: int = 1) -> Shard:
    return shard(job(), number, state=ShardState.SUBMITTED, batch_id=f"batch_{number}")


def looks_at(*shards: Shard) -> PollSchedule:
    """All of them looked at just now."""
    polls = PollSchedule()
    for one in shards:
        polls.looked(one, HOSTED, NOW)
    return polls


def test_what_is_told_of_is_due_at_once_and_once() -> None:
    polls = looks_at(running(1), running(2))
    polls.push("batch_1")
    assert [polls.is_due(running(number), HOSTED, NOW) for number in (1, 2)] == [True, False]
    polls.looked(running(), HOSTED, NOW)
    assert not polls.is_due(running(), HOSTED, NOW)
    assert polls.is_due(running(), HOSTED, NOW + timedelta(hours=1))


def test_what_is_told_of_stays_due_until_it_was_looked_at() -> None:
    polls = looks_at(running())
    polls.push("batch_1")
    assert all(polls.is_due(running(), HOSTED, NOW) for _ in range(3))


def test_what_is_told_of_while_it_is_looked_at_is_looked_at_again() -> None:
    """The look may have seen the batch as it was a moment before its end."""
    polls = looks_at(running())
    polls.push("batch_1")
    assert polls.is_due(running(), HOSTED, NOW)
    polls.push("batch_1")
    polls.looked(running(), HOSTED, NOW)
    assert polls.is_due(running(), HOSTED, NOW)


def test_a_batch_told_of_before_the_shard_knows_its_id() -> None:
    asked = shard(job(), 1, state=ShardState.SUBMITTING)
    polls = looks_at(asked)
    polls.push("batch_1")
    assert not polls.is_due(asked, HOSTED, NOW)
    assert polls.is_due(running(), HOSTED, NOW)


@pytest.mark.parametrize("told", ["batches/1a", "1a"])
def test_an_event_may_name_the_last_part_of_a_batch_alone(told: str) -> None:
    of_gemini = shard(job(), 1, state=ShardState.SUBMITTED, batch_id="batches/1a")
    polls = looks_at(of_gemini)
    polls.push(told)
    assert polls.is_due(of_gemini, HOSTED, NOW)


def test_a_shard_never_looked_at_is_looked_at_once_though_it_was_told_of() -> None:
    polls = PollSchedule()
    polls.push("batch_1")
    assert polls.is_due(running(), HOSTED, NOW)
    polls.looked(running(), HOSTED, NOW)
    assert not polls.is_due(running(), HOSTED, NOW)


def test_batches_of_others_are_not_kept_for_ever() -> None:
    polls = looks_at(running(1), running(2))
    polls.push("batch_1")
    polls.push("batch_2")
    for number in range(MOST_PUSHED - 1):
        polls.push(f"batch_of_others_{number}")
    assert [polls.is_due(running(number), HOSTED, NOW) for number in (1, 2)] == [False, True]


def test_many_threads_may_tell_while_others_are_looked_at() -> None:
    shards = [running(number) for number in range(2000)]
    polls, taken = looks_at(*shards), set[str]()

    def push(part: int) -> None:
        for one in shards[part::4]:
            polls.push(str(one.batch_id))

    threads = [threading.Thread(target=push, args=(part,)) for part in range(4)]
    for thread in threads:
        thread.start()

    def look() -> bool:
        for one in shards:
            if polls.is_due(one, HOSTED, NOW):
                assert one.id not in taken, "told of once, due once"
                polls.looked(one, HOSTED, NOW)
                taken.add(one.id)
        return len(taken) == len(shards)

    wait_until(look)
    for thread in threads:
        thread.join()
