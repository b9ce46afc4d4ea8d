"""The documentation: its Python runs and prints what it says, and the site builds without a warning.

Blocks of one page run in order, in one namespace. The text after ``# ->`` behind a ``print`` is what it must print. A
block that cannot run says ``# not run`` in its first line.
"""

import html
import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

import bcls

ROOT = Path(__file__).resolve().parents[1]
TOP = [page for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md") if page.exists()]
PAGES = [*TOP, *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Blocks that show a line of a file; more would be prose in disguise.
MOST_NOT_RUN = 3


def blocks(page):
    """Code of each block, with as many empty lines before it as make line numbers those of the page."""
    text = page.read_text(encoding="utf-8")
    for match in BLOCK.finditer(text):
        yield "\n" * text[: match.start(1)].count("\n") + match.group(1)


def is_skipped(code):
    return code.lstrip("\n").startswith("# not run")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run_and_print_what_they_say(page, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)  # what a block writes by a relative path is nobody's
    lines = page.read_text(encoding="utf-8").splitlines()
    printed = []

    def record(*values, **_):
        printed.append((sys._getframe(1).f_lineno, " ".join(str(value) for value in values)))

    namespace = {"__name__": page.stem, "print": record}
    for code in blocks(page):
        if not is_skipped(code):
            exec(compile(code, str(page), "exec"), namespace)  # noqa: S102
    for line, text in printed:
        _, arrow, said = lines[line - 1].partition("  # -> ")
        assert not arrow or text == said, f"{page.name}:{line}"
    promised = sum("  # -> " in line for line in lines)
    assert promised == sum("  # -> " in lines[line - 1] for line, _ in printed), "a promised line was never printed"


def test_few_blocks_are_left_out():
    assert sum(is_skipped(code) for page in PAGES for code in blocks(page)) <= MOST_NOT_RUN


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_the_reference_lists_no_class_twice():
    """Sphinx warns of it; this is the part of the slow test below that a change of exports breaks."""
    text = (ROOT / "docs" / "reference.md").read_text(encoding="utf-8")
    places = {}
    for name in re.findall(r"^\.\. automodule:: (\S+)", text, re.MULTILINE):
        module = importlib.import_module(name)
        for one in getattr(module, "__all__", ()):
            if inspect.isclass(getattr(module, one)):
                places.setdefault(id(getattr(module, one)), []).append(f"{name}.{one}")
    assert len(places) > 30
    assert [found for found in places.values() if len(found) > 1] == []


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site; a warning is an error."""
    pytest.importorskip("furo", reason='needs pip install "bcls[dev]"')
    pytest.importorskip("sphinx_copybutton", reason='needs pip install "bcls[dev]"')
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command += ["-d", str(folder / "doctrees"), str(ROOT / "docs"), str(folder / "html")]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder / "html"


@pytest.mark.slow
def test_the_site_has_search_and_copy_buttons(site):
    assert "kendal" in (site / "searchindex.js").read_text(encoding="utf-8")
    page = (site / "quickstart.html").read_text(encoding="utf-8")
    assert "copybutton.js" in page
    assert 'role="search"' in page
    kinds = re.findall(r'class="caption"[^>]*><span class="caption-text">([^<]+)', page)
    assert kinds[:4] == ["Tutorials", "How-to guides", "Explanation", "Reference"]


@pytest.mark.slow
def test_links_inside_the_site_lead_somewhere(site):
    pages = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    anchors = {path: set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()}
    missing, checked = [], 0
    for path, text in pages.items():
        for link in re.findall(r'(?:href|src)="([^"]+)"', text):
            link = html.unescape(link)
            if re.match(r"[a-z]+:", link) or link == "#":
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / unquote(name.partition("?")[0])).resolve() if name else path
            checked += 1
            if "_modules" in path.parts:  # links to functions that were made by another one have the name of that
                anchor = ""
            if not target.exists() or (anchor and target in anchors and unquote(anchor) not in anchors[target]):
                missing.append(f"{path.name}: {link}")
    assert missing == []
    assert checked > 1000


@pytest.mark.slow
def test_the_reference_has_every_public_name(site):
    from sphinx.util.inventory import InventoryFile

    with (site / "objects.inv").open("rb") as file:
        inventory = InventoryFile.load(file, "", lambda base, name: name)
    names = {name for kind, found in inventory.items() if kind.startswith("py:") for name in found}
    packages = ["bcls", *(f"bcls.{one.name}" for one in pkgutil.iter_modules(bcls.__path__) if one.ispkg)]
    missing, checked = [], 0
    for package in packages:
        module = importlib.import_module(package)
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            own = f"{getattr(value, '__module__', package)}.{getattr(value, '__qualname__', name)}"
            checked += 1
            if not name.startswith("__") and not {f"{package}.{name}", own, public_path(value)} & names:
                missing.append(f"{package}.{name}")
    assert missing == []
    assert checked > 150


def public_path(value):
    """The name of an object in the package that exports it, such as bcls.losses.BCLSLoss."""
    module = getattr(value, "__module__", "") or ""
    return ".".join([*module.split(".")[:2], getattr(value, "__name__", "")])
