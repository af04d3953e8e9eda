"""Which files a source means: patterns, hidden names, links, folders that cannot be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import documents
from orchestrator.core.errors import InputError
from orchestrator.documents import Document, DocumentProblem, Ignored, UnreadableDocument
from orchestrator.documents.globs import Globs
from orchestrator.documents.ignored import IgnoredReason, told
from orchestrator.settings.job_spec import DocumentSource
from tests.support.documents import read, readers

TREE = (
    "a.txt",
    "a/b.txt",
    "a/c/d.txt",
    "a/c/e.md",
    "a-b/x.txt",
    "B/LICENSE",
    "pkg-1.0.dist-info/licenses/LICENSE.txt",
    "pkg-1.0.dist-info/COPYING",
    ".hidden.txt",
    ".git/config.txt",
    "a/.cache/f.txt",
    "photo.xyz",
)


def make(root: Path, names: tuple[str, ...] = TREE) -> Path:
    for name in names:
        path = root / "docs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"text of {name}", encoding="utf-8")
    return root


def found(base: Path, **settings: object) -> list[str]:
    source = DocumentSource.model_validate({"path": "docs", **settings})
    return [d.key.removeprefix("docs/") for d in read(source, base)]


@pytest.mark.parametrize(
    ("include", "exclude", "expected"),
    [
        (
            [],
            [],
            ["a-b/x.txt", "a.txt", "a/b.txt", "a/c/d.txt", "a/c/e.md", "pkg-1.0.dist-info/licenses/LICENSE.txt"],
        ),
        (["*.txt"], [], ["a.txt"]),
        (["**/*.txt"], ["pkg*"], ["a-b/x.txt", "a.txt", "a/b.txt", "a/c/d.txt"]),
        (["*/*.txt"], [], ["a-b/x.txt", "a/b.txt"]),
        (["a/**"], [], ["a/b.txt", "a/c/d.txt", "a/c/e.md"]),
        (["a/"], [], ["a/b.txt", "a/c/d.txt", "a/c/e.md"]),
        (["a/**/*.txt"], [], ["a/b.txt", "a/c/d.txt"]),
        (["./a/c/?.txt"], [], ["a/c/d.txt"]),
        (["a/c/[de].*"], [], ["a/c/d.txt", "a/c/e.md"]),
        (["a/c/[!e].*"], [], ["a/c/d.txt"]),
        (["**/*.TXT"], ["x"], None),
        (["**/LICENSE"], [], ["B/LICENSE"]),
        (
            ["**/*.dist-info/**/LICENSE*", "**/COPYING"],
            [],
            ["pkg-1.0.dist-info/COPYING", "pkg-1.0.dist-info/licenses/LICENSE.txt"],
        ),
        (["*.txt", "a.*", "**/a.txt"], [], ["a.txt"]),
        ([".*"], [], [".hidden.txt"]),
        ([".git/**"], [], [".git/config.txt"]),
        (["**/.cache/*"], [], ["a/.cache/f.txt"]),
        ([".*", "*.txt"], [".hidden*"], ["a.txt"]),
        ([".*", "a.txt"], ["*en.txt"], ["a.txt"]),
        ([], ["a", "a-b/"], ["a.txt", "pkg-1.0.dist-info/licenses/LICENSE.txt"]),
        ([], ["**/*.txt"], ["a/c/e.md"]),
        ([], ["a/**", "**/x.*", "*-info/**"], ["a.txt"]),
    ],
)
def test_patterns_choose(tmp_path: Path, include: list[str], exclude: list[str], expected: list[str] | None) -> None:
    base = make(tmp_path)
    if expected is None:
        with pytest.raises(InputError, match=r"no documents .*\*\*/\*\.TXT"):
            found(base, include=include, exclude=exclude)
    else:
        assert found(base, include=include, exclude=exclude) == expected


@pytest.mark.parametrize("pattern", ["", "/etc/*", "../x", "a/../b", "~/x", "./"])
@pytest.mark.parametrize("field", ["include", "exclude"])
def test_a_bad_pattern_is_told_at_once(tmp_path: Path, pattern: str, field: str) -> None:
    make(tmp_path)
    with pytest.raises(InputError) as told:
        read(DocumentSource.model_validate({"path": "docs", field: [pattern]}), tmp_path)
    assert told.value.field == field


NAMES = st.lists(st.text(st.sampled_from("ab.x"), min_size=1, max_size=3), min_size=1, max_size=3)
PARTS = st.lists(st.sampled_from(["**", "*", "a", "b*", "?", "*.x", "[ab]", "a.x", "*b"]), min_size=1, max_size=4)


@given(NAMES.filter(lambda parts: not any(p.startswith(".") for p in parts)), PARTS)
def test_patterns_mean_what_pathlib_means(parts: list[str], pattern: list[str]) -> None:
    """Against a plain backtracking reading of the rules, which for files is pathlib's."""

    def matches(names: list[str], wanted: list[str]) -> bool:
        if not wanted:
            return not names
        if wanted[0] == "**":
            return any(matches(names[i:], wanted[1:]) for i in range(len(names) + 1))
        return bool(names) and Path(names[0]).match(wanted[0]) and matches(names[1:], wanted[1:])

    last = [*pattern, "*"] if pattern[-1] == "**" else pattern
    assert Globs(["/".join(pattern)], field="include").match("/".join(parts)) == matches(parts, last)


