"""What models and paths say is drawn as it is."""

from __future__ import annotations

import pytest

from orchestrator.console import _table, err, out

SAID = ["[/INST] and [word]", "[bold]x[/]", ":smile:"]


@pytest.mark.parametrize("said", SAID)
def test_text_is_no_markup(capsys: pytest.CaptureFixture[str], said: str) -> None:
    out().print(said)
    err().print(said)
    assert capsys.readouterr() == (f"{said}\n", f"{said}\n")


@pytest.mark.parametrize("said", SAID)
def test_a_cell_is_no_markup(capsys: pytest.CaptureFixture[str], said: str) -> None:
    table = _table("reason")
    table.add_row(said)
    out().print(table)
    assert said in capsys.readouterr().out
