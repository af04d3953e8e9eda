"""A plug-in that is installed is used, held to the limits of our own readers, and its errors are one document's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support.office import zipped

SAMPLE = Path(__file__).parents[2] / "samples/plugins/orch-vcard"
CARD = "BEGIN:VCARD\nFN:Ada Grün\nORG;TYPE=work:Grün\n  & Sons\nEND:VCARD\n"
BAD = """
import os, sys, time
def read(data, most):
    what = data.decode()
    if what == "crash": os.abort()
    if what == "hang":
        while True: pass
    if what == "wait": time.sleep(3600)
    if what == "fill": return "x" * 10**9 * 9
    if what == "raise": raise KeyError("x")
    if what == "print": print("noise"); sys.stdout.flush()
    if what == "key": return repr(dict(os.environ))
    if what == "halves": return "\\ud83d\\ude00 a\\ud800b", {"people": ["c\\udfff", {"d\\ud800": "e"}]}
    return {"none": None, "number": 7}.get(what, what)
"""
PROGRAM = """
import json, sys
from pathlib import Path
from orchestrator.documents import Document, Readers, read
from orchestrator.core.bounded.process import WorkerLimits
from orchestrator.settings.job_spec import DocumentSource
with Readers(1, WorkerLimits(seconds=1, patience=4)) as readers:
    found = list(read(DocumentSource(path="in"), Path(sys.argv[1]), readers))
print(json.dumps([(one.key, *((one.text, one.digest, one.fields.get("people")) if isinstance(one, Document)
                              else (None, one.code, None))) for one in found]))
"""


STAMPS = """
import sys, time
from pathlib import Path
from orchestrator.documents import Readers, listed
from orchestrator.settings.job_spec import DocumentSource
with Readers(1) as readers:
    for one in listed(DocumentSource(path="in"), Path(sys.argv[1]), time.time_ns() + 10**11, readers):
        print(one.key, one.stamp)
"""


def environment(site: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(site), "OPENAI_API_KEY": "s3cr3t"}


def found_in(base: Path, site: Path) -> dict[str, tuple[str | None, str, int | None]]:
    """Key -> text, digest or code, and a field of the sample's."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(base)], env=environment(site), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return {key.removeprefix("in/"): tuple(rest) for key, *rest in json.loads(done.stdout)}


