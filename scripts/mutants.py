"""Mutation testing: changes the code in small ways, one at a time, and counts the changes that a test notices.

    python -m scripts.mutants --count 205 --out results/mutants.json
    python -m scripts.mutants --again --out results/mutants.json      # only those not killed last time

The changes are made in a copy of the tree. Each one runs against its mirrored tests only, in a process forked from one
that has torch loaded. Changes that no test could notice are listed, with the reason, in ``mutants_equivalent.toml``.
"""

import argparse
import ast
import contextlib
import hashlib
import importlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from scripts.mutants_changes import Change, changes

ROOT = Path(__file__).parents[1]
PACKAGES = ("losses", "evaluation")
#: Modules of ``evaluation`` that read models, runs and files; the others are the metrics.
NOT_METRICS = {"arrays", "evaluator", "pages", "scores", "tables"}
#: Tests of modules with several test files.
TESTS = {"graded": ("ndcg", "coherent", "ncs", "pmrp"), "inputs": ("inputs", "recall")}
#: Tests of these are one file a property, for all modules together.
THEMED = {"losses"}
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.toml")
MEMORY = 16 << 30
#: What the tests need of pytest's plugins; others only take time to load.
PLUGINS = ("_hypothesis_pytestplugin", "pytest_timeout")


def all_changes() -> dict[str, tuple[Path, str, Change]]:
    """Every change of every module with the module's text, by a name that does not move with the line."""
    found: dict[str, tuple[Path, str, Change]] = {}
    files = [path for package in PACKAGES for path in sorted((ROOT / "src/bcls" / package).rglob("*.py"))]
    # The kernels need a GPU.
    for path in [path for path in files if path.parent.name != "_triton" and path.stem not in NOT_METRICS]:
        seen: Counter[str] = Counter()
        text = path.read_text(encoding="utf-8")
        for change in changes(text):
            name = f"{path.parent.name}/{path.name} {change.scope}: {change.before} -> {change.after}"
            seen[name] += 1
            found[name + f" #{seen[name]}" * (seen[name] > 1)] = (path, text, change)
    return found


def sample(names: Iterable[str], count: int, seed: int) -> list[str]:
    """Names by the hash of each: a change of the code elsewhere leaves the rest of the sample as it is."""
    drawn = sorted(names, key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())[:count]
    return sorted(drawn)


def mirrored(path: Path) -> list[Path]:
    """The tests of a module: its own file, else those of the modules that import it; all of the folder if themed."""
    package = path.relative_to(ROOT / "src/bcls").parts[0]
    folder = ROOT / "tests" / package
    files = sorted(folder.glob("test_*.py"))
    stem = path.stem.lstrip("_")
    own = [file for file in files if file.stem in {f"test_{name}" for name in TESTS.get(stem, (stem,))}]
    if package in THEMED:  # without those of the kernels, which need a GPU or the interpreter
        listed = re.search(
            r"KERNEL_TESTS = (\(.*?\))", (folder / "factories.py").read_text(encoding="utf-8"), re.DOTALL
        )
        kernels = {"test_interpreter.py", *ast.literal_eval(listed[1] if listed else "()")}
        return [file for file in files if file.name not in kernels]
    if own:
        return own
    importers = [
        other
        for other in sorted(path.parent.glob("*.py"))
        if other.stem != "__init__" and f"from bcls.{package}.{path.stem} import" in other.read_text(encoding="utf-8")
    ]
    return list(dict.fromkeys(file for other in importers for file in mirrored(other)))


def run_tests(tests: list[Path], tree: Path, limit: int) -> str:
    """``survived``, ``killed`` or ``timeout``, for the tree as it lies there."""
    child = os.fork()
    if child == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        _test(tests, tree)
    until = time.monotonic() + 10 * limit  # other work on the machine takes time, too
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            if code == 5:
                raise SystemExit(f"mutants: pytest ran no test of {[test.name for test in tests]}")
            return "timeout" if code in {-signal.SIGXCPU, -signal.SIGKILL} else "killed" if code else "survived"
        time.sleep(0.02)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "timeout"


def _test(tests: list[Path], tree: Path) -> None:
    import hypothesis
    import pytest

    os.chdir(tree)
    sys.path[:0] = [str(tree / "src"), str(tree)]
    os.environ["PYTHONPATH"] = str(tree / "src")
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, phases=phases)
    hypothesis.settings.load_profile("mutants")
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
        words = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-m", "not slow", "--tb=no"]
        code = 1
        with contextlib.suppress(BaseException):
            code = pytest.main([*words, *(str(test.relative_to(ROOT)) for test in tests)])
        os._exit(int(code))


