"""`orch help`: the pages of docs/ that were installed with this version."""

from __future__ import annotations

import sys
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import click

from orchestrator.cli.output import show, width_of
from orchestrator.core.errors import StorageError, UsageError

INSTALLED = "share/doc/orch-batch/"
FOLDERS = ("how-to", "reference", "", "explanation", "decisions")
"""Folders in order of precedence: of pages with the same name, the page in the first folder is shown."""


@click.command("help")
@click.argument("topic", default="README", metavar="[TOPIC]")
def help_page(topic: str) -> None:
    """Show a page of the documentation, or the list of all pages.

    TOPIC is the name of a page, or of a command without a page of its own. On a terminal, the page is laid out for
    its width. A file or pipe gets the Markdown.

    \b
    orch help
    orch help budgets
    orch help reference/job-file
    """
    pages = find_pages()
    name = topic.removeprefix("docs/").removesuffix(".md")
    if name in pages:
        text = pages[name].read_text(encoding="utf-8")
        if (width := width_of(sys.stdout)) is None:
            show(text, whole=True)
            return
        from orchestrator.cli.console import out
        from orchestrator.cli.page_lines import page_lines

        out().print(page_lines(text, width, pages))
        return
    from orchestrator.cli import COMMANDS, run

    if name in COMMANDS:
        run([name, "--help"])
        return
    near = get_close_matches(name, [*pages, *COMMANDS], 1)
    raise UsageError(
        f"there is no page {topic!r}", hint=f"`orch help {near[0]}`" if near else "`orch help` lists them"
    )


def find_pages() -> dict[str, Path]:
    """Return the pages by name, including the folder.

    A name without the folder also works. If several folders have that page, the earliest folder wins.
    """
    root = _pages_folder()
    pages: dict[str, Path] = {}
    for folder in FOLDERS:
        for page in sorted((root / folder).glob("*.md" if not folder else "**/*.md")):
            name = page.relative_to(root).with_suffix("").as_posix()
            short = page.stem if page.stem != "README" or page.parent == root else page.parent.name
            pages[name] = page
            pages.setdefault(short, page)
    return pages


def _pages_folder() -> Path:
    try:
        for file in distribution("orch-batch").files or ():
            if str(file).endswith(f"{INSTALLED}README.md"):
                return Path(str(file.locate())).resolve().parent
    except PackageNotFoundError:
        pass  # run from a checkout that is not installed
    checkout = Path(__file__).parents[2]
    if (checkout / "docs" / "README.md").is_file() and (checkout / "pyproject.toml").is_file():
        return checkout / "docs"
    raise StorageError(
        "the pages of the documentation are not installed", hint="install orch-batch again, as a wheel"
    )
