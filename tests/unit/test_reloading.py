"""orch.toml while a daemon runs: what is taken up, what is refused, what needs a restart, and how others know."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.daemon.lock import Holder, daemon_lock
from orchestrator.daemon.reloading import Reloader
from orchestrator.daemon.running_settings import InForce, differences, keep
from orchestrator.settings.config import Config, load
from orchestrator.settings.discovery import Place
from orchestrator.settings.home import Home
from tests.support.stored import NOW, later

FIRST = """
[backends.gpu]
upstreams = ["http://127.0.0.1:9/v1"]
idle = true

[backends.cloud]
kind = "openai"
api_key_env = "CLOUD_KEY"

[[budgets]]
name = "all"
amount = 10
period = "night"
"""
ENVIRON = {"CLOUD_KEY": "k", "OTHER_KEY": "k"}


class Desk:
    """A settings file, and the reloader of a daemon that was started under it."""

    def __init__(self, folder: Path, text: str = FIRST, environ: dict[str, str] | None = None) -> None:
        self.file = folder / "orch.toml"
        self.file.write_text(text)
        self.home = Home(folder / "home")
        self.home.root.mkdir(exist_ok=True)
        place = Place(self.file, self.home.root, f"sqlite:///{folder / 'home' / 'orch.db'}", 10.0)
        self.checked: list[Config] = []
        self.reloader = Reloader(load(place), self.checked.append, ENVIRON if environ is None else environ)
        self.reloader.begin(NOW)

    def look(self, times: int = 2) -> str | None:
        """What is told at looks a second apart, the last that was anything."""
        told = [self.reloader.look(later(1)) for _ in range(times)]
        return next((one for one in reversed(told) if one is not None), None)

    @property
    def config(self) -> Config:
        return self.reloader.config

    def told(self) -> list[str]:
        """What another command says of it."""
        keep(self.home, self.reloader.in_force)
        return differences(self.home, Holder(os.getpid(), "orch up"), self.file)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def replaced(desk: Desk, text: str) -> None:
    """As editors do it: another file takes the name."""
    beside = desk.file.with_suffix(".new")
    beside.write_text(text)
    beside.replace(desk.file)


def in_place(desk: Desk, text: str) -> None:
    desk.file.write_text(text)


@pytest.mark.parametrize("write", [replaced, in_place])
def test_an_edit_holds_from_the_second_look_on_and_is_told_once(
    desk: Desk, write: Callable[[Desk, str], None]
) -> None:
    assert desk.look(5) is None
    write(desk, FIRST.replace("amount = 10", "amount = 20"))
    assert desk.reloader.look(NOW) is None, "it may be half a file"
    assert desk.config.budgets[0].amount == 10
    assert desk.reloader.look(later(1)) == f"{desk.file} was edited: the new settings are in force"
    assert desk.config.budgets[0].amount == 20
    assert desk.look(5) is None
    assert desk.reloader.in_force.read_at == later(1).isoformat(timespec="seconds")
    assert desk.told() == []


def test_a_file_that_is_being_written_is_not_believed(desk: Desk) -> None:
    whole = FIRST.replace("amount = 10", "amount = 20")
    for end in range(0, len(whole), 40):
        desk.file.write_text(whole[:end])
        assert desk.reloader.look(NOW) is None
    desk.file.write_text(whole)
    desk.look()
    assert desk.config.budgets[0].amount == 20


def test_two_edits_within_a_tick_of_the_clock_are_two(desk: Desk) -> None:
    """The same size, inode and time of change: the text tells."""
    stamp = desk.file.stat()
    for amount in ("20", "30"):
        desk.file.write_text(FIRST.replace("amount = 10", f"amount = {amount}"))
        os.utime(desk.file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
        desk.look()
        assert desk.config.budgets[0].amount == int(amount)


BROKEN: dict[str, tuple[Callable[[Desk], object], str]] = {
    "no TOML": (lambda desk: desk.file.write_text(FIRST + "[[["), "orch.toml:14: is not valid TOML"),
    "an unknown field": (
        lambda desk: desk.file.write_text(FIRST.replace("amount", "amont")), "12: budgets[0].amont: unknown field"),
    "no UTF-8": (lambda desk: desk.file.write_bytes(b"a = \xff"), "orch.toml:1: is not UTF-8 text"),
    "deleted": (lambda desk: desk.file.unlink(), "orch.toml: is gone"),
    "a folder": (lambda desk: (desk.file.unlink(), desk.file.mkdir()), "orch.toml: cannot be read: Is a directory"),
    "empty": (lambda desk: desk.file.write_text(" \n"), "orch.toml: is empty"),
    "a number of 5,000 digits": (
        lambda desk: desk.file.write_text(FIRST.replace("10", "9" * 5000)), "orch.toml:12: a number has more than"),
}  # fmt: skip


@pytest.mark.parametrize(("spoil", "why"), BROKEN.values(), ids=BROKEN.keys())
def test_what_is_broken_is_refused_and_what_held_goes_on(
    desk: Desk, spoil: Callable[[Desk], object], why: str
) -> None:
    held = desk.config
    spoil(desk)
    told = desk.look()
    assert told is not None
    assert why in told
    assert f"the daemon keeps the settings that it read at {NOW.isoformat(timespec='seconds')}" in told
    assert desk.config is held
    assert desk.look(5) is None, "it is told once"
    assert desk.told() == [told]
    if desk.file.is_dir():
        desk.file.rmdir()
    desk.file.write_text(FIRST)
    assert desk.look() == f"{desk.file} is back as it was: its settings are in force"
    assert desk.told() == []


def test_a_broken_file_that_is_mended_otherwise_is_taken_up(desk: Desk) -> None:
    desk.file.write_text("[[[")
    desk.look()
    desk.file.write_text(FIRST.replace("amount = 10", "amount = 20"))
    assert desk.look() is not None
    assert (desk.config.budgets[0].amount, desk.told()) == (20, [])


def test_what_cannot_be_meant_is_refused(tmp_path: Path) -> None:
    def check(config: Config) -> None:
        raise UsageError("orch.toml names an unknown profile 'x'")

    desk = Desk(tmp_path)
    desk.reloader._check = check
    desk.file.write_text(FIRST + "# edited\n")
    assert "names an unknown profile 'x'" in (desk.look() or "")


@pytest.mark.parametrize("edit", ['home = "elsewhere"', 'database_url = "sqlite:////tmp/other.db"'])
def test_the_place_of_the_state_needs_a_restart(desk: Desk, edit: str) -> None:
    place = desk.config.place
    desk.file.write_text(f"{edit}\n{FIRST}".replace("amount = 10", "amount = 20"))
    name = edit.partition(" ")[0]
    told = f"{name}: takes effect when the daemon restarts"
    assert told in (desk.look() or "")
    assert (desk.config.place, desk.config.budgets[0].amount) == (place, 20), "the rest holds now"
    assert desk.told() == [told]
    desk.file.write_text(desk.file.read_text() + "# another edit\n")
    desk.look()
    assert desk.told() == [told], "an edit more changes nothing about it"
    desk.file.write_text(FIRST)
    desk.look()
    assert desk.told() == []


def test_a_home_that_moves_knows_where_its_daemon_is(desk: Desk) -> None:
    desk.file.write_text(f'home = "elsewhere"\n{FIRST}')
    desk.look()
    moved = desk.reloader.moves_to
    assert moved == desk.file.parent / "elsewhere"
    keep(Home(moved), desk.reloader.in_force)
    with daemon_lock(desk.home):
        told = differences(Home(moved), None, desk.file)
    assert told[0].endswith(f"still has the home {desk.home.root}")
    assert told[1:] == ["home: takes effect when the daemon restarts"]
    assert differences(Home(moved), None, desk.file) == [], "it has ended"
    desk.file.write_text(FIRST)
    desk.look()
    assert desk.reloader.moves_to is None


def test_the_place_of_the_state_does_not_matter_where_the_environment_says_it(tmp_path: Path) -> None:
    desk = Desk(tmp_path, environ={**ENVIRON, "ORCH_HOME": "/somewhere"})
    desk.file.write_text(f'home = "elsewhere"\n{FIRST}')
    desk.look()
    assert desk.told() == []


def test_a_key_that_the_daemon_has_not_got_needs_a_restart(desk: Desk) -> None:
    """The backend goes on with what it has; one that is new is left out; a key that is there is taken at once."""
    text = FIRST.replace("CLOUD_KEY", "UNSET_KEY")
    text += '[backends.more]\nkind = "anthropic"\napi_key_env = "UNSET_KEY"\n'
    text += '[backends.other]\nkind = "anthropic"\napi_key_env = "OTHER_KEY"\n'
    desk.file.write_text(text)
    desk.look()
    assert list(desk.config.backends) == ["gpu", "cloud", "other"]
    assert getattr(desk.config.backends["cloud"], "api_key_env", None) == "CLOUD_KEY"
    why = "the daemon was started without UNSET_KEY; set it, then start the daemon again"
    assert desk.told() == [f"backends.cloud.api_key_env: {why}", f"backends.more.api_key_env: {why}"]
    desk.file.write_text(FIRST.replace("CLOUD_KEY", "OTHER_KEY"))
    desk.look()
    assert getattr(desk.config.backends["cloud"], "api_key_env", None) == "OTHER_KEY"
    assert desk.told() == []


def test_reports_whose_password_is_not_there_stay_as_they_were(desk: Desk) -> None:
    desk.file.write_text(FIRST + '[reports]\nwebhook_env = "UNSET_HOOK"\nfolder = "reports"\n')
    desk.look()
    assert desk.config.reports.folder is None
    assert desk.told() == [
        "reports.webhook_env: the daemon was started without UNSET_HOOK; set it, then start the daemon again"
    ]


def test_other_commands_know_what_a_daemon_runs_under(desk: Desk, tmp_path: Path) -> None:
    assert desk.told() == []
    here = Holder(os.getpid(), "orch up")
    assert differences(desk.home, None, desk.file) == [], "none runs"
    assert differences(desk.home, Holder(1, "orch up"), desk.file) == [], "that was another daemon's"
    other = tmp_path / "other.toml"
    assert differences(desk.home, here, other) == [
        f"the daemon runs under {desk.file}, and this command reads {other}"
    ]
    (tmp_path / "link.toml").symlink_to(desk.file)
    assert differences(desk.home, here, tmp_path / "link.toml") == [], "another name of the same file"
    desk.file.write_text(FIRST + "# edited\n")
    assert desk.told() == [f"{desk.file} was edited just now; the daemon reads it within seconds"]
    desk.home.settings.write_text("{")
    assert differences(desk.home, here, desk.file) == []


def test_a_daemon_without_a_file_looks_at_none(tmp_path: Path) -> None:
    config = load(Place(None, tmp_path, "sqlite:///x", 1.0))
    reloader = Reloader(config)
    reloader.begin(NOW)
    assert reloader.look(NOW) is None
    told = reloader.in_force
    assert told == InForce(os.getpid(), str(tmp_path), None, told.digest, NOW.isoformat(timespec="seconds"))


def test_telemetry_with_a_key_that_the_daemon_lacks_waits_for_a_restart(tmp_path: Path) -> None:
    receiver = '[telemetry]\nendpoint = "http://127.0.0.1:4318"\nheaders_env = {Authorization = "CLOUD_KEY"}\n'
    desk = Desk(tmp_path, FIRST + receiver)
    desk.file.write_text(FIRST + receiver.replace("CLOUD_KEY", "NOT_THERE").replace("4318", "4319"))
    told = desk.look()
    assert told is not None
    assert "telemetry.headers_env.Authorization: the daemon was started without NOT_THERE" in told
    assert desk.config.telemetry is not None
    assert desk.config.telemetry.endpoint.endswith("4318")
    desk.file.write_text(FIRST)
    desk.look()
    assert desk.config.telemetry is None
