"""Command-line parsing: arguments and flags from a dataclass, ``--config``, ``--print-config`` and ``--import``.

jsonargparse does the parsing. This module adds five rules of our own: flags are spelled with hyphens and accepted with
underscores; positional arguments may stand between flags; flags win over a file of settings wherever they stand; a new
``--loss.name`` or ``--model.name`` drops the arguments of the one it replaces, `reduction` aside; errors are one line.
"""

import argparse
import difflib
import importlib
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args, get_type_hints

from bcls._core.config import check_yaml
from bcls._core.errors import check_choice, fail, reason_of

if TYPE_CHECKING:
    from _typeshed import DataclassInstance
    from jsonargparse import ArgumentParser

Settings = TypeVar("Settings", bound="DataclassInstance")
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

    words = list(arguments)
    if imports:
        words, modules = _extract(words, "--import")
        for module in modules:
            import_module(module)
    words, files = _extract(words, "--config")
    read = _read_files(files)
    given = _positional_of_files(read, settings, positional or {})
    parser = _parser(command, settings, positional or {}, given, imports=imports)
    if words == [PARSER_ONLY]:
        raise ParserRequest(parser)
    flags = [field.name.replace("_", "-") for field in fields(settings)]
    words = [_hyphenated(word, [*flags, "print-config"]) for word in words]
    words = _join_mappings(words, read.values(), settings)
    try:
        ordered = _flags_first(words, settings, positional or {})
        parsed = parser.parse_args([*(f"--config={file}" for file in files), *ordered])
    except (jsonargparse.ArgumentError, OverflowError) as error:  # an integer too large for a float overflows
        raise ValueError(_one_line(str(error), command, flags, positional or {})) from error
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


