"""Hints for fixing lines that the YAML or TOML parser rejects. Pure.

No hint repeats a value that may be a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import pairwise

from orchestrator.core.lazy_patterns import regex
from orchestrator.core.money import amount_cure

_YAML_PAIR = regex(r"(\s*(?:- +)?)([A-Za-z_][\w-]*|<<): +(\S.*?)\s*")
_TAB_AFTER_COLON = regex(r"\s*(?:- +)?([A-Za-z_][\w-]*):[ ]*\t.*")
_WITHOUT_COLON = regex(r"\s*(?:- +)?([A-Za-z_][\w-]*)(?: *= *| +)([^:]+?)\s*")
_DASH = regex(r"\s*[–—•‐‑] ")
_ODD_SPACE = regex(r" *[\u00a0\u2000-\u200b\u202f\u3000]")
_COMMENT = regex(r"(?:^|\s)//(?:\s|$)")
_NO_SPACE = regex(r"\s*(?:- +)?([A-Za-z_][\w-]*):(?!//)\S.*")
_NO_SPACE_AFTER_DASH = regex(r"\s*-[A-Za-z_][\w-]*:.*")
_WINDOWS_PATH = regex(r"\"[A-Za-z]:\\|\"\\\\|\\[A-Z]")
_TOML_PAIR = regex(r"(\s*[A-Za-z0-9_.-]+)\s*=\s*([A-Za-z/.~$<%][^#\"']*?)\s*(?:#.*)?")
_TOML_COMMA = regex(r"\s*([A-Za-z0-9_.-]+)\s*=\s*(\d+),(\d+)\s*(?:#.*)?")
_TOML_AMOUNT = regex(r"\s*([A-Za-z0-9_.-]+)\s*=\s*(\d+(?:\.\d+)?(?:%|[A-Za-z]\w*))\s*(?:#.*)?")
_TOML_VALUE = regex(r"\s*([A-Za-z0-9_.-]+)\s*=\s*([^#\"'\[{]+?)\s*(?:#.*)?")
_TOML_WORDS = {"true": "true", "yes": "true", "on": "true", "false": "false", "no": "false", "off": "false"}
_STARTS = "\"'[{0123456789"
_SMART = "“”„‘’«»"
_SECRET = regex(r"env$|key|secret|token|passw|url|hook|auth", re.IGNORECASE)
"""Matches names of fields that may hold secrets. Hints never repeat the values of these fields."""
_IN_BRACES = 'quote the texts in braces and brackets (["*.txt"]), or write each on a line of its own'
_PLACEHOLDER = regex(r"\{\{|\{\w+\}\s*\S")
_BLOCK = regex(r"\w: +[|>][-+]?\s*$")
_NO_COLON = "could not find expected ':'"
_BRACED_PAIR = regex(r"[{,]\s*([A-Za-z_][\w-]*)\s*:\s")
_QUESTION = regex(r"([A-Za-z_][\w-]*): +((?:(?![\w-]+: )[^?\"'{}\[\]]){1,200}\?)")
"""Matches an unquoted text with a question mark inside braces. YAML reads that question mark as a key indicator."""
_IS_TOML = "orch.toml is TOML: a table begins with its name, such as [backends.local]"
_CONTROL = regex(r"[\x00-\x08\x0b-\x1f\x7f]")
_OPEN = "a quote is not closed"
_STRAIGHT = 'use straight quotes: "…"'
MOST = 200
"""Maximum characters of a line that a hint repeats."""


def yaml_hint(lines: Sequence[str], number: int, problem: str) -> str | None:
    """Return a hint for fixing the line (from 0) at which the YAML parser stopped, or None.

    The mistake may be in the line before. `problem` is the parser's message.
    """
    here = lines[number] if number < len(lines) else ""
    if "\t" in here[: len(here) - len(here.lstrip())]:
        return "indent with spaces: YAML allows no tabs there"
    if here.startswith("---") and number:
        return "one file is one job: put the second one into a file of its own"
    if len(here) > MOST:
        return None
    if problem == "found unexpected end of stream":
        return "close the quote, or put the text into a block:  prompt: |-  and the text indented below it"
    if problem.startswith("expected a comment or a line break"):
        return "the text of a block begins in the next line, indented: put nothing after the | or >"
    near = [line for line in lines[max(0, number - 3) : number + 1] if line.strip()]
    if any(_BLOCK.search(line) and _indent(below) < _indent(line) for line, below in pairwise(near)):
        return "indent the text of the block: deeper than its field"
    before = next((line for line in reversed(lines[:number]) if line.strip()), "")
    for line in (here, before):
        if (cure := _line_cure(line)) is not None:
            return cure
    is_mapping = problem.startswith("mapping values are not allowed")
    deep, above = (len(line) - len(line.lstrip(" -")) for line in (here, before))
    if is_mapping and deep == above and (found := _WITHOUT_COLON.fullmatch(before)):
        return f"put a colon after `{found[1]}` of the line above:  {found[1]}: {found[2]}"
    if problem.endswith("but got '?'") and (found := _QUESTION.search(here)):
        return f"put the text in quotes:  {found[1]}: {_shown(found[1], found[2])}"
    if before.count("{") + before.count("[") > before.count("}") + before.count("]"):
        return "close the brace or bracket of the line above"
    if problem.startswith("expected ',' or") and problem.endswith("'<scalar>'"):
        return "put a comma between the entries in braces or brackets"
    if (found := _YAML_PAIR.fullmatch(here)) and found[3][0] in "[{":
        return _IN_BRACES
    if (found := _YAML_PAIR.fullmatch(here)) and (": " in found[3] or found[3].endswith(":") or " #" in found[3]):
        return _quote(found)
    is_deeper = deep > above and is_mapping
    if here.strip() and before.strip() and (abs(deep - above) == 1 or is_deeper):
        return f"indented by {deep} where the line above is by {above}: align them"
    if problem == _NO_COLON:
        return "write `field: value`, or indent the text as the line above it in its block"
    return _IN_BRACES if "{" in here else None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _line_cure(line: str) -> str | None:
    if found := _TAB_AFTER_COLON.fullmatch(line):
        return f"put a space, not a tab, after the colon:  {found[1]}: …"
    if _DASH.match(line):
        return "begin an entry with a hyphen:  - id: …"
    if _ODD_SPACE.match(line):
        return "indent with plain spaces: this line begins with other characters that look like spaces"
    if "：" in line:
        return "write a plain colon and a space:  name: …"
    if _COMMENT.search(line):
        return "a comment begins with #"
    if _NO_SPACE_AFTER_DASH.fullmatch(line):
        return "put a space after the dash:  - id: …"
    if found := _NO_SPACE.fullmatch(line):
        return f"put a space after the colon:  {found[1]}: …"
    if _WINDOWS_PATH.search(line):
        return "write paths with / , or in single quotes: in double quotes, \\ begins an escape"
    found = _YAML_PAIR.fullmatch(line)
    if found is None:
        return None
    if _PLACEHOLDER.match(found[3]) or (found[3][0] in "\"'" and not _is_closed(found[3])):
        return f"put the text into a block:  {found[2]}: |-  and the text indented below it"
    if found[3][0] == "!":
        return f"a job file has no tags: write the value itself, or in quotes:  {found[2]}: …"
    if re.fullmatch(r"\*\w+", found[3]):
        return "an alias (*NAME) needs its anchor (&NAME) at a value above; quote a text that begins with *"
    return _quote(found) if found[3][0] in "*@`%" else None


def _is_closed(text: str) -> bool:
    """True if a quoted text ends with its opening quote, and every such quote inside is doubled or escaped."""
    mark, inner = text[0], text[1:-1]
    return len(text) > 1 and text[-1] == mark and mark not in inner.replace(f"\\{mark}", "").replace(mark * 2, "")


def _quote(found: re.Match[str]) -> str:
    return (
        f"quote the text:  {found[1].strip()}{' ' * bool(found[1].strip())}{found[2]}: {_shown(found[2], found[3])}"
    )


def _boolean_near(word: str) -> str | None:
    """Return the boolean that a word misspells, or None. Letters may be reordered, or the last missing or doubled."""
    return next(
        (one for one in ("true", "false") if sorted(word) == sorted(one) or word in (one[:-1], one + one[-1])), None
    )


def _shown(name: str, value: str) -> str:
    return '"…"' if _SECRET.search(name) else json.dumps(value, ensure_ascii=False)


def toml_hint(line: str, problem: str) -> str | None:
    """Return a hint for fixing a line that the TOML parser rejects, or None. `problem` is the parser's message."""
    if len(line) > MOST:
        return None
    if problem.startswith("Cannot overwrite"):
        return "this key or table is already defined: remove one of the two definitions"
    if problem.startswith("Cannot declare"):
        return "the table is there already: put its keys together"
    if any(mark in line for mark in _SMART):
        return _STRAIGHT
    if problem == 'Expected "\'"':
        return _OPEN
    if found := _TOML_COMMA.fullmatch(line):
        return f"write  {found[1]} = {found[2]}.{found[3]}"
    if _COMMENT.search(line):
        return "a comment begins with #"
    if line.rstrip().endswith((";", ",")) and "=" in line and not line.strip().startswith(('"', "'")):
        return f"leave out the {line.rstrip()[-1]!r} at the end"
    if re.search(r",\s*}", line):
        return "leave out the comma before the }"
    if problem.startswith(("Invalid hex", "Unescaped '\\\\'")) or _WINDOWS_PATH.search(line):
        return "write paths with / , or in single quotes: in double quotes, \\ begins an escape"
    if _CONTROL.search(line):
        return "remove the control character: it cannot be seen in every editor"
    if re.match(r"\s*(?:export|set)\s+\w+=", line):
        return "variables are set where orch starts, not in orch.toml, which names the variable of a key alone"
    if problem == "Invalid value" and (found := re.match(r"\s*([\w.-]+)\s*=\s*\[\s*[A-Za-z/]", line)):
        return f'put the texts of the list in quotes:  {found[1]} = ["…"]'
    if found := re.fullmatch(r"\s*\[([\w.-]+)\]\]\s*", line):
        return f"write one bracket on each side:  [{found[1]}]"
    if problem.startswith("Expected ']'") and (found := re.match(r"\s*(\[+)\s*([\w.-]+)\s*$", line)):
        return f"close the bracket:  {found[1]}{found[2]}{']' * len(found[1])}"
    if found := re.match(r"\s*([\w.-]+)\s*(?:==|=\s*=)\s*", line):
        return f"write one equals sign:  {found[1]} = …"
    if found := re.fullmatch(r"\s*([\w.-]+)\s*=\s*(?:#.*)?", line):
        return f"nothing follows the equals sign: write  {found[1]} = VALUE, or leave the line out"
    if found := re.fullmatch(r"\s*([\w.-]+)\s*=\s*[-+]?0+(\d+(?:\.\d+)?)\s*", line):
        return f"write  {found[1]} = {found[2]}, without the 0 in front"
    if found := re.match(r"\s*([\w.-]+)\s*=\s*(?:os\.|process\.env|getenv|env\()", line):
        return f'name the variable alone:  {found[1]} = "OPENAI_API_KEY"'
    if re.fullmatch(r"[^#\"']*=\s*\{\s*(?:#.*)?", line):
        return "a table in braces stands on one line; write  [NAME.KEY]  and its keys below it instead"
    if problem.startswith("Expected '='") and "=" not in line and (found := re.match(r"\s*([\w.-]+)\s+\S", line)):
        return f"write  {found[1]} = VALUE"
    if problem.startswith("Unclosed array"):
        if re.search(r"([\"'])\s+\1", line):
            return "put a comma between the values"
        return "close the list of a line above with ]"
    if re.fullmatch(r"\s*\[+[^\]\"']*\s[^\]\"']*\]+\s*", line):
        return 'put a name with spaces in quotes:  [backends."my server"]'
    if (found := _TOML_VALUE.fullmatch(line)) and (cure := amount_cure(found[2], f"{found[1]} = {{}}")):
        return cure
    if found := _TOML_AMOUNT.fullmatch(line):
        return f"write  {found[1]} = {_amount(found[1], found[2])}"
    if found := _TOML_PAIR.fullmatch(line):
        meant = _TOML_WORDS.get(found[2].lower()) or _boolean_near(found[2].lower()) or _shown(found[1], found[2])
        return f"write  {found[1].strip()} = {meant}"
    if (found := _YAML_PAIR.fullmatch(line)) or line.lstrip().startswith("{") or re.fullmatch(r"\s*[\w-]+:\s*", line):
        if found is None:
            return _IS_TOML
        word = _TOML_WORDS.get(found[3].lower())
        is_value = found[3][0] in _STARTS and not _SECRET.search(found[2])
        meant = word or (found[3] if is_value else _shown(found[2], found[3]))
        return f"TOML writes  {found[2]} = {meant}"
    if "=" in line and (found := _BRACED_PAIR.search(line)):
        return f"TOML writes  {found[1]} = …  in braces too"
    if line.count('"') % 2 or line.count("'") % 2:
        return _OPEN
    return _IS_TOML if line.lstrip().startswith("<") else None


def _amount(name: str, text: str) -> str:
    """Return an amount as a TOML value: a percentage as a fraction, any other amount as a quoted string."""
    return f"{float(text[:-1]) / 100:g}" if text.endswith("%") else _shown(name, text)
