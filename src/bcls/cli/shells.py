"""The scripts of ``bcls completion``: one function a shell, from commands to text."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bcls.cli.completion import Command


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
