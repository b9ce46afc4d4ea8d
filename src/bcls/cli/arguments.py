"""Words without a flag in front of the flags, such as the folder in ``bcls data check DIR``.

Flags from a dataclass: ``--config file.yaml``, dotted flags, ``--print_config``, and one-line errors.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import MISSING, fields, is_dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bcls._core.errors import fail

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def places(verb: str, words: Sequence[str], names: tuple[str, ...], example: str) -> tuple[list[str], list[str]]:
    """The leading words that are no flags, one for each name, and the flags after them.

    Args:
        verb: The verb, for the message.
        words: What stands after it.
        names: What is expected, such as ``("KIND", "SOURCE")``.
        example: A whole command after ``bcls``, for the message.

    Returns:
        The words, and the flags; empty words where only help is asked for.

    Raises:
        ValueError: If a word is missing.

    Example:
        >>> places("data check", ["flickr8k", "--json"], ("DIR",), "data check flickr8k")
        (['flickr8k'], ['--json'])
    """
    given: list[str] = []
    rest = list(words)
    while rest and not rest[0].startswith("-") and len(given) < len(names):
        given.append(rest.pop(0))
    if len(given) < len(names) and not {"-h", "--help", "--print_config"} & set(rest):
        fail(
            f"bcls {verb}: {names[len(given)]}",
            f"{' '.join(names)}, then flags",
            " ".join(words) or "nothing",
            f"for example `bcls {example}`",
        )
    return given + [""] * (len(names) - len(given)), rest


Settings = TypeVar("Settings", bound="DataclassInstance")


def parse(verb: str, about: str, settings: type[Settings], arguments: Sequence[str]) -> Settings:
    """Read the flags of a verb into its settings.

    Args:
        verb: Name of the verb.
        about: What it does, for ``--help``.
        settings: A dataclass; the docstring under each field is the flag's help. A ``bool`` is a switch, a
            ``list[str]`` takes one word or more.
        arguments: Words after the verb; ``--dry-run`` is the same as ``--dry_run``.

    Returns:
        An instance of ``settings``.

    Raises:
        ValueError: If a flag, its value or a file of settings is wrong; the message names it.
        OSError: If a file of settings cannot be read.
    """
    # Takes 0.1 s to import, which `bcls --help` need not pay.
    import docstring_parser
    import jsonargparse

    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = jsonargparse.ArgumentParser(
        prog=f"bcls {verb}", description=about, exit_on_error=False, allow_abbrev=False
    )
    parser.add_argument("--config", action="config", help="YAML file with settings; flags after it win")
    switches = {field.name: field.default for field in fields(settings) if field.type is bool}
    lists = {field.name: field.default_factory for field in fields(settings) if field.type == list[str]}
    parser.add_class_arguments(settings, skip=set(switches) | set(lists))
    kinds = [kind for kind in reversed(settings.__mro__) if is_dataclass(kind)]
    params = [one for kind in kinds for one in docstring_parser.parse_from_object(kind).params]
    described = {one.arg_name: one.description for one in params}
    for switch, default in switches.items():  # `--json` alone, not `--json true`
        parser.add_argument(
            f"--{switch}", action=jsonargparse.ActionYesNo, default=default, help=described.get(switch, "")
        )
    for name, default_factory in lists.items():  # `--name a b`, not `--name [a, b]`
        default = {"required": True} if default_factory is MISSING else {"default": default_factory()}
        parser.add_argument(f"--{name}", nargs="+", type=str, help=described.get(name, ""), **default)
    known = [field.name for field in fields(settings)]
    words = [_underscored(word, known) for word in arguments]
    for file in _config_files(words):
        from bcls._core.config import check_yaml

        check_yaml(file)
    try:
        given = parser.parse_args(words)
    except (jsonargparse.ArgumentError, OverflowError) as error:  # the latter of a whole number for a float
        raise ValueError(_plain(str(error), verb, known)) from error
    return settings(**{key: value for key, value in given.as_dict().items() if key != "config"})


def _underscored(word: str, known: Sequence[str]) -> str:
    """A known flag that is written with dashes, with underscores; any other word as it is.

    Example:
        >>> _underscored("--dry-run", ["dry_run"]), _underscored("--no-cache=a-b", ["cache"]), _underscored("--a-b", [])
        ('--dry_run', '--no_cache=a-b', '--a-b')
    """
    flag, equals, value = word.partition("=")
    name = flag.removeprefix("--").replace("-", "_")
    is_known = flag.startswith("--") and (name in known or name.removeprefix("no_") in known)
    return f"--{name}{equals}{value}" if is_known else word


def _config_files(arguments: Sequence[str]) -> list[Path]:
    """Files behind ``--config``; of those that are not there the parser says so."""
    words = [word for flag, word in pairwise(arguments) if flag == "--config"]
    words += [word.removeprefix("--config=") for word in arguments if word.startswith("--config=")]
    return [Path(word) for word in words if Path(word).is_file()]


def _plain(message: str, verb: str, known: Sequence[str] = ()) -> str:
    r"""A parser's message on one line, in the words of the command line, with the nearest name and where to look.

    Example:
        >>> _plain("Parser key \"seeds\":\n  Expected a <class 'int'>. Got value: many", "demo")
        '--seeds: Expected a int. Got value: many; see `bcls demo --help`'
        >>> _plain("Option 'epoch' is not accepted", "train", ["epochs", "lr"])
        "Option 'epoch' is not accepted (did you mean --epochs?); see `bcls train --help`"
    """
    text = re.sub(r'Parser key "([\w.]+)":', r"--\1:", " ".join(message.split()))
    text = re.sub(r"<class '([\w.]+)'>", r"\1", text)
    unknown = re.search(r"unrecognized arguments: --([\w-]+)|Option '([\w-]+)[\w.-]*' is not accepted", text)
    near = difflib.get_close_matches(unknown[1] or unknown[2], known, n=1) if unknown else []
    hint = f" (did you mean --{near[0]}?)" if near else ""
    return f"{text}{hint}; see `bcls {verb} --help`"
