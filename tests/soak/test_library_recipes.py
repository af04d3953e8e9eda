"""The recipes for other libraries, as they stand on their page; `make libraries` installs them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import write_config
from tests.support.library import use_home
from tests.support.process import ROOT, Upstream

PAGE = ROOT / "docs/how-to/libraries.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
LIBRARIES = ("langchain_core", "dspy", "pydantic_ai")


@pytest.mark.soak
@pytest.mark.parametrize(("library", "block"), [*zip(LIBRARIES, BLOCKS, strict=True)], ids=LIBRARIES)
@pytest.mark.filterwarnings("default")
def test_a_recipe_runs_as_it_stands(
    library: str, block: str, orch_home: Path, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(library)
    write_config(orch_home, [upstream.base_url], extra='[models]\nsmall = "some-model"\n')
    use_home(orch_home, monkeypatch)
    names: dict[str, Any] = {"__name__": "recipe"}

    exec(compile(block, f"{library} of {PAGE.name}", "exec", dont_inherit=True), names)

    assert library in block
    assert len(upstream.requests()) == 2
    if "answers" in names:
        assert [answer.choices[0].message.content[:5] for answer in names["answers"]] == ["echo:"] * 2
    else:
        assert [row["is_friendly"] for row in names["table"]] == [True, True]
