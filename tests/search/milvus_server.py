"""Milvus servers on this machine: the small one of milvus-lite, and the standalone one of the package ``milvus``."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class MilvusServer:
    """A server that can be stopped and started again on the same data."""

    def __init__(self, folder, *, standalone):
        if standalone and not (BIN / "milvus-server").exists():
            pytest.skip("needs pip install milvus==2.3.5, for Linux")
        if not standalone:
            pytest.importorskip("milvus_lite", reason='needs pip install "bcls[milvus]"')
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        small = ["milvus-lite", "server", "--data-dir", str(folder), "--host", "127.0.0.1", "--port", str(self.port)]
        full = ["milvus-server", "--data", str(folder), "--proxy-port", str(self.port)]
        program, *arguments = full if standalone else small
        self._command = [str(BIN / program), *arguments]

    def start(self, *, wait=True):
        # A session of its own: the standalone server is a child of its launcher and ends with neither.
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(self._command, start_new_session=True, **quiet)
        for _ in range(600 if wait else 0):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    break
            time.sleep(0.1)
        return self

    def stop(self, with_signal=None):
        with contextlib.suppress(ProcessLookupError):  # until no process of the session is left
            os.killpg(self.process.pid, with_signal or signal.SIGKILL)
            self.process.wait(30)
            for _ in range(300):
                os.killpg(self.process.pid, 0)
                time.sleep(0.1)
            os.killpg(self.process.pid, signal.SIGKILL)