@given(st.lists(st.lists(st.sampled_from(["a", "b", "a-b", "a.b", "é"]), min_size=1, max_size=3), max_size=12))
def test_keys_come_in_order_and_once(tmp_path_factory: pytest.TempPathFactory, paths: list[list[str]]) -> None:
    base = tmp_path_factory.mktemp("tree")
    make(base, tuple({"/".join([*p[:-1], p[-1] + ".txt"]) for p in paths} | {"z.txt"}))
    keys = found(base)
    assert keys == sorted({"/".join([*p[:-1], p[-1] + ".txt"]) for p in paths} | {"z.txt"})


def test_link_loops_end(tmp_path: Path) -> None:
    base = make(tmp_path, ("a/x.txt", "b/y.txt"))
    (base / "docs/a/up").symlink_to(base / "docs")
    (base / "docs/a/above").symlink_to(base)
    (base / "docs/b/self").symlink_to(".")
    (base / "docs/b/other").symlink_to("../a")
    assert found(base) == ["a/x.txt", "b/y.txt"]


def test_loops_outside_the_root_end(tmp_path: Path) -> None:
    base = make(tmp_path, ("x.txt",))
    for name, other in (("p", "q"), ("q", "p")):
        (base / name).mkdir()
        (base / name / f"{name}.txt").write_text(name)
        (base / name / "link").symlink_to(base / other)
    (base / "docs/out").symlink_to(base / "p")
    assert found(base, follow_links=True) == ["out/link/q.txt", "out/p.txt", "x.txt"]


def test_links_that_lead_to_something_new_are_followed(tmp_path: Path) -> None:
    base = make(tmp_path, ("2024/a.txt", ".store/b.txt"))
    (base / "elsewhere").mkdir()
    (base / "elsewhere/c.txt").write_text("c")
    (base / "docs/archive").symlink_to(base / "elsewhere")
    (base / "docs/data").symlink_to(".store")
    (base / "docs/latest").symlink_to("2024")
    assert found(base, follow_links=True) == ["2024/a.txt", "archive/c.txt", "data/b.txt"]
    assert found(base) == ["2024/a.txt", "data/b.txt"]
    assert found(base, include=["latest/*"]) == ["latest/a.txt"]


