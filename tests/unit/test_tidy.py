"""Result files in every wrapping: what is in them comes out as lines."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.backends.result_lines import lines

ROWS = [
    json.dumps({"custom_id": f"r{number}", "text": f"ä\u2028 {number}"}, ensure_ascii=False).encode()
    for number in range(4)
]
PLAIN = b"\n".join(ROWS) + b"\n"
WRAPPED = {
    "as it should be": PLAIN,
    "no newline at its end": PLAIN.rstrip(),
    "a byte order mark": b"\xef\xbb\xbf" + PLAIN,
    "line ends of Windows": PLAIN.replace(b"\n", b"\r\n"),
    "blank lines": b"\n \t\n" + PLAIN.replace(b"\n", b"\n\n\r\n"),
    "gzip without a word of it": gzip.compress(PLAIN),
    "gzip of a mark and line ends": gzip.compress(b"\xef\xbb\xbf" + PLAIN.replace(b"\n", b"\r\n")),
}


def read(content: bytes, size: int = 7) -> list[bytes]:
    return list(lines(content[start : start + size] for start in range(0, len(content), size)))


@pytest.mark.parametrize("content", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_lines_come_out_of_any_wrapping(content: bytes, size: int) -> None:
    assert read(content, size) == ROWS


@pytest.mark.parametrize("text", [b"[%s]", b" [\n%s\n]\n", b"[%s,]", b"\xef\xbb\xbf[%s]"])
@pytest.mark.parametrize("between", [b",", b",\n", b" ,\r\n"])
def test_an_array_is_as_good_as_lines(text: bytes, between: bytes) -> None:
    found = read(text.replace(b"%s", between.join(ROWS)))
    assert [json.loads(line) for line in found] == [json.loads(line) for line in ROWS]


def test_an_array_that_breaks_off_gives_what_is_whole() -> None:
    found = read(b"[" + b",".join(ROWS)[:-5])
    assert [json.loads(line) for line in found[:3]] == [json.loads(line) for line in ROWS[:3]]
    assert len(found) == 4, "and the rest, which is not a row"


REPAIRED = {
    "NaN": (b'{"custom_id": "a", "logprob": NaN, "other": -Infinity}', {"logprob": None, "other": None}),
    "a raw tab in a text": (b'{"custom_id": "a", "text": "x\ty"}', {"text": "x\ty"}),
    "half of a surrogate pair": (b'{"custom_id": "a", "text": "x\\ud800"}', {"text": "x?"}),
    "a whole pair": (b'{"custom_id": "a", "text": "\\ud83d\\ude00"}', {"text": "\U0001f600"}),
    "bytes that are not UTF-8": (b'{"custom_id": "a", "text": "\xff"}', None),
    "nested too deeply": (b'{"custom_id": "a", "x": ' + b"[" * 5000 + b"]" * 5000 + b', "y": 1}', {"y": 1}),
    "brackets within a text": (b'{"custom_id": "a", "x": "[[[[{{{{", "y": 1}', {"x": "[[[[{{{{", "y": 1}),
    "a number of 5,000 digits": (b'{"custom_id": "a", "x": ' + b"9" * 5000 + b"}", {}),
}


@pytest.mark.parametrize(("line", "expected"), REPAIRED.values(), ids=REPAIRED)
def test_what_is_no_json_is_read_as_what_it_can_only_mean(line: bytes, expected: dict[str, object] | None) -> None:
    [found] = read(line)
    if expected is None:
        assert found == line, "what nobody can read stays as it is"
        return
    if line == found:
        return  # it was JSON, if of an odd kind
    told = json.loads(found)
    assert told["custom_id"] == "a"
    assert expected.items() <= told.items()


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xef\xbb\xbf", gzip.compress(b"", mtime=0)])
def test_a_file_of_nothing_has_no_lines(content: bytes) -> None:
    assert read(content) == []


def test_gzip_that_breaks_off_says_so_behind_what_came() -> None:
    packed = gzip.compress(b"\n".join(ROWS + [b'"%d"' % (number * 7919) for number in range(1000)]))
    for rest in (b"", b"no gzip at all" * 100):
        found = lines([packed[: len(packed) // 2], rest])
        assert next(found) == ROWS[0]
        with pytest.raises(ValueError, match="gzip"):
            list(found)


@given(st.binary(max_size=300), st.integers(1, 50))
def test_anything_gives_lines_without_an_error(content: bytes, size: int) -> None:
    try:
        found = read(content, size)
    except ValueError:
        assert content.startswith(b"\x1f\x8b")
        return
    assert all(line.strip(b" \t\r\n") for line in found), "what JSON calls blank is no line; anything else is one"


@pytest.mark.slow
def test_memory_is_that_of_a_line() -> None:
    row = json.dumps({"custom_id": "r", "text": "word " * 2000}).encode()

    def endless() -> Iterator[bytes]:
        for number in range(2000):
            yield (b"[" if number == 0 else b",") + row
        yield b"]"

    tracemalloc.start()
    try:
        assert sum(1 for _ in lines(endless())) == 2000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 2_000_000
