"""SQLite files that survive a kill, with errors that name the file and what to do."""

import errno
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class Database:
    """A SQLite file; one connection that threads take in turns.

    A change is on the disk when :meth:`change` ends, or was never made: SQLite's rollback journal with full
    synchronisation. Readers change nothing and need no write access, unless a writer was killed in the middle.

    Args:
        path: The file.
        schema: SQL that makes its tables.
        read_only: Never write; the file must be there.

    Raises:
        OSError: The file cannot be opened, is damaged, or the disk is full or read-only.
    """

    def __init__(self, path: Path, schema: str, *, read_only: bool = False) -> None:
        self.path = path
        self._lock = threading.RLock()
        with self._told():
            if read_only and not path.exists():
                raise FileNotFoundError(2, "no such file; make the index again", str(path))
            # A reader may have to take back what a killed writer left half done, so it writes where it is allowed to.
            allowed = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
            mode = "rwc" if not read_only else "rw" if allowed else "ro"
            address = f"{path.resolve().as_uri()}?mode={mode}"
            self._connection = sqlite3.connect(address, uri=True, timeout=60, check_same_thread=False)
            self._connection.isolation_level = None
            if read_only:
                self._connection.execute("PRAGMA query_only = ON")
            else:
                self._connection.execute("PRAGMA synchronous = FULL")
                self._connection.executescript(f"BEGIN IMMEDIATE; {schema}; COMMIT")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection, for this thread alone."""
        with self._lock, self._told():
            try:
                yield self._connection
            except (TypeError, ValueError, OverflowError) as error:  # values that nobody wrote there
                raise sqlite3.DatabaseError(f"damaged: {str(error)[:200]}") from error

    @contextmanager
    def moment(self) -> Iterator[sqlite3.Connection]:
        """The connection, for reads that all see the file as it is at the first of them."""
        with self.reading() as sql:
            if sql.in_transaction:  # what is around this decides
                yield sql
                return
            sql.execute("BEGIN")
            try:
                yield sql
            finally:
                sql.execute("COMMIT")

    @contextmanager
    def change(self) -> Iterator[sqlite3.Connection]:
        """The connection inside a transaction: all of it happens, or nothing."""
        with self._lock, self._told():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            text = str(error)
            code = errno.EIO
            if "full" in text:
                code = errno.ENOSPC
            elif "readonly" in text or "read-only" in text:
                code = errno.EROFS
            raise OSError(code, f"the index cannot be read or written ({text})", str(self.path)) from error


def in_parts(numbers: list[int], size: int = 500) -> Iterator[list[int]]:
    """Cut a list for SQL's ``IN (...)``, which takes a limited number of values."""
    yield from (numbers[start : start + size] for start in range(0, len(numbers), size))
