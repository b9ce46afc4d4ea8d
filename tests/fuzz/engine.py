"""Throws damaged files at a reader, in a forked process with a limit on memory and on time.

A case is made from the reader's name, a seed and its number alone, so every one can be made again, and a long run can
be taken up where it was. A reader may succeed, or say what is wrong in the words of ``bcls._core.errors.fail`` or with
an ``OSError`` that names a file. Everything else is a finding: another exception, a message of another library, a
crash, a hang, or more memory than allowed.
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

#: Address space that a worker may take beside what it has at its start.
MEMORY = 768 * 2**20
#: Seconds of processor time for a case; a process that waits for something is killed after a longer time by the clock.
SECONDS = 5.0
_OURS = re.compile(r".*: expected .+, got .*; .+", re.DOTALL)
#: No message is of use to anybody at this length.
_LONGEST = 20_000


@dataclass(frozen=True)
class Reader:
    """A way into the library, and what a valid input to it looks like."""

    name: str
    seeds: Callable[[], Sequence[bytes]]
    """Makes valid inputs; called once in each process."""
    read: Callable[[bytes, Path], object]
    """Reads an input; it may write files into the folder, which is emptied now and then but not after each case."""
    make: Callable[[random.Random, Sequence[bytes]], bytes] = damage
    """Makes a case from the valid inputs."""


@dataclass
class Outcome:
    """What came of some cases of a reader."""

    cases: int = 0
    read: int = 0
    """Cases that were read without complaint."""
    seconds: float = 0.0
    peak: int = 0
    """Most memory that was taken beside that at the start, in bytes."""
    findings: dict[str, list[int]] = field(default_factory=dict)
    """Kind of finding: the numbers of the first cases that show it."""

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
    """The bytes of a case."""
    return reader.make(random.Random(f"{reader.name} {seed} {number}"), seeds)


def judge(reader: Reader, content: bytes, folder: Path) -> tuple[bool, str]:
    """Whether a case was read, and what is wrong with the way it was refused, if anything."""
    try:
        reader.read(content, folder)
    except TooLongError:
        return False, f"hang: more than {SECONDS:g} s"
    except (ValueError, OSError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            return False, ""
        text = str(error)
        if not _OURS.fullmatch(text):
            return False, _kind(error)
        return False, "" if len(text) <= _LONGEST else f"a message of thousands of characters, {_place(error)}"
    except Exception as error:  # whatever it is, it is what we look for
        return False, _kind(error)
    return True, ""


def run(reader: Reader, *, first: int, count: int, seed: int = 0) -> Outcome:
    """Run cases in forked processes; one that dies is noted, and the next goes on behind it."""
    total, at = Outcome(), first
    while at < first + count:
        part, at = _in_child(reader, at, first + count, seed)
        total.add(part)
    return total


def _in_child(reader: Reader, first: int, end: int, seed: int) -> tuple[Outcome, int]:
    """Run cases in one child; what came of them, and the number of the case after the last."""
    here = mmap.mmap(-1, 16)
    back, out = os.pipe()
    told = os.fdopen(os.dup(sys.stderr.fileno()), "w")
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
            told.write(traceback.format_exc())
        finally:
            told.flush()
            os._exit(code)
    os.close(out)
    told.close()
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
    """Wait for a child; kill it where one case takes far too long, in code that no signal interrupts."""
    seen, since = -1, time.monotonic()
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        now = struct.unpack_from("q", here)[0]
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > 6 * SECONDS:
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
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # libraries in C complain there of what they also refuse
        seeds = list(reader.seeds())
        for content in seeds:  # damage to what is no valid input would show nothing
            reader.read(content, folder)
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY,) * 2)
        signal.signal(signal.SIGPROF, _too_long)
        before, started = _resident(), time.monotonic()
        for number in range(first, end):
            struct.pack_into("q", here, 0, number)
            content = make_case(reader, seeds, seed, number)
            signal.setitimer(signal.ITIMER_PROF, SECONDS)
            read, wrong = judge(reader, content, folder)
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
    # Not the line that raises every error, but the one that called it.
    ours = [one for one in frames if "/bcls/" in one.filename and one.name != "fail"]
    last = (ours or frames)[-1]
    return f"{type(error).__name__} in {last.filename.rpartition('/bcls/')[2]}:{last.lineno} ({frames[-1].name})"
