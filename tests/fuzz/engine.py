"""Runs a reader on damaged files, in a forked process with limits on memory and time.

A case depends on the reader's name, a seed and its number only, so it can be reproduced, and a long run can be resumed.
A reader may succeed, raise an error of ``bcls._core.errors.fail``, or raise an ``OSError`` with a file name. Anything
else is a finding: another exception, a message of another library, a crash, a hang, or too much memory.
"""

import json
import mmap
import os
import random
import re
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tests.fuzz.damage import damage

#: Address space that a worker may use in addition to that at its start.
MEMORY = 768 * 2**20
#: Processor time for a case in seconds; a process that waits is killed after a much longer wall-clock time.
SECONDS = 5.0
_OUR_MESSAGE = re.compile(r".*: expected .+, got .*; .+", re.DOTALL)
#: Maximum length of an error message.
_MAX_MESSAGE = 20_000


@dataclass(frozen=True)
class Reader:
    """A reader of the library with valid inputs."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    """Creates valid inputs; called once in each process."""
    read: Callable[[bytes, Path], object]
    """Reads an input; it may write files into the folder, which is not emptied after every case."""
    make: Callable[[random.Random, Sequence[bytes]], bytes] = damage
    """Creates a case from the valid inputs."""


@dataclass
class Outcome:
    """Results of some cases of a reader."""

    cases: int = 0
    read: int = 0
    """Cases that were read without an error."""
    seconds: float = 0.0
    peak: int = 0
    """Peak memory in addition to that at the start, in bytes."""
    findings: dict[str, list[int]] = field(default_factory=dict)
    """Kinds of findings with the numbers of the first cases."""
    commit: str = ""
    """Commit of the code that the last cases ran with; empty outside a repository."""

    def add(self, other: "Outcome") -> None:
        self.cases, self.read = self.cases + other.cases, self.read + other.read
        self.seconds, self.peak = self.seconds + other.seconds, max(self.peak, other.peak)
        for kind, numbers in other.findings.items():
            self.note(kind, *numbers)

    def note(self, kind, *numbers):
        known = self.findings.setdefault(kind, [])
        known += [number for number in numbers if number not in known][: 5 - len(known)]


class TooLongError(BaseException):
    """A case took longer than :data:`SECONDS`; no reader catches it."""


def make_case(reader: Reader, seeds: Sequence[bytes], seed: int, number: int) -> bytes:
    """Return the bytes of a case."""
    return reader.make(random.Random(f"{reader.name} {seed} {number}"), seeds)


def read_case(reader: Reader, content: bytes, folder: Path) -> tuple[bool, str]:
    """Return whether a case was read, and the kind of finding, if any."""
    try:
        reader.read(content, folder)
    except TooLongError:
        return False, f"hang: more than {SECONDS:g} s"
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            return False, ""
        text = str(error)
        if not _OUR_MESSAGE.fullmatch(text):
            return False, _kind(error)
        return False, "" if len(text) <= _MAX_MESSAGE else f"a message with thousands of characters, {_place(error)}"
    except Exception as error:  # any other exception is a finding
        return False, _kind(error)
    return True, ""


def run(reader: Reader, *, first: int, count: int, seed: int = 0) -> Outcome:
    """Run cases in forked processes; after a crash the next process continues with the next case."""
    total, at = Outcome(), first
    while at < first + count:
        part, at = _in_child(reader, at, first + count, seed)
        total.add(part)
    return total


def _in_child(reader: Reader, first: int, end: int, seed: int) -> tuple[Outcome, int]:
    """Run cases in one child; return the results and the number of the next case."""
    here = mmap.mmap(-1, 16)
    back, out = os.pipe()
    stderr = os.fdopen(os.dup(sys.stderr.fileno()), "w")
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.close(back)
            outcome = _work(reader, first, end, seed, here)
            with os.fdopen(out, "wb") as pipe:
                pipe.write(json.dumps(asdict(outcome)).encode())
            code = 0
        except BaseException:
            stderr.write(traceback.format_exc())
        finally:
            stderr.flush()
            os._exit(code)
    os.close(out)
    stderr.close()
    hung = _watch(pid, here)
    with os.fdopen(back, "rb") as pipe:
        content = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == 0:
        return Outcome(**json.loads(content)), end
    at = struct.unpack_from("q", here)[0]
    lost = Outcome(cases=at - first + 1)
    lost.note("hang: the process had to be killed" if hung else f"crash: the process ended with {status}", at)
    return lost, at + 1


def _watch(pid: int, here: mmap.mmap) -> bool:
    """Wait for a child; kill it if a case takes far too long in code that no signal interrupts.

    That is twice the processor time, or a long wall-clock time: on a busy machine a child gets little processor time.
    """
    seen, since, used = -1, time.monotonic(), 0.0
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        now = struct.unpack_from("q", here)[0]
        if now != seen:
            seen, since, used = now, time.monotonic(), _processor_seconds(pid)
        elif time.monotonic() - since > 60 * SECONDS or _processor_seconds(pid) - used > 2 * SECONDS:
            os.kill(pid, signal.SIGKILL)
            return True
        time.sleep(0.02)
    return False


def _work(reader: Reader, first: int, end: int, seed: int, here: mmap.mmap) -> Outcome:
    warnings.simplefilter("ignore")
    struct.pack_into("q", here, 0, first)
    folder = Path(tempfile.mkdtemp(dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))  # noqa: S108
    outcome = Outcome()
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # C libraries print warnings there
        seeds = list(reader.seeds())
        for content in seeds:  # the inputs must be valid before they are damaged
            reader.read(content, folder)
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY,) * 2)
        signal.signal(signal.SIGPROF, _too_long)
        before, started = _resident(), time.monotonic()
        for number in range(first, end):
            struct.pack_into("q", here, 0, number)
            content = make_case(reader, seeds, seed, number)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            read, wrong = read_case(reader, content, folder)
            signal.setitimer(signal.ITIMER_PROF, 0)
            outcome.read += read
            if wrong:
                outcome.note(wrong, number)
            if number % 500 == 499:
                for path in folder.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
        outcome.cases, outcome.seconds = end - first, time.monotonic() - started
        outcome.peak = max(0, _resident() - before)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


def _too_long(signum, frame):
    raise TooLongError


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _address_space() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _kind(error: Exception) -> str:
    with suppress(Exception):
        return _place(error)
    return type(error).__name__


def _place(error: Exception) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    # The caller of `fail`, not the line in it that raises.
    ours = [one for one in frames if "/bcls/" in one.filename and one.name != "fail"]
    last = (ours or frames)[-1]
    return f"{type(error).__name__} in {last.filename.rpartition('/bcls/')[2]}:{last.lineno} ({frames[-1].name})"
