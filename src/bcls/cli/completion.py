"""``bcls completion``: a script that completes commands, flags, choices and file names in a shell."""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from bcls import __version__
from bcls.cli.arguments import PARSER_ONLY, ParserRequest, parse
from bcls.cli.main import COMMANDS

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser


@dataclass(frozen=True)
class CompletionSettings:
    """Print a completion script for a shell.

    bash: eval "$(bcls completion bash)" in ~/.bashrc; zsh: eval "$(bcls completion zsh)" in ~/.zshrc, after
    compinit; fish: bcls completion fish > ~/.config/fish/completions/bcls.fish

    Attributes:
        shell: The shell.
    """

    shell: Literal["bash", "zsh", "fish", "tcsh", "powershell"]


def main(arguments: list[str]) -> int:
    """Run the command; see :func:`bcls.cli.main.main`."""
    settings = parse("completion", CompletionSettings, arguments, positional={"shell": "SHELL"})
    print(root_parser().get_completion_script(f"shtab-{settings.shell}"))
    return 0


def root_parser() -> "ArgumentParser":
    """One parser with every command and subcommand. Running a command does not need it, since it loads them all."""
    import jsonargparse

    root = jsonargparse.ArgumentParser(prog="bcls", version=__version__)
    commands = root.add_subcommands()
    for name, (module_name, help_text) in COMMANDS.items():
        module = import_module(module_name)
        if not hasattr(module, "SUBCOMMANDS"):
            commands.add_subcommand(name, _parser_of(module.main), help=help_text)
            continue
        parser = jsonargparse.ArgumentParser()
        commands.add_subcommand(name, parser, help=help_text)
        nested = parser.add_subcommands()
        for subcommand, (run, _, subcommand_help) in module.SUBCOMMANDS.items():
            nested.add_subcommand(subcommand, _parser_of(run), help=subcommand_help)
    return root


def _parser_of(run: Callable[[list[str]], int]) -> "ArgumentParser":
    try:
        run([PARSER_ONLY])
    except ParserRequest as request:
        import shtab

        for action in request.parser._actions:
            if not action.choices and getattr(action, "_typehint", None) in {str, str | None}:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
        return request.parser
    raise TypeError(f"{run} does not parse its arguments with bcls.cli.arguments.parse")
