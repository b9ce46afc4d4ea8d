"""Faults to order: files that cannot grow, a process that is dead from one step on, another process, another user."""

import os
import resource
import signal
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_STEPS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"}


@contextmanager
def files_end_at(size):
    """No file can grow beyond ``size`` bytes, as on a full disk: the kernel writes what fits and then refuses."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


class KilledError(BaseException):
    """The process is dead; nothing catches it."""


class _Death:
    """Counts the steps that change the disk, and lets none happen from a chosen one on."""

    left: int | None = None

    def step(self):
        if self.left is not None:
            if self.left <= 0:
                raise KilledError
            self.left -= 1


_death = _Death()


def _watch(event, arguments):
    if _death.left is None:
        return
    if event in _STEPS or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES):
        _death.step()


sys.addaudithook(_watch)


@contextmanager
def killed_after(steps, monkeypatch):
    """Only ``steps`` more steps reach the disk: openings for writing, renamings, removals, and calls of fsync.

    Clean-up code runs, as it would not in a process that is killed, but finds that it cannot change anything either.
    """
    sync = os.fsync

    def fsync(handle):
        _death.step()
        sync(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fsync)
        _death.left = steps
        try:
            yield
        finally:
            _death.left = None


def die_at_every_step(work, monkeypatch, after):
    """Do some work again and again, dead one step later each time, until it ends alive; how often it died.

    Args:
        work: Called without arguments.
        monkeypatch: Pytest's.
        after: Called after each death, to see what is left.
    """
    for steps in range(1000):
        try:
            with killed_after(steps, monkeypatch):
                work()
        except KilledError:
            after()
        else:
            return steps
    raise AssertionError("the work never ends")


@contextmanager
def child(work):
    """Another process that does some work and then stays, until the block ends; gives its number."""
    back, out = os.pipe()
    pid = os.fork()
    if not pid:
        with suppress(BaseException):
            work(lambda: os.write(out, b"."))
            time.sleep(60)
        os._exit(1)
    os.close(out)
    try:
        assert os.read(back, 1) == b".", "the other process did not get as far"
        yield pid
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(back)


def as_nobody(work):
    """Do some work as a user who owns nothing; gives what it raised, as text, and "" where it raised nothing."""
    back, out = os.pipe()
    pid = os.fork()
    if not pid:
        text = "it died"
        try:
            os.close(back)
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            work()
            text = ""
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        finally:
            with suppress(BaseException):
                os.write(out, text.encode())
            os._exit(0)
    os.close(out)
    with os.fdopen(back, "rb") as pipe:
        text = pipe.read().decode()
    os.waitpid(pid, 0)
    return text


def contents(folder: Path):
    """All files below a folder, with their bytes; locks and the like are left out."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }
