"""Versioned objects in one's own database: the table ``tenure_objects``, as every other part of Tenure reads and writes it.

What is guaranteed
    A write is one statement that is applied only if the object still has the version that was read, or if there is
    none, and is committed separately. It ends as done, as :class:`Conflicted`, as :class:`~tenure.errors.Unavailable`
    (not applied) or as :class:`~tenure.errors.Unknown` (the answer was lost). A version is a random number that never
    comes back.

    The server ends waits for locks after 2 seconds and statements after 8, so that no write is applied long after its
    writer has stopped waiting.

What is not
    Networks that drop packets: set timeouts for connecting and reading in your driver.

In the caller's own transaction (:meth:`Database.borrowed`) nothing is committed here, the rows that a decision rests on
are locked until the transaction ends, and the driver's errors are passed on unchanged.
"""

from __future__ import annotations

import contextlib
import importlib
import inspect
import secrets
import time
from typing import Any, Callable, Iterator, List, NamedTuple, Optional, Sequence, Tuple, Type

from . import clock
from .errors import NotAllowed, NotFound, NoTransaction, TenureError, Unavailable, Unknown

__all__ = ["Conflicted", "Database", "Object", "Store", "driver_of"]

#: A connection of any driver: they have no common type.
Connection = Any

_PAGE_MAX = 1000
_LOCK_SECONDS = 2
_STATEMENT_SECONDS = 8
#: How often to look for the table while others create it too.
_LOOKS_MAX = 10
#: MySQL: "transaction characteristics can't be changed while a transaction is in progress".
_IN_TRANSACTION = 1568

REFUSED, BUSY, LOST = "refused", "busy", "lost"


class Conflicted(Exception):
    """The object was not as expected. Nothing was written, or an earlier write of ours was applied: read it again."""


class Object(NamedTuple):
    """``age`` is how long ago its write was begun, in seconds, on a clock that cannot be set; None if that is unknown.

    ``shown_age`` is the same by the database's clock, for people.
    """

    value: bytes
    version: str
    age: Optional[float]
    shown_age: float = 0.0


def driver_of(connection: Connection) -> Tuple[str, Connection]:
    """The driver's module and its own connection, unwrapped from those of SQLAlchemy and Django.

    >>> import sqlite3
    >>> driver_of(sqlite3.connect(":memory:"))[0]
    'sqlite3'
    """
    own = connection
    for _ in range(5):
        for kind in type(own).__mro__:
            name = kind.__module__.partition(".")[0]
            if name in _ENGINES:
                return name, own
        if hasattr(own, "ensure_connection"):  # Django
            own.ensure_connection()
        inner = getattr(own, "driver_connection", None) or getattr(own, "connection", None)
        if inspect.ismethod(inner):  # a Session of SQLAlchemy, which begins its transaction by that
            inner = inner()
        if inner is None:
            break
        own = inner
    kind = type(connection)
    raise TypeError(
        f"cannot use a {kind.__module__}.{kind.__qualname__}: "
        "use a connection of psycopg, PyMySQL, mysqlclient or sqlite3, or SQLAlchemy's"
    )


def plain_cursor(name: str, connection: Connection) -> Any:
    """A cursor whose rows are tuples, whatever rows the caller has set the driver's own connection to return.

    >>> import sqlite3
    >>> connection = sqlite3.connect(":memory:")
    >>> connection.row_factory = lambda cursor, row: dict(zip("ab", row))
    >>> plain_cursor("sqlite3", connection).execute("SELECT 1, 2").fetchall()
    [(1, 2)]
    """
    driver = importlib.import_module(name)
    if name == "psycopg":
        return connection.cursor(row_factory=driver.rows.tuple_row)
    if name == "psycopg2":
        return connection.cursor(cursor_factory=importlib.import_module("psycopg2.extensions").cursor)
    if name in ("pymysql", "MySQLdb"):
        return connection.cursor(importlib.import_module(f"{name}.cursors").Cursor)
    if name in ("mysql", "mariadb"):
        return connection.cursor(dictionary=False, named_tuple=False)
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