def test_a_link_to_a_file_that_is_found_anyway_is_left_out(tmp_path: Path) -> None:
    base = make(tmp_path, ("real.txt", "odd.bin", "old/x.txt"))
    (base / "docs/again.txt").symlink_to("real.txt")
    (base / "docs/other.txt").symlink_to("odd.bin")
    (base / "docs/kept.txt").symlink_to("old/x.txt")
    assert found(base, exclude=["old"]) == ["kept.txt", "other.txt", "real.txt"]


def test_a_dead_link_is_reported(tmp_path: Path) -> None:
    base = make(tmp_path, ("x.txt",))
    (base / "docs/dead.txt").symlink_to("nowhere")
    (base / "docs/loop.txt").symlink_to("loop.txt")
    found = read(DocumentSource(path="docs"), base)
    codes = {d.name: d.code if isinstance(d, UnreadableDocument) else None for d in found}
    assert codes == {"dead.txt": DocumentProblem.UNREADABLE, "loop.txt": DocumentProblem.UNREADABLE, "x.txt": None}


def test_a_file_that_goes_between_listing_and_reading_has_vanished(tmp_path: Path) -> None:
    base = make(tmp_path, ("a.txt", "b.txt", "c/d.txt"))
    stream = read(DocumentSource(path="docs"), base)
    assert isinstance(next(stream), Document)
    (base / "docs/b.txt").unlink()
    (base / "docs/c/d.txt").unlink()
    (base / "docs/c").rmdir()
    rest = {d.key: d.code for d in stream if isinstance(d, UnreadableDocument)}
    assert rest == dict.fromkeys(("docs/b.txt", "docs/c/d.txt"), DocumentProblem.VANISHED)


@pytest.mark.parametrize("name", ["a.txt", "a.html", "a.jsonl", "a.csv", "a.parquet"])
def test_a_file_that_is_gone_when_it_is_opened_has_vanished(tmp_path: Path, name: str) -> None:
    source = DocumentSource(path="docs", text_column="text")
    base = make(tmp_path, (name,))
    (listed,) = documents.listed(source, base, 0, readers())
    (base / "docs" / name).unlink()
    (told,) = next(readers().read([listed.order]))
    assert isinstance(told, UnreadableDocument)
    assert (told.key, told.code) == (f"docs/{name}", DocumentProblem.VANISHED)


def test_a_pipe_put_in_the_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    base = make(tmp_path, ("a.txt", "b.txt"))
    stream = read(DocumentSource(path="docs"), base)
    next(stream)
    (base / "docs/b.txt").unlink()
    os.mkfifo(base / "docs/b.txt")
    (told,) = stream
    assert isinstance(told, UnreadableDocument)
    assert told.code is DocumentProblem.UNREADABLE


def test_names_that_are_not_utf8_give_keys_that_are(tmp_path: Path) -> None:
    base = make(tmp_path, ("x.txt",))
    with open(os.fsencode(base / "docs") + b"/caf\xe9.txt", "w") as file:  # noqa: PTH123
        file.write("odd name")
    (odd,) = (d for d in read(DocumentSource(path="docs"), base) if isinstance(d, Document) and d.name != "x.txt")
    assert odd.key.encode() == b"docs/caf\\udce9.txt"
    assert odd.text == "odd name"


def test_very_deep_folders_are_walked(tmp_path: Path) -> None:
    base = make(tmp_path, ("/".join(["d"] * 600) + "/x.txt",))
    assert found(base) == ["d/" * 600 + "x.txt"]


AS_NOBODY = """
import json, os, sys
from pathlib import Path
# All before the rights are gone: nobody may not see the interpreter's files.
from orchestrator.documents import worker_functions, csv_rows, listed, Readers
from orchestrator.documents.readers import TableRows
from orchestrator.core.errors import InputError
from orchestrator.settings.job_spec import (DocumentSource)
DocumentSource(path="docs")  # imports what it needs while its user may
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
readers = Readers()  # of which no process is started
try:
    documents = []
    for found in listed(DocumentSource(path=sys.argv[2], text_column="text"), Path(sys.argv[1]), 0, readers):
        if isinstance(found.order, TableRows):
            for rows in worker_functions.rows(found.order.table, None, 0):
                documents += map(worker_functions.from_plain, rows)
        else:
            documents += next(readers.read([found.order]))
    print(json.dumps({d.key: getattr(d, "code", "read") for d in documents}))
except InputError as error:
    print(json.dumps(str(error)))
"""


