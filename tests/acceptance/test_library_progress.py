"""Progress of `orch.map` where somebody sees it: a line on a terminal, entries in a log, and nothing if unwanted."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest

import orchestrator as orch
from tests.conftest import MakeUpstream
from tests.support.cli import CONFIG, write_config
from tests.support.library import use_home
from tests.support.process import ROOT
from tests.support.terminal import on_terminal

ROWS = [{"text": f"row {number}"} for number in range(20)]
SCRIPT = """
import orchestrator as orch

rows = orch.map([{{"text": f"row {{n}}"}} for n in range(20)], "Say {{{{ text }}}}", progress={progress})
print(len(rows), "rows are there")
"""
SHOWN = r"\d+/20 rows"


@pytest.fixture
def home(orch_home: Path, make_upstream: MakeUpstream, monkeypatch: pytest.MonkeyPatch) -> Path:
    upstream = make_upstream(slots=2, latency_ms=60)
    write_config(orch_home, [upstream.base_url], max_concurrency=2, extra='[models]\nsmall = "m"\n')
    use_home(orch_home, monkeypatch)
    return orch_home


@pytest.mark.slow
@pytest.mark.parametrize("progress", [None, False])
def test_a_terminal_has_one_line_which_leaves_no_trace(progress: bool | None, home: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(progress=progress))
    env = {"ORCH_HOME": str(home), "ORCH_CONFIG": str(home / CONFIG), "PYTHONPATH": str(ROOT)}

    code, said = on_terminal([str(script)], env=env)

    assert code == 0, said
    lines = said.split("\n")
    assert lines[-2].endswith("20 rows are there")
    if progress is False:
        assert lines == ["20 rows are there", ""]
        return
    drawn = [part for line in lines for part in line.split("\r\x1b[K") if re.search(SHOWN, part)]
    assert drawn, said
    assert max(map(len, drawn)) < 80
    assert lines[-2].endswith("\r\x1b[K20 rows are there"), "the line is cleared"


@pytest.mark.long
def test_a_narrow_terminal_cuts_no_figure(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(progress=True))
    env = {"ORCH_HOME": str(home), "ORCH_CONFIG": str(home / CONFIG), "PYTHONPATH": str(ROOT)}

    code, said = on_terminal([str(script)], 44, env=env)

    assert code == 0, said
    drawn = [part.split("\n")[0] for part in said.split("\r\x1b[K") if re.search(SHOWN, part)]
    assert drawn, said
    for line in drawn:
        assert len(line) < 44
        assert re.fullmatch(rf"map-\w+: \w+ {SHOWN}, (\d+\.\d/s, )?(ETA (—|\d+ s), )?…", line), line


@pytest.mark.parametrize("progress", [None, True, False])
def test_a_log_has_the_job_and_its_progress(
    progress: bool | None, home: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "orch")

    orch.map(ROWS, "Say {{ text }}", progress=progress)

    told = [record.getMessage() for record in caplog.records if record.name == "orch"]
    assert any(re.match(r"map-\w+: 20 requests", one) for one in told)
    assert (progress is False) == (not any("20 read" in one for one in told)), told
    assert capfd.readouterr() == ("", ""), "nothing is written past the log"