class Database:
    """Where connections come from: SQLAlchemy's ``Engine``, or a function that returns a new connection of a driver."""

    def __init__(self, source: Any) -> None:
        if hasattr(source, "raw_connection"):
            self._connect: Callable[[], Connection] = source.raw_connection
        elif callable(source):
            self._connect = source
        else:
            raise TypeError("give SQLAlchemy's Engine, or a function that returns a new connection")

    @contextlib.contextmanager
    def opened(self, *, makes: bool) -> Iterator[Store]:
        """A store for some requests. With ``makes``, a missing table is created; without, that is NotFound."""
        store = _Own(self._connect, makes)
        try:
            yield store
        finally:
            store.close()

    @contextlib.contextmanager
    def borrowed(self, connection: Connection, idle_seconds: float) -> Iterator[Store]:
        """A store in the open transaction of the caller's own connection."""
        name, own = driver_of(connection)
        engine = _ENGINES[name](name, own)
        engine.borrow(idle_seconds)
        yield Store(engine)


class Store:
    """The objects, in the transaction that is open on a connection."""

    #: Whether several requests are one transaction, which is the caller's.
    is_borrowed = True

    def __init__(self, engine: _Engine) -> None:
        self._engine = engine

    def get(self, key: str, *, locks: bool = False) -> Optional[Object]:
        """The object. With ``locks``, nobody else changes it before a borrowed transaction ends."""
        engine = self._engine
        return engine.object(engine.run(engine.get_locked if locks else engine.get_plain, (key,))[0])

    def put(self, key: str, value: bytes, expected: Optional[str]) -> str:
        """Writes the object if it has the version ``expected``, or if there is none and none is expected."""
        version = secrets.randbits(63)
        if not self._engine.write(key, value, version, expected):
            raise Conflicted(key)
        return str(version)

    def delete(self, key: str) -> None:
        """Deletes an object that is never written again."""
        self._engine.run(self._engine.remove, (key,))

    def list(self, prefix: str) -> List[Tuple[str, str]]:
        """The keys that begin with ``prefix`` and a slash, with their versions."""
        found: List[Tuple[str, str]] = []
        above = f"{prefix}/"
        while True:
            # The next character after the slash.
            rows, _ = self._engine.run(self._engine.listing, (above, f"{prefix}0", _PAGE_MAX))
            found.extend((_text(key), str(version)) for key, version in rows)
            if len(rows) < _PAGE_MAX:
                return found
            above = found[-1][0]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, (bytes, bytearray)) else str(value)