def as_nobody(base: Path, path: str) -> dict[str, str] | str:
    """What a user without rights reads; root sees everything, so it steps down in a process of its own."""
    if os.getuid() != 0:
        pytest.skip("needs root to step down from")
    for folder in (base, *base.parents):
        if folder == Path("/tmp") or folder == Path("/"):
            break
        folder.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, str(base), path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    answer: dict[str, str] | str = json.loads(done.stdout)
    return answer


@pytest.mark.long
def test_what_may_not_be_read_is_reported_and_the_rest_is_read(tmp_path: Path) -> None:
    base = make(tmp_path, ("a/x.txt", "b/y.txt", "c.txt", "d.txt", "e.csv"))
    for name in ("a", "c.txt", "e.csv"):
        (base / "docs" / name).chmod(0)
    try:
        assert as_nobody(base, "docs") == {
            "docs/a": "unreadable",
            "docs/b/y.txt": "read",
            "docs/c.txt": "unreadable",
            "docs/d.txt": "read",
            "docs/e.csv": "unreadable",
        }
        told = as_nobody(base, "docs/a")
        assert isinstance(told, str)
        assert "cannot be listed" in told
        told = as_nobody(base, "docs/a/x.txt")
        assert isinstance(told, str)
        assert "cannot be reached" in told
    finally:
        (base / "docs/a").chmod(0o755)


SECRET = "a secret of the system's or somebody else's"


@pytest.fixture
def around(tmp_path: Path) -> Path:
    """A source's folder, and beside it what is not for it."""
    base = make(tmp_path, ("a.txt", "sub/b.txt"))
    (base / "outside/deep").mkdir(parents=True)
    for name in ("outside/secret.txt", "outside/deep/secret.txt", "docs-2.txt"):
        (base / name).write_text(SECRET)
    return base


OUT = [
    ("link.txt", "../outside/secret.txt"),
    ("link", "../outside"),
    ("link", "../outside/deep"),
    ("link", ".."),
    ("link", "/"),
    ("link.txt", "../docs-2.txt"),  # begins with the folder's own name
    ("link.txt", "/proc/self/environ"),
    ("link.txt", "/etc/passwd"),
    ("link", "/proc"),
    ("link", "/proc/self"),
    ("link", "/proc/self/cwd"),
    ("link", "/proc/self/root"),
    ("link", "/sys/kernel"),
    ("link", "/dev"),
    ("link.txt", "/dev/null"),
    ("sub/link", "../../outside"),
    ("dead.txt", "../outside/nothing.txt"),
]


@pytest.mark.parametrize(("name", "target"), OUT)
@pytest.mark.parametrize("include", [[], ["**/*"], ["link/**", "link*", "**/*.txt", "sub/link/*", "dead*"]])
def test_no_link_leads_out_of_the_folder(around: Path, name: str, target: str, include: list[str]) -> None:
    (around / "docs" / name).symlink_to(target)
    ignored = Ignored()
    found = list(read(DocumentSource(path="docs", include=tuple(include)), around, ignored))
    assert [one.key for one in found] == ["docs/a.txt", "docs/sub/b.txt"]
    assert {one.text for one in found if isinstance(one, Document)} == {"text of a.txt", "text of sub/b.txt"}
    reason = IgnoredReason.SPECIAL if target == "/dev/null" else IgnoredReason.LINK
    assert ignored.counts == {reason: 1}
    assert ignored.names == [f"docs/{name}"]