def try_changes(found: dict[str, tuple[Path, str, Change]], names: list[str], limit: int) -> Iterator[str]:
    """What became of each change, with a check first that the tests pass without any."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["PYTEST_PLUGINS"] = ",".join(PLUGINS)
    for heavy in (*PLUGINS, "hypothesis.extra.numpy", "pytest", "scipy.stats", "sklearn.metrics", "torch._dynamo"):
        importlib.import_module(heavy)  # once, before the forks
    sys.dont_write_bytecode = True
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder)
        for part in ("src", "tests"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", tree)
        tests = {name: mirrored(found[name][0]) for name in names}
        seconds: dict[Path, float] = {}
        for test in sorted({test for name in names for test in tests[name]}):
            started = time.monotonic()
            if run_tests([test], tree, limit) != "survived":
                raise SystemExit(f"mutants: {test.relative_to(ROOT)} fails without any change; fix it first")
            seconds[test] = time.monotonic() - started
        for name in names:
            path, text, change = found[name]
            target = tree / path.relative_to(ROOT)
            target.write_text(change.source(text), encoding="utf-8")
            yield run_tests(sorted(tests[name], key=lambda test: seconds[test]), tree, limit)  # quick ones first
            target.write_text(text, encoding="utf-8")


def summary(outcome: dict[str, str], seed: int, total: int, equivalent: set[str]) -> dict[str, Any]:
    """The result file: counts for each module, survivors by name. Equivalent changes are in no count but their own."""
    modules: dict[str, Counter[str]] = {}
    for name, became in outcome.items():
        module = name.split(" ", 1)[0].removesuffix(".py")
        word = "equivalent" if became == "survived" and name in equivalent else became
        modules.setdefault(module, Counter())[word] += 1
    counts = sum(modules.values(), Counter[str]())
    noticed = counts["killed"] + counts["timeout"]
    return {
        "seed": seed,
        "possible": total,
        "sample": len(outcome),
        **{word: counts[word] for word in ("killed", "timeout", "survived", "equivalent")},
        "killed_percent": round(100 * noticed / max(1, noticed + counts["survived"]), 1),
        "modules": {module: dict(sorted(count.items())) for module, count in sorted(modules.items())},
        "survivors": sorted({name for name, was in outcome.items() if was == "survived"} - equivalent),
        "outcome": dict(sorted(outcome.items())),
    }


def known_equivalent(found: dict[str, tuple[Path, str, Change]]) -> set[str]:
    """Changes that are listed as equivalent; one whose line of code is no longer the listed one is refused."""
    listed = {one["change"]: one["code"] for one in tomllib.loads(EQUIVALENT.read_text())["equivalent"]}
    lines = {name: text.splitlines()[change.line - 1].strip() for name, (_, text, change) in found.items()}
    if stale := [name for name, code in listed.items() if lines.get(name) != code]:
        raise SystemExit(f"mutants: {EQUIVALENT.name} lists changes of lines that are no more: {stale}")
    return set(listed)


def _write(path: Path, result: dict[str, Any]) -> None:
    # Whole or not at all, but not by bcls: were it loaded here, the forks would test it in place of the copy.
    new = path.with_name(f".{path.name}.new")
    new.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    new.replace(path)


def main() -> int:
    """Run a sample and write the result; 1 where less than 90 percent are noticed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=205, help="how many changes to sample")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=int, default=60, help="seconds of a core that the tests of one change may take")
    parser.add_argument("--again", action="store_true", help="keep what --out says was killed, run the rest")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "mutants.json")
    asked = parser.parse_args()
    found = all_changes()
    equivalent = known_equivalent(found)
    outcome: dict[str, str] = {}
    names = sample(found, asked.count, asked.seed)
    if asked.again:
        before = json.loads(asked.out.read_text())
        outcome = {name: was for name, was in before["outcome"].items() if name in names and was != "survived"}
        outcome |= {name: "survived" for name in names if name in equivalent}
        names = [name for name in names if name not in outcome]
    for at, became in enumerate(try_changes(found, names, asked.limit)):
        outcome[names[at]] = became
        print(f"{at + 1}/{len(names)} {became:<8} line {found[names[at]][2].line}, {names[at]}", flush=True)
        _write(asked.out, summary(outcome, asked.seed, len(found), equivalent))
    result = summary(outcome, asked.seed, len(found), equivalent)
    _write(asked.out, result)
    print({key: value for key, value in result.items() if isinstance(value, int | float)})
    return int(result["killed_percent"] < 90)


if __name__ == "__main__":
    sys.exit(main())
