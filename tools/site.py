"""`python -m tools.site`: the pages of docs/, those beside it and the API reference, as Zensical builds them.

Links of docs/ lead to files of the checkout. What is no page, such as a recipe for systemd, becomes its name.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import orchestrator
from orchestrator.library import calls

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("benchmarks", "deploy", "integrations", "samples")
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s#]+)(#[^)\s]*)?\)")
SHIM = Path(__file__).with_name("iframe-worker-1.0.4.js")
SHIM_ADDRESS = "https://unpkg.com/iframe-worker/shim"
"""It runs the search of a page that was opened as a file."""
API = "reference/api.md"
ABOUT = """# API

What `import orchestrator as orch` has, from its docstrings. [Python](python.md) shows how it is used.
"""


def main(arguments: list[str]) -> int:
    """Write the sources of the site anew, which `zensical build` makes pages of; `finish` ends that."""
    if arguments == ["finish"]:
        finish(ROOT / "site")
    else:
        prepare(ROOT / ".site")
    return 0


def prepare(out: Path) -> dict[Path, Path]:
    """Copy all pages to `out` with links that lead to each other there; return the new place of each page."""
    shutil.rmtree(out, ignore_errors=True)
    places = {page: out / place for page, place in pages()}
    for page, place in places.items():
        place.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix == ".md":
            place.write_text(_with_links(page, places), encoding="utf-8")
        else:
            shutil.copy(page, place)
    (out / API).write_text(api_page(), encoding="utf-8")
    return places


def finish(site: Path) -> None:
    """Let pages take the one script that they would fetch from elsewhere from the site itself."""
    shutil.copy(SHIM, site / "assets" / SHIM.name)
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        there = Path(os.path.relpath(site / "assets" / SHIM.name, page.parent)).as_posix()
        page.write_text(text.replace(SHIM_ADDRESS, there), encoding="utf-8")


def pages() -> Iterator[tuple[Path, Path]]:
    """Yield each file of the site with its place there."""
    for page in sorted((ROOT / "docs").rglob("*.*")):
        place = page.relative_to(ROOT / "docs")
        yield page, place.with_name("index.md") if page.name == "README.md" else place
    for page in sorted(ROOT.glob("*.md")):
        yield page, Path("project") / ("about.md" if page.name == "README.md" else page.name.lower())
    yield ROOT / "LICENSE", Path("project/LICENSE.txt")
    for folder in FOLDERS:
        yield ROOT / folder / "README.md", Path("project") / f"{folder}.md"


def _with_links(page: Path, places: dict[Path, Path]) -> str:
    def link(found: re.Match[str]) -> str:
        text, path, anchor = found[1], found[2], found[3] or ""
        if re.match(r"[a-z]+:", path):
            return found[0]
        target = (page.parent / path).resolve()
        target = target / "README.md" if target.is_dir() else target
        if target not in places:
            return text[1:-1]
        there = Path(os.path.relpath(places[target], places[page].parent)).as_posix()
        # GitHub keeps every hyphen of a heading such as `orch try --json`; Python-Markdown writes one for several.
        return f"{text}({there}{re.sub('-{2,}', '-', anchor)})"

    return LINK.sub(link, page.read_text(encoding="utf-8"))


def api_page() -> str:
    """Return the page of the public names, each a directive that mkdocstrings fills from its docstring."""
    names = [name for name in orchestrator.__all__ if name != "__version__"]
    functions = [name for name in names if name[0].islower()]
    parts = [ABOUT, "## Functions\n", *(_directive(name) for name in functions)]
    return "\n".join([*parts, "## Classes\n", *(_directive(name) for name in names if name not in functions)])


def _directive(name: str) -> str:
    value = calls.documents if name == "documents" else getattr(orchestrator, name)
    return f"::: {value.__module__}.{value.__qualname__}\n    options:\n      heading: orch.{name}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
