"""`orch fetch --partial` where a backend with a batch cannot be asked."""

from __future__ import annotations

import json

import pytest

from tests.acceptance.test_hosted import User, emulator, user
from tests.support.hostedjob import plain
from tests.support.process import PATIENCE, wait_until

__all__ = ["emulator", "user"]


def submitted(user: User) -> str:
    """A job with a batch that stays at openai."""
    user.provider.clock.set(speed=1.0)
    running = user.orch.start("run", user.rows(*plain(4)), "--backend", "openai", env=user.env)

    def name() -> str | None:
        found = json.loads(user("status", "--json").stdout)
        shards = user.status(found[0]["job"])["shards"] if found else []
        return found[0]["job"] if any(one["state"] == "submitted" for one in shards) else None

    job = wait_until(name, PATIENCE)
    running.send_signal(2)
    running.wait(PATIENCE)
    return str(job)


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize("daemon", [False, True], ids=["alone", "beside a daemon"])
def test_it_needs_no_key_where_nothing_has_to_be_asked(user: User, daemon: bool) -> None:
    job = submitted(user)
    if daemon:
        user.orch.start("up", env=user.env)
    user.env = {name: value for name, value in user.env.items() if "KEY" not in name}
    fetched = user("fetch", job, "--partial")
    assert fetched.returncode == 0, fetched.stderr
    assert "4 of 4 are not here yet" in fetched.stderr


@pytest.mark.thinned(2)
@pytest.mark.parametrize("daemon", [False, True], ids=["alone", "beside a daemon"])
def test_it_names_a_backend_that_is_gone_and_writes_the_rest(user: User, daemon: bool) -> None:
    job = submitted(user)
    user.backends(azure={})
    if daemon:
        user.orch.start("up", env=user.env)
    fetched = user("fetch", job, "--partial")
    assert fetched.returncode == 0, fetched.stderr
    assert "did not look for answers at openai, which is no longer in" in " ".join(fetched.stderr.split())
