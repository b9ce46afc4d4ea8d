"""What the source may not call, looked up in its syntax tree; every exception stands here with its reason."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "src").rglob("*.py"))
#: File and what it may call.
ALLOWED = {
    ("bcls/jobs/_ray.py", "pickle.loads"): "bytes of the job's own workers, which run our code anyway",
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
#: Must be called with this argument.
DEMANDED = {
    "torch.load": ("weights_only", True),
    "np.load": ("allow_pickle", False),
    "np.lib.format.read_array": ("allow_pickle", False),
}


def calls(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_calls(path):
    name = path.relative_to(ROOT / "src").as_posix()
    for called, node in calls(path):
        if called in FORBIDDEN:
            assert (name, called) in ALLOWED, f"line {node.lineno}: {called}"
        if called in DEMANDED:
            key, value = DEMANDED[called]
            given = {word.arg: ast.literal_eval(word.value) for word in node.keywords if word.arg == key}
            assert given == {key: value}, f"line {node.lineno}: {called} without {key}={value}"
        assert not called.endswith((".extractall", ".extract")), f"line {node.lineno}: {called} may write anywhere"
        for word in node.keywords:
            if word.arg in {"shell", "trust_remote_code"}:
                assert ast.literal_eval(word.value) is False, f"line {node.lineno}: {word.arg}"


def test_exceptions_to_the_linters_rules_have_a_reason():
    """Every ``noqa: S`` of the source says why, in its line or just above; programs called by a fixed list need not."""
    for path in FILES:
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            if re.search(r"noqa:.*\bS(?!603|607)\d{3}\b", line) and not re.search(r"S\d{3} - \w+", line):
                above = "\n".join(lines[max(0, number - 4) : number])
                assert "#" in above or '"""' in above, f"{path}:{number + 1}"
