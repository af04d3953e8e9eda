"""A call from Python again, unchanged or with more rows: what it asks, by one rule for every kind of call."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import orchestrator as orch
from tests.support.cli import Orch, write_config
from tests.support.letters import Gateway, gateway, refusing
from tests.support.library import end_daemon, use_home

Call = Callable[..., list[str | None]]


@pytest.fixture
def at() -> Iterator[Gateway]:
    with gateway() as found:
        yield found


@pytest.fixture
def home(orch_home: Path, at: Gateway, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    models = '[models]\nsmall = "some-model"\n'
    write_config(orch_home, [at.url], retry_delay=0.01, max_concurrency=1, extra=models)
    use_home(orch_home, monkeypatch)
    yield orch_home
    end_daemon(orch_home)


def mapped(*texts: str, **more: Any) -> list[str | None]:
    """Return the error of each row of a frame."""
    out = orch.map([{"text": text} for text in texts], "{{ text }}", progress=False, **more)
    return [None if row["error"] is None else row["error"].partition(":")[0] for row in out]


def requested(*texts: str) -> list[str | None]:
    """Return the error of each request."""
    bodies = [{"model": "small", "messages": [{"role": "user", "content": text}]} for text in texts]
    return [one.code if isinstance(one, orch.RowError) else None for one in orch.requests(bodies, progress=False)]


CALLS: dict[str, Call] = {
    "without a name": mapped,
    "with a name": lambda *texts: mapped(*texts, name="letters"),
    "requests": requested,
}


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> Call:
    return CALLS[request.param]


def asked(at: Gateway) -> list[str]:
    """Return the texts of all requests so far, in order, and forget them."""
    texts = [body["messages"][-1]["content"] for body in at.bodies]
    at.bodies.clear()
    return texts


@pytest.mark.long
def test_a_lasting_failure_is_asked_again_by_no_call_until_it_is_released(
    home: Path, at: Gateway, call: Call, run_orch: Orch
) -> None:
    at.refuses = lambda body: refusing(400, "No.") if body["messages"][-1]["content"] == "bad" else None
    assert call("a", "bad") == [None, "http_400"]
    assert sorted(asked(at)) == ["a", "bad"]

    assert call("a", "bad") == [None, "http_400"]
    assert asked(at) == [], "an unchanged call"
    assert call("new", "bad", "a") == [None, "http_400", None]
    assert asked(at) == ["new"], "a call with one more row"
    assert call("bad") == ["http_400"]
    assert asked(at) == [], "a part of it"

    assert "released: 1 row" in run_orch("quarantine", "release", "--all").stderr
    at.refuses = lambda body: None
    assert call("bad", "a", "newer") == [None, None, None]
    assert sorted(asked(at)) == ["bad", "newer"]


@pytest.mark.long
def test_a_failure_that_may_pass_is_asked_again_by_the_next_call(home: Path, at: Gateway, call: Call) -> None:
    at.refuses = lambda body: refusing(500, "Not now.") if body["messages"][-1]["content"] == "bad" else None
    first = call("a", "bad")
    assert (first[0], first[1] is None) == (None, False)
    assert {*asked(at)} == {"a", "bad"}

    at.refuses = lambda body: None
    assert call("a", "bad", "new") == [None, None, None]
    assert sorted(asked(at)) == ["bad", "new"]


def test_an_interrupted_call_with_one_more_row_asks_each_row_once(home: Path, at: Gateway, call: Call) -> None:
    texts = [f"row {number}" for number in range(8)]

    def interrupt(body: dict[str, Any]) -> None:
        if len(at.bodies) == 3:
            os.kill(os.getpid(), signal.SIGINT)

    at.refuses = interrupt
    with pytest.raises(KeyboardInterrupt):
        call(*texts)
    at.refuses = lambda body: None

    assert call("new", *reversed(texts)) == [None] * 9
    assert call(*texts) == [None] * 8
    told = asked(at)
    assert {*told} == {"new", *texts}
    assert len(told) <= 9 + 1, "beyond the row in flight, nothing is asked twice"


@pytest.mark.parametrize("name", [None, "letters"])
def test_a_frame_comes_back_whole_beside_an_unfinished_job_of_other_rows(
    home: Path, at: Gateway, name: str | None
) -> None:
    earlier = orch.frame([{"text": "a"}, {"text": "b"}], "{{ text }}", name=name).submit(daemon=False)

    assert mapped("c", "a", name=name) == [None, None]

    assert sorted(asked(at)) == (["a", "b", "c"] if name is None else ["a", "c"])
    states = [row.state for row in earlier.rows()]
    assert states == (["succeeded", "succeeded"] if name is None else ["cancelled", "cancelled"])
