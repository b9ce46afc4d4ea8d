"""How this process gives memory back: not at once.

A network on a CPU asks for tens of megabytes for each layer and frees them again. The C library hands such blocks back
to the system, which then clears every page when they are asked for the next time: up to two thirds of the time of a
network goes there.

``bcls VERB``: finds the verb, and turns what goes wrong into one line and an exit code.

Exit codes: 0 done, 1 a check found problems, 2 bad input or usage, 130 interrupted with everything written kept.
"""

import ctypes
import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from bcls import __version__
from bcls._core.errors import visible
from bcls._core.extras import MissingExtraError

#: Blocks up to this size stay with the process.
_KEPT = 1 << 30
#: Numbers of glibc's `mallopt`, with the variables by which processes started from here are told the same.
_SETTINGS = {-3: "MALLOC_MMAP_THRESHOLD_", -1: "MALLOC_TRIM_THRESHOLD_"}


def keep_freed_memory() -> bool:
    """Let this process and those that it starts keep freed memory; whether the C library takes it."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library, such as musl
        return False
    taken = True
    for number, name in _SETTINGS.items():
        if name not in os.environ:  # somebody's own setting stands
            os.environ[name] = str(_KEPT)
            taken = bool(mallopt(number, _KEPT)) and taken
    return taken


#: Verb, the module whose ``main(arguments)`` does it, and what it does. Modules are loaded when asked for.
VERBS = {
    "demo": ("bcls.cli.demo", "train three losses on drawn scenes and write a report, in about three minutes"),
    "data": ("bcls.cli.data", "a dataset folder: import it, check it, count it (stats), extract features"),
    "train": ("bcls.cli.train", "train a model on a dataset, or go on with a run that was stopped"),
    "evaluate": ("bcls.cli.evaluate", "the figures of a model on a split, from its scores"),
    "compare": ("bcls.cli.compare", "whether two models differ, on the same queries"),
    "sweep": ("bcls.cli.sweep", "train and judge every row of a table from every seed"),
    "report": ("bcls.cli.report", "tables, curves and verdicts from sweeps"),
    "labels": (
        "bcls.cli.labels",
        "vectors of captions (embed), how well labels agree with people (quality), how wide a window to use (alpha)",
    ),
    "index": ("bcls.cli.index", "embed a folder of photos so that they can be searched"),
    "search": ("bcls.cli.search", "find photos by words or by another photo"),
    "serve": ("bcls.cli.serve", "search in the browser, and a JSON API"),
    "export": ("bcls.cli.export", "a model for use elsewhere: ONNX towers, or a folder for the Hub"),
    "bench": ("bcls.cli.bench", "time and memory of the losses on this machine, with plots"),
    "doctor": ("bcls.cli.doctor", "versions, devices and a self-test, for a bug report"),
    "completion": ("bcls.cli.completion", "tab completion for bash, zsh and fish"),
}


def usage() -> str:
    """What ``bcls --help`` prints."""
    verbs = "\n".join(f"  {verb:<10} {what}" for verb, (_, what) in VERBS.items())
    return (
        "usage: bcls VERB [options]\n\n"
        "Train, judge and use image-text retrieval models under binary and continuous label supervision.\n\n"
        f"verbs:\n{verbs}\n\n"
        "options:\n"
        "  -h, --help   this text; `bcls VERB --help` for a verb\n"
        "  --version    the version\n"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: Words after ``bcls``; those of the process by default.

    Returns:
        The exit code.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in {"-h", "--help"}:
        print(usage(), end="")
        return 0 if words else 2
    if words[0] == "--version":
        print(f"bcls {__version__}")
        return 0
    verb, *rest = words
    if verb not in VERBS:
        near = difflib.get_close_matches(verb, VERBS, n=1)
        hint = f"did you mean `bcls {near[0]}`?" if near else f"the verbs are {', '.join(VERBS)}"
        return _complain(f"bcls: there is no verb {verb!r}; {hint}")
    return _run(verb, rest)


def _run(verb: str, arguments: list[str]) -> int:
    keep_freed_memory()
    try:
        importlib.import_module("bcls.experiments")  # registers the model of the demo, so that its runs load
        module = importlib.import_module(VERBS[verb][0])
        code: int = module.main(arguments)
    except KeyboardInterrupt:
        return _complain(f"bcls {verb}: interrupted; what was written so far is kept", 130)
    except (ValueError, MissingExtraError) as error:
        return _complain(f"bcls {verb}: {error}")
    except BrokenPipeError:  # whoever reads the output has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it ends
        return 1
    except OSError as error:
        # Before the line is put together, where a newline would be taken for a space.
        where = visible(f"{error.filename}: ") if error.filename else ""
        return _complain(f"bcls {verb}: {where}{error.strerror or error}; check the path, its permissions and the disk")
    except RuntimeError as error:
        # Loaded already where it can have been raised.
        overload = getattr(sys.modules.get("bcls.search"), "OverloadedError", None)
        if overload is None or not isinstance(error, overload):
            raise
        return _complain(f"bcls {verb}: {error}")
    return code


def _complain(line: str, code: int = 2) -> int:
    print(visible(" ".join(line.split())), file=sys.stderr)
    return code
