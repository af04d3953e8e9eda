"""Input files as nobody should write them: each batch ends, tells its bad lines, and leaves the server well."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from orchestrator.core.batch_api import MAX_DEPTH
from tests.support.batchapi import CHAT, Ended, Sdk, ended, health, jsonl, row, sdk_at
from tests.support.batchserver import BatchServer
from tests.support.process import upstreams

MOST_BYTES = 128 * 1024 * 1024
BOM = b"\xef\xbb\xbf"
CODES = {
    "duplicate_custom_id",
    "empty_file",
    "invalid_json_line",
    "invalid_request",
    "invalid_url",
    "mismatched_model",
    "missing_required_parameter",
    "streaming_unsupported",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BatchServer]:
    """One server, a process of its own, for every file of this module."""
    folder = tmp_path_factory.mktemp("fuzzed")
    with upstreams(folder) as make, BatchServer(folder / "s", make().base_url) as server:
        yield server


@pytest.fixture
def sdk(server: BatchServer) -> Iterator[Sdk]:
    """A client of it; behind each test the server stands as it stood before, and took no more memory than it may."""
    before = server.pid
    with sdk_at(server.socket) as sdk:
        yield sdk
        assert server.alive
        assert server.pid == before
        assert (health(sdk)["status"], health(sdk)["problem"]) == ("ok", None)
        assert health(sdk)["running_batches"] == 0
    assert server.grown_bytes() < MOST_BYTES, f"{server.grown_bytes():,} bytes"


def begin(sdk: Sdk, content: bytes) -> str:
    """The id of a new batch of exactly these bytes."""
    file = sdk(lambda api: api.files.create(file=("in.jsonl", content), purpose="batch"))
    assert file.bytes == len(content)
    return str(sdk(lambda api: api.batches.create(input_file_id=file.id, endpoint=CHAT, completion_window="24h")).id)


def told(end: Ended) -> list[tuple[int | None, str]]:
    """Line and code of each error of a batch that failed; it has nothing else."""
    batch = end.batch
    assert (batch.status, end.counts) == ("failed", (0, 0, 0))
    assert (batch.output_file_id, batch.error_file_id) == (None, None)
    assert {error.code for error in batch.errors.data} <= CODES
    return [(error.line, error.code) for error in batch.errors.data]


def line(custom_id: str, text: str = "x") -> bytes:
    """A good line without its newline; `text` stands in its message as it is, between two quotes."""
    return jsonl([row(custom_id, "TEXT")]).strip().replace(b"TEXT", text.encode())


def with_field(custom_id: str, field: bytes) -> bytes:
    """A good line whose body has one field more, given as it is written."""
    return line(custom_id).replace(b'"model"', field + b', "model"')


def deep(custom_id: str, depth: int) -> bytes:
    """A line that nests so many lists in its body; the line and its body are objects themselves."""
    return with_field(custom_id, b'"deep": ' + b"[" * depth + b"]" * depth)


MB = 1024 * 1024
NOT_JSON = "invalid_json_line"
# Each of them stands on line 2 of a file whose other lines are good.
BAD: dict[str, Callable[[], bytes]] = {
    "half-a-character": lambda: line("b").replace(b'"x"', b'"\xe2\x82"'),
    "overlong-utf8": lambda: line("b").replace(b'"x"', b'"\xc0\x80"'),
    "latin-1": lambda: line("b").replace(b'"x"', '"ä"'.encode("latin-1")),
    "utf-16": lambda: line("b").decode().encode("utf-16-le").replace(b"\n", b""),
    "surrogate-in-utf8": lambda: line("b").replace(b'"x"', b'"\xed\xa0\x80"'),
    "surrogate-escaped": lambda: line("b", "\\ud800"),
    "surrogate-in-the-id": lambda: line("b").replace(b'"b"', b'"\\udc00"', 1),
    "nul": lambda: line("b").replace(b'"x"', b'"\0"'),
    "nul-between": lambda: line("b").replace(b", ", b",\0", 1),
    "only-nul": lambda: b"\0" * MB,
    "deep-lists": lambda: with_field("b", b'"deep": ' + b"[" * 100_000 + b"]" * 100_000),
    "deep-objects": lambda: with_field("b", b'"deep": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "deep-and-open": lambda: b"[" * 100_000,
    **{
        f"{depth}-deep-lists": partial(deep, "b", depth)
        for depth in (MAX_DEPTH - 1, 600, 900, 950, *range(960, 1000, 5), 1200)
    },
    "deep-outside-of-the-body": lambda: b'{"more":' + b"[" * 100_000 + b"]" * 100_000 + b"," + line("b")[1:],
    "bom-in-the-middle": lambda: BOM + line("b"),
    "two-in-one-line": lambda: line("b") + line("c"),
    "cut-by-a-carriage-return": lambda: line("b").replace(b"x", b"\r"),
    "a-string-that-does-not-end": lambda: b'{"custom_id":"' + b"a" * (10 * MB),
    "longer-than-a-line-may-be": lambda: line("b", "x" * (40 * MB)),
    "a-number-for-an-object": lambda: b"1" * 10_000,
    "an-endless-number": lambda: b"1e999999",
    "nan": lambda: with_field("b", b'"seed": NaN'),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_line_that_is_no_json(sdk: Sdk, bad: Callable[[], bytes]) -> None:
    content = b"\n".join([line("a"), bad(), line("z"), b"{", b""])
    assert told(ended(sdk, begin(sdk, content))) == [(2, NOT_JSON), (4, NOT_JSON)]


# Odd, and yet good: these rows run, and what becomes of each is the upstream's word.
ODD: dict[str, Callable[[], bytes]] = {
    "exponent": lambda: with_field("odd", b'"seed": 1e999999'),
    "digits": lambda: with_field("odd", b'"seed": ' + b"9" * 10_000),
    "negative-digits-with-a-fraction": lambda: with_field("odd", b'"seed": -' + b"9" * 10_000 + b"." + b"9" * 10_000),
    "ten-megabytes-of-text": lambda: line("odd", "word " * (2 * MB)),
    "ten-megabytes-of-escapes": lambda: line("odd", "\\u00e4" * (10 * MB // 6)),
    "ten-megabytes-of-spaces": lambda: line("odd") + b" " * (10 * MB),
    "ten-megabytes-outside-of-the-body": lambda: b'{"more":"' + b"m" * (10 * MB) + b'",' + line("odd")[1:],
    "a-hundred-thousand-fields": lambda: with_field("odd", b", ".join(b'"f%d": 0' % n for n in range(100_000))),
    "nul-escaped": lambda: line("odd", "\\u0000"),
    "last-plane": lambda: line("odd", "\U0010fffd\u2028\u0085\ufeff"),
    "nested": lambda: deep("odd", 100),
    "as-deep-as-may-be": lambda: deep("odd", MAX_DEPTH - 2),
    "brackets-in-text": lambda: line("odd", "[{" * 100_000 + '\\"' * 1000 + "[" * 1000),
    "lists-side-by-side": lambda: with_field("odd", b'"wide": [' + b"[[]]," * 100_000 + b"[]]"),
    "a-key-twice": lambda: line("first").replace(b'"method"', b'"custom_id": "odd", "method"'),
    "a-body-twice": lambda: line("odd").replace(b'"body"', b'"body": 1, "body"'),
    "an-empty-key": lambda: with_field("odd", b'"": {"": ""}'),
    "crlf": lambda: line("odd") + b"\r",
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_a_line_that_is_odd_and_good(sdk: Sdk, odd: Callable[[], bytes]) -> None:
    end = ended(sdk, begin(sdk, b"\n".join([BOM + line("a"), odd(), b"", line("z")])))
    end.check(["a", "odd", "z"])
    assert end.batch.status == "completed"


def test_a_large_id_comes_back_whole(sdk: Sdk) -> None:
    custom_id = "名" * (MB // 3)
    ended(sdk, begin(sdk, line("a") + b"\n" + line("b").replace(b'"b"', json.dumps(custom_id).encode(), 1))).check(
        ["a", custom_id]
    )


def test_a_duplicate_of_a_large_id(sdk: Sdk) -> None:
    long = json.dumps("i" * MB).encode()
    content = b"\n".join([line("b").replace(b'"b"', long, 1)] * 3)
    assert told(ended(sdk, begin(sdk, content))) == [(2, "duplicate_custom_id"), (3, "duplicate_custom_id")]


def test_ten_thousand_bad_lines(sdk: Sdk) -> None:
    assert told(ended(sdk, begin(sdk, b'{"custom_id": "\xff"}\n' * 10_000))) == [
        (number, NOT_JSON) for number in range(1, 101)
    ]


@pytest.mark.parametrize(
    "content",
    [b"", BOM, b"\n" * 1_000_000, b" \t\r\n" * 1000, b" " * (40 * MB)],
    ids=["nothing", "bom", "newlines", "spaces", "one-line-of-spaces"],
)
def test_a_file_with_nothing_in_it(sdk: Sdk, content: bytes) -> None:
    assert told(ended(sdk, begin(sdk, content))) == [(None, "empty_file")]


def test_a_million_newlines_before_the_first_row(sdk: Sdk) -> None:
    ended(sdk, begin(sdk, b"\n" * 1_000_000 + line("a"))).check(["a"])
    assert told(ended(sdk, begin(sdk, b"\r\n" * 1_000_000 + b"{"))) == [(1_000_001, NOT_JSON)]


PIECES = [
    b"\n", b"\r", b"\0", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", BOM, b"\xff", b"\xe2\x82", b"\\ud800",
    b"\\u0000", b"null", b"true", b"1e999999", b"9" * 5000, b"[" * 2000, b'"custom_id"', b'"stream": true,',
    b'"model"', b"  \n",
]  # fmt: skip


def mutated(dice: random.Random) -> bytes:
    """A good file after an accident or a few."""
    ends = dice.choice([b"\n", b"\n", b"\r\n", b"\n\n"])
    words = ["x", "ä", "\\u00e4", "word " * 100]
    data = ends.join(line(f"r{number}", dice.choice(words)) for number in range(dice.randint(1, 6)))
    for _ in range(dice.choice([1, 1, 2, 3])):
        start = dice.randint(0, len(data))
        end = min(len(data), start + dice.choice([0, 0, 1, 1, 5, 60, 300]))
        middle = dice.choice([b"", dice.choice(PIECES), dice.randbytes(1), b"w", data[start:end] * 2])
        data = data[:start] + middle + data[end:]
    return data


def read_by_others(raw: bytes) -> dict[str, Any] | None:
    """A line as Python's own reader of JSON sees it; None where it is none. RecursionError where that cannot tell."""

    def refuse(constant: str) -> Any:
        raise ValueError(constant)

    try:
        found = json.loads(raw.decode(), parse_constant=refuse, parse_int=str, parse_float=str)
        json.dumps(found, ensure_ascii=False).encode()  # half a surrogate pair is not a character
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def check_mutated(end: Ended, content: bytes) -> str:
    """What another reader of the file can say about how its batch ended; the batch's status."""
    rows = [part.rstrip(b"\r") for part in content.removeprefix(BOM).split(b"\n")]
    numbers = {number: read_by_others(raw) for number, raw in enumerate(rows, 1) if raw.strip(b" \t\r\n")}
    broken = {number for number, found in numbers.items() if found is None}
    if end.batch.status == "completed":
        assert not broken
        end.check([found["custom_id"] for found in numbers.values() if found])
        return "completed"
    errors = told(end)
    if not numbers:
        assert errors == [(None, "empty_file")]
        return "failed"
    lines = [number for number, _ in errors]
    assert lines == sorted(set(lines))
    assert set(lines) <= numbers.keys()
    assert {number for number, code in errors if code == NOT_JSON} == broken
    return "failed"


def fuzz(sdk: Sdk, seeds: range) -> Counter[str]:
    """How many batches of mutated files ended how; they run side by side."""
    files = {seed: mutated(random.Random(seed)) for seed in seeds}
    batches = {seed: begin(sdk, content) for seed, content in files.items()}
    ends: Counter[str] = Counter()
    for seed, batch_id in batches.items():
        end = ended(sdk, batch_id)
        try:
            ends[check_mutated(end, files[seed])] += 1
        except RecursionError:
            ends["deeper than the other reader goes"] += 1
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {files[seed][:3000]!r}") from error
    return ends


@pytest.mark.long
def test_files_after_accidents(sdk: Sdk) -> None:
    ends = fuzz(sdk, range(150))
    assert min(ends["completed"], ends["failed"]) > 15, "accidents of one kind only"


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1000, 21_000, 2000))
def test_many_files_after_accidents(sdk: Sdk, first: int) -> None:
    total: Counter[str] = Counter()
    for start in range(first, first + 2000, 200):
        total += fuzz(sdk, range(start, start + 200))
    assert total.total() == 2000
