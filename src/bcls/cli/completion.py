"""``bcls completion``: a script that completes verbs, flags, choices and file names in a shell."""

import contextlib
import importlib
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass

from bcls._checks import check_choice
from bcls.cli.main import VERBS
from bcls.cli.shells import SHELLS

_ABOUT = """usage: bcls completion SHELL

Prints what lets a shell complete verbs, flags, choices and file names. Shells:
  bash   eval "$(bcls completion bash)" in ~/.bashrc
  zsh    eval "$(bcls completion zsh)" in ~/.zshrc, after compinit
  fish   bcls completion fish > ~/.config/fish/completions/bcls.fish
"""
#: A line that begins a flag's description, up to the two spaces before the text: ``  --json, --no_json   Print ...``.
_FLAGS = re.compile(r"^ {2}(-.*?)(?: {2}|$)", re.MULTILINE)
_CHOICES = re.compile(r"(--[\w.-]+) \{([\w.,-]+)\}")
_JOBS = re.compile(r"^ {2}(\w[\w-]*) ", re.MULTILINE)


@dataclass(frozen=True)
class Command:
    """A verb, or a job of a verb, as its own help describes it."""

    words: tuple[str, ...]
    """The verb, and the job where there is one."""
    about: str
    """What it does; empty for a job."""
    flags: tuple[str, ...]
    """Its flags."""
    choices: dict[str, tuple[str, ...]]
    """What a flag can be, where that is a list."""
    jobs: tuple[str, ...] = ()
    """Its jobs, where it has some."""


def main(arguments: Sequence[str]) -> int:
    """Run the verb; see :func:`bcls.cli.main.main`."""
    words = list(arguments)
    if not words or words[0] in {"-h", "--help"}:
        print(_ABOUT, end="")
        return 0 if words else 2
    check_choice("completion", words[0], SHELLS)
    print(SHELLS[words[0]](commands()), end="")
    return 0


def commands() -> list[Command]:
    """Every verb and every job, with the flags that their parsers know."""
    found = []
    for verb, (module, about) in VERBS.items():
        if module == __name__:
            found.append(Command((verb,), about, ("--help",), {}, tuple(SHELLS)))
            continue
        shown = _help(module, [])
        jobs = tuple(_JOBS.findall(shown)) if shown.startswith(f"usage: bcls {verb} JOB") else ()
        found.append(_command((verb,), about, shown, jobs))
        found.extend(_command((verb, job), "", _help(module, [job])) for job in jobs)
    return found


def _command(words: tuple[str, ...], about: str, shown: str, jobs: tuple[str, ...] = ()) -> Command:
    listed = [] if jobs else re.findall(r"--[\w.-]+", " ".join(_FLAGS.findall(shown)))
    flags = tuple(dict.fromkeys(["--help", *listed]))
    choices = {flag: tuple(names.split(",")) for flag, names in _CHOICES.findall(shown) if flag in flags}
    return Command(words, about, flags, choices, jobs)


def _help(module: str, words: list[str]) -> str:
    """What ``--help`` of a verb or a job prints."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.suppress(SystemExit):
        importlib.import_module(module).main([*words, "--help"])
    return shown.getvalue()