def test_chains_and_loops_of_links_are_judged_by_their_end(around: Path) -> None:
    docs = around / "docs"
    (around / "hop").symlink_to(docs / "sub")
    (docs / "back").symlink_to("../hop")  # out, and in again
    (docs / "one").symlink_to("two")
    (docs / "two").symlink_to("three")
    (docs / "three").symlink_to("../outside/deep")
    (docs / "x").symlink_to("y")
    (docs / "y").symlink_to("x")
    ignored = Ignored()
    keys = [one.key for one in read(DocumentSource(path="docs"), around, ignored)]
    assert keys == ["docs/a.txt", "docs/sub/b.txt"]
    assert ignored.counts == {IgnoredReason.LINK: 3, IgnoredReason.KIND: 2}


def test_links_are_followed_where_that_is_asked_for_but_never_into_the_system(around: Path) -> None:
    docs = around / "docs"
    for name, target in OUT[6:16]:
        (docs / name.replace("link", f"l{hash(target)}")).symlink_to(target)
    (docs / "c.txt").symlink_to("../outside/secret.txt")
    (docs / "more").symlink_to("../outside/deep")
    ignored = Ignored()
    found = list(read(DocumentSource(path="docs", follow_links=True, include=("*.txt", "more/*")), around, ignored))
    assert SECRET in {one.text for one in found if isinstance(one, Document)}
    assert {"docs/c.txt", "docs/more/secret.txt"} <= {one.key for one in found}
    texts = [one.text for one in found if isinstance(one, Document) and "/l" in one.key]
    assert all("root:" in text for text in texts)  # /etc/passwd is a file as others are
    assert len(texts) == 1
    assert ignored.counts == {IgnoredReason.LINK: 1, IgnoredReason.SPECIAL: 1}


@pytest.mark.parametrize(
    "path", ["/proc", "/proc/self", "/proc/self/environ", "/sys/kernel", "/dev", "/dev/null", "link"]
)
@pytest.mark.parametrize("follow", [False, True])
def test_a_source_is_never_the_systems(around: Path, path: str, follow: bool) -> None:
    (around / "link").symlink_to("/proc/self/environ")
    with pytest.raises(InputError, match="belongs to the system") as told:
        read(DocumentSource(path=path, follow_links=follow), around)
    assert told.value.field == "path"


def test_a_source_may_be_a_link_itself(around: Path) -> None:
    (around / "named").symlink_to("docs")
    (around / "file.txt").symlink_to("outside/secret.txt")
    assert [one.key for one in read(DocumentSource(path="named"), around)] == ["named/a.txt", "named/sub/b.txt"]
    assert [one.key for one in read(DocumentSource(path="file.txt"), around)] == ["file.txt"]


SWAPS = ("a.txt", "sub/b.txt", "sub/c.html", "sub/d.csv")


@pytest.mark.parametrize("name", SWAPS)
@pytest.mark.parametrize("whole_folder", [False, True])
def test_what_becomes_a_link_after_it_was_listed_is_not_read(around: Path, name: str, whole_folder: bool) -> None:
    """Between a look at a file and its opening, the file or a folder above it may be replaced."""
    path = around / "docs" / name
    path.write_text("text\nfine\n")
    outside = around / "outside" / path.name
    outside.write_text(f"text\n{SECRET}\n")
    source = DocumentSource(path="docs", text_column="text")
    (listed,) = (one for one in documents.listed(source, around, 0, readers()) if one.key == f"docs/{name}")
    if whole_folder and path.parent.name == "sub":
        path.parent.rename(around / "moved")
        path.parent.symlink_to("../outside")
    else:
        path.unlink()
        path.symlink_to(outside)
    (told,) = next(readers().read([listed.order]))
    assert isinstance(told, UnreadableDocument)
    assert told.code is DocumentProblem.UNREADABLE
    assert "link" in told.message


SYSTEMS_OWN = ("Thumbs.db", "sub/thumbs.db", "ehthumbs.db", "Desktop.ini", ".DS_Store", "sub/.DS_Store", "._a.txt")


