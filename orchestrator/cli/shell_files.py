"""`orch completion` and `orch man`: shell completion and a manual page, generated from the command-line parser."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import click
from click.shell_completion import get_completion_class

from orchestrator.cli.output import say, show
from orchestrator.core.errors import StorageError
from orchestrator.core.version import __version__

PLACES = {
    "bash": ("XDG_DATA_HOME", ".local/share", "bash-completion/completions/orch"),
    "zsh": ("XDG_DATA_HOME", ".local/share", "zsh/site-functions/_orch"),
    "fish": ("XDG_CONFIG_HOME", ".config", "fish/completions/orch.fish"),
    "man": ("XDG_DATA_HOME", ".local/share", "man/man1/orch.1"),
}
"""Install paths by shell (or `man`): the variable that names the folder, its default in the user's home, and the
file.
"""
ZSH = "add to ~/.zshrc: fpath+=({}); autoload -Uz compinit; compinit"
install_option = click.option(
    "--install", "installs", is_flag=True, help="Write it where the shell, or man, looks for it."
)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@install_option
def completion(shell: str, installs: bool) -> None:
    """Print the completion script of a shell, or install it for this user.

    \b
    orch completion bash --install
    source <(orch completion bash)     # for this shell only
    """
    from orchestrator.cli import root

    made = get_completion_class(shell)
    assert made is not None  # click supports all three shells
    # `source()` would start a bash to ask for its version.
    complete = made(root, {}, "orch", "_ORCH_COMPLETE")
    _give(shell, complete.source_template % complete.source_vars(), installs)
    if installs and shell == "zsh":
        say(ZSH.format(_place(shell).parent))


@click.command()
@install_option
def man(installs: bool) -> None:
    """Print the manual page, or install it for this user.

    \b
    orch man | man -l -
    orch man --install && man orch
    """
    _give("man", manual_page(), installs)


def _give(kind: str, text: str, installs: bool) -> None:
    if not installs:
        show(text, whole=True)
        return
    place = _place(kind)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"cannot write {place}: {error.strerror}") from error
    say(f"orch: wrote {place}")


def _place(kind: str) -> Path:
    variable, below_home, file = PLACES[kind]
    return Path(os.environ.get(variable) or Path.home() / below_home) / file


def manual_page() -> str:
    """Return the manual page of `orch` and all its commands, in roff."""
    from orchestrator.cli import COMMANDS, root

    top = click.Context(root, info_name="orch")
    lines = [
        f'.TH ORCH 1 "" "orch {__version__}" "orch"', ".SH NAME", _escaped(f"orch - {_first(root)}"), ".SH SYNOPSIS",
        r"\fBorch\fP COMMAND [OPTIONS]", ".SH DESCRIPTION", *_text(root.help or ""), ".SH COMMANDS",
    ]  # fmt: skip
    for name in COMMANDS:
        command = root.get_command(top, name)
        assert command is not None
        lines += _command(command, click.Context(command, info_name=name, parent=top))
    lines += [".SH EXIT STATUS", "0 done, 1 failed rows or a failed job, 2 usage or bad input, 3 refused, 4 backend,"]
    lines += ["network or storage.", ".SH SEE ALSO", _escaped("`orch help` lists the pages of the documentation.")]
    return "\n".join(lines) + "\n"


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    usage = " ".join(command.collect_usage_pieces(context))
    yield f".SS {_escaped(f'{context.command_path} {usage}')}"
    yield from _text(command.help or "")
    for parameter in command.get_params(context):
        if (record := parameter.get_help_record(context)) is not None and record[1]:
            yield from (".TP", rf"\fB{_escaped(record[0])}\fP", _escaped(record[1]))
    for name, inner in (command.commands if isinstance(command, click.Group) else {}).items():
        yield from _command(inner, click.Context(inner, info_name=name, parent=context))


def _first(command: click.Command) -> str:
    return (command.help or "").partition("\n")[0].rstrip(".")


def _text(text: str) -> Iterator[str]:
    """Yield a text as roff paragraphs. Paragraphs after a \\b keep their lines, as in click's help."""
    for paragraph in re.split(r"\n\s*\n", text.strip()):
        keeps_lines = paragraph.lstrip(" ").startswith("\b")
        yield ".PP"
        if keeps_lines:
            yield ".nf"
        yield from (_escaped(line.strip()) for line in paragraph.lstrip(" \b\n").splitlines())
        if keeps_lines:
            yield ".fi"


def _escaped(text: str) -> str:
    text = " ".join(text.split()).replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text
