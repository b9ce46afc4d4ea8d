"""Command-line parsing: arguments and flags from a dataclass, ``--config``, ``--print-config`` and ``--import``.

jsonargparse does the parsing. This module adds five rules of our own: flags are spelled with hyphens and accepted with
underscores; positional arguments may stand between flags; flags win over a file of settings wherever they stand; flags
of a key such as ``--loss.margin`` change only that key of a mapping; errors are one line.
"""

import argparse
import difflib
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args, get_type_hints

from bcls._core.config import read_yaml
from bcls._core.errors import check_choice, fail, reason_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from jsonargparse import ArgumentParser

Settings = TypeVar("Settings", bound="DataclassInstance")
#: A flag, and the values after it.
Flag: TypeAlias = tuple[str, list[str]]
#: In place of the arguments of a command: raise :class:`ParserRequest` with its parser, for shell completion.
PARSER_ONLY = "--parser-only"
#: Types of switches; without a flag, the second is ``None``.
_SWITCHES = (bool, bool | None)


class ParserRequest(Exception):  # noqa: N818 - not an error
    """Carries the parser of a command that was called with :data:`PARSER_ONLY`."""

    def __init__(self, parser: "ArgumentParser") -> None:
        super().__init__(parser.prog)
        self.parser = parser


def parse(
    command: str,
    settings: type[Settings],
    arguments: Sequence[str],
    *,
    positional: Mapping[str, str] | None = None,
    imports: bool = False,
) -> Settings:
    """Parse the arguments of a command into its settings.

    Args:
        command: Name of the command, such as ``data check``.
        settings: A dataclass. Its docstring is the text of ``--help``: what the command does, and in `Attributes` the
            help of the arguments. A ``bool`` is a switch with a ``--no-`` form, a ``list[str]`` takes one value or
            more and may be repeated, and a field with a name of one letter has a short flag as well.
        arguments: Arguments after the command.
        positional: Fields that are positional arguments, with the names that ``--help`` shows: ``{"folder": "DIR"}``.
            A ``str`` is required, ``str | None`` optional, and a ``list[str]`` takes any number.
        imports: Whether the command takes ``--import MODULE``. The modules are imported before anything is parsed, so
            that losses and models which they register are known.

    Returns:
        An instance of ``settings``.

    Raises:
        ValueError: An argument, its value, a module or a file of settings is wrong; the message names it.
        OSError: A file of settings cannot be read.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class Count:
        ...     "Count files."
        ...     folder: str
        ...     dry_run: bool = False
        >>> parse("count", Count, ["photos", "--dry-run"], positional={"folder": "DIR"})
        Count(folder='photos', dry_run=True)
    """
    # Takes 0.1 s to import, which `bcls --help` does not need.
    import jsonargparse

    positional = positional or {}
    parser = _parser(command, settings, positional, imports=imports)
    if list(arguments) == [PARSER_ONLY]:
        raise ParserRequest(parser)
    hints = get_type_hints(settings)
    flags, words = _split(arguments, {name: hint for name, hint in hints.items() if name not in positional})
    for _, module in _take(flags, "--import") if imports else ():
        import_module(module)
    files = [file for _, file in _take(flags, "--config")]
    given = _read_files(files, {name: hints[name] for name in positional})
    for name in list(positional)[len(words) :]:  # the parser would replace those of files by their defaults
        if not (value := given.get(name)):
            break  # a later one would take its place
        words += map(str, value if isinstance(value, list) else [value])
    for name in (name for name, hint in hints.items() if hint == dict[str, Any]):
        if changes := _take(flags, rf"--{name}(\..*)?"):  # and those of its keys, such as --loss.margin
            before = given[name] if isinstance(given.get(name), dict) else parser.get_default(name)
            flags.append((f"--{name}", [json.dumps(_change_mapping(before, changes), ensure_ascii=False)]))
    ordered = [f"--config={file}" for file in files]
    for flag, values in flags:
        # argparse needs `=` before a value with a hyphen, and takes a word with a space for no flag.
        joined = len(values) == 1 and " " not in values[0]
        ordered += [f"{flag}={values[0]}"] if joined else [flag, *values]
    try:
        parsed = parser.parse_args([*ordered, "--", *words] if positional and words else [*words, *ordered])
    except (jsonargparse.ArgumentError, OverflowError) as error:  # an integer too large for a float overflows
        names = [field.name.replace("_", "-") for field in fields(settings)]
        raise ValueError(_one_line(str(error), command, names, positional)) from error
    return settings(**{field.name: parsed[field.name] for field in fields(settings)})


#: Name -> function, usage and help of a subcommand.
Subcommands: TypeAlias = Mapping[str, tuple[Callable[[list[str]], int], str, str]]