class _Own(Store):
    """Requests that are committed one by one, on our own connection, or on a new one if that was lost."""

    is_borrowed = False

    def __init__(self, connect: Callable[[], Connection], makes: bool) -> None:
        self._connect, self._makes = connect, makes
        self._outer: Connection = None
        self._inner: Optional[_Engine] = None

    def get(self, key: str, *, locks: bool = False) -> Optional[Object]:
        found: Optional[Object] = self._ended(f"reading {key}", lambda store: store.get(key), writes=False)
        return found

    def put(self, key: str, value: bytes, expected: Optional[str]) -> str:
        def put(store: Store) -> str:
            store._engine.begin()
            return store.put(key, value, expected)

        version: str = self._ended(f"writing {key}", put, writes=True)
        if self._inner is not None:
            self._inner.announce(key)
        return version

    def delete(self, key: str) -> None:
        self._ended(f"deleting {key}", lambda store: store.delete(key), writes=True)

    def list(self, prefix: str) -> List[Tuple[str, str]]:
        listed: List[Tuple[str, str]] = self._ended(f"listing {prefix}", lambda store: store.list(prefix), writes=False)
        return listed

    def _ended(self, doing: str, request: Callable[[Store], Any], *, writes: bool) -> Any:
        """Carries out a request in its own transaction, and reports how it ended."""
        engine = self._open(doing)
        try:
            engine.bound()
            answer = request(Store(engine))
            engine.commit()
            return answer
        except Conflicted:
            # Nothing was written, but if the rollback fails, the connection cannot be used any more.
            with self._discarding(doing):
                engine.rollback()
            raise
        except Exception as error:
            raise self._failed(doing, error, writes) from error
        except BaseException:
            # Interrupted: the state of the connection is unknown.
            self._discard()
            raise

    @contextlib.contextmanager
    def _discarding(self, doing: str) -> Iterator[None]:
        try:
            yield
        except Exception:
            self._discard()

    def _failed(self, doing: str, error: Exception, writes: bool) -> TenureError:
        engine = self._inner
        assert engine is not None
        fate = engine.fate(error)
        try:
            if fate == LOST:
                self._discard()
            else:
                engine.rollback()
        except Exception:
            self._discard()
        return _error(doing, error, fate, writes)

    def _open(self, doing: str) -> _Engine:
        if self._inner is not None:
            return self._inner
        try:
            self._outer = self._connect()
        except Exception as error:
            # SQLAlchemy wraps the driver's errors.
            cause = getattr(error, "orig", None) or error
            kind = next((_ENGINES[name] for name in _modules(cause) if name in _ENGINES), None)
            raise _error(doing, error, kind.fate(cause) if kind else LOST, writes=False) from error
        engine: Optional[_Engine] = None
        try:
            name, own = driver_of(self._outer)
            engine = _ENGINES[name](name, own)
            if engine.is_in_transaction():
                # The transaction belongs to other code, so it is neither committed nor rolled back here.
                raise ValueError("the connection has an open transaction: return a new one, or pass it as connection=")
            engine.prepare(self._makes)
        except BaseException as error:
            if isinstance(error, (TypeError, ValueError)):
                self._outer = None
            else:
                self._discard()
            if engine is None or not isinstance(error, Exception) or isinstance(error, (TenureError, ValueError)):
                raise
            raise _error(doing, error, engine.fate(error), writes=False) from error
        self._inner = engine
        return engine

    def _discard(self) -> None:
        outer, self._outer, self._inner = self._outer, None, None
        # A pool must not lend it out again.
        for end in ("invalidate", "close"):
            with contextlib.suppress(Exception):
                getattr(outer, end)()
                return

    def close(self) -> None:
        engine, outer = self._inner, self._outer
        if engine is not None:
            try:
                engine.restore()
            except Exception:
                self._discard()
                return
        self._outer = self._inner = None
        if outer is not None:
            with contextlib.suppress(Exception):
                outer.close()


def _modules(error: BaseException) -> Iterator[str]:
    return (kind.__module__.partition(".")[0] for kind in type(error).__mro__)


def _error(doing: str, error: Exception, fate: str, writes: bool) -> TenureError:
    # Only the first line: drivers add statements and values after it.
    text = f"{doing}: {(str(error).splitlines() or [type(error).__name__])[0][:300]}"
    if fate == REFUSED:
        return NotAllowed(text)
    return Unknown(text) if fate == LOST and writes else Unavailable(text)


