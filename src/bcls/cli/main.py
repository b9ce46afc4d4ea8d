"""``bcls COMMAND``: the table of commands, exit codes, and one-line errors.

Exit codes: 0 success, 1 a check found problems, 2 bad input or usage, 130 interrupted with everything written kept.
"""

import ctypes
import difflib
import importlib
import io
import os
import sys

from bcls import __version__
from bcls._core.errors import visible
from bcls._core.extras import MissingExtraError

#: Each command with the module whose ``main(arguments)`` runs it, imported when needed, and its help.
COMMANDS = {
    "demo": ("bcls.cli.demo", "train four losses on synthetic scenes and write a report, in about four minutes"),
    "data": ("bcls.cli.data", "import, check or summarize a dataset folder, or extract image features"),
    "labels": ("bcls.cli.labels", "embed captions, measure label quality, or suggest the window width alpha"),
    "train": ("bcls.cli.train", "train a model on a dataset, or resume a run"),
    "evaluate": ("bcls.cli.evaluate", "compute retrieval metrics of a model or of saved scores"),
    "compare": ("bcls.cli.compare", "compare two models with a paired test on the same queries"),
    "sweep": ("bcls.cli.sweep", "train and evaluate each configuration with each seed"),
    "report": ("bcls.cli.report", "write tables, charts and claims from sweeps"),
    "index": ("bcls.cli.index", "index a folder of photos for search, or update an index"),
    "search": ("bcls.cli.search", "search an index by text or by image"),
    "serve": ("bcls.cli.serve", "serve the search page and the JSON API"),
    "export": ("bcls.cli.export", "export a model to ONNX, or to a folder for the Hugging Face Hub"),
    "bench": ("bcls.cli.bench", "measure time and memory of the losses on this machine"),
    "doctor": ("bcls.cli.doctor", "print versions, devices and a self-test for a bug report"),
    "completion": ("bcls.cli.completion", "print a shell completion script"),
}


def usage() -> str:
    """The text of ``bcls --help``."""
    commands = "\n".join(f"  {command:<10} {help_text}" for command, (_, help_text) in COMMANDS.items())
    return (
        "usage: bcls COMMAND [options]\n\n"
        "Train, evaluate and use image-text retrieval models with binary and continuous label supervision.\n\n"
        f"commands:\n{commands}\n\n"
        "options:\n"
        "  -h, --help   show this help; `bcls COMMAND --help` for a command\n"
        "  --version    show the version\n"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Arguments after ``bcls``. Default: those of the process.

    Returns:
        The exit code.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a Windows console may not have all characters of a file name
            stream.reconfigure(errors="backslashreplace")
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in {"-h", "--help"}:
        print(usage(), end="")
        return 0 if words else 2
    if words[0] == "--version":
        print(f"bcls {__version__}")
        return 0
    command, *rest = words
    if command not in COMMANDS:
        near = difflib.get_close_matches(command, COMMANDS, n=1)
        hint = f"did you mean `bcls {near[0]}`?" if near else f"the commands are {', '.join(COMMANDS)}"
        return _print_error(f"bcls: unknown command {command!r}; {hint}")
    return _run(command, rest)


def _run(command: str, arguments: list[str]) -> int:
    keep_freed_memory()
    try:
        code: int = importlib.import_module(COMMANDS[command][0]).main(arguments)
    except KeyboardInterrupt:
        return _print_error(f"bcls {command}: interrupted; everything written so far is kept", 130)
    except (ValueError, MissingExtraError) as error:
        return _print_error(f"bcls {command}: {error}")
    except ModuleNotFoundError as error:
        if error.name not in {"torch", "accelerate"}:
            raise
        return _print_error(f'bcls {command}: it needs {error.name}; pip install "bcls[train]"')
    except BrokenPipeError:  # the reader of the output has closed it, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # otherwise Python reports it again at exit
        return 1
    except OSError as error:
        # Escaped here, because the line below replaces newlines in the name by spaces.
        where = visible(f"{error.filename}: ") if error.filename else ""
        reason = str(error.strerror or error)
        hint = "" if ";" in reason else "; check the path, permissions and disk"
        return _print_error(f"bcls {command}: {where}{reason}{hint}")
    except RuntimeError as error:
        # bcls.search is loaded if it raised the error.
        if not isinstance(error, getattr(sys.modules.get("bcls.search"), "OverloadedError", ())):
            raise
        return _print_error(f"bcls {command}: {error}")
    return code


def _print_error(line: str, code: int = 2) -> int:
    print(visible(" ".join(line.split())), file=sys.stderr)
    return code


#: Blocks up to this size are kept by the process when freed.
_KEPT = 1 << 30
#: Option numbers of glibc's `mallopt`, and the environment variables that set them in child processes.
_MALLOC_OPTIONS = {-3: "MALLOC_MMAP_THRESHOLD_", -1: "MALLOC_TRIM_THRESHOLD_"}


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory, in this process and its children.

    A network on a CPU allocates and frees tens of megabytes in each layer. By default glibc returns such blocks to the
    system, which then clears every page again: up to two thirds of the time of a network.

    Returns:
        Whether the C library accepted the settings.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, such as musl
        return False
    accepted = True
    for number, name in _MALLOC_OPTIONS.items():
        if name not in os.environ:  # a user's own setting has priority
            os.environ[name] = str(_KEPT)
            accepted = bool(mallopt(number, _KEPT)) and accepted
    return accepted
