"""Documents read by the nodes of a real Ray cluster on this machine (`make ray`), one of which is lost.

ORCH_SOAK_RAY_DOCUMENTS sets how many.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.documents import Document, Readers, sources
from orchestrator.settings.config import ReadingSettings
from orchestrator.settings.job_spec import DocumentSource
from tests.support.process import wait_until
from tests.support.raycluster import PYTHON, Cluster, below, cluster, command_of, needs_ray

pytestmark = [pytest.mark.soak, needs_ray]

DOCUMENTS = int(os.environ.get("ORCH_SOAK_RAY_DOCUMENTS", "200"))


def letters(folder: Path) -> DocumentSource:
    """Pages of 100 kB, of a megabyte behind the first third; one that is none, and one of another shape."""
    folder.mkdir()
    for number in range(DOCUMENTS):
        size = 40_000 if 0 <= number - DOCUMENTS // 3 < 20 else 4_000
        (folder / f"{number:05}.html").write_text(f"<title>T{number}</title>" + f"<p>Letter <b>{number}</b>" * size)
    (folder / "00007.html").write_bytes(b"<p>" + b"\0" * 100)
    (folder / "00011.html").write_bytes(b"<p>" + b"<b>x" * 300_000)
    return DocumentSource.model_validate({"path": str(folder)})


def is_reading(node: subprocess.Popen[bytes]) -> bool:
    return any(command_of(pid).startswith("ray::read") for pid in below(node.pid))


def lose(found: Cluster, nodes: list[subprocess.Popen[bytes]]) -> None:
    """End a node while both are at a document."""
    wait_until(lambda: all(map(is_reading, nodes)), 60)
    found.kill_node(nodes[0])


def test_a_node_is_lost_and_every_document_is_read_once_in_order(tmp_path: Path) -> None:
    source = letters(tmp_path / "letters")
    started = time.monotonic()
    with Readers.of(ReadingSettings(workers=2)) as readers:
        here = list(sources.read(source, tmp_path, readers))
    local = time.monotonic() - started
    with cluster(2) as (found, nodes):
        settings = ReadingSettings(pool="ray", ray_python=str(PYTHON), address=found.address)
        with Readers.of(settings) as readers:
            reading = sources.read(source, tmp_path, readers)
            there = [next(reading) for _ in range(DOCUMENTS // 3)]
            started = time.monotonic()
            with ThreadPoolExecutor(1) as beside:  # reading goes on meanwhile
                lost = beside.submit(lose, found, nodes)
                there += reading
            lost.result()
            rest = time.monotonic() - started
            [child] = (pid for pid in below(os.getpid()) if "ray/reading_child.py" in command_of(pid))
            again = Path(f"/proc/{child}/fd/2").read_text().count("1. time:")
        wait_until(lambda: not Path(f"/proc/{child}").exists())
    sys.stderr.write(
        f"{len(here)} documents, a node of two lost after a third: {again} were read again, and the rest "
        f"took {rest:.1f} s (all of them here: {local:.1f} s)\n"
    )
    assert there == here
    assert sum(isinstance(one, Document) for one in here) >= DOCUMENTS - 2
    assert again >= 1
