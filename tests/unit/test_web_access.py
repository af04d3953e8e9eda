"""Who may look at the pages: links, cookies and keys."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from orchestrator.core.errors import StorageError
from orchestrator.server.keys import Key, KeyRight
from orchestrator.web.access import SECRET_FILE, KeyRing, PageAccess

HOME = "0123456789abcdef"


class Keys:
    """One key, whose right may change."""

    def __init__(self) -> None:
        self.key: Key | None = Key(id="k1", tenant="ops", hint="abcd", created_at=0, right=KeyRight.VIEW)

    def ring(self) -> KeyRing:
        return KeyRing(lambda secret: self.key if secret == b"right" else None, lambda _: self.key)


@pytest.fixture
def keys() -> Keys:
    return Keys()


def access(folder: Path, keys: Keys, *, links: bool = True, port: int = 8091) -> PageAccess:
    return PageAccess(folder, HOME, keys.ring(), port=port, links=links, right=KeyRight.VIEW)


def entered(at: PageAccess) -> str:
    cookie = at.enter(str(at.new_link()).partition("=")[2])
    assert cookie is not None
    return cookie


def test_a_link_opens_once_and_its_cookie_outlives_a_restart(tmp_path: Path, keys: Keys) -> None:
    at = access(tmp_path, keys)
    token = str(at.new_link()).partition("=")[2]
    cookie = at.enter(token)
    assert at.enter(token) is None
    assert access(tmp_path, keys).visitor(cookie) is not None
    assert access(tmp_path, keys, links=False).visitor(cookie) is None, "beyond loopback only keys count"


def test_a_cookie_is_good_at_its_own_port_alone(tmp_path: Path, keys: Keys) -> None:
    """Another program of this machine gets the cookie too: its port is the same host."""
    here, there = access(tmp_path, keys), access(tmp_path, keys, port=8092)
    by_link, by_key = entered(here), here.sign_in("right")
    assert here.cookie != there.cookie
    for cookie in (by_link, by_key):
        assert here.visitor(cookie) is not None
        assert there.visitor(cookie) is None


def test_a_keys_cookie_ends_with_the_key_and_with_its_right(tmp_path: Path, keys: Keys) -> None:
    at = access(tmp_path, keys, links=False)
    cookie = at.sign_in("right")
    found = at.visitor(cookie)
    assert found is not None
    assert (found.name, found.right) == ("ops", KeyRight.VIEW)
    keys.key = Key(id="k1", tenant="ops", hint="abcd", created_at=0, right=KeyRight.BATCH)
    assert at.visitor(cookie) is None
    assert at.sign_in("right") is None
    keys.key = None
    assert at.visitor(cookie) is None


@pytest.mark.parametrize(
    "shown", [None, "", ".", "a.b", "é.é", "a.\udcff", "\x00.\x00", "W10=." + "0" * 64], ids=range(8)
)
def test_what_was_not_signed_here_opens_nothing(tmp_path: Path, keys: Keys, shown: str | None) -> None:
    at = access(tmp_path, keys)
    assert at.visitor(shown) is None
    body, _, signature = entered(at).partition(".")
    assert at.visitor(f"{body}x.{signature}") is None
    assert at.visitor(f"{body}.{signature}é") is None
    at.new_link()
    assert at.enter(shown or "") is None
    assert at.sign_in(shown or "") is None


def test_those_that_start_at_once_have_one_secret(tmp_path: Path, keys: Keys) -> None:
    made: list[PageAccess] = []
    threads = [threading.Thread(target=lambda: made.append(access(tmp_path, keys))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cookie = entered(made[0])
    assert [at.visitor(cookie) is not None for at in made] == [True] * 8
    assert (tmp_path / SECRET_FILE).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == [SECRET_FILE]


def test_a_damaged_secret_is_said(tmp_path: Path, keys: Keys) -> None:
    (tmp_path / SECRET_FILE).write_bytes(b"short")
    with pytest.raises(StorageError, match="is damaged"):
        access(tmp_path, keys)