def stamps_in(base: Path, site: Path) -> str:
    """The files with their stamps, as lines."""
    command = [sys.executable, "-c", STAMPS, str(base)]
    done = subprocess.run(command, env=environment(site), capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample as its pyproject.toml has it installed: its module, and what stands beside that of a package."""
    site = tmp_path_factory.mktemp("site")
    project = tomllib.loads((SAMPLE / "pyproject.toml").read_text())
    for module in project["tool"]["setuptools"]["py-modules"]:
        shutil.copy(SAMPLE / f"{module}.py", site)
    about = project["project"]
    _describe(site, about["name"], about["version"], about["entry-points"])
    return site


@pytest.mark.soak
def test_pip_installs_the_sample(installed: Path, tmp_path: Path) -> None:
    source = shutil.copytree(SAMPLE, tmp_path / "orch-vcard")
    command = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
    subprocess.run([sys.executable, "-m", *command, str(tmp_path / "site"), str(source)], check=True)
    points = [sorted(site.glob("*.dist-info/entry_points.txt")) for site in (installed, tmp_path / "site")]
    ours, pips = ([line for line in one.read_text().splitlines() if line] for [one] in points)
    assert sorted(ours) == sorted(pips)


def _describe(site: Path, name: str, version: str, groups: dict[str, dict[str, str]]) -> None:
    """What an installed package says of itself."""
    folder = site / f"{name.replace('-', '_')}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    lines = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in of.items()) for group, of in groups.items()
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines))


def broken(site: Path, **readers: str) -> Path:
    """A plug-in that does what its documents say."""
    site.mkdir()
    (site / "bad_reader.py").write_text(BAD)
    _describe(site, "bad-reader", "1", {"orch.readers": readers})
    return site


def test_the_sample_reads_and_delivers(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.vcf").write_text(CARD)
    (tmp_path / "in/p.zip").write_bytes(zipped({"b.VCF": CARD, "c.txt": "text"}))
    found = found_in(tmp_path, installed)
    text = "Name: Ada Grün\nCompany: Grün & Sons\n"
    assert {key: (text, people) for key, (text, _, people) in found.items()} == {
        "a.vcf": (text, 1),
        "p.zip#b.VCF": (text, 1),
        "p.zip#c.txt": ("text", None),
    }
    (tmp_path / "orch.toml").write_text(
        f'home = "{tmp_path}/home"\n[reports]\nchannels = {{logbook = {{file = "{tmp_path}/log"}}, no-such = {{}}}}\n'
    )
    program = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from orchestrator.core.errors import OrchError
from orchestrator.daemon.channels import Message, channels
from orchestrator.settings.config import load
from orchestrator.settings.discovery import locate
for channel in channels(load(locate())):
    try:
        channel.send(Message("n", "A night", "b", "t", datetime(2026, 11, 22, 6, 30, tzinfo=UTC)))
    except OrchError as error:
        print(channel.name, error)
"""
    env = {**environment(installed), "ORCH_CONFIG": str(tmp_path / "orch.toml")}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    assert (tmp_path / "log").read_text() == "2026-11-22 06:30 A night\n"
    assert "no-such there is no channel 'no-such' (installed: " in done.stdout
    assert "logbook" in done.stdout.partition("installed: ")[2]


@pytest.mark.long
def test_what_a_plug_in_does_wrong_is_told_of_its_document_alone(tmp_path: Path) -> None:
    site = broken(tmp_path / "site", x="bad_reader:read", y="bad_reader:missing", z="no_such_module:read")
    (tmp_path / "in").mkdir()
    for what in ("crash", "hang", "wait", "fill", "raise", "print", "none", "number", "key", "fine"):
        (tmp_path / f"in/{what}.x").write_text(what)
    (tmp_path / "in/a.y").write_text("a")
    (tmp_path / "in/a.z").write_text("a")
    found = found_in(tmp_path, site)
    codes = {key: code for key, (text, code, _) in found.items() if text is None}
    assert codes == {
        "crash.x": "reader_crashed",
        "hang.x": "time_limit",
        "wait.x": "time_limit",
        "fill.x": "memory_limit",
        "raise.x": "reader_crashed",
        "none.x": "reader_crashed",
        "number.x": "reader_crashed",
        "a.y": "reader_crashed",
        "a.z": "reader_crashed",
    }
    assert found["fine.x"][0] == "fine"
    assert found["print.x"][0] == "print"
    assert "s3cr3t" not in (found["key.x"][0] or "")


def test_halves_of_characters_are_joined_or_replaced(tmp_path: Path) -> None:
    site = broken(tmp_path / "site", x="bad_reader:read")
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.x").write_text("halves")
    (tmp_path / "in/p.zip").write_bytes(zipped({"b.x": "halves"}))
    found = found_in(tmp_path, site)
    told = [(text, people) for text, _, people in found.values()]
    assert told == 2 * [("\U0001f600 a\ufffdb", ["c\ufffd", {"d\ufffd": "e"}])]


@pytest.mark.long
def test_of_an_archive_only_what_a_reader_dies_of_is_lost(tmp_path: Path) -> None:
    site = broken(tmp_path / "site", x="bad_reader:read")
    (tmp_path / "in").mkdir()
    names = ["a.txt", "crash.x", "b.txt", "t.eml", "raise.x", "c.txt"]
    parts = {name: name.partition(".")[0] for name in names}
    parts["t.eml"] = "Subject: x\n\nbody"
    (tmp_path / "in/p.zip").write_bytes(zipped(parts))
    (tmp_path / "in/z.txt").write_text("last")
    found = found_in(tmp_path, site)
    assert [(key.removeprefix("p.zip#"), text or code) for key, (text, code, _) in found.items()] == [
        ("a.txt", "a"),
        ("crash.x", "reader_crashed"),
        ("b.txt", "b"),
        ("t.eml#message", "Subject: x\n\nbody"),
        ("raise.x", "reader_crashed"),
        ("c.txt", "c"),
        ("z.txt", "last"),
    ]


@pytest.mark.long
def test_a_plug_in_takes_the_place_of_our_own_reader_and_its_version_counts(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("fine")
    before = found_in(tmp_path, tmp_path / "empty")["a.txt"]
    site = broken(tmp_path / "site", txt="bad_reader:read")
    first = found_in(tmp_path, site)["a.txt"]
    stamps = [stamps_in(tmp_path, tmp_path / "empty"), stamps_in(tmp_path, site)]
    about = site / "bad_reader-1.dist-info/METADATA"
    about.write_text(about.read_text().replace("Version: 1", "Version: 2"))
    second = found_in(tmp_path, site)["a.txt"]
    stamps.append(stamps_in(tmp_path, site))
    assert len(set(stamps)) == 3, "what another version read is read again"
    assert before == first == second, "the same text is the same document, whoever read it"
    other = tmp_path / "site/other-1.dist-info"
    shutil.copytree(about.parent, other)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: other\nVersion: 1\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        env=environment(site),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Two plug-ins read .txt files: " in done.stderr
