"""Releases: the same commit gives the same bytes, and what names the version agrees."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

from scripts import release_check
from scripts.release_check import file_problems, problems, version_in

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")


def git(folder, *words, **options):
    who = ["-c", "user.name=Test", "-c", "user.email=test@example.org"]
    return subprocess.run(["git", *who, "-C", str(folder), *words], check=True, capture_output=True, **options)


@pytest.fixture
def repository(tmp_path):
    """The tree as it is now, as one commit."""
    folder = tmp_path / "first"
    listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, capture_output=True)
    if listed.returncode:
        pytest.skip("needs the git repository")
    for name in listed.stdout.decode().split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all", env={**os.environ, "GIT_COMMITTER_DATE": "1700000000 +0000"})
    return folder


def release(folder, out, umask=0o022, **environment):
    command = ["sh", str(folder / "scripts" / "release.sh"), sys.executable, str(out)]
    return subprocess.run(
        command, capture_output=True, text=True, umask=umask, env={**os.environ, **environment}, cwd=folder.parent
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_same_commit_gives_the_same_bytes(repository, tmp_path):
    pytest.importorskip("build", reason="needs pip install build")
    second = tmp_path / "a second place" / "deeper"
    second.parent.mkdir()
    git(tmp_path, "clone", "--quiet", str(repository), str(second))
    for path in second.rglob("*.py"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
    first = release(repository, tmp_path / "one")
    assert first.returncode == 0, first.stderr
    other = release(second, tmp_path / "two", umask=0o077, TZ="Asia/Tokyo", LC_ALL="C", PYTHONHASHSEED="7")
    assert other.returncode == 0, other.stderr
    names = sorted(path.name for path in (tmp_path / "one").iterdir())
    version = version_in(ROOT)
    assert names == ["SHA256SUMS", f"bcls-{version}-py3-none-any.whl", f"bcls-{version}.tar.gz"]
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name
    with tarfile.open(tmp_path / "one" / f"bcls-{version}.tar.gz") as archive:
        assert {member.mtime for member in archive} == {1_700_000_000}
        assert {(member.uid, member.uname) for member in archive} == {(0, "")}


@pytest.mark.slow
def test_what_is_not_committed_is_not_released(repository, tmp_path):
    (repository / "README.md").write_text("changed\n")
    run = release(repository, tmp_path / "out")
    assert run.returncode == 2
    assert "not committed" in run.stderr
    git(repository, "checkout", "README.md")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "old.whl").write_text("")
    assert "is not empty" in release(repository, tmp_path / "out").stderr


def test_this_tree_is_in_order():
    assert problems(ROOT) == []


@pytest.fixture
def tree(tmp_path):
    """The files that name the version, as for a release of 1.2.3."""
    (tmp_path / "src/bcls").mkdir(parents=True)
    (tmp_path / "src/bcls/__init__.py").write_text('__version__ = "1.2.3"\n')
    (tmp_path / "pyproject.toml").write_text('[project]\ndynamic = ["version"]\n')
    (tmp_path / "CHANGELOG.md").write_text("## [Unreleased]\n\n## [1.2.3] - 2030-01-02\n")
    (tmp_path / "CITATION.cff").write_text("version: 1.2.3\ndate-released: 2030-01-02\n")
    return tmp_path


def test_a_release_in_order(tree):
    assert problems(tree, "v1.2.3") == []


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("pyproject.toml", '[project]\nversion = "1.2.3"\ndynamic = []\n', "must be dynamic"),
        ("CITATION.cff", "version: 1.2.30\ndate-released: 2030-01-02\n", "expected 'version: 1.2.3'"),
        ("CITATION.cff", "version: 1.2.3\n", "date-released"),
        ("CHANGELOG.md", "## [1.2.3] - 2030-01-02\n", "Unreleased"),
        ("CHANGELOG.md", "## [Unreleased]\n\n## [1.2.3]\n", "'## [1.2.3] - YYYY-MM-DD'"),
    ],
)
def test_what_does_not_agree_is_named(file, content, says, tree):
    (tree / file).write_text(content)
    (found,) = problems(tree, "v1.2.3")
    assert says in found


def test_another_tag(tree):
    assert problems(tree, "v1.2.4") == ["the tag is v1.2.4, the version 1.2.3: expected v1.2.3"]


def test_built_files_have_limits(tmp_path, monkeypatch):
    weights = os.urandom(100_000)
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("a/model.safetensors", weights)
        wheel.writestr("a/__init__.py", "")
        wheel.writestr("b/__init__.py", "")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as sdist:
        sdist.add(tmp_path / "a.whl", "one")
    assert file_problems(tmp_path) == []
    with zipfile.ZipFile(tmp_path / "a.whl", "a") as wheel:
        wheel.writestr("b/model.safetensors", weights)
    twice = "a.whl: a/model.safetensors and b/model.safetensors are the same file; keep one"
    assert file_problems(tmp_path) == [twice]
    monkeypatch.setitem(release_check.LARGEST, ".whl", 100_000)
    assert file_problems(tmp_path) == [
        "a.whl: 0.2 MB, expected less than 0 MB; remove a file or weights",
        twice,
    ]


def test_workflows_test_every_python_that_is_promised():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    promised = [one.rsplit(" ", 1)[1] for one in project["classifiers"] if re.search(r"Python :: 3\.\d", one)]
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    matrix = workflow["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == list(PYTHONS)
    assert [one.split("-")[0] for one in matrix["os"]] == ["ubuntu", "macos", "windows"]
    assert set(promised) <= set(PYTHONS)


@pytest.mark.parametrize("path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.name)
def test_workflows_are_pinned_and_ask_for_little(path):
    text = path.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    used = re.findall(r"uses: (.+)", text)
    assert used
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one) for one in used)
    for job in workflow["jobs"].values():
        assert "timeout-minutes" in job


@pytest.mark.parametrize("version", PYTHONS[1:])
def test_newer_pythons_read_every_file(version, tmp_path):
    program = shutil.which(f"python{version}")
    if program is None or subprocess.run([program, "--version"], capture_output=True).returncode:
        pytest.skip(f"no Python {version}")
    code = (
        "import pathlib, sys, warnings\n"
        "warnings.simplefilter('error')\n"
        "files = list(pathlib.Path(sys.argv[1]).rglob('*.py'))\n"
        "assert files\n"
        "for file in files: compile(file.read_text(encoding='utf-8'), str(file), 'exec')\n"
    )
    run = subprocess.run([program, "-c", code, str(ROOT / "src")], capture_output=True, text=True)
    assert run.stderr == ""