def _read_files(files: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The settings in files, checked; the parser reports a missing file."""
    import jsonargparse

    load, read = jsonargparse.get_loader("yaml"), {}
    for file in files:
        if Path(file).is_file():
            read[file] = load(check_yaml(Path(file)))
            if not isinstance(read[file], dict):
                fail(file, "settings as `name: value`", repr(read[file]), "write it as `--print-config` does")
    return read


def _positional_of_files(
    files: Mapping[str, dict[str, Any]], settings: type, positional: Mapping[str, str]
) -> dict[str, Any]:
    """Positional arguments in files of settings, which argparse would replace by their defaults."""
    hints = get_type_hints(settings)
    found: dict[str, Any] = {}
    for file, loaded in files.items():
        for name in positional:
            value = loaded.get(name)
            if value and isinstance(value, list) != (hints[name] == list[str]):
                expected = "a list" if hints[name] == list[str] else "a string"
                fail(f"{name} in {file}", expected, repr(value), "write it as `--print-config` does")
            found |= {name: value} if value else {}
    return found


def _parser(
    command: str, settings: type, positional: Mapping[str, str], given: Mapping[str, Any], *, imports: bool
) -> "ArgumentParser":
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
                options |= {"nargs": "*", "default": given.get(name, [])}
                usage[name] += " ..."
            elif name in given:
                options |= {"nargs": "?", "default": given[name]}
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


def _extract(words: Sequence[str], flag: str) -> tuple[list[str], list[str]]:
    """Separate a flag that may be repeated from the other arguments.

    Returns:
        The other arguments, and the flag's values.

    Example:
        >>> _extract(["--lr", "1", "--config", "a.yaml", "--config=b.yaml"], "--config")
        (['--lr', '1'], ['a.yaml', 'b.yaml'])
    """
    rest, values = [], []
    remaining = iter(words)
    for word in remaining:
        name, equals, value = word.partition("=")
        if name != flag:
            rest.append(word)
        elif value := value if equals else next(remaining, ""):
            values.append(value)
        else:
            fail(flag, "a value", "none", f"write it as `{flag} VALUE`")
    return rest, values


def _hyphenated(word: str, flags: Sequence[str]) -> str:
    """A known flag with hyphens in place of underscores, a dotted key as the settings spell it, or the word unchanged.

    Example:
        >>> _hyphenated("--dry_run", ["dry-run"]), _hyphenated("--no_cache=a_b", ["cache"]), _hyphenated("--a_b", [])
        ('--dry-run', '--no-cache=a_b', '--a_b')
        >>> _hyphenated("--loss.triplet-sn.learn-it=a-b", ["loss"])  # names of losses have hyphens
        '--loss.triplet-sn.learn_it=a-b'
    """
    if dotted := re.match(r"(--[\w.-]+\.)([\w-]+)(.*)", word, re.DOTALL):
        return f"{dotted[1]}{dotted[2].replace('-', '_')}{dotted[3]}"
    match = re.match(r"--([\w-]+)(.*)", word, re.DOTALL)
    name = match[1].replace("_", "-") if match else ""
    return f"--{name}{match[2]}" if match and (name in flags or name.removeprefix("no-") in flags) else word


def _flags_first(words: Sequence[str], settings: type, positional: Mapping[str, str]) -> list[str]:
    """Arguments with the flags before the positional ones, which argparse requires to be together.

    The values of a list whose flag is repeated are joined.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Example:
        ...     folder: str
        ...     names: list[str]
        >>> _flags_first(["--names", "a", "--names", "b", "--", "folder"], Example, {"folder": "DIR"})
        ['--names', 'a', 'b', '--', 'folder']
    """
    hints = {name.replace("_", "-"): hint for name, hint in get_type_hints(settings).items() if name not in positional}
    hints |= {"h": bool, "help": bool, "print-config": bool}
    flags: list[str] = []
    lists: dict[str, list[str]] = {}
    others: list[str] = []
    target = others  # of a word that is not a flag
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        hint = hints.get(name.lstrip("-").removeprefix("no-"))
        if word == "--":
            others += words[place + 1 :]
            break
        if not re.fullmatch(r"--?[^\W\d_][\w.-]*", name):
            target.append(word)
            target = others if target is flags else target
        elif hint == list[str]:
            target = lists.setdefault(f"--{name.lstrip('-')}", [])
            if equals:
                target.append(value)
                target = others
        else:
            flags.append(word)
            alone = equals or hint in _SWITCHES or re.match("-[^-].", name)  # `-k=5`, `--json` or `-k5`
            target = others if alone else flags
    for name, values in lists.items():
        hyphen = len(values) == 1 and values[0].startswith("-")  # which argparse accepts after `=` only
        flags += [f"{name}={values[0]}"] if hyphen else [name, *values]
    return [*flags, "--", *others] if positional and others else [*others, *flags]


def _join_mappings(words: Sequence[str], files: Iterable[dict[str, Any]], settings: type) -> list[str]:
    """Arguments with the flags of ``loss`` or ``model`` joined into one flag, ``--loss={...}``.

    The parser alone would drop the other values of ``bcls`` at ``--loss.bcls.margin 0.3``, and leave 0.3 a string. The
    flags change the mapping of the files, or the default. If ``--loss.name`` is not the name in the files, their other
    values are dropped, `reduction` aside: the arguments of one loss mean nothing to another.
    """
    import jsonargparse

    load, hints, joined = jsonargparse.get_loader("yaml"), get_type_hints(settings), list(words)
    for field in fields(settings):
        if hints[field.name] != dict[str, Any] or field.default_factory is MISSING:
            continue
        joined, flags = _extract_mapping(joined, field.name, load)
        if not flags:
            continue
        merged: dict[str, Any] = field.default_factory()
        for loaded in files:
            if isinstance(loaded.get(field.name), dict):
                merged = loaded[field.name]
        joined.insert(0, f"--{field.name}={json.dumps(_merged(merged, flags), ensure_ascii=False)}")
    return joined


def _merged(mapping: dict[str, Any], flags: Sequence[tuple[list[str], Any]]) -> dict[str, Any]:
    """A mapping, changed in place or replaced by the values of flags.

    Example:
        >>> _merged({"name": "a", "x": 1}, [(["x"], 2), (["b", "y"], 3)])
        {'name': 'a', 'x': 2, 'b': {'y': 3}}
        >>> _merged({"name": "a", "x": 1}, [(["name"], "b")])
        {'name': 'b'}
    """
    names = [value for path, value in flags if path == ["name"]]
    whole = [value for path, value in flags if not path]
    if whole:
        mapping = whole[-1]
    elif names and names[-1] != mapping.get("name"):
        mapping = {"reduction": mapping["reduction"]} if "reduction" in mapping else {}  # every loss has it
        mapping = {"name": names[-1], **mapping}
    for path, value in flags:
        part = mapping
        for key in path[:-1]:
            if not isinstance(part.get(key), dict):
                part[key] = {}
            part = part[key]
        if path:
            part[path[-1]] = value
    return mapping


def _extract_mapping(
    words: Sequence[str], name: str, load: Callable[[str], Any]
) -> tuple[list[str], list[tuple[list[str], Any]]]:
    """Separate the flags of a mapping from the other arguments.

    Returns:
        The other arguments, and for each flag its keys and its value; the whole mapping has no keys.

    Example:
        >>> _extract_mapping(["--lr", "1", "--loss.bcls.margin", "0.3", "--loss={}"], "loss", json.loads)
        (['--lr', '1'], [(['bcls', 'margin'], 0.3), ([], {})])
    """
    import yaml

    rest: list[str] = []
    flags: list[tuple[list[str], Any]] = []
    remaining = iter(words)
    for word in remaining:
        flag, equals, text = word.partition("=")
        if word == "--":
            return [*rest, word, *remaining], flags
        if flag != f"--{name}" and not flag.startswith(f"--{name}."):
            rest.append(word)
            continue
        text = text if equals else next(remaining, "--")
        if not equals and text.startswith("--"):
            fail(flag, "a value", "none", f"write it as `{flag} VALUE`")
        value: Any = text
        with suppress(ValueError, yaml.YAMLError):
            value = load(text) if text else text
        keys = flag.split(".")[1:]
        if not keys and not isinstance(value, dict):
            fail(flag, "a mapping", text, f"set its name with `{flag}.name NAME`")
        flags.append((keys, value))
    return rest, flags


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
    unknown = re.search(r"unrecognized arguments: --([\w-]+)|Option '([\w-]+)[\w.-]*' is not accepted", text)
    close = difflib.get_close_matches((unknown[1] or unknown[2]).replace("_", "-"), flags, n=1) if unknown else []
    hint = f" (did you mean --{close[0]}?)" if close else ""
    if text.startswith("--config: File does not exist"):
        hint = " (the presets are in the folder configs of the repository)"
    return f"{text}{hint}; see `bcls {command} --help`"
