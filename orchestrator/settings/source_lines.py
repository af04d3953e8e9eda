"""Reader of TOML files whose errors name file, line and field; `yaml_files` shares its checks.

A file is read into plain data and a map from each value's path to its line. So a pydantic error at `("tasks", 0,
"max_tokens")` becomes `job.yaml:14: tasks[0].max_tokens: ...`.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, Tag, ValidationError

from orchestrator.core.errors import InputError
from orchestrator.core.near_names import meant_file
from orchestrator.settings import corrections
from orchestrator.settings.syntax_corrections import toml_hint
from orchestrator.settings.toml_limits import MANY_PARTS, MAX_BYTES, MAX_KEY_PARTS

Place = tuple[str | int, ...]
Lines = Mapping[Place, int]
Model = TypeVar("Model", bound=BaseModel)


MAX_KEY = 1000
"""Maximum characters of a key, since an error message shows the keys on the path to its field."""
_LONGEST_HEADER = 1000
MAX_DIGITS = 4300
"""Python's limit on the digits of a number, because conversion time grows with the square of their count."""
_LONG_NUMBER = re.compile(r"[0-9_]{4301,}|0x[0-9A-Fa-f_]{3000,}")
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


def read_text(path: Path) -> str:
    """Read a small settings file, without its BOM.

    Raises InputError if the file cannot be read, is larger than MAX_BYTES or is not UTF-8 text.
    """
    return text_of(read_bytes(path, MAX_BYTES), path)


def read_bytes(path: Path, most: int, field: str | None = None) -> bytes:
    """Read a whole file. Raises InputError if the file cannot be read, or has more than `most` bytes."""
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except FileNotFoundError:
        raise InputError("there is no such file", file=path, field=field, hint=meant_file(str(path))) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", file=path, field=field) from None
    if len(data) > most:
        raise InputError(f"is larger than {most:,} bytes", file=path, field=field)
    return data


def text_of(content: bytes, path: Path) -> str:
    """Decode the content of a settings file. Raises InputError if the content is not UTF-8 text."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        hint = "save it as UTF-8, as editors do by default"
        raise InputError(f"is not UTF-8 text: {error.reason}", file=path, line=line, hint=hint) from None


def _refuse_long_number(text: str, path: Path) -> None:
    if found := _LONG_NUMBER.search(text):
        line = text[: found.start()].count("\n") + 1
        raise InputError(f"a number has more than {MAX_DIGITS:,} digits", file=path, line=line)


def refuse_no_text(data: Any, place: Place, lines: Lines, path: Path) -> None:
    """Raise InputError for a NUL or a lone surrogate, which file names, databases and UTF-8 cannot hold."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            refuse_no_text(str(key), (*place, str(key)), lines, path)
            refuse_no_text(value, (*place, str(key)), lines, path)
    elif isinstance(data, list):
        for index, value in enumerate(data):
            refuse_no_text(value, (*place, index), lines, path)
    elif isinstance(data, str) and _NO_TEXT.search(data):
        error = mistake(path, lines, place, "holds a NUL or half a character, which is not text")
        error.field = _NO_TEXT.sub("\ufffd", error.field or "") or None
        raise error


def refuse_long_keys(data: Any, text: str, path: Path) -> None:
    """Raise InputError for a key so long that a message with the key would fill the screen."""
    inside = data.values() if isinstance(data, Mapping) else data if isinstance(data, list) else ()
    for key in data if isinstance(data, Mapping) else ():
        if len(str(key)) > MAX_KEY:
            line = text[: max(0, text.find(str(key)[:MAX_KEY]))].count("\n") + 1
            raise InputError(f"a key of more than {MAX_KEY:,} characters", file=path, line=line)
    for value in inside:
        refuse_long_keys(value, text, path)