def test_files_that_a_system_keeps_about_a_folder_are_nothing(tmp_path: Path) -> None:
    base = make(tmp_path, ("a.txt", "sub/b.txt", "index.db", *SYSTEMS_OWN))
    with zipfile.ZipFile(base / "docs" / "packed.zip", "w") as packed:
        for name in ("c.txt", *SYSTEMS_OWN, "__MACOSX/._c.txt"):
            packed.writestr(name, "text")
    ignored = Ignored(lists=True)
    every = DocumentSource(path="docs", include=("**/*", "**/.*"))
    expected = ["docs/a.txt", "docs/index.db", "docs/packed.zip#c.txt", "docs/sub/b.txt"]
    assert [one.key for one in read(every, base, ignored)] == expected
    assert (told(ignored.to_json()), ignored.listed) == ("", [])
    assert [one.key for one in read(DocumentSource(path="docs"), base, ignored)] == [
        "docs/a.txt",
        "docs/packed.zip#c.txt",
        "docs/sub/b.txt",
    ]
    assert told(ignored.to_json()) == "1 of other kinds (.db 1)"


def test_locks_and_kinds_that_are_not_read_are_counted(tmp_path: Path) -> None:
    names = (
        "a.txt",
        "~$a.docx",
        "sub/~$b.txt",
        ".~lock.c.odt#",
        "x.PNG",
        "y.png",
        "README",
        "disk.img.gz",
        ".git/x.png",
    )
    base = make(tmp_path, names)
    os.mkfifo(base / "docs/pipe.txt")
    ignored = Ignored()
    assert [one.key for one in read(DocumentSource(path="docs"), base, ignored)] == ["docs/a.txt"]
    assert ignored.to_json() == {
        "read": 0,
        "in_part": 0,
        "unreadable": {},
        "total": 7,
        "kinds": {".png": 2, "": 1, ".gz": 1},
        "lock_files": 2,
        "links": 0,
        "special_files": 1,
        "secrets": 0,
        "first": ["docs/pipe.txt"],
    }
    assert told(ignored.to_json()) == (
        "2 .png not read (`render` would), 2 of other kinds (no ending 1, .gz 1), 2 lock files, "
        "1 pipe, socket or device"
    )
    # A pattern of the user's own chooses kinds, but no locks.
    chosen = [one.key for one in read(DocumentSource(path="docs", include=("**/*", "**/.*")), base)]
    assert "docs/README" in chosen
    assert not [key for key in chosen if "~" in key]


def test_a_folder_of_nothing_but_what_is_not_read_says_so(tmp_path: Path) -> None:
    base = make(tmp_path, ("a.png", "b.png"))
    (base / "docs/c.txt").symlink_to("/etc/passwd")
    with pytest.raises(InputError, match="no documents") as error:
        found(base)
    assert error.value.hint is not None
    assert (
        "files that are not read: 2 .png not read (`render` would), 1 link out of the folder; `follow_links: true`"
        in error.value.hint
    )


def test_kinds_are_counted_in_bounded_space() -> None:
    ignored = Ignored()
    for i in range(1000):
        ignored.add(IgnoredReason.KIND, f"docs/a.{i}", f".{i}")
        ignored.add(IgnoredReason.LINK, f"docs/{i}", "")
    counted = ignored.to_json()
    assert len(counted["kinds"]) <= 31
    assert counted["kinds"]["other"] == 970
    assert (counted["links"], len(counted["first"]), counted["total"]) == (1000, 20, 2000)


def test_a_file_that_lies_very_deep_has_a_key_that_fits_a_database(tmp_path: Path) -> None:
    folder = "ä" * 100
    base = make(tmp_path, (f"{folder}/" * 12 + "a.txt", f"{folder}/" * 12 + "b.txt"))
    keys = [one.key for one in read(DocumentSource(path="docs"), base)]
    assert len(set(keys)) == 2
    assert all(len(key.encode()) <= 2000 for key in keys)
