"""Documents from, and results to, storages far away, each a real server (`make storages`); and vectors in LanceDB."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import write_config
from tests.support.farstorage import KINDS, Far, needs_storages, plain_env
from tests.support.process import ROOT, Upstream

pytestmark = [pytest.mark.soak, needs_storages]

TABLE = "id,text\n" + "".join(f"{number},row {number}\n" for number in range(3))
MANY = 60


@pytest.fixture(params=list(KINDS))
def far(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Far]:
    folder = tmp_path / "far"
    folder.mkdir()
    with KINDS[request.param](folder) as far:
        yield far


@pytest.fixture
def home(orch_home: Path, upstream: Upstream) -> Path:
    write_config(orch_home, [upstream.base_url])
    return orch_home


def job(home: Path, documents: dict[str, Any], **fields: Any) -> str:
    task = {"id": "gist", "model": "small", "prompt": "What is it about?", "max_tokens": 8}
    spec = {"name": "far", "documents": documents, "models": {"small": {"local": "m"}}, "tasks": [task], **fields}
    (home / "job.yaml").write_text(json.dumps(spec))
    return "job.yaml"


def rows(text: str) -> list[str]:
    found = [json.loads(line) for line in text.splitlines()]
    assert {row["status"] for row in found} == {"succeeded"}
    return [row["document"] for row in found]


def test_documents_and_results_of_a_storage(far: Far, home: Path) -> None:
    far.write(docs__a_txt="a letter", docs__sub__b_txt="b", docs__sub__rows_csv=TABLE, docs__logo_svg="<svg/>")
    far.write(docs__private__x_txt="not this")
    documents = {"path": f"{far.address}/docs", "exclude": "private", "text_column": "text", "id_column": "id"}
    result = f"{far.address}/out/new/rows.jsonl"
    spec = job(home, documents, output={"path": result})

    first = far.orch(home, "run", spec, "-o", "first.jsonl")
    assert first.returncode == 0, first.stderr
    assert "1 of other kinds (.svg 1)" in first.stderr
    names = ["a.txt", "sub/b.txt", *(f"sub/rows.csv#{number}" for number in range(3))]
    assert rows((home / "first.jsonl").read_text()) == [f"{far.address}/docs/{name}" for name in names]
    assert {name for name in far.reads() if name.startswith("docs")} == {
        "docs/a.txt", "docs/sub/b.txt", "docs/sub/rows.csv",
    }  # fmt: skip

    again = far.orch(home, "run", spec)
    assert "nothing changed" in again.stderr, again.stderr
    assert not [name for name in far.reads() if name.startswith("docs")], "what is unchanged is not downloaded"

    far.write(docs__a_txt=None, docs__sub__b_txt="another letter b", docs__sub__d_txt="d")
    changed = far.orch(home, "run", spec, "-o", "changed.jsonl")
    assert changed.returncode == 0, changed.stderr
    expected = ["sub/b.txt", "sub/d.txt", *names[2:]]
    assert rows((home / "changed.jsonl").read_text()) == [f"{far.address}/docs/{name}" for name in expected]
    assert {name for name in far.reads() if name.startswith("docs")} == {"docs/sub/b.txt", "docs/sub/d.txt"}
    told = "the job's second delivery takes the place of its first"
    assert far.text(result) == (home / "changed.jsonl").read_text(), told
    if far.folder is not None:
        assert [path.name for path in (far.folder / "out/new").iterdir()] == ["rows.jsonl"], "and nothing beside it"


def test_many_documents_at_once(far: Far, home: Path) -> None:
    far.write(**{f"docs__{number:03}_txt": f"letter {number}" for number in range(MANY)})
    place = f"{far.address}/all.jsonl"
    done = far.orch(home, "run", job(home, {"path": f"{far.address}/docs"}), "-o", place)
    assert done.returncode == 0, done.stderr
    assert len(rows(far.text(place))) == MANY
    again = far.orch(home, "fetch", "far", "-o", place)
    assert again.returncode == 0, "it is ours, whoever has read it"


def test_what_is_not_there_and_who_may_not_read(far: Far, home: Path) -> None:
    far.write(docs__a_txt="a")
    for path in ("nothing", "docs/none.txt"):
        refused = far.orch(home, "run", job(home, {"path": f"{far.address}/{path}"}))
        assert (refused.returncode, "There is nothing at" in refused.stderr) == (2, True), refused.stderr
    if far.wrong_keys:
        refused = far.orch(home, "run", job(home, {"path": f"{far.address}/docs"}), **far.wrong_keys)
        assert (refused.returncode, "may not be read" in refused.stderr) == (2, True), refused.stderr
        assert "Traceback" not in refused.stderr


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Far]:
    """The SFTP server: what the others leave to their protocol is ours there."""
    folder = tmp_path / "far"
    folder.mkdir()
    with KINDS["sftp"](folder) as far:
        yield far


def test_an_sftp_server_that_is_not_known_is_not_used(server: Far, home: Path) -> None:
    server.write(docs__a_txt="a")
    known = Path(server.env["HOME"]) / ".ssh/known_hosts"
    theirs = known.read_text()
    spec = job(home, {"path": f"{server.address}/docs"})
    client = (known.parent / "id_ed25519.pub").read_text()
    for keys, told in (
        ("", "is not in ~/.ssh/known_hosts"),
        (f"{theirs.split()[0]} {client}", "does not have the host key"),
    ):
        known.write_text(keys)
        refused = server.orch(home, "run", spec)
        assert (refused.returncode, told in refused.stderr) == (2, True), refused.stderr
    refused = server.orch(home, "run", job(home, {"path": str(home)}, output={"path": f"{server.address}/o.jsonl"}))
    assert "does not have the host key" in refused.stderr
    assert not server.reads()
    assert not (server.folder or home).joinpath("o.jsonl").exists()


def test_links_and_pipes_of_an_sftp_server(server: Far, home: Path) -> None:
    server.write(docs__a_txt="a letter", secret_txt="not yours")
    assert server.folder is not None
    (server.folder / "docs/link.txt").symlink_to("../secret.txt")
    os.mkfifo(server.folder / "docs/pipe.txt")
    done = server.orch(home, "run", job(home, {"path": f"{server.address}/docs"}), "-o", "out.jsonl")
    assert done.returncode == 0, done.stderr
    assert rows((home / "out.jsonl").read_text()) == [f"{server.address}/docs/a.txt"]
    assert re.search(r"; 1 link out of the folder, 1 ", done.stderr), done.stderr
    followed = server.orch(
        home, "run", job(home, {"path": f"{server.address}/docs", "follow_links": True}), "-o", "b"
    )
    assert followed.returncode == 0, followed.stderr
    assert rows((home / "b").read_text()) == [f"{server.address}/docs/{name}.txt" for name in ("a", "link")]


def test_a_connection_that_was_lost_is_made_anew(server: Far) -> None:
    server.write(docs__a_txt="a letter")
    assert server.run(LOST, f"{server.address}/docs").split() == ["/docs/a.txt", "/docs/a.txt"]


def test_a_server_that_is_silent_counts_as_gone(server: Far) -> None:
    server.write(docs__a_txt="a letter")
    try:
        assert server.run(SILENT, f"{server.address}/docs", str(server.pid)).split() == [
            "/docs/a.txt",
            "gone",
            "gone",
        ]
    finally:
        os.kill(server.pid, signal.SIGCONT)


def test_lancedb_takes_our_vectors(home: Path) -> None:
    folder = home / "letters"
    folder.mkdir()
    for number in range(20):
        (folder / f"{number}.txt").write_text(f"letter {number}")
    spec = {
        "name": "vectors", "documents": "letters", "models": {"small": {"local": "m"}},
        "tasks": [{"id": "vec", "kind": "embedding", "model": "small"}],
        "output": {"path": "night.parquet", "format": "parquet"},
    }  # fmt: skip
    (home / "job.yaml").write_text(json.dumps(spec))
    here = Far("", plain_env(), home / "none", re.compile(""))
    done = here.orch(home, "run", "job.yaml")
    assert done.returncode == 0, done.stderr
    page = (ROOT / "docs/how-to/vectors-and-labels.md").read_text()
    shown = next(block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "lancedb" in block)
    found = json.loads(here.run(LANCE, str(home), shown))
    assert found == {"is_vector": True, "rows": 20, "nearest": found["asked"], "asked": found["asked"]}


LANCE = """
import json, os, sys
import lancedb, pyarrow, pyarrow.parquet
os.chdir(sys.argv[1])
first = pyarrow.parquet.read_table("night.parquet").to_pylist()[7]
query = first["vec.vector"]
exec(sys.argv[2])
print(json.dumps({
    "is_vector": pyarrow.types.is_fixed_size_list(letters.schema.field("vec_vector").type),
    "rows": letters.count_rows(),
    "nearest": letters.search(query, vector_column_name="vec_vector").limit(1).to_list()[0]["document"],
    "asked": first["document"],
}))
"""

LOST = """
import sys
from orchestrator.core import storages
storage, path = storages.opened(sys.argv[1])
for _ in range(2):
    print(*storage.ls(path))
    storage.client.get_transport().close()
"""

SILENT = """
import os, signal, sys
from orchestrator.core import sftp, storages
sftp.SILENT_SECONDS = sftp.CONNECT_SECONDS = 1
storage, path = storages.opened(sys.argv[1])
print(*storage.ls(path))
os.kill(int(sys.argv[2]), signal.SIGSTOP)
for ask in (lambda: storage.ls(path), lambda: storages.opened(sys.argv[1])):
    try:
        ask()
    except (OSError, sftp.paramiko.SSHException):
        print("gone")
"""