def load_toml(path: Path, text: str | None = None) -> tuple[dict[str, Any], Lines]:
    """Return a file's data, and the line of each table and key. `text` replaces the file. Raises InputError."""
    text = read_text(path) if text is None else text
    if found := MANY_PARTS.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise InputError(f"is not valid TOML: a key of more than {MAX_KEY_PARTS} parts", file=path, line=line)
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"\(at line (\d+), column \d+\)", str(error))
        line = int(at[1]) if at else len(text.splitlines())
        problem = re.sub(r"\s*\(at .*\)$", "", str(error))
        if problem == 'Expected "\'"':  # tomllib reports it at the file's end
            line = next(number for number, row in enumerate(text.splitlines(), 1) if _leaves_open(row))
        hint = toml_hint(text.splitlines()[line - 1] if text else "", problem)
        raise InputError(f"is not valid TOML: {problem}", file=path, line=line, hint=hint) from None
    except (ValueError, RecursionError) as error:
        _refuse_long_number(text, path)
        raise InputError(f"is not valid TOML: {error}", file=path) from None
    lines = _toml_lines(text)
    refuse_long_keys(data, text, path)
    refuse_no_text(data, (), lines, path)
    return data, lines


def _leaves_open(row: str) -> bool:
    """True if a line opens a single quote and does not close it."""
    return re.sub(r'"[^"]*"|#.*', "", row).count("'") % 2 == 1


