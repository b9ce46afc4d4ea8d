"""Python with the limits of Windows, as far as Linux can imitate them; loaded at start from PYTHONPATH.

Modules and functions that Windows lacks are removed, or fail if bcls calls them. Open and mapped files cannot be
renamed or deleted, folders cannot be opened, text files without an encoding fail, and processes are spawned.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import warnings

import psutil  # noqa: F401 - before `resource` is removed, which its build for Linux needs

for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for module, names in {os: ("fork", "sync", "forkpty"), signal: ("SIGALRM", "alarm", "setitimer", "SIGKILL")}.items():
    for name in names:
        delattr(module, name)


def called_by_bcls():
    return sys._getframe(2).f_globals.get("__name__", "").split(".")[0] == "bcls"


def missing(name):
    plain = getattr(os, name)

    def call(*arguments, **named):
        if called_by_bcls():
            raise AttributeError(f"module 'os' has no attribute '{name}'")
        return plain(*arguments, **named)

    setattr(os, name, call)


for name in ("fchmod", "geteuid", "getuid", "killpg", "mkfifo", "setsid", "statvfs", "sysconf", "uname"):
    missing(name)


def in_use(path):
    """Whether this process has the file open or mapped, or a file inside the folder."""
    path = os.path.realpath(path)
    inside = path + os.sep
    opened = [os.readlink(f"/proc/self/fd/{one}") for one in os.listdir("/proc/self/fd") if _exists(one)]
    with open("/proc/self/maps", encoding="utf-8") as maps:
        opened += [fields[5].strip() for line in maps if len(fields := line.split(None, 5)) == 6]
    return any(one == path or one.startswith(inside) for one in opened)


def _exists(descriptor):
    return os.path.lexists(f"/proc/self/fd/{descriptor}")


def refuse_open_files(name):
    plain = getattr(os, name)

    def call(*paths, **named):
        if not named and any(in_use(path) for path in paths):
            raise PermissionError(13, "The process cannot access the file because it is being used", str(paths[0]))
        return plain(*paths, **named)

    setattr(os, name, call)


for name in ("replace", "rename", "unlink", "remove"):
    refuse_open_files(name)

plain_open = os.open


def open_file(path, flags, *arguments, **named):
    if called_by_bcls() and os.path.isdir(path):
        raise PermissionError(13, "Permission denied", str(path))
    return plain_open(path, flags, *arguments, **named)


os.open = open_file
shutil._use_fd_functions = False
multiprocessing.set_start_method("spawn")
warnings.filterwarnings("error", category=EncodingWarning, module="bcls")
