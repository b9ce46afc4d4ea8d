"""The scripts of ``bcls completion``: one function a shell, from commands to text.

``bcls completion``: a script that completes verbs, flags, choices and file names in a shell.
"""

import contextlib
import importlib
import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bcls._core.errors import check_choice
from bcls.cli.main import COMMANDS

if TYPE_CHECKING:
    pass


def bash(commands: Sequence["Command"]) -> str:
    """For bash 3.2 and newer."""
    return f"""_bcls() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} place=${{COMP_WORDS[1]}}
    local flags="" known=""
    case "$place" in
        {"|".join(_with_jobs(commands)) or "-"})
            if [ "$COMP_CWORD" -gt 2 ]; then place="$place ${{COMP_WORDS[2]}}"; fi ;;
    esac
    if [ "$COMP_CWORD" = 1 ]; then
        COMPREPLY=($(compgen -W "{" ".join(_verbs(commands))} --help --version" -- "$word"))
        return
    fi
    case "$place" in
{_cases(commands, '        "{words}") flags="{flags}" known="{jobs}" ;;')}
    esac
    case "$place $before" in
{_choices(commands, '        "{words} {flag}") COMPREPLY=($(compgen -W "{choices}" -- "$word")); return ;;')}
    esac
    case "$word" in
        -*) COMPREPLY=($(compgen -W "$flags" -- "$word")) ;;
        *) if [ -n "$known" ]; then COMPREPLY=($(compgen -W "$known" -- "$word")); else COMPREPLY=(); fi ;;
    esac
}}
complete -o bashdefault -o default -F _bcls bcls
"""


def zsh(commands: Sequence["Command"]) -> str:
    """For zsh with its completion system on."""
    return f"""#compdef bcls
_bcls() {{
    local place=$words[2]
    local -a flags known
    case "$place" in
        {"|".join(_with_jobs(commands)) or "-"}) if (( CURRENT > 3 )); then place="$place $words[3]"; fi ;;
    esac
    if (( CURRENT == 2 )); then
        compadd -- {" ".join(_verbs(commands))} --help --version
        return
    fi
    case "$place" in
{_cases(commands, '        "{words}") flags=({flags}) known=({jobs}) ;;')}
    esac
    case "$place $words[CURRENT-1]" in
{_choices(commands, '        "{words} {flag}") compadd -- {choices}; return ;;')}
    esac
    if [[ $words[CURRENT] == -* ]]; then compadd -- $flags
    elif (( $#known )); then compadd -- $known
    else _files; fi
}}
compdef _bcls bcls
"""


def fish(commands: Sequence["Command"]) -> str:
    """For fish 3 and newer."""
    lines = ["complete -c bcls -e"]
    for command in commands:
        verb, *job = command.words
        if not job:
            about = command.about.replace("'", "\\'")
            lines.append(f"complete -c bcls -n __fish_use_subcommand -f -a {verb} -d '{about}'")
        here = f"__fish_seen_subcommand_from {verb}" + "".join(
            f"; and __fish_seen_subcommand_from {one}" for one in job
        )
        if command.jobs:
            jobs = " ".join(command.jobs)
            lines.append(f"complete -c bcls -n '{here}; and not __fish_seen_subcommand_from {jobs}' -f -a '{jobs}'")
            continue
        for flag in command.flags:
            choices = command.choices.get(flag)
            tail = f" -x -a '{' '.join(choices)}'" if choices else ""
            lines.append(f"complete -c bcls -n '{here}' -l {flag[2:]}{tail}")
    return "\n".join(lines) + "\n"


#: Shell -> what makes its script.
SHELLS: dict[str, Callable[[Sequence["Command"]], str]] = {"bash": bash, "zsh": zsh, "fish": fish}


def _verbs(commands: Sequence["Command"]) -> list[str]:
    return [command.words[0] for command in commands if len(command.words) == 1]


def _with_jobs(commands: Sequence["Command"]) -> list[str]:
    """Verbs of which a job has flags of its own."""
    return list(dict.fromkeys(command.words[0] for command in commands if len(command.words) == 2))


def _cases(commands: Sequence["Command"], line: str) -> str:
    return "\n".join(
        line.format(words=" ".join(one.words), flags=" ".join(one.flags), jobs=" ".join(one.jobs)) for one in commands
    )


def _choices(commands: Sequence["Command"], line: str) -> str:
    return "\n".join(
        line.format(words=" ".join(one.words), flag=flag, choices=" ".join(choices))
        for one in commands
        for flag, choices in one.choices.items()
    )


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
    for verb, (module, about) in COMMANDS.items():
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
