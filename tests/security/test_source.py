"""Forbidden calls in the source, found in the syntax tree; exceptions are listed here with reasons."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "src").rglob("*.py"))
#: Files and calls that are allowed.
ALLOWED = {
    ("bcls/features/jobs.py", "pickle.loads"): "bytes of the job's own workers, which run our code",
}
FORBIDDEN = {
    "eval",
    "exec",
    "compile",
    "pickle.load",
    "pickle.loads",
    "marshal.loads",
    "shelve.open",
    "yaml.load",
    "yaml.full_load",
    "yaml.unsafe_load",
    "os.system",
    "os.popen",
    "tempfile.mktemp",
    "shutil.unpack_archive",
}
#: Required keyword arguments.
REQUIRED = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "np.lib.format.read_array": ("allow_pickle", False),
}


def calls(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_no_forbidden_calls(path):
    name = path.relative_to(ROOT / "src").as_posix()
    for called, node in calls(path):
        if called in FORBIDDEN:
            assert (name, called) in ALLOWED, f"line {node.lineno}: {called}"
        if called in REQUIRED:
            key, value = REQUIRED[called]
            given = {word.arg: ast.literal_eval(word.value) for word in node.keywords if word.arg == key}
            assert given == {key: value}, f"line {node.lineno}: {called} without {key}={value}"
        assert not called.endswith((".extractall", ".extract")), f"line {node.lineno}: {called} may write anywhere"
        for word in node.keywords:
            if word.arg in {"shell", "trust_remote_code"}:
                assert ast.literal_eval(word.value) is False, f"line {node.lineno}: {word.arg}"


def test_security_exceptions_of_the_linter_have_a_reason():
    """Every ``noqa: S`` has a comment in its line or above, except for subprocess calls with fixed arguments."""
    for path in FILES:
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            if re.search(r"noqa:.*\bS(?!603|607)\d{3}\b", line) and not re.search(r"S\d{3} - \w+", line):
                above = "\n".join(lines[max(0, number - 4) : number])
                assert "#" in above or '"""' in above, f"{path}:{number + 1}"