def run_subcommand(command: str, description: str, subcommands: Subcommands, arguments: list[str]) -> int:
    """Run one of the subcommands of a command, or print their list.

    Args:
        command: Name of the command, such as ``data``.
        description: What it does, for ``--help``.
        subcommands: Function, usage and help of each subcommand.
        arguments: Arguments after the command.

    Returns:
        The exit code.

    Raises:
        ValueError: There is no such subcommand.
    """
    if not arguments or arguments[0] in {"-h", "--help"}:
        lines = "\n".join(f"  {usage:<36} {help_text}" for _, usage, help_text in subcommands.values())
        print(f"usage: bcls {command} SUBCOMMAND ...\n\n{description}\n\nsubcommands:\n{lines}")
        return 0 if arguments else 2
    run, _, _ = subcommands[check_choice("SUBCOMMAND", arguments[0], subcommands)]
    return run(arguments[1:])


def import_module(name: str) -> None:
    """Import a user's module, which may lie in the current folder, as ``--import`` does.

    Args:
        name: Dotted name of the module, or the path of a ``.py`` file in the current folder.

    Raises:
        ValueError: It does not exist or cannot be imported.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(name.removesuffix(".py").replace(os.sep, "."))
    except Exception as error:
        got = f"{name} ({type(error).__name__}: {reason_of(error)})"
        hint = "give its name, such as my_module for my_module.py in the current folder"
        fail("--import", "a Python module that can be imported", got, hint)


def _read_files(files: Sequence[str], positional: Mapping[str, Any]) -> dict[str, Any]:
    """The values in files of settings, of which the last wins. The parser reports missing files."""
    import jsonargparse

    found: dict[str, Any] = {}
    for file in (Path(file) for file in files if Path(file).is_file()):
        loaded = read_yaml(file, jsonargparse.get_loader("yaml"))
        if not isinstance(loaded, dict):
            fail(str(file), "settings as `name: value`", repr(loaded), "write it as `--print-config` does")
        found |= loaded
        for name, hint in positional.items():
            if found.get(name) and isinstance(found[name], list) != (hint == list[str]):
                expected = "a list" if hint == list[str] else "a string"
                fail(f"{name} in {file}", expected, repr(found[name]), "write it as `--print-config` does")
    return found


def _parser(command: str, settings: type, positional: Mapping[str, str], *, imports: bool) -> "ArgumentParser":
    import docstring_parser
    import jsonargparse

    parser = jsonargparse.ArgumentParser(
        prog=f"bcls {command}",
        description=docstring_parser.parse_from_object(settings).description,
        exit_on_error=False,
        allow_abbrev=False,
        print_config="--print-config",
    )
    parser.add_argument("--config", action="config", help="YAML file with settings; flags override it")
    if imports:  # removed before parsing; listed here for --help
        help_text = "Python module that registers losses or models"
        parser.add_argument("--import", metavar="MODULE", default=argparse.SUPPRESS, help=help_text)
    classes = [one for one in reversed(settings.__mro__) if is_dataclass(one)]
    helps = {one.arg_name: one.description for cls in classes for one in docstring_parser.parse_from_object(cls).params}
    hints, usage = get_type_hints(settings), {}
    for field in fields(settings):
        name, hint = field.name, hints[field.name]
        options: dict[str, Any] = {"help": helps.get(name) or "", "type": str if hint == list[str] else hint}
        if name in positional:
            options["metavar"] = usage[name] = positional[name]
            if hint == list[str]:
                options |= {"nargs": "*", "default": []}
                usage[name] += " ..."
            elif type(None) in get_args(hint):
                options |= {"nargs": "?", "default": None}
                usage[name] = f"[{usage[name]}]"
            parser.add_argument(name, **options)
            continue
        if field.default_factory is not MISSING:
            options["default"] = field.default_factory()
        else:
            options |= {"required": True} if field.default is MISSING else {"default": field.default}
        if hint in _SWITCHES:  # `--json` alone, not `--json true`
            del options["type"]
            options["action"] = jsonargparse.ActionYesNo(no_prefix="no-")
        elif hint == list[str]:  # `--name a b`, not `--name [a, b]`
            options["nargs"] = "+"
        parser.add_argument(f"--{name.replace('_', '-')}", *[f"-{name}"] * (len(name) == 1), **options)
    parser.usage = " ".join(["bcls", command, *(usage[name] for name in positional), "[options]"])
    return parser


def _split(words: Sequence[str], hints: Mapping[str, Any]) -> tuple[list[Flag], list[str]]:
    """Separate flags from the other arguments. argparse requires these to be together, users write them between flags.

    Args:
        words: The arguments.
        hints: Types of the known flags.

    Returns:
        The flags with hyphens, and the other arguments. The values of a list whose flag is repeated are joined.

    Example:
        >>> _split(["--names", "a", "--dry_run", "b", "--names=c", "--", "-d"], {"names": list[str], "dry_run": bool})
        ([('--names', ['a', 'c']), ('--dry-run', [])], ['b', '-d'])
        >>> _split(["--loss.triplet-sn.learn-it=a-b"], {})  # names of losses have hyphens
        ([('--loss.triplet-sn.learn_it', ['a-b'])], [])
    """
    types: dict[str, Any] = {"h": bool, "help": bool, "print-config": bool}
    types |= {name.replace("_", "-"): hint for name, hint in hints.items()}
    flags: list[Flag] = []
    others: list[str] = []
    lists: dict[str, list[str]] = {}
    target, many = others, False  # where a word that is not a flag belongs, and whether more such words do
    for place, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if word == "--":
            return flags, [*others, *words[place + 1 :]]
        if not re.fullmatch(r"--?[^\W\d_][\w.-]*", flag):
            target.append(word)
            if not many:
                target = others
            continue
        *path, name = flag.split(".")
        flag = ".".join([*path, name.replace("-", "_")]) if path else flag.replace("_", "-")
        hint = types.get(flag.lstrip("-").removeprefix("no-"))
        many = hint == list[str]
        if flag not in lists:
            flags.append((flag, lists.setdefault(flag, []) if many else []))
        values = lists.get(flag, flags[-1][1])
        values += [value] if equals else []
        alone = equals or hint in _SWITCHES or re.match("-[^-].", flag)  # `-k=5`, `--json` or `-k5`
        target = others if alone else values
    return flags, others


def _take(flags: list[Flag], pattern: str) -> list[tuple[str, str]]:
    """Remove the flags that match a regular expression, and return each with its value."""
    taken = [one for one in flags if re.fullmatch(pattern, one[0])]
    flags[:] = [one for one in flags if one not in taken]
    for flag, values in taken:
        if not values or ("." not in flag and not values[0]):  # `--loss.title=` is an empty text
            fail(flag, "a value", "none", f"write it as `{flag} VALUE`")
    return [(flag, values[0]) for flag, values in taken]


def _change_mapping(mapping: dict[str, Any], flags: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The mapping ``loss`` or ``model`` of the files or the defaults, with the changes by flags, whose values are YAML.

    The parser alone would drop the other values of ``bcls`` at ``--loss.bcls.margin 0.3``, and leave 0.3 a string. With
    another ``--loss.name``, the other values are dropped, `reduction` aside: the arguments of one loss mean nothing to
    another.

    Example:
        >>> _change_mapping({"name": "a", "x": 1}, [("--loss.x", "2"), ("--loss.b.y", "[3]")])
        {'name': 'a', 'x': 2, 'b': {'y': [3]}}
        >>> _change_mapping({"name": "a", "x": 1}, [("--loss.y", "no text"), ("--loss.name", "b")])
        {'name': 'b', 'y': 'no text'}
    """
    import jsonargparse
    import yaml

    last = dict(flags).items()  # of a repeated flag
    for flag, text in sorted(last, key=lambda one: (one[0].count("."), not one[0].endswith(".name"))):
        value: Any = text
        with suppress(ValueError, yaml.YAMLError):
            value = jsonargparse.get_loader("yaml")(text) if text else text
        keys = flag.split(".")[1:]
        if not keys:
            if not isinstance(value, dict):
                fail(flag, "a mapping", text, f"set its name with `{flag}.name NAME`")
            mapping = value
        elif keys == ["name"] and value != mapping.get("name", value):
            mapping = {"name": value, **{key: mapping[key] for key in ("reduction",) if key in mapping}}
        else:
            part = mapping
            for key in keys[:-1]:
                part[key] = part[key] if isinstance(part.get(key), dict) else {}
                part = part[key]
            part[keys[-1]] = value
    return mapping


