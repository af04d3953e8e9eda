"""Reader of job files: `load` checks everything that can be checked without opening a document.

Each mistake is reported with file, line and field. `job_spec` defines the fields of a job file.
`check_names` compares a job file's names with orch.toml.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

from orchestrator.core.errors import InputError
from orchestrator.core.near_names import meant
from orchestrator.settings import known_answers
from orchestrator.settings.config import Config
from orchestrator.settings.job_spec import DocumentSource, JobSpec
from orchestrator.settings.source_lines import Lines, Place, mistake, validated
from orchestrator.settings.task_spec import Task

TEXT_ONLY = frozenset({"text", "ocr"})
"""Values of `render` that send no picture."""
MAX_ERRORS = 20
"""Maximum number of mistakes of one kind to report."""
_DOUBLED_JSON = re.compile(r"""\{\{\s*\\?["'][^"'{}]*["']\s*:""")
_TRIPLED = re.compile(r"\{\{\{\s*(\w+)\s*\}\}\}")


def load(path: Path) -> JobSpec:
    """Read and check a job file. Raises InputError with file, line and field for each mistake."""
    from orchestrator.settings.yaml_files import load_yaml

    data, lines = load_yaml(path)
    if not isinstance(data, dict):
        raise InputError("is empty or not a mapping; a job file begins with `name:`", file=path, line=1)
    spec = validated(JobSpec, data, lines, path)
    _check_schemas(spec, path, lines)
    for index, task in enumerate(spec.tasks):
        for field, source in (("prompt", task.prompt), ("system", task.system)):
            if source is not None:
                _check_template(source, path, lines, ("tasks", index, field))
        if task.kind == "embedding":
            _check_is_of_documents(task.prompt, path, lines, ("tasks", index, "prompt"))
        if task.long is not None:
            _check_template(task.long.reduce, path, lines, ("tasks", index, "long", "reduce"))
            _check_variables(task.long.reduce, ("answers",), path, lines, ("tasks", index, "long", "reduce"))
            _check_variables(task.system or "", (), path, lines, ("tasks", index, "system"))
    _check_sources(spec, path, lines)
    if spec.gold is not None:
        if not (path.parent / spec.gold).is_file():
            message, hint = "there is no such file", f"known answers are looked for at {path.parent / spec.gold}"
            raise mistake(path, lines, ("gold",), message, hint)
        known_answers.read(path.parent / spec.gold, known_answers.tasks_of(spec))
    return spec


def _check_sources(spec: JobSpec, path: Path, lines: Lines) -> None:
    """Raise InputError for duplicate names or ids, unknown or unused sources, and pictures that a task cannot use."""
    known = {source.called for source in spec.documents}
    for index, task in enumerate(spec.tasks):
        if task.id in (other.id for other in spec.tasks[:index]):
            told = f"two tasks have the id {task.id!r}: rename one of them"
            raise mistake(path, lines, ("tasks", index, "id"), told)
        for number, name in enumerate(task.sources or ()):
            if name not in known:
                near = get_close_matches(name, known, 1)
                hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(sorted(known))}"
                place = ("tasks", index, "sources", number)
                raise mistake(path, lines, place, f"there is no source {name!r} in documents", hint)
    for index, source in enumerate(spec.documents):
        _check_patterns(source, path, lines, ("documents", index))
        if source.name is not None and source.name in (other.called for other in spec.documents[:index]):
            told, hint = f"two sources have the name {source.name!r}", "tasks choose their documents by these names"
            raise mistake(path, lines, ("documents", index, "name"), told, f"rename one of them: {hint}")
        if not spec.tasks_of(source):
            told = f"no task uses the documents of {source.called!r}"
            hint = "name it in the `sources` of a task, or take it out"
            raise mistake(path, lines, ("documents", index), told, hint)
        why = next(filter(None, map(_text_only, spec.tasks_of(source))), None)
        if source.render not in TEXT_ONLY and why is not None:
            hint = "name other sources in the task's `sources`, or leave one of the two out"
            raise mistake(path, lines, ("documents", index, "render"), why, hint)


def _check_patterns(source: DocumentSource, path: Path, lines: Lines, place: Place) -> None:
    """Raise InputError for a pattern that begins with `!`. Other tools read it as an exception, orch as a
    character.
    """
    cures = {
        "include": 'leave the files out with  exclude: ["{}"]',
        "exclude": "`exclude` has no exceptions: write patterns that do not match {}",
    }
    for field, patterns in (("include", source.include), ("exclude", source.exclude)):
        for number, pattern in enumerate(patterns):
            if pattern.startswith("!"):
                told = f"{pattern!r} begins with !, which is no exception here"
                hint = cures[field].format(pattern.lstrip("!"))
                raise mistake(path, lines, (*place, field, number), told, hint)


def _text_only(task: Task) -> str | None:
    if task.long is not None:
        return f"the task {task.id!r} asks in parts (`long`), and pictures cannot be split"
    if task.kind == "embedding":
        return f"the task {task.id!r} makes vectors of text, and pictures have none"
    return None


def lines_of(path: Path) -> Lines:
    """Return the line of each field of an accepted job file, for errors found later."""
    from orchestrator.settings.yaml_files import load_yaml

    return load_yaml(path)[1]


def mistake_at(path: Path, place: Place, message: str, hint: str | None = None) -> InputError:
    """Return an error about a field of an accepted job file, with its line."""
    return mistake(path, lines_of(path), place, message, hint)


def place_of(path: Path, *place: str | int) -> str:
    """Return the position of a field in an accepted job file: file, line and name."""
    return mistake_at(path, place, "").where


def _check_schemas(spec: JobSpec, path: Path, lines: Lines) -> None:
    """Raise one InputError about all parts of the tasks' schemas that cannot check an answer."""
    from orchestrator.core import schemas

    found: list[InputError] = []
    for index, task in enumerate(spec.tasks):
        if not task.output_schema:
            continue  # without a schema, the checker of schemas is not imported
        if (cure := schemas.meant_by(task.output_schema)) is not None:
            place: Place = ("tasks", index, "schema")
            told = "checks nothing: none of its keys is a keyword of JSON Schema"
            hint = f"write  schema: {json.dumps(cure, ensure_ascii=False)}"
            found.append(mistake(path, lines, place, told, hint))
        for inner, message in schemas.faults(task.output_schema):
            found.append(mistake(path, lines, ("tasks", index, "schema", *inner), message))
    if found:
        first, *rest = sorted(found, key=lambda problem: problem.line or 0)[:MAX_ERRORS]
        first.others = rest
        raise first


def schema_hints(spec: JobSpec, path: Path) -> Iterator[str]:
    """Yield each part of the tasks' schemas that has no effect, with its position and the corrected line."""
    from orchestrator.core import schemas

    for index, task in enumerate(spec.tasks):
        for inner, part in schemas.without_nullable(task.output_schema) if task.output_schema else ():
            line = ": ".join([*map(str, inner[-1:]), json.dumps(part, ensure_ascii=False)])
            place = place_of(path, "tasks", index, "schema", *inner)
            yield f"{place}: `nullable` is OpenAPI's, and an answer of null fails the check; write  {line}"


def check_names(spec: JobSpec, path: Path, config: Config) -> None:
    """Check a job file's model aliases and backends against orch.toml. Raises InputError."""
    known = {**config.fleet_models, **config.models, **spec.models}
    for index, task in enumerate(spec.tasks):
        for place, alias in task.aliases.items():
            if alias in known:
                continue
            names = ", ".join(sorted(known)) or "none is declared"
            message = f"the model alias {alias!r} is not declared (known: {names})"
            name, colon, model = alias.partition(":")
            hint = meant(alias, known) or f"add to the job file:  models: {{{alias}: NAME_OF_THE_MODEL}}"
            if colon:
                hint = f"write  model: small, and  models: {{small: {{{name}: {model}}}}}"
            raise mistake_at(path, ("tasks", index, *place), message, hint)
    for name in spec.allow.backends or ():
        if name not in config.backends:
            message = f"there is no backend {name!r} in {config.path or 'orch.toml'}"
            hint = meant(name, config.backends) or f"known: {', '.join(config.backends) or 'none'}"
            raise mistake_at(path, ("allow", "backends"), message, hint)


def _check_template(source: str, path: Path, lines: Lines, place: Place) -> None:
    from orchestrator.core.templates import TemplateProblem, template

    try:
        template(source)
    except TemplateProblem as problem:
        where = "" if problem.line is None else f" (line {problem.line} of the text)"
        hint = None
        if _DOUBLED_JSON.search(source):
            hint = "write JSON with single braces: {{ … }} is only for fields of the document"
        elif found := _TRIPLED.search(source):
            hint = f"write {{{{ {found[1]} }}}}, in two braces"
        raise mistake(path, lines, place, f"is not a Jinja2 template: {problem.message}{where}", hint) from None


def _check_is_of_documents(source: str, path: Path, lines: Lines, place: Place) -> None:
    """Raise InputError for a prompt without a field of the document: all documents would get the same vector."""
    from orchestrator.core.templates import template

    if not template(source).variables:
        told = "uses no field of the document, so all would have the same vector"
        raise mistake(path, lines, place, told, "write {{ text }} where the document's text belongs")


def _check_variables(source: str, known: tuple[str, ...], path: Path, lines: Lines, place: Place) -> None:
    from orchestrator.core.templates import template

    for name in sorted(template(source).variables - {*known}):
        told = f"the template uses {{{{ {name} }}}}, which a request about the answers to parts does not have"
        fields = " ".join(f"{{{{ {one} }}}}" for one in known) or "no fields at all"
        raise mistake(path, lines, place, told, f"with `long`, it may use {fields}")
