"""Summary of skipped tests, failures in continuous integration, and coverage of the tests that are measured."""

import gc
import os
import sys
from collections import Counter
from contextlib import contextmanager
from fnmatch import fnmatch
from importlib import import_module
from pkgutil import walk_packages

import pytest
from coverage import Coverage

gc.disable()  # until all tests are collected: collections of the imported objects took a quarter of that time
collect_ignore = ["portable"]  # changes the process that imports it
if sys.platform == "win32":  # these limit or fork processes, or need a terminal of POSIX
    collect_ignore += ["cli/test_completion.py", "faults", "fuzz", "release/test_mutants.py", "release/test_scripts.py"]
    collect_ignore += ["search/kill_rounds.py", "search/test_kill.py"]
#: Beginnings of the reasons that fail a test where CI is set. Triton has packages for Linux only.
REQUIRED = ("needs Chromium", "needs playwright", "needs axe-core", *["needs triton"] * (sys.platform == "linux"))
#: Packages of the coverage gate, and the tests that are traced for it: tracing makes all others slower.
GATE = ["bcls.losses", "bcls.evaluation"]
MEASURED = tuple(f"{top}/{name}/" for top in ("tests", "src/bcls") for name in ("losses", "evaluation"))
#: Tests among these that reach no line or branch that the others do not reach.
UNTRACED = (
    "tests/losses/test_against_reference.py",
    "tests/losses/test_modes.py::test_compile",
    "tests/losses/test_properties.py",
    "tests/losses/test_ranks.py::test_compiled",
)


def reason(report):
    return str(report.longrepr[-1]).removeprefix("Skipped: ")


def fail_if_required(report):
    if report.skipped and os.environ.get("CI", "") in {"1", "true"} and not hasattr(report, "wasxfail"):
        why = reason(report)
        if why.startswith(REQUIRED):
            report.outcome, report.longrepr = "failed", f"CI is set, and this test was skipped: {why}"
    return report


def coverage_of_gate():
    """The coverage of this process if only the packages of the gate are measured."""
    coverage = Coverage.current()
    return coverage if coverage is not None and coverage.get_option("run:source") == GATE else None


@contextmanager
def untraced(coverage):
    coverage.stop()
    try:
        yield
    finally:
        coverage.start()


@pytest.hookimpl(wrapper=True)
def pytest_collection(session):
    """The measured modules are imported with tracing, and everything else without."""
    coverage = coverage_of_gate()
    if coverage is None or session.config.pluginmanager.hasplugin("dsession"):  # the workers collect
        return (yield)
    with untraced(coverage):
        import_module("torch")
    omit = coverage.get_option("run:omit")
    for package in map(import_module, GATE):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            if not any(fnmatch(f"{module.name.replace('.', '/')}.py", pattern) for pattern in omit):
                import_module(module.name)
    with untraced(coverage):
        return (yield)


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    coverage = coverage_of_gate()
    traced = item.nodeid.startswith(MEASURED) and not item.nodeid.startswith(UNTRACED)
    if coverage is None or traced:
        return (yield)
    with untraced(coverage):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    return fail_if_required((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    return fail_if_required((yield))


def pytest_terminal_summary(terminalreporter):
    reasons = Counter(reason(report) for report in terminalreporter.stats.get("skipped", []))
    if reasons:
        terminalreporter.section(f"{reasons.total()} skipped")
        for why, number in reasons.most_common():
            terminalreporter.line(f"{number:5} {why}")
