"""Without the extra for Parquet, whoever asks for it is told what to install, before anything is read or written."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest

from orchestrator.core.errors import UsageError
from orchestrator.documents import sources
from orchestrator.documents.readers import Readers
from orchestrator.documents.types import UnreadableDocument
from orchestrator.pipeline.finish import outputs
from orchestrator.settings.job_spec import DocumentSource, Output
from tests.support.process import ROOT

INSTALL = "pip install 'orch-batch[parquet]'; in a checkout: pip install '.[parquet]'"


@pytest.fixture(autouse=True)
def without_pyarrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)


def read(folder: Path, **settings: str) -> list[object]:
    source = DocumentSource.model_validate({"path": ".", **settings})
    with Readers(1) as readers:
        return list(sources.read(source, folder, readers))


@pytest.mark.parametrize("name", ["rows.parquet", "rows.pq", "ROWS.PARQUET"])
def test_a_table_that_nothing_here_reads_stops_the_run(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PAR1")
    (tmp_path / "a.txt").write_text("text", encoding="utf-8")
    with pytest.raises(UsageError, match=f"{name}: Parquet needs the extra `parquet`") as refused:
        read(tmp_path, text_column="body")
    assert refused.value.hint == INSTALL


@pytest.mark.slow
def test_a_table_that_is_not_to_be_read_needs_nothing(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    [found] = read(tmp_path)
    assert isinstance(found, UnreadableDocument)
    assert "text_column" in found.message


def test_an_output_that_nothing_here_writes_is_refused_at_once(tmp_path: Path) -> None:
    wanted = Output.model_validate({"path": "out.parquet", "format": "parquet"})
    with pytest.raises(UsageError, match="output: Parquet needs the extra `parquet`") as refused:
        outputs.check(wanted)
    assert refused.value.hint == INSTALL
    outputs.check(Output.model_validate({"path": "out.csv", "format": "csv"}))
    with pytest.raises(UsageError, match="Parquet needs the extra `parquet`"):
        outputs.write(tmp_path / "out.parquet", "parquet", None, [])  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_every_hint_names_an_extra_there_is_and_has_one_form() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"].keys()
    sources = {path.relative_to(ROOT): path.read_text() for path in (ROOT / "orchestrator").rglob("*.py")}
    written_out = {str(path) for path, text in sources.items() if "orch-batch[" in text}
    assert written_out == {"orchestrator/core/extras.py"}, "the others call install_line"
    named = set()
    for text in sources.values():
        named |= set(re.findall(r"install_line\(['\"](\w+)['\"]\)|needs the extra `(\w+)`", text))
    assert {name for pair in named for name in pair if name} <= extras
