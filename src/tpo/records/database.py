"""The file under the store: telling ours from others', opening it, transactions, errors in plain words."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import struct
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tpo.errors import (
    BusyRecordsError,
    DamagedRecordsError,
    NewerRecordsError,
    NotRecordsError,
    RecordsFileError,
    RecordsWriteError,
)
from tpo.records import schema
from tpo.records.schema import APPLICATION_ID, MIGRATIONS, Migration

BUSY_SECONDS = 60.0
_MAGIC = b"SQLite format 3\x00"
_HEADER_BYTES = 100


class Database:
    """One connection to a store; it may be shared by the threads of a process."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, readonly: bool, copy: Any | None = None
    ) -> None:
        self.path = path
        self.readonly = readonly
        self._connection: sqlite3.Connection | None = connection
        self._copy = copy
        self._lock = threading.RLock()
        self._inside = False  # a transaction
        self._looking = False  # at a snapshot

    @classmethod
    def open(
        cls,
        path: Path,
        create: bool = True,
        readonly: bool = False,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> Database:
        """Open a store, or say in one line why that cannot be; a file of others is never changed."""
        check(path, create and not readonly, writable=not readonly)
        try:
            if readonly:
                return _open_readonly(path, migrations)
            connection = _connect(path, "rwc" if create else "rw")
            try:
                _refuse_newer(path, connection, migrations)
                schema.migrate(connection, migrations)
                connection.execute("PRAGMA journal_mode = WAL")
                connection.execute("PRAGMA synchronous = NORMAL")
                connection.execute("PRAGMA foreign_keys = ON")
            except BaseException:
                connection.close()
                raise
            return cls(path, connection, readonly=False)
        except sqlite3.Error as error:
            raise explain(path, error) from error

    @property
    def connection(self) -> sqlite3.Connection:
        """The open connection."""
        if self._connection is None:
            raise ValueError(f"{self.path} was closed")
        return self._connection

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a query."""
        try:
            with self._lock:
                return self.connection.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise explain(self.path, error) from error

    def stream(self, sql: str, values: Sequence[Any] = ()) -> Iterator[tuple[Any, ...]]:
        """The rows of a query that may be too many to hold."""
        try:
            with closing(self.connection.execute(sql, values)) as cursor:
                yield from cursor
        except sqlite3.Error as error:
            raise explain(self.path, error) from error

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction: all of it, or nothing. Inside another one, it is a part of that."""
        if self.readonly:
            raise RecordsWriteError(path=self.path, why="it was opened for reading only")
        with self._lock:
            if self._looking:
                raise ValueError("a snapshot is for reading: what is written in it would be lost")
            if self._inside:
                yield self.connection
                return
            connection = self.connection
            try:
                connection.execute("BEGIN IMMEDIATE")
                self._inside = True
                try:
                    yield connection
                    connection.execute("COMMIT")
                finally:
                    self._inside = False
                    if connection.in_transaction:
                        connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise explain(self.path, error) from error

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All queries inside see one moment of the store, whatever others write meanwhile."""
        with self._lock:
            if self._inside or self._looking:
                yield
                return
            try:
                self.connection.execute("BEGIN")
                self._looking = True
                try:
                    yield
                finally:
                    self._looking = False
                    self.connection.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise explain(self.path, error) from error

    def shrink(self) -> None:
        """Give the space of deleted rows back."""
        try:
            with self._lock:
                self.connection.execute("VACUUM")
                self.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except sqlite3.Error as error:
            raise explain(self.path, error) from error

    def close(self) -> None:
        """Close the file; calling it twice is fine."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            if self._copy is not None:
                self._copy.cleanup()


def check(path: Path, create: bool, writable: bool) -> None:
    """Refuse a path that is no store and cannot become one, without opening it as a database."""
    try:
        if not path.parent.is_dir():
            raise RecordsFileError(path=path, why=f"there is no folder {path.parent}")
        mode = path.stat().st_mode
    except FileNotFoundError:
        mode = None
    except OSError as error:
        raise RecordsFileError(path=path, why=error.strerror) from error
    if mode is None:
        if not create:
            raise RecordsFileError(path=path, why="there is no such file")
    elif not stat.S_ISREG(mode):
        why = "it is a folder" if stat.S_ISDIR(mode) else "it is not a regular file"
        raise RecordsFileError(path=path, why=why)
    elif not os.access(path, os.R_OK):
        raise RecordsFileError(path=path, why="it may not be read (permission denied)")
    else:
        _check_header(path)
        if writable and not os.access(path, os.W_OK):
            raise RecordsFileError(path=path, why="it is not writable (permission denied)")
    if writable and not os.access(path.parent, os.W_OK):
        raise RecordsFileError(path=path, why=f"folder {path.parent} is not writable (permission denied)")


def explain(path: Path, error: sqlite3.Error) -> BaseException:
    """An error of SQLite as one of ours; what no user can cause stays as it is."""
    text = str(error)
    if "locked" in text or "busy" in text:
        return BusyRecordsError(path=path, why=f"it stayed locked for {BUSY_SECONDS:g} s")
    if any(word in text for word in ("malformed", "not a database", "no such table", "no such column")):
        return DamagedRecordsError(path=path, why=text)
    if "unable to open" in text or "authoriz" in text:
        return RecordsFileError(path=path, why=text)
    if any(word in text for word in ("full", "I/O error", "readonly")):
        return RecordsWriteError(path=path, why=text)
    return error


def _check_header(path: Path) -> None:
    """Refuse what is not a whole store; the header is enough to tell."""
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER_BYTES)
            size = os.fstat(file.fileno()).st_size
    except OSError as error:
        raise RecordsFileError(path=path, why=error.strerror) from error
    if not header:
        return
    if not header.startswith(_MAGIC):
        if _MAGIC.startswith(header):
            raise DamagedRecordsError(path=path, why=f"it is cut off after {size} bytes")
        raise NotRecordsError(path=path, why="it is not an SQLite file")
    if len(header) < _HEADER_BYTES:
        raise DamagedRecordsError(path=path, why=f"it is cut off after {size} bytes")
    (application,) = struct.unpack_from(">I", header, 68)
    if application != APPLICATION_ID:
        raise NotRecordsError(path=path, why="it is an SQLite database of another application")
    # Pages may be missing here while a log beside the file still holds them.
    if not any(_beside(path, suffix) for suffix in ("-wal", "-journal")):
        (page,) = struct.unpack_from(">H", header, 16)
        (pages,) = struct.unpack_from(">I", header, 28)
        whole = pages * (65536 if page == 1 else page)
        if size < whole:
            raise DamagedRecordsError(path=path, why=f"it is cut off: {size} of {whole} bytes are there")


