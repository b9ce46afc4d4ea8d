"""Database files after a kill and without write access."""

import os
import signal
import time

import pytest

from bcls.search.catalog import Database

SCHEMA = "CREATE TABLE IF NOT EXISTS things (value TEXT)"


def values(database):
    return [value for (value,) in database.rows("SELECT value FROM things ORDER BY rowid")]


def add(database, *given):
    with database.transaction() as sql:
        sql.executemany("INSERT INTO things VALUES (?)", [(one,) for one in given])


def test_transactions_are_atomic(tmp_path):
    database = Database(tmp_path / "a.sqlite", SCHEMA)
    add(database, "one")

    def numbers():
        yield ("two",)
        raise RuntimeError("stop")

    with database.transaction() as sql:
        sql.execute("INSERT INTO things VALUES ('kept')")
    with pytest.raises(RuntimeError, match="stop"), database.transaction() as sql:
        sql.executemany("INSERT INTO things VALUES (?)", numbers())
    assert values(database) == ["one", "kept"]
    add(database, "three")
    assert values(database) == ["one", "kept", "three"]
    database.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_readers_roll_back_the_transaction_of_a_killed_writer(tmp_path):
    path = tmp_path / "a.sqlite"
    database = Database(path, SCHEMA)
    add(database, "one")
    database.close()
    pid = os.fork()
    if not pid:
        child = Database(path, SCHEMA)
        with child.transaction() as sql:
            sql.execute("PRAGMA cache_size = 5")  # pages spill to the file before the end
            sql.executemany("INSERT INTO things VALUES (?)", [("x" * 5000,)] * 200)
            (tmp_path / "ready").touch()
            time.sleep(60)
        os._exit(0)
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    assert (tmp_path / "a.sqlite-journal").stat().st_size > 0
    reader = Database(path, SCHEMA, read_only=True)
    assert values(reader) == ["one"]
    with pytest.raises(OSError, match="readonly"):
        add(reader, "two")
    reader.close()


def test_readers_need_no_write_access(tmp_path, monkeypatch):
    database = Database(tmp_path / "a.sqlite", SCHEMA)
    add(database, "one")
    database.close()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    reader = Database(tmp_path / "a.sqlite", SCHEMA, read_only=True)
    assert values(reader) == ["one"]
    with pytest.raises(OSError, match="readonly") as raised:
        add(reader, "two")
    assert raised.value.filename == str(tmp_path / "a.sqlite")
    reader.close()