class _Engine:
    """A driver's connection, with the SQL of its database."""

    mark = "%s"
    name = "key"
    now = "clock_timestamp()"
    read_columns = "version, value, NULL, 0"
    locking = ""
    create = ""

    def __init__(self, driver: str, connection: Connection) -> None:
        self.driver, self.connection = driver, connection
        self._restores: List[Callable[[], Any]] = []
        mark, name = self.mark, self.name
        self.get_plain = f"SELECT {self.read_columns} FROM tenure_objects WHERE {name} = {mark}"
        self.get_locked = self.get_plain + self.locking
        self.remove = f"DELETE FROM tenure_objects WHERE {name} = {mark}"
        self.listing = (
            f"SELECT {name}, version FROM tenure_objects WHERE {name} > {mark} AND {name} < {mark} ORDER BY {name} LIMIT {mark}"
        )

    def run(self, statement: str, values: Sequence[Any] = ()) -> Tuple[List[Any], int]:
        """Runs a statement. Returns its rows, and how many it changed."""
        cursor = plain_cursor(self.driver, self.connection)
        try:
            # Without values some drivers would take a percent sign for one.
            cursor.execute(statement, tuple(values)) if values else cursor.execute(statement)
            return (cursor.fetchall() if cursor.description else []), cursor.rowcount
        finally:
            cursor.close()

    def object(self, rows: List[Any]) -> Optional[Object]:
        if not rows:
            return None
        version, value, written, age = rows[0]
        return Object(bytes(value), str(version), self.age(written, int(version)), max(0.0, float(age or 0)))

    def age(self, written: Optional[str], version: int) -> Optional[float]:
        """A database's clock may be set, and may be another one after a failover, so there are no ages."""
        return None

    def write(self, key: str, value: bytes, version: int, expected: Optional[str]) -> bool:
        mark, name = self.mark, self.name
        if expected is None:
            statement = (
                f"INSERT INTO tenure_objects ({name}, version, modified_at, value) VALUES ({mark}, {mark}, {self.now}, {mark})"
            )
            return self.insert(statement, (key, version, value))
        statement = (
            f"UPDATE tenure_objects SET value = {mark}, version = {mark}, modified_at = {self.now} "
            f"WHERE {name} = {mark} AND version = {mark}"
        )
        return self.run(statement, (value, version, key, int(expected)))[1] > 0

    def insert(self, statement: str, values: Sequence[Any]) -> bool:
        """Inserts a row unless there is one. Returns whether it was inserted."""
        return self.run(f"{statement} ON CONFLICT ({self.name}) DO NOTHING", values)[1] > 0

    def begin(self) -> None:
        """Before a write of our own."""

    def bound(self) -> None:
        """Before each request of our own."""

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()

    def restore(self) -> None:
        """Restores the state of a pooled connection."""
        while self._restores:
            self._restores.pop()()

    def announce(self, key: str) -> None:
        """Notifies waiting processes that an object has changed, if the database can."""

    def is_in_transaction(self) -> bool:
        raise NotImplementedError

    def prepare(self, makes: bool) -> None:
        raise NotImplementedError

    def borrow(self, idle_seconds: float) -> None:
        """Checks that the caller's transaction is open and can be used, and bounds how long it may be idle."""
        raise NotImplementedError

    @staticmethod
    def fate(error: BaseException) -> str:
        """What an error says about the statement: "refused" or "busy" mean that nothing was changed; otherwise the
        outcome is unknown."""
        raise NotImplementedError


_NO_TABLE = "this database has no table tenure_objects: is it the store?"