def _toml_lines(text: str) -> Lines:
    lines: dict[Place, int] = {}
    table: Place = ()
    several: dict[Place, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if len(line) > _LONGEST_HEADER:
            continue
        if header := re.match(r"\s*(\[+)\s*([^\]]+?)\s*\]+", line):
            table = tuple(part.strip().strip("\"'") for part in re.split(r"\.(?![^\"]*\"$)", header[2]))
            for parts in range(1, len(table) + 1):
                lines.setdefault(table[:parts], number)
            if header[1] == "[[":
                several[table] = several.get(table, -1) + 1
                table = (*table, several[table])
                lines[table] = number
        elif key := re.match(r"\s*([A-Za-z0-9_-]+|\"[^\"]+\")\s*=", line):
            lines.setdefault((*table, key[1].strip('"')), number)
    return lines


def validated(model: type[Model], data: Any, lines: Lines, file: Path) -> Model:
    """Validate `data` as a `model`. Raises one InputError with every mistake, each with its line and field."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        found = [_explain(problem, model, lines, file) for problem in _without_echoes(error.errors(), model, file)]
        found.sort(key=lambda problem: problem.line or 0)
        first, *rest = found
        first.others = rest
        raise first from None


def _without_echoes(problems: list[Any], model: type[BaseModel], file: Path) -> list[Any]:
    """Drop errors that follow from other errors.

    A list may be too short only because its invalid items do not count. A required field may be missing because it is
    misspelt.
    """
    places = [problem["loc"] for problem in problems]
    misspelt = {
        (
            *loc[:-1],
            corrections.meant_field(
                str(loc[-1]), problem["input"], _fields_at(model, loc[:-1]), is_job_file=file.suffix != ".toml"
            ),
        )
        for problem in problems
        if problem["type"] == "extra_forbidden" and (loc := problem["loc"])
    }

    def echoes(problem: Any) -> bool:
        loc = problem["loc"]
        if problem["type"] == "missing":
            return loc in misspelt
        return problem["type"] == "too_short" and any(place[: len(loc)] == loc != place for place in places)

    return [problem for problem in problems if not echoes(problem)]


def _explain(problem: Any, model: type[BaseModel], lines: Lines, file: Path) -> InputError:
    place: Place = tuple(part for part in problem["loc"] if not _is_union_tag(part, problem["loc"], lines))
    message, hint = problem["msg"].removeprefix("Value error, "), None
    is_toml, name = file.suffix == ".toml", next((part for part in reversed(place) if isinstance(part, str)), "")
    match problem["type"]:
        case "missing":
            message = "is required"
            hint = _hint_of_missing(model, problem["loc"], name)
        case "extra_forbidden":
            message = "unknown field"
            known = _fields_at(model, problem["loc"][:-1])
            elsewhere = _fields_elsewhere(model, problem["loc"], is_toml=is_toml)
            hint = corrections.of_unknown(name, problem["input"], known, elsewhere, is_job_file=not is_toml)
        case "model_type" | "dict_type":
            message = "must be a table" if is_toml else "must be a mapping (`key: value`)"
            here = _type_at(model, problem["loc"])
            bare = getattr(here, "BARE", None)
            hint = corrections.of_shape(spell(place), problem["input"], "mapping", bare, is_toml=is_toml)
        case "tuple_type":
            message = "must be a list" if is_toml else "must be a list (`- item`)"
            hint = corrections.of_shape(name, problem["input"], "list", None, is_toml=is_toml)
        case "too_short":
            message = "must not be empty"
            hint = None if is_toml else corrections.MISSING.get(name)
        case "unknown_kind":
            place, hint = (*place, "kind"), corrections.of_kind(problem["input"])
        case "string_type" if place[:1] == ("models",) and len(place) == 3:
            hint = "its keys are backends, with the model's name at each; settings belong in a task"
        case _:
            hint = corrections.of_value(problem, is_toml=is_toml)
    return mistake(file, lines, place, message, hint)


def _hint_of_missing(model: type[BaseModel], loc: Place, name: str) -> str | None:
    if (cure := corrections.MISSING.get(f"{loc[0]}.{name}") or corrections.MISSING.get(name)) is not None:
        return cure
    here = _type_at(model, loc[:-1])
    if not _is_model(here):
        return None
    field = next((field for key, field in here.model_fields.items() if name in (key, field.alias)), None)
    return field and field.description


def _fields_elsewhere(model: type[BaseModel], loc: Place, *, is_toml: bool) -> Mapping[str, str]:
    """Map each field of other parts of the file to the part that has it, if only one part has it."""
    found: dict[str, str] = {}
    is_inner = len(loc) > 2 and isinstance(loc[1], str)  # a table in a table: its fields are most likely misspelt
    for name, field in model.model_fields.items():
        inside = _inside(field.annotation)
        if _is_model(inside):
            part = f"in [{name}]" if is_toml else f"in `{name}`"
        else:
            inside, part = _inside(_member(inside, 0)), f"in an entry of `{name}`"
        if _is_model(inside) and loc[0] != name and not is_inner:
            found |= {each: "" if each in found else part for each in _names(inside)}
    if len(loc) > 1:
        found |= dict.fromkeys(_names(model), "at the top of the file, ahead of the tables and lists")
    return {name: part for name, part in found.items() if part}


def _names(model: Any) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _is_union_tag(part: str | int, loc: Place, lines: Lines) -> bool:
    """True for the name of a union's member. Pydantic adds such names to the path; the file has no such key."""
    return isinstance(part, str) and bool(re.search(r"[\[\]()]|^(str|int|float|bool|dict|list|tuple)$", part))


def _fields_at(model: type[BaseModel], place: Place) -> list[str]:
    here = _type_at(model, place)
    return _names(here) if _is_model(here) else []


def _type_at(model: type[BaseModel], place: Place) -> Any:
    here: Any = model
    for part in place:
        here = _inside(_member(here, part))
    return here


def _member(here: Any, part: str | int) -> Any:
    if _is_model(here):
        return next(
            (field.annotation for name, field in here.model_fields.items() if part in (name, field.alias)), None
        )
    if (member := getattr(here, "member", None)) is not None:
        return member(part)
    if tagged := [arg for arg in get_args(here) if part in _tags(arg)]:
        return tagged[0]
    return next((arg for arg in reversed(get_args(here)) if arg is not ...), None)


def _inside(annotation: Any) -> Any:
    """Unwrap `Model | None` and similar types. Return a tagged union unchanged."""
    if get_origin(annotation) is Annotated:
        kind, *extras = get_args(annotation)
        return next((extra for extra in extras if hasattr(extra, "member")), None) or _inside(kind)
    if any(_tags(arg) for arg in get_args(annotation)):
        return annotation
    if get_origin(annotation) in (Union, UnionType):
        kinds = (_inside(arg) if get_origin(arg) is Annotated else arg for arg in get_args(annotation))
        return next((arg for arg in kinds if _is_model(arg) or get_origin(arg) is not None), None)
    return annotation


def _tags(annotation: Any) -> list[str]:
    if get_origin(annotation) is not Annotated:
        return []
    return [extra.tag for extra in get_args(annotation)[1:] if isinstance(extra, Tag)]


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def mistake(file: Path | None, lines: Lines, place: Place, message: str, hint: str | None = None) -> InputError:
    """Return an error about the value at a path in a file."""
    return InputError(message, file=file, line=line_of(place, lines), field=spell(place) or None, hint=hint)


def line_of(place: Iterable[str | int], lines: Lines) -> int | None:
    """Return the line of the value at a path, or of the nearest enclosing value."""
    parts = tuple(place)
    while parts not in lines:
        if not parts:
            return None
        parts = parts[:-1]
    return lines[parts]


def spell(place: Iterable[str | int]) -> str:
    """Format `("tasks", 0, "id")` as `tasks[0].id`."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text