def _one_line(text: str, command: str, flags: Sequence[str] = (), positional: Mapping[str, str] | None = None) -> str:
    r"""A parser's message on one line, with flags as the user writes them, the closest flag and a hint.

    Example:
        >>> _one_line("Parser key \"max_rows\":\n  Expected a <class 'int'>. Got value: many", "demo")
        '--max-rows: Expected an int. Got value: many; see `bcls demo --help`'
        >>> _one_line("Option 'epoch' is not accepted", "train", ["epochs", "lr"])
        "Option 'epoch' is not accepted (did you mean --epochs?); see `bcls train --help`"
        >>> _one_line("the following arguments are required: out, index", "index", positional={"index": "INDEX"})
        'the following arguments are required: --out, INDEX; see `bcls index --help`'
    """
    text = " ".join(text.split())
    text = re.sub(r'Parser key "([\w.]+)":', lambda found: f"--{found[1].replace('_', '-')}:", text)
    text = re.sub(r"<class '([\w.]+)'>", r"\1", text).replace("Expected a list.", "Expected a list such as [1,2].")
    text = re.sub(r"a typing\.Literal\[(.*?)\]", r"one of \1", text).replace("a int", "an int")
    start, required, names = text.partition("arguments are required: ")
    if required:
        shown = [(positional or {}).get(one, f"--{one.replace('_', '-')}") for one in names.split(", ")]
        text = start + required + ", ".join(shown)
    unknown = re.search(r"unrecognized arguments:.*? --([\w-]+)|Option '([\w-]+)[\w.-]*' is not accepted", text)
    close = difflib.get_close_matches((unknown[1] or unknown[2]).replace("_", "-"), flags, n=1) if unknown else []
    hint = f" (did you mean --{close[0]}?)" if close else ""
    if text.startswith("--config: File does not exist"):
        hint = " (the presets are in the folder configs of the repository)"
    return f"{text}{hint}; see `bcls {command} --help`"
