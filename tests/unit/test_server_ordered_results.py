"""Results in the order of the input, read from an index that is allowed to be missing, broken or old."""

from __future__ import annotations

import json
import random
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.errors import StorageError
from orchestrator.server.ordered_results import (
    INDEX_NAME,
    KINDS,
    PAGE_BYTES,
    InputGone,
    ResultSource,
    UnknownRow,
    read_page,
)


def line(custom_id: str, size: int = 0) -> bytes:
    return (
        json.dumps({"id": "batch_req_1", "custom_id": custom_id, "response": {"body": "x" * size}}).encode() + b"\n"
    )


class Files:
    """A batch's files; `durable` says how much of each counts, which is all of it unless `add` is told otherwise."""

    def __init__(self, folder: Path, custom_ids: list[str]) -> None:
        self.folder = folder
        self.input = folder / "in.jsonl"
        rows = (json.dumps({"custom_id": custom_id, "method": "POST"}) for custom_id in custom_ids)
        # Blank lines and a BOM are not rows.
        self.input.write_text("\ufeff\n" + "\n\n".join(rows) + "\n", encoding="utf-8")
        self.durable: dict[str, int] = {}

    def add(self, kind: str, data: bytes, durable: bool = True) -> None:
        path = self.folder / f"{kind}.jsonl"
        with path.open("ab") as file:
            file.write(data)
        if durable:
            self.durable[kind] = path.stat().st_size

    def source(self) -> ResultSource:
        return ResultSource(self.input, self.folder, self.durable)

    def ids(self, limit: int = 1000, after: str | None = None) -> list[str]:
        """The custom_ids of all pages behind `after`, by the custom_id of each page's last row."""
        found: list[str] = []
        while True:
            page = read_page(self.source(), after, limit)
            assert len(page.lines) <= limit
            assert page.lines or not page.has_more
            found += [json.loads(part)["custom_id"] for part in page.lines]
            if not page.has_more:
                return found
            after = found[-1]


NAMES = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=25, unique=True)


@given(NAMES, st.randoms(use_true_random=False), st.integers(1, 7), st.integers(1, 4))
def test_pages_are_in_the_order_of_the_input_while_the_files_grow(
    names: list[str], dice: random.Random, limit: int, steps: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = Files(Path(folder), names)
        rest = dice.sample(names, dice.randint(0, len(names)))
        done: set[str] = set()
        for _ in range(steps):
            taken, rest = rest[: (share := dice.randint(0, len(rest)))], rest[share:]
            for name in taken:
                files.add(dice.choice(KINDS), line(name))
            done |= set(taken)
            expected = [name for name in names if name in done]
            assert files.ids(limit) == expected
            after = dice.choice(names)
            assert files.ids(limit, after) == [name for name in expected if names.index(name) > names.index(after)]


def test_what_is_not_durable_is_not_there(tmp_path: Path) -> None:
    files = Files(tmp_path, list("abc"))
    files.add("output", line("c"))
    files.add("output", line("a")[:20], durable=False)
    assert files.ids() == ["c"]
    # The next start cuts what was torn, and counts nothing until it has looked at the files.
    path = tmp_path / "output.jsonl"
    path.write_bytes(path.read_bytes()[: files.durable["output"]])
    files.durable = {"output": 0, "error": 0}
    assert files.ids() == ["c"]
    files.add("output", line("b"))
    assert files.ids() == ["b", "c"]


def test_lines_are_given_byte_for_byte(tmp_path: Path) -> None:
    files = Files(tmp_path, ["a", "ü"])
    raw = '{"custom_id": "ü", "response":  {"body":{"n":1.0e5, "t":"\\u00fc"}}}'.encode()
    files.add("error", raw + b"\n")
    assert read_page(files.source(), None, 10).lines == [raw]


@pytest.mark.slow
def test_a_page_has_a_size_in_bytes_too(tmp_path: Path) -> None:
    files = Files(tmp_path, list("abcde"))
    for name in "edcba":
        files.add("output", line(name, PAGE_BYTES if name == "c" else PAGE_BYTES // 3))
    sizes = []
    after: str | None = None
    while (page := read_page(files.source(), after, 100)).lines:
        sizes.append(len(page.lines))
        after = json.loads(page.lines[-1])["custom_id"]
        assert page.has_more is (after != "e")
    assert sizes == [2, 1, 2]


def damage_garbage(files: Files) -> None:
    (files.folder / INDEX_NAME).write_bytes(b"no database at all" * 1000)


def damage_middle(files: Files) -> None:
    path = files.folder / INDEX_NAME
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)


def damage_missing(files: Files) -> None:
    (files.folder / INDEX_NAME).unlink()


def damage_empty(files: Files) -> None:
    (files.folder / INDEX_NAME).write_bytes(b"")


@pytest.mark.parametrize("damage", [damage_garbage, damage_middle, damage_missing, damage_empty])
def test_an_index_that_is_no_good_is_made_anew(tmp_path: Path, damage: object) -> None:
    files = Files(tmp_path, list("abcd"))
    files.add("output", line("d") + line("b"))
    assert files.ids() == ["b", "d"]
    assert callable(damage)
    damage(files)
    assert files.ids() == ["b", "d"]


def test_a_result_file_that_was_mended_is_read_anew(tmp_path: Path) -> None:
    files = Files(tmp_path, list("abcd"))
    sizes = {"d": 100, "a": 0, "b": 50}
    files.add("output", b"".join(line(name, size) for name, size in sizes.items()))
    files.add("error", line("c"))
    assert files.ids() == ["a", "b", "c", "d"]
    files.durable = {}
    fresh = tmp_path / "fresh"
    for names in ("bad", "ba"):
        fresh.write_bytes(b"".join(line(name, sizes[name]) for name in names))
        fresh.replace(tmp_path / "output.jsonl")
        assert files.ids() == sorted([*names, "c"])
    # A file that has become shorter was cut, and what stood behind the cut is gone.
    path = tmp_path / "output.jsonl"
    with path.open("rb+") as file:
        file.truncate(len(line("b", 50)))
    assert files.ids() == ["b", "c"]
    path.unlink()
    assert files.ids() == ["c"]


def test_an_input_is_needed_once(tmp_path: Path) -> None:
    files = Files(tmp_path, list("abc"))
    files.add("output", line("c") + line("a"))
    gone = ResultSource(None, tmp_path, {})
    with pytest.raises(InputGone):
        read_page(gone, None, 10)
    assert files.ids() == ["a", "c"]
    assert len(read_page(gone, None, 10).lines) == 2


def test_a_row_that_the_batch_does_not_have(tmp_path: Path) -> None:
    files = Files(tmp_path, list("abc"))
    with pytest.raises(UnknownRow):
        read_page(files.source(), "d", 10)
    # Without a result it is a row all the same.
    assert read_page(files.source(), "b", 10).lines == []


def test_an_index_that_cannot_be_opened(tmp_path: Path) -> None:
    files = Files(tmp_path, list("abc"))
    (tmp_path / INDEX_NAME).mkdir()
    with pytest.raises((StorageError, OSError)):
        read_page(files.source(), None, 10)