class _Postgres(_Engine):
    locking = " FOR UPDATE"
    read_columns = "version, value, NULL, extract(epoch FROM clock_timestamp() - modified_at)"
    create = (
        'CREATE TABLE IF NOT EXISTS tenure_objects (key text COLLATE "C" PRIMARY KEY, version bigint NOT NULL, '
        "modified_at timestamptz NOT NULL, value bytea NOT NULL)"
    )
    _look = (
        "SELECT quote_ident(n.nspname), pg_is_in_recovery(), current_setting('synchronous_commit') "
        "FROM (SELECT to_regclass('tenure_objects') AS id) AS t "
        "LEFT JOIN pg_class AS c ON c.oid = t.id LEFT JOIN pg_namespace AS n ON n.oid = c.relnamespace"
    )
    _settings = f"SET LOCAL lock_timeout = {_LOCK_SECONDS * 1000}; SET LOCAL statement_timeout = {_STATEMENT_SECONDS * 1000}"
    _schema = ""

    def is_in_transaction(self) -> bool:
        # 0 is idle, in libpq and in both drivers.
        info = getattr(self.connection, "info", None)
        return int(getattr(info, "transaction_status", 0)) != 0

    def prepare(self, makes: bool) -> None:
        if self.connection.autocommit:
            self.connection.autocommit = False
            self._restores.append(lambda: setattr(self.connection, "autocommit", True))
        refused: Optional[Exception] = None
        for _ in range(_LOOKS_MAX):
            self.bound()
            [(schema, is_standby, synchronous)], _ = self.run(self._look)
            self.commit()
            if is_standby:
                raise NotAllowed("the server is a standby, so its reads lag behind: connect to the primary")
            if schema is not None:
                self._schema = schema
                if synchronous == "off":
                    # A confirmed write must survive a crash, even if the database is configured not to guarantee that
                    # for other data.
                    self._settings += "; SET LOCAL synchronous_commit = on"
                return
            if not makes:
                raise NotFound(_NO_TABLE)
            try:
                self.bound()
                self.run(self.create)
                self.commit()
            except Exception as error:
                # If several processes create it at once, some are refused; it only matters that the table exists.
                self.rollback()
                if refused is not None:
                    raise
                refused = error
        raise Unavailable("the table disappears as soon as it is created")

    def bound(self) -> None:
        # Ends with the transaction, since behind a pooler others use the same session.
        self.run(self._settings)

    def borrow(self, idle_seconds: float) -> None:
        self.run(f"SET LOCAL idle_in_transaction_session_timeout = {max(1000, round(idle_seconds * 1000))}")
        # The setting ends with the transaction, so the next statement sees it only if both are in one transaction.
        self.run("SET LOCAL tenure.fence = 'held'")
        if not self.run("SELECT coalesce(current_setting('tenure.fence', true), '') = 'held'")[0][0][0]:
            raise NoTransaction()
        if self.run("SELECT to_regclass('tenure_objects') IS NULL")[0][0][0]:
            raise NotFound(_NO_TABLE)

    def announce(self, key: str) -> None:
        path = key.split("/")
        if len(path) < 3 or path[1] != "elections":
            return
        # FNV-1a, computed in the same way by every part of Tenure that listens.
        hash = 0xCBF29CE484222325
        for byte in f"{self._schema}.tenure_objects\0{path[0]}/{path[1]}".encode():
            hash = (hash ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
        # Nothing depends on it, and its failure must not make a completed write look failed.
        try:
            self.run("SET LOCAL synchronous_commit = off")
            self.run("SELECT pg_notify(%s, %s)", (f"tenure_{hash:016x}", key))
            self.commit()
        except Exception:
            with contextlib.suppress(Exception):
                self.rollback()

    @staticmethod
    def fate(error: BaseException) -> str:
        """Uses the codes of PostgreSQL's manual, appendix A.

        >>> class Error(Exception): sqlstate = "40001"
        >>> _Postgres.fate(Error()), _Postgres.fate(OSError())
        ('busy', 'lost')
        """
        code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if code is None:
            return LOST
        if code in ("40001", "40P01", "55P03", "57014", "53200", "53300"):
            return BUSY
        if code in ("28000", "28P01", "3D000"):
            return REFUSED
        severity = getattr(getattr(error, "diag", None), "severity_nonlocalized", None)
        if code == "40003" or code[:2] in ("08", "58", "XX") or code[:3] == "57P" or severity in ("FATAL", "PANIC"):
            return LOST
        return REFUSED


class _MySql(_Engine):
    name = "`key`"
    now = "UTC_TIMESTAMP(6)"
    locking = " FOR UPDATE"
    read_columns = "version, value, NULL, TIMESTAMPDIFF(MICROSECOND, modified_at, UTC_TIMESTAMP(6)) / 1000000"
    create = (
        "CREATE TABLE IF NOT EXISTS tenure_objects (`key` VARCHAR(700) CHARACTER SET ascii COLLATE ascii_bin NOT NULL PRIMARY KEY, "
        "version BIGINT NOT NULL, modified_at DATETIME(6) NOT NULL, value LONGBLOB NOT NULL) ENGINE = InnoDB"
    )
    _exists = (
        "SELECT COUNT(*) FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = 'tenure_objects'"
    )
    #: The settings of our own connections; each server knows only some of them.
    _wanted = {
        "innodb_lock_wait_timeout": str(_LOCK_SECONDS),
        "lock_wait_timeout": str(_LOCK_SECONDS),
        "max_statement_time": str(_STATEMENT_SECONDS),
        "max_execution_time": str(_STATEMENT_SECONDS * 1000),
        "transaction_isolation": "'REPEATABLE-READ'",
        "tx_isolation": "'REPEATABLE-READ'",
    }

    def is_in_transaction(self) -> bool:
        # There is no query for this, but this statement is refused while a transaction is open, and changes nothing.
        try:
            self.run("SET TRANSACTION READ WRITE")
        except Exception as error:
            if _mysql_number(error) == _IN_TRANSACTION:
                return True
            raise
        return False

    def prepare(self, makes: bool) -> None:
        names = ", ".join(f"'{name}'" for name in self._wanted)
        rows, _ = self.run(f"SHOW SESSION VARIABLES WHERE Variable_name IN ({names})")
        found = {_text(name): _text(value) for name, value in rows}
        before = ", ".join(f"{name} = {_quoted(name, value)}" for name, value in found.items())
        self.run("SET SESSION " + ", ".join(f"{name} = {self._wanted[name]}" for name in found))
        self._restores.append(lambda: self.run(f"SET SESSION {before}"))
        [(read_only, is_there)], _ = self.run(f"SELECT CAST(@@global.read_only AS CHAR), ({self._exists})")
        self.commit()
        if _text(read_only) not in ("0", "OFF"):
            raise NotAllowed("the server is read-only, so it is a replica, and its reads lag behind: connect to the primary")
        if not is_there:
            if not makes:
                raise NotFound(_NO_TABLE)
            self.run(self.create)
            self.commit()

    def borrow(self, idle_seconds: float) -> None:
        whole = max(1, round(idle_seconds + 0.5))
        # MariaDB limits idle transactions, MySQL only idle sessions; each treats the other's setting as a comment.
        self.run(f"SET SESSION /*M!100300 idle_transaction_timeout = {whole} */ /*!50700 wait_timeout = {whole} */")
        [(is_there,)], _ = self.run(self._exists)
        if not is_there:
            raise NotFound(_NO_TABLE)
        # Without autocommit, a read opens the transaction.
        self.run("SELECT version FROM tenure_objects WHERE `key` = ''")
        if not self.is_in_transaction():
            raise NoTransaction()

    def insert(self, statement: str, values: Sequence[Any]) -> bool:
        try:
            return self.run(statement, values)[1] > 0
        except Exception as error:
            if _mysql_number(error) == 1062:
                return False
            raise

    @staticmethod
    def fate(error: BaseException) -> str:
        """Uses the numbers of MySQL's error reference; MariaDB shares them."""
        number = _mysql_number(error)
        if number in (1205, 1213, 1040, 1203, 1226, 1969, 3024, 1243, 1615):
            return BUSY
        refused = (1044, 1045, 1049, 1064, 1142, 1143, 1146, 1153, 1227, 1290, 1370, 1698, 1792, 1836, 1021, 1114)
        return REFUSED if number in refused or str(getattr(error, "sqlstate", "") or "").startswith("42") else LOST


def _quoted(name: str, value: str) -> str:
    return f"'{value}'" if name.endswith("isolation") else value


def _mysql_number(error: BaseException) -> Optional[int]:
    number = getattr(error, "errno", None) or (error.args[0] if error.args else None)
    return number if isinstance(number, int) else None


class _Sqlite(_Engine):
    mark = "?"
    create = (
        "CREATE TABLE IF NOT EXISTS tenure_objects (key TEXT COLLATE BINARY NOT NULL PRIMARY KEY, version INTEGER NOT NULL, "
        "modified_at INTEGER NOT NULL, written TEXT, value BLOB NOT NULL) STRICT"
    )
    read_columns = "version, value, written, (julianday('now') - 2440587.5) * 86400.0 - modified_at / 1000.0"
    _columns = "SELECT name FROM pragma_table_info('tenure_objects')"

    def is_in_transaction(self) -> bool:
        # With autocommit=False a transaction is always open, and empty when it is new.
        return bool(self.connection.in_transaction) and getattr(self.connection, "autocommit", None) is not False

    def prepare(self, makes: bool) -> None:
        # Each request begins its own transaction, since the module's begins without the write lock.
        if getattr(self.connection, "autocommit", None) is False:
            self.connection.autocommit = True
            self._restores.append(lambda: setattr(self.connection, "autocommit", False))
        elif self.connection.isolation_level is not None:
            level = self.connection.isolation_level
            self.connection.isolation_level = None
            self._restores.append(lambda: setattr(self.connection, "isolation_level", level))
        if not any(file for _, name, file in self.run("PRAGMA database_list")[0] if _text(name) == "main"):
            raise ValueError("a database in memory cannot hold an election: others do not see it, and would lead too; use a file")
        for name, wanted in (("busy_timeout", _STATEMENT_SECONDS * 1000), ("synchronous", 2)):
            [(before,)], _ = self.run(f"PRAGMA {name}")
            if int(before) < wanted:
                self.run(f"PRAGMA {name} = {wanted}")
                self._restores.append(lambda name=name, before=before: self.run(f"PRAGMA {name} = {before}"))  # type: ignore[misc]
        columns = self._named()
        if not columns:
            if not makes:
                raise NotFound(_NO_TABLE)
            self.run(self.create)
        elif "written" not in columns:
            raise NotAllowed("the table tenure_objects was made by an older version: open it once with this version's tenure run")

    def _named(self) -> List[str]:
        return [_text(name) for (name,) in self.run(self._columns)[0]]

    def borrow(self, idle_seconds: float) -> None:
        # The module begins transactions automatically, but too late: at the first change, without the write lock.
        if not self.connection.in_transaction:
            if self.connection.isolation_level is None and getattr(self.connection, "autocommit", None) is not False:
                raise NoTransaction()
            self.run("BEGIN IMMEDIATE")
        if "written" not in self._named():
            raise NotFound(_NO_TABLE)

    def begin(self) -> None:
        self.run("BEGIN IMMEDIATE")

    def commit(self) -> None:
        if self.connection.in_transaction:
            self.run("COMMIT")

    def rollback(self) -> None:
        if self.connection.in_transaction:
            self.run("ROLLBACK")

    def age(self, written: Optional[str], version: int) -> Optional[float]:
        """From the reading of the clock that cannot be set, noted by a writer on this host for this very version."""
        host = clock.host()
        fields = _text(written or "").split(" ")
        if host is None or len(fields) != 3 or fields[:2] != [str(version), host] or not fields[2].isdecimal():
            return None
        passed = clock.now_ns() - int(fields[2])
        return passed / 1e9 if passed >= 0 else None

    def write(self, key: str, value: bytes, version: int, expected: Optional[str]) -> bool:
        host = clock.host()
        # Before the write: an age is the time since it was begun, and so is trust.
        written = None if host is None else f"{version} {host} {clock.now_ns()}"
        now = time.time_ns() // 1_000_000
        if expected is None:
            statement = (
                "INSERT INTO tenure_objects (value, version, written, modified_at, key) VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT (key) DO NOTHING"
            )
            return self.run(statement, (value, version, written, now, key))[1] > 0
        statement = (
            "UPDATE tenure_objects SET value = ?, version = ?, written = ?, modified_at = ? WHERE key = ? AND version = ?"
        )
        return self.run(statement, (value, version, written, now, key, int(expected)))[1] > 0

    @staticmethod
    def fate(error: BaseException) -> str:
        """Uses SQLite's result codes, or its messages where Python does not provide the codes (before 3.11)."""
        code = getattr(error, "sqlite_errorcode", None)
        if code is not None:
            kind = code & 0xFF
            if kind in (5, 6, 7):
                return BUSY
            return REFUSED if kind in (1, 3, 8, 11, 13, 14, 17, 19, 20, 23, 26) else LOST
        text = str(error)
        if "locked" in text or "busy" in text:
            return BUSY
        refused = ("no such", "readonly", "unable to open", "disk is full", "not a database", "malformed", "syntax error")
        return REFUSED if any(words in text for words in refused) else LOST


_ENGINES: dict[str, Type[_Engine]] = {
    "sqlite3": _Sqlite,
    "psycopg": _Postgres,
    "psycopg2": _Postgres,
    "pymysql": _MySql,
    "MySQLdb": _MySql,
    "mysql": _MySql,
    "mariadb": _MySql,
}
