"""The home's id: made once, whole, and never silently another."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.core.errors import StorageError
from orchestrator.settings.home import Home


def test_many_at_once_make_one_identity_and_leave_nothing_else(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    with ThreadPoolExecutor(8) as pool:
        found = {pool.submit(home.identity) for _ in range(32)}
    assert len({each.result() for each in found}) == 1
    assert [path.name for path in home.root.iterdir()] == ["home.id"]


@pytest.mark.parametrize("content", ["", "\n", "\0\0\0"])
def test_an_empty_id_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "home.id").write_text(content)
    with pytest.raises(StorageError, match=r"home\.id is empty or gone") as raised:
        Home(tmp_path).identity()
    assert raised.value.hint


def test_a_home_with_jobs_is_never_given_another_id(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "letters-1").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"home\.id is empty or gone"):
        Home(tmp_path).identity()
    assert not (tmp_path / "home.id").exists()
