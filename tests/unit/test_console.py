"""What models and paths say is drawn as it is, on a terminal and in a pipe, whoever prints it."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import pty
import struct
import sys
import termios
import traceback
from pathlib import Path

import click
import pytest

from orchestrator.cli.console import err, out, text_line
from orchestrator.cli.output import print_json, say, show
from orchestrator.cli.terminal import safe_output
from orchestrator.library.context import log_to
from orchestrator.library.messages import width_of
from orchestrator.reports.text_tables import Column, table
from orchestrator.settings.home import Home
from tests.support.terminal import on_terminal

SAID = ["[/INST] and [word]", "[bold]x[/]", ":smile:"]
HOSTILE = "\x1b[2J\x9b31m\x07\u202eevil\udc80"
SEEN = "\\u001b[2J\\u009b31m\\u0007\\u202eevil\\udc80"


@pytest.mark.parametrize("said", SAID)
def test_text_is_no_markup(capsys: pytest.CaptureFixture[str], said: str) -> None:
    out().print([text_line(said)])
    err().print(table((Column("reason"),), [(said,)], None))
    assert capsys.readouterr() == (f"{said}\n", f"reason\n{said}\n")


def test_every_way_to_print_shows_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    with safe_output():
        say(HOSTILE)
        show(HOSTILE)
        print_json({"x": HOSTILE})
        out().print([text_line(HOSTILE)])
        sys.stdout.writelines([HOSTILE, "\n"])
        click.echo(f"plain{HOSTILE}", color=True)
        traceback.print_exception(ValueError(HOSTILE))
        logging.StreamHandler(sys.stderr).emit(logging.makeLogRecord({"msg": HOSTILE}))
    told = capsys.readouterr()
    for text in told:
        assert not set(text) & set("\x1b\x9b\x07\u202e\udc80"), text
    assert told.out.count(SEEN) == 5
    assert told.err.count(SEEN) == 3


def test_the_log_shows_them_too_and_no_message_begins_a_line_of_its_own(tmp_path: Path) -> None:
    root, home = logging.getLogger(), Home(tmp_path)
    before, root.handlers[:] = root.handlers[:], []
    try:
        log_to(home)
        logging.getLogger("orchestrator").warning("%s\n2026-11-22 INFO forged", HOSTILE)
        text = home.log.read_text()
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers[:] = before
    assert SEEN in text
    assert [line for line in text.splitlines() if not line.startswith("  ")] == text.splitlines()[:1]


TERMINAL = """
import sys
from orchestrator.cli.console import out, text_line, watching
from orchestrator.cli.console_progress import progress
from orchestrator.reports.text_tables import StyledText
from orchestrator.cli.terminal import make_output_safe
from orchestrator.cli.output import say
make_output_safe()
hostile = "\\x1b]0;title\\x07\\x9b2J\\u202e"
out().print([(StyledText("state ", "green"), StyledText(hostile))])
with progress(quiet=False) as view:
    view.reading(1, 1)
    say(f"said {hostile}")
    sys.stderr.write(f"library {hostile}\\n")
    view.say(hostile)
with watching() as draw:
    draw(lambda width: [text_line(hostile)])
"""


@pytest.mark.slow
def test_a_terminal_gets_our_styles_and_nobody_elses() -> None:
    code, text = on_terminal(["-c", TERMINAL])
    assert code == 0, text
    assert "\x1b[32mstate " in text, "our own styles are escape sequences"
    for theirs in ("\x1b]0;", "\x07", "\x9b", "\u202e"):
        assert theirs not in text
    assert text.count("\\u001b]0;title\\u0007\\u009b2J\\u202e") >= 5


def test_a_stream_that_knows_few_characters_takes_all() -> None:
    under = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    before, sys.stdout = sys.stdout, under
    try:
        with safe_output():
            show("✓ 契約書")
    finally:
        sys.stdout = before
    under.flush()
    assert under.buffer.getvalue() == b"\\u2713 \\u5951\\u7d04\\u66f8\n"  # type: ignore[attr-defined]


def test_widths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert width_of(io.StringIO()) is None, "what a program reads keeps its lines whole"
    ours, theirs = pty.openpty()
    with os.fdopen(ours, "w"), os.fdopen(theirs, "w") as terminal:
        assert width_of(terminal) == 120
        monkeypatch.setenv("COLUMNS", "3")
        assert width_of(terminal) == 20
        monkeypatch.delenv("COLUMNS")
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 97, 0, 0))
        assert width_of(terminal) == 97
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 0, 0, 0, 0))
        assert width_of(terminal) == 80
