"""Speed and memory: measured in processes of their own, with room for a slow machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

READ = r"""
import json, re, sys
from pathlib import Path
from orchestrator.documents import Document, read
from orchestrator.settings.job_spec import (DocumentSource)
counts = {}
for document in read(DocumentSource.model_validate_json(sys.argv[2]), Path(sys.argv[1])):
    kind = "read" if isinstance(document, Document) else str(document.code)
    counts[kind] = counts.get(kind, 0) + 1
# Not ru_maxrss: a process inherits that from the one that started it.
peak = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) / 1024
print(json.dumps({"counts": counts, "peak_mib": peak}))
"""


def measured(base: Path, **source: Any) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", READ, str(base), json.dumps(source)], capture_output=True, text=True, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout)
    sys.stderr.write(f"{result}\n")  # shown by pytest when a test fails, or with -s
    return result


def test_importing_the_package_loads_no_reader() -> None:
    code = "import sys, orchestrator.documents; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {
        "pyarrow",
        "docx",
        "lxml",
        "pypdfium2",
        "selectolax",
        "chardet",
        "email.message",
        "tarfile",
        "csv",
        "pydantic",
    }
    assert heavy.isdisjoint(done.stdout.split())


pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to measure memory")


MANY = 9_000
"""Lines of 10 kB each: more than the memory that reading them may take."""


@pytest.mark.long
def test_a_large_jsonl_stays_out_of_memory(tmp_path: Path) -> None:
    line = json.dumps({"id": "x", "text": "word " * 2000}).encode() + b"\n"
    with (tmp_path / "t.jsonl").open("wb") as file:
        file.writelines(line for _ in range(MANY))
        file.write(b'{"text":"' + b"x" * 200_000_000 + b'"}\n')
    result = measured(tmp_path, path="t.jsonl", text_column="text", max_bytes=50_000_000)
    assert result["counts"] == {"read": MANY, "too_large": 1}
    assert result["peak_mib"] < 150


@pytest.mark.long
def test_a_csv_with_an_open_quote_stays_out_of_memory(tmp_path: Path) -> None:
    with (tmp_path / "t.csv").open("wb") as file:
        file.write(b'text,id\nfine,1\n"open,2\n')
        file.writelines(b"words and words and words,3\n" * 1000 for _ in range(3000))
    result = measured(tmp_path, path="t.csv", text_column="text", max_bytes=1_000_000)
    assert result["counts"] == {"read": 1, "too_large": 1}
    assert result["peak_mib"] < 150


@pytest.mark.soak
def test_one_large_row_group_stays_out_of_memory(tmp_path: Path) -> None:
    texts = pa.array([f"{i} " * 300 for i in range(150_000)])
    pq.write_table(pa.table({"text": texts}), tmp_path / "t.parquet", row_group_size=150_000, compression="none")
    result = measured(tmp_path, path="t.parquet", text_column="text")
    assert result["counts"] == {"read": 150_000}
    assert result["peak_mib"] < 250  # pyarrow itself takes 70


@pytest.mark.slow
def test_many_files_take_little_memory(tmp_path: Path) -> None:
    for folder in range(20):
        (tmp_path / f"docs/{folder:02}").mkdir(parents=True)
        for i in range(200):
            (tmp_path / f"docs/{folder:02}/{i:03}.txt").write_text("A short document. " * 900)
    result = measured(tmp_path, path="docs")
    assert result["counts"] == {"read": 4000}
    assert result["peak_mib"] < 100
