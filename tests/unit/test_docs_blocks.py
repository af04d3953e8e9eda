"""Blocks of the pages: each is of its language, and settings and jobs are what orch takes."""

from __future__ import annotations

import json
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from orchestrator.settings import config
from orchestrator.settings.discovery import Place
from orchestrator.settings.job_spec import json_schema
from tools import site

ROOT = Path(__file__).resolve().parents[2]
PAGES = [page for page, _ in site.pages() if page.suffix == ".md"]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
BLOCKS = [
    (f"{page.relative_to(ROOT)}:{number}", language, code)
    for page in PAGES
    for number, (language, code) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))
]
PARTS = {"docs/how-to/bench.md:1", "docs/reference/dialects.md:0", "docs/reference/documents.md:2"}
"""TOML that stands below a table of orch.toml, or is a plug-in's own."""
LANGUAGES = {"console", "json", "mermaid", "python", "sh", "sql", "toml", "yaml"}
"""The drawing in mermaid is compared by tests/unit/test_docs.py, consoles and SQL by test_page_commands.py."""


def of_language(language: str) -> pytest.MarkDecorator:
    found = [(place, code) for place, its, code in BLOCKS if its == language]
    return pytest.mark.parametrize(("place", "code"), found, ids=[place for place, _ in found])


def test_every_block_is_in_a_language_that_is_checked() -> None:
    assert {language for _, language, _ in BLOCKS} <= LANGUAGES
    assert {place for place, _, _ in BLOCKS} >= PARTS


@of_language("python")
def test_python_compiles(place: str, code: str) -> None:
    compile(code, place, "exec")


@of_language("json")
def test_json_is_json(place: str, code: str) -> None:
    json.loads(code)


@of_language("sh")
def test_shells_read_commands(place: str, code: str) -> None:
    done = subprocess.run(["bash", "-n"], input=code, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@of_language("toml")
def test_settings_are_taken(place: str, code: str, tmp_path: Path) -> None:
    tomllib.loads(code)
    if place not in PARTS:
        config.parse(Place(tmp_path / "orch.toml", tmp_path, "sqlite:///x", 1.0), code)


@of_language("yaml")
def test_jobs_are_taken(place: str, code: str) -> None:
    written = yaml.safe_load(code)
    if {"tasks", "documents"} & written.keys():
        task = {"id": "t", "model": "m", "prompt": "p"}
        whole = {"name": "x", "documents": [{"path": "in"}], "tasks": [task], **written}
        Draft202012Validator(json_schema()).validate(whole)
