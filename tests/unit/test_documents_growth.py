"""Reading takes no more steps for each part, sheet or key of a large file than for those of a small one."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.documents import parts, sources
from orchestrator.documents.document_keys import DistinctKeys, shortened
from orchestrator.documents.tables import TableFile
from tests.support.office import mail, mailbox
from tests.support.steps import grows_no_faster

NAMES = st.lists(st.text("a'", min_size=1, max_size=4), max_size=60)


def one_by_one(names: list[str]) -> list[str]:
    """The names that parts have had since archives are read: an apostrophe more until it is new."""
    given_names: list[str] = []
    for name in names:
        while name in given_names:
            name = shortened(f"{name}'")
        given_names.append(name)
    return given_names


@given(NAMES)
def test_a_part_keeps_the_name_that_it_had(names: list[str]) -> None:
    keys = DistinctKeys()
    assert [keys.distinct(name) for name in names] == one_by_one(names)


def test_names_that_grow_too_long_are_shortened_as_before() -> None:
    names = ["x" * 1_995] * 12
    keys = DistinctKeys()
    assert [keys.distinct(name) for name in names] == one_by_one(names)


def tar(names: list[str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name in names:
            entry = tarfile.TarInfo(name)
            entry.size = 1
            archive.addfile(entry, io.BytesIO(b"x"))
    return out.getvalue()


def equal_names(number: int) -> list[str]:
    return ["a.txt"] * number


def pairs_of_names(number: int) -> list[str]:
    return [f"{i}.txt" for i in range(number // 2)] * 2


def names_of_names(number: int) -> list[str]:
    """Names that are those which others get: each leads to all that follow it."""
    several = [f"a{chr(39) * (i % 40)}" for i in range(number)]
    return several + several


@pytest.mark.parametrize("names", [equal_names, pairs_of_names, names_of_names])
def test_keys_of_parts(names: Callable[[int], list[str]]) -> None:
    def make(number: int) -> Callable[[], object]:
        wanted = names(number)

        def work() -> object:
            keys = DistinctKeys()
            return [keys.distinct(name) for name in wanted]

        return work

    assert grows_no_faster(make, 500)


@pytest.mark.thinned(2)
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["tar", "mbox"])
def test_files_of_many_parts(tmp_path, kind) -> None:
    def make(number: int) -> Callable[[], object]:
        path = tmp_path / f"{kind}-{number}"
        path.write_bytes(tar(equal_names(number)) if kind == "tar" else mailbox(*[mail()] * number))
        packing = "gz" if kind == "tar" else ""
        file = TableFile(str(path), kind, "in/it", "it", None, None, None, 10_000_000, packing=packing)

        def work() -> None:
            found = [one for one in parts.documents(file) if not isinstance(one, parts.Begin)]
            assert len({one.key for one in found}) == len(found) >= number

        return work

    assert grows_no_faster(make, 50)


@pytest.mark.long
def test_attachments_of_one_name(tmp_path) -> None:
    def make(number: int) -> Callable[[], object]:
        path = tmp_path / f"{number}.eml"
        path.write_bytes(mail("Offer", *[("a.txt", b"x", "text/plain")] * number))
        file = TableFile(str(path), "eml", "in/it", "it", None, None, None, 10_000_000)
        return lambda: list(parts.documents(file))

    assert grows_no_faster(make, 50)


def test_a_sample_of_many_tables() -> None:
    def make(number: int) -> Callable[[], object]:
        wanted = sorted(f"in/{i}.eml#message" for i in range(number))

        def work() -> None:
            for i in range(number):
                assert list(sources._inside(wanted, f"in/{i}.eml")) == [f"in/{i}.eml#message"]

        return work

    assert grows_no_faster(make, 200)
