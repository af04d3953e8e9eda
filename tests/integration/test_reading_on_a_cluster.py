"""Documents read on a Ray cluster by the real child and worker processes; Ray alone is none (`make ray` has one)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.bounded.process import WorkerLimits
from orchestrator.core.errors import InputError, JobFilesError
from orchestrator.core.interrupts import Interrupted
from orchestrator.documents import Document, DocumentProblem, Readers, UnreadableDocument, sources
from orchestrator.ray.reading_pool import Cluster, ClusterPool
from orchestrator.settings.config import ReadingSettings, parse
from orchestrator.settings.discovery import Place
from orchestrator.settings.job_spec import DocumentSource
from tests.support.fakecluster import fake_cluster, losses

SOURCE = DocumentSource.model_validate({"path": ".", "text_column": "text"})


def letters(folder: Path, count: int = 30) -> Path:
    """Pages that go to the cluster, with what does not between them: texts and a table."""
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:03}.html").write_text(f"<title>T{number}</title><p>Letter {number}")
    (folder / "005.txt").write_text("plain")
    (folder / "006.txt").write_bytes("Grüße aus Köln, und ein schönes Wochenende".encode("latin-1"))
    (folder / "007.csv").write_text("text\nin\nrows\n")
    (folder / "008.pdf").write_bytes(b"%PDF-1.7 is none")
    (folder / "009.html").write_bytes(b"<p>" + b"x" * 3_000_000)
    return folder


def read(folder: Path, **given: Any) -> list[Document | UnreadableDocument]:
    with Readers.of(ReadingSettings.model_validate(given)) as readers:
        return list(sources.read(SOURCE, folder, readers))


def on_cluster(python: Path, **more: Any) -> dict[str, Any]:
    return {"pool": "ray", "ray_python": str(python), "address": "10.0.0.1:6379", **more}


@pytest.mark.long
def test_the_documents_are_those_of_this_machine_whatever_nodes_are_lost(tmp_path: Path) -> None:
    folder = letters(tmp_path / "letters")
    (folder / "003.html").write_text("<p>UNLUCKY")
    (folder / "020.html").write_text("<p>POISON")
    cluster = tmp_path / "cluster"
    found = read(folder, **on_cluster(fake_cluster(cluster)))
    here = read(folder)
    bad = [number for number, one in enumerate(here) if one.key.endswith("020.html")]
    assert found[: bad[0]] == here[: bad[0]]
    assert found[bad[0] + 1 :] == here[bad[0] + 1 :]
    poisonous = found[bad[0]]
    assert isinstance(poisonous, UnreadableDocument)
    assert poisonous.code is DocumentProblem.READER_CRASHED
    assert "The reader failed on it (on the cluster: NodeDiedError)" in poisonous.message
    assert sorted(losses(cluster)) == ["POISON", "POISON", "UNLUCKY"]
    assert (cluster / "address").read_text() == "10.0.0.1:6379"


@pytest.mark.long
def test_the_limits_hold_on_the_node(tmp_path: Path) -> None:
    folder = letters(tmp_path / "letters", 0)
    limits = WorkerLimits(memory=200_000_000, seconds=7, value=100_000)
    (folder / "z.html").write_text("<p>Dear Zoe")
    pool = ClusterPool(Cluster(fake_cluster(tmp_path / "cluster"), "auto"), None, limits)
    with Readers(1, limits, cluster=pool) as readers:
        found = {one.key.rpartition("/")[2]: one for one in sources.read(SOURCE, folder, readers)}
    large = found["009.html"]
    assert isinstance(large, UnreadableDocument)
    assert large.message == "Its text has more than 100,000 bytes; split or exclude it."
    assert isinstance(found["z.html"], Document)


@pytest.mark.thinned(2)
@pytest.mark.parametrize(
    ("cluster", "told"),
    [
        ({"problem": "nobody\nanswers"}, "there is no Ray cluster at 10.0.0.1:6379: nobody"),
        ({"version": "0.0.1"}, "has orch-batch 0.0.1, and this machine"),
    ],
)
def test_a_cluster_that_cannot_be_used_is_told(tmp_path: Path, cluster: dict[str, Any], told: str) -> None:
    python = fake_cluster(tmp_path / "cluster", **cluster)
    with pytest.raises(JobFilesError, match=told) as refused:
        read(letters(tmp_path / "letters", 1), **on_cluster(python))
    assert "`orch help ray`" in str(refused.value.hint)


def test_a_python_that_is_none_or_has_no_ray_is_told(tmp_path: Path) -> None:
    folder = letters(tmp_path / "letters", 1)
    with pytest.raises(JobFilesError, match="cannot be started: No such file"):
        read(folder, **on_cluster(tmp_path / "none"))
    python = fake_cluster(tmp_path / "cluster")
    (tmp_path / "cluster" / "ray" / "__init__.py").write_text("raise ModuleNotFoundError(\"No module named 'ray'\")")
    with pytest.raises(JobFilesError, match="ended with code 1: ModuleNotFoundError: No module named 'ray'"):
        read(folder, **on_cluster(python))


def test_a_cluster_that_does_not_answer_is_told(tmp_path: Path) -> None:
    cluster = Cluster(fake_cluster(tmp_path / "cluster", problem="silent"), "10.0.0.1:6379", patience=0.1)
    pool = ClusterPool(cluster, None, WorkerLimits())
    with (
        Readers(1, cluster=pool) as readers,
        pytest.raises(JobFilesError, match=r"no cluster answers at 10.0.0.1:6379"),
    ):
        list(sources.read(SOURCE, letters(tmp_path / "letters", 1), readers))


def test_reading_ends_when_it_is_asked_to(tmp_path: Path) -> None:
    def asked() -> None:
        raise Interrupted

    cluster = Cluster(fake_cluster(tmp_path / "cluster"), "auto")
    pool = ClusterPool(cluster, None, WorkerLimits(), asked)
    with Readers(1, cluster=pool) as readers, pytest.raises(Interrupted):
        list(sources.read(SOURCE, letters(tmp_path / "letters", 1), readers))


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('pool = "ray"', 'pool = "ray" needs the cluster\'s own Python'),
        ('address = "auto"', 'ray_python and address are for `pool = "ray"`'),
        ('pool = "dask"', "pool"),
    ],
)
def test_settings_that_do_not_go_together_are_told(tmp_path: Path, said: str, told: str) -> None:
    path = tmp_path / "orch.toml"
    with pytest.raises(InputError, match=told):
        parse(Place(path, tmp_path, "", 1.0), f"[documents]\n{said}\n")