def _beside(path: Path, suffix: str) -> bool:
    """Whether SQLite left a log with content beside the file."""
    log = path.with_name(path.name + suffix)
    return log.exists() and log.stat().st_size > 0


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{mode if '=' in mode else f'mode={mode}'}",
        uri=True,
        timeout=BUSY_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )


def _refuse_newer(path: Path, connection: sqlite3.Connection, migrations: Sequence[Migration]) -> None:
    found = schema.version_of(connection)
    if found > len(migrations):
        raise NewerRecordsError(path=path, found=found, known=len(migrations))


def _open_readonly(path: Path, migrations: Sequence[Migration]) -> Database:
    connection, copy = _connect_readonly(path)
    try:
        _refuse_newer(path, connection, migrations)
        if schema.version_of(connection) < len(migrations):
            # An older store is brought up to date in memory: reading changes no file.
            memory = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            connection.backup(memory)
            connection.close()
            connection = memory
            schema.migrate(connection, migrations)
        connection.execute("PRAGMA query_only = ON")
    except BaseException:
        connection.close()
        if copy is not None:
            copy.cleanup()
        raise
    return Database(path, connection, readonly=True, copy=copy)


def _connect_readonly(path: Path) -> tuple[sqlite3.Connection, Any | None]:
    """A connection for reading, even where the logs SQLite wants beside the file cannot be made."""
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        # A connection that may write cleans its logs up when it closes; one that may not leaves them.
        return _connect(path, "rw"), None
    connection = _connect(path, "ro")
    try:
        schema.version_of(connection)
        return connection, None
    except sqlite3.OperationalError:
        connection.close()
    except BaseException:
        connection.close()
        raise
    if not _beside(path, "-wal"):
        return _connect(path, "immutable=1"), None
    copy = tempfile.TemporaryDirectory(prefix="tpo-records-")
    try:
        for suffix in ("", "-wal"):
            shutil.copyfile(path.with_name(path.name + suffix), Path(copy.name) / f"{path.name}{suffix}")
    except OSError as error:
        copy.cleanup()
        raise RecordsFileError(path=path, why=error.strerror) from error
    return _connect(Path(copy.name) / path.name, "rw"), copy
