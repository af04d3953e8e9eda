"""Keys, names, fields, samples, and what is told when a source gives nothing."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import InputError
from orchestrator.documents import Document, files, survey
from orchestrator.pipeline.selection import Scope
from orchestrator.settings.job_spec import DocumentSource
from tests.support.documents import fields_of, read, readers


def keys(base: Path, path: str, **settings: object) -> list[str]:
    return [d.key for d in read(DocumentSource.model_validate({"path": path, **settings}), base)]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    (tmp_path / "docs/sub").mkdir(parents=True)
    (tmp_path / "docs/a.txt").write_text("one")
    (tmp_path / "docs/sub/b.tar.md").write_text("two")
    return tmp_path


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("docs", ["docs/a.txt", "docs/sub/b.tar.md"]),
        ("docs/", ["docs/a.txt", "docs/sub/b.tar.md"]),
        ("./docs", ["./docs/a.txt", "./docs/sub/b.tar.md"]),
        ("docs/../docs/sub", ["docs/../docs/sub/b.tar.md"]),
        ("docs/a.txt", ["docs/a.txt"]),
        (".", ["./docs/a.txt", "./docs/sub/b.tar.md"]),
    ],
)
def test_keys_begin_with_the_path_as_written(base: Path, path: str, expected: list[str]) -> None:
    assert keys(base, path) == expected


def test_absolute_and_home_paths(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(base))
    assert keys(Path("/nowhere"), f"{base}/docs/sub") == [f"{base}/docs/sub/b.tar.md"]
    assert keys(Path("/nowhere"), "~/docs/sub") == ["~/docs/sub/b.tar.md"]


MIXED = {
    "utf-8.txt": "Grüße",
    "utf-16.txt": "Grüße",
    "dos/cp850.txt": "Grüße",
    "dos/deep/cp850.txt": "Größe",
    "old.txt": "naïve",
}


def test_each_file_of_a_mixed_folder_is_read_in_its_own_encoding(tmp_path: Path) -> None:
    written = {"dos": "cp850", "utf-16.txt": "utf-16", "old.txt": "cp1252"}
    for name, text in MIXED.items():
        path = tmp_path / "mixed" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode(written.get(name.partition("/")[0], "utf-8")))
    for encoding in (
        {"dos/**/*": "cp850", "**/*": ["shift_jis", "cp1252"]},
        {"dos/**/*": "cp850", "*.txt": "cp1252"},
    ):
        source = DocumentSource.model_validate({"path": "mixed", "encoding": encoding})
        found = {one.key.removeprefix("mixed/"): one for one in read(source, tmp_path)}
        assert {key: one.text for key, one in found.items() if isinstance(one, Document)} == MIXED


def test_an_encoding_by_name_that_is_none_is_refused(base: Path) -> None:
    for encoding, field in ({"**/*": "cp0"}, "encoding"), ({"/abs": "cp850"}, "encoding"):
        with pytest.raises(InputError) as raised:
            keys(base, "docs", encoding=encoding)
        assert raised.value.field == field


def test_a_file_has_its_fields(base: Path) -> None:
    source = DocumentSource(path="docs", include=("sub/*",))
    (document,) = read(source, base)
    assert document == Document(
        key="docs/sub/b.tar.md",
        name="b.tar.md",
        text="two",
        digest=hashlib.sha256(b"two").hexdigest(),
        size=3,
        fields={
            "name": "b.tar.md",
            "path": "sub/b.tar.md",
            "stem": "b.tar",
            "suffix": ".md",
            "folder": "sub",
            "size": 3,
        },
    )
    assert isinstance(document, Document)
    assert fields_of(source, base) == set(document.fields)


@given(st.text(st.sampled_from(".ab"), min_size=1, max_size=6).filter(lambda name: name not in (".", "..")))
def test_names_are_split_as_pathlib_splits_them(name: str) -> None:
    path = Path(name)
    if not name.endswith("."):  # on which versions of Python differ
        assert files.split_name(name) == (path.stem, path.suffix)
    stem, suffix = files.split_name(name)
    assert stem + suffix == name


def test_a_missing_path_is_told_at_once(base: Path) -> None:
    for path in ("nothing", "docs/a.txt/x"):
        with pytest.raises(InputError, match="no file or folder") as told:
            read(DocumentSource(path=path), base)
        assert told.value.field == "path"


@pytest.mark.parametrize("path", ["", " ", "a\0b"])
def test_a_path_that_is_none_is_told_at_once(base: Path, path: str) -> None:
    with pytest.raises(InputError) as told:
        read(DocumentSource(path=path), base)
    assert told.value.field == "path"


def test_a_pipe_is_no_source(base: Path) -> None:
    os.mkfifo(base / "pipe")
    with pytest.raises(InputError, match="neither a file nor a folder"):
        read(DocumentSource(path="pipe"), base)


def test_patterns_on_a_lone_file_are_a_mistake(base: Path) -> None:
    with pytest.raises(InputError, match="is a file"):
        read(DocumentSource(path="docs/a.txt", include=("*",)), base)


def test_nothing_found_is_told_with_what_was_looked_for(base: Path) -> None:
    (base / "empty").mkdir()
    with pytest.raises(InputError, match=r"files ending in \.txt"):
        keys(base, "empty")
    with pytest.raises(InputError, match=r"\*\.pdf or \*\.x, leaving out b") as told:
        keys(base, "docs", include=["*.pdf", "*.x"], exclude=["b"])
    assert told.value.hint is None
    with pytest.raises(InputError) as told:
        keys(base, "docs", include=["*.{txt,md}"])
    assert told.value.hint is not None
    assert "braces" in told.value.hint


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("many")
    (base / "docs").mkdir()
    for i in range(60):
        (base / f"docs/{i:02}.txt").write_text("" if i % 9 == 0 else f"text {i}")
    (base / "docs/t.csv").write_text("id,text\n" + "".join(f"r{i},row {i}\n" for i in range(60)) + "ragged\n")
    (base / "docs/t.jsonl").write_text("".join(f'{{"id":{i},"text":"line {i}"}}\n' for i in range(60)) + "broken\n")
    (base / "docs/z.csv").write_text("no such column\n")
    return base


@pytest.mark.slow
@given(st.integers(1, 200), st.integers(1, 200), st.sampled_from([None, "id"]))
def test_a_sample_is_stable_and_holds_every_smaller_one(
    many: Path, one: int, other: int, id_column: str | None
) -> None:
    small, large = sorted((one, other))
    settings = {"text_column": "text", "id_column": id_column}
    everything = keys(many, "docs", **settings)
    first, second = (keys(many, "docs", sample=n, **settings) for n in (small, large))
    assert set(first) <= set(second) <= set(everything)
    # A table that cannot be opened is not a document, but is always told.
    assert len(first) == min(small, len(everything) - 1) + 1
    assert second == [key for key in everything if key in set(second)]


def test_a_sample_changes_little_when_documents_come(many: Path, tmp_path: Path) -> None:
    before = set(keys(many, "docs", include=["*.txt"], sample=20))
    (many / "docs/99.txt").write_text("new")
    try:
        after = set(keys(many, "docs", include=["*.txt"], sample=20))
    finally:
        (many / "docs/99.txt").unlink()
    assert len(before - after) <= 1


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"path": "docs"}, 3),
        ({"path": "docs/a.txt"}, 1),
        ({"path": "docs", "exclude": ("sub/*",)}, 2),
        ({"path": "docs", "sample": 2}, 2),
        ({"path": "docs", "sample": 9}, 3),
        ({"path": ".", "text_column": "text"}, None),
    ],
)
def test_how_many_documents_there_are_is_known_before_they_are_read(
    base: Path, settings: dict[str, Any], expected: int | None
) -> None:
    (base / "docs/empty.txt").write_text("")  # it cannot be read as a document, and is told of in its place
    (base / "docs/other.bin").write_text("of no kind that is read")
    (base / "rows.csv").write_text("text\none\ntwo\n")
    source = DocumentSource.model_validate(settings)
    assert survey(source, base, readers()).documents == expected
    assert expected in (None, len(list(read(source, base))))


@pytest.mark.parametrize(
    ("scope", "found", "expected"),
    [
        (Scope(), [3, 4], 7),
        (Scope(), [3, None], None),
        (Scope(limit=5), [3, 4], 5),
        (Scope(limit=9), [3, 4], 7),
        (Scope(only=("a.txt",)), [3], None),
    ],
)
def test_a_limited_run_reads_as_many_as_it_is_limited_to(
    scope: Scope, found: list[int | None], expected: int | None
) -> None:
    assert scope.documents(found) == expected
