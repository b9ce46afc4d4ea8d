"""Fault injection: files that cannot grow, a process killed at a given step, another process, another user."""

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
    """Limit the size of files to ``size`` bytes, as on a full disk: the kernel writes what fits, then fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


class KilledError(BaseException):
    """The process was killed; no code catches this exception."""


class _Death:
    """Counts the steps that change the disk, and raises from a given step on."""

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
    """Allow only ``steps`` more steps on the disk: opening for writing, renaming, removing, and fsync.

    Unlike in a killed process, clean-up code runs, but it cannot change anything either.
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
    """Repeat some work, killed one step later each time, until it finishes; return the number of kills.

    Args:
        work: Called without arguments.
        monkeypatch: Pytest's.
        after: Called after each kill, to check the files.
    """
    for steps in range(1000):
        try:
            with killed_after(steps, monkeypatch):
                work()
        except KilledError:
            after()
        else:
            return steps
    raise AssertionError("the work never finishes")


@contextmanager
def child(work):
    """Run some work in another process that stays alive until the block ends; yields its process id."""
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


def as_other_user(work):
    """Do some work as an unprivileged user; return the exception as text, or "" if there was none."""
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
    """Return all files below a folder with their contents, except hidden files such as locks."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }
