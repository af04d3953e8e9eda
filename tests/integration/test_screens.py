"""Every command on terminals of several widths, with long names and wide ones: no line is wider than its terminal."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import pytest

from orchestrator.cli import COMMANDS, root, run
from orchestrator.reports.text_tables import cell_width
from tests.support.everywhere import answer, command_lines, make_home
from tests.support.scripted import scripted
from tests.support.terminal import in_terminal, lines_of

TEXTS = {"long": "-" + "long-name" * 14, "wide": "契約書の名前" * 10, "words": " a few words of it" * 6}
DATA = ("--csv", "--md", "--raw", "man", "fish", "budgets")
"""What programs read: rows, and pages and scripts as they are."""


@pytest.mark.long
@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    "text",
    [pytest.param(text, id=name, marks=[pytest.mark.soak] * (name == "words")) for name, text in TEXTS.items()],
)
def test_no_line_is_wider_than_the_terminal(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with scripted(partial(answer, text=text)) as provider:
        make_home(tmp_path, provider.base_url, text, monkeypatch)
        for columns in (60, 80, 120):
            for line in command_lines(text):
                if line[0] in ("up", "serve", "view") or set(line) & set(DATA):
                    continue
                shown = lines_of(in_terminal(partial(run, line), columns, monkeypatch))
                # A path that is longer than a line stays whole in a message, so that it can be copied.
                wide = [one for one in shown if cell_width(one) > columns > max(map(cell_width, one.split())) + 8]
                assert not wide, (columns, line, wide)
                assert not re.search(r"\w…", "".join(shown)), (columns, line, "something is cut off")


def help_of() -> list[list[str]]:
    """The command lines that show the help of every command, and of those within commands."""
    context = root.make_context("orch", ["--help"], resilient_parsing=True)
    found = [["--help"]]
    for name in COMMANDS:
        command = root.get_command(context, name)
        within = list(getattr(command, "commands", {}))
        found += [[name, "--help"], *([name, inner, "--help"] for inner in within)]
    return found


@pytest.mark.parametrize("line", help_of(), ids=" ".join)
def test_help_reads_well_at_80_columns(line: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    shown = lines_of(in_terminal(partial(run, line), 80, monkeypatch))
    text = "\n".join(shown)
    assert max(map(cell_width, shown)) <= 80
    assert "Usage: orch" in text
    [what] = re.findall(r"\n\n  (\S.*)\n", text)[:1]
    assert what[0].isupper(), "what it does comes first"
    for option in re.findall(r"^  (?:-\w, )?--[\w-]+.*$", text, re.MULTILINE):
        assert option.strip(), line
