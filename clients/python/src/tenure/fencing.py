"""Fences in your own database: a transaction that commits only while a claim, or a leadership, is still the newest.

What is guaranteed
    For a job: of all attempts that write inside ``with fence(connection, task):``, one commits, however long another one
    was paused and whatever any clock says. The newest claim of each job is noted in the table ``tenure_claims``, in
    your transaction, which keeps the row locked until it ends.

    For a leadership: the transaction commits only if no later term was installed before it committed. This needs the
    election to be kept in the same database: a :class:`~tenure.direct.DatabaseElection`, or one of a broker with this store.

What is not
    Effects outside this transaction. Without :meth:`Fenced.complete` completing the job is a call to the broker and not part of
    the transaction; if the program dies in between, the next attempt is told that the effects are there
    (:class:`EffectsDone`), and completes.

Connections are those of any DB-API driver for PostgreSQL (psycopg, psycopg2), MySQL and MariaDB (PyMySQL, mysqlclient,
mysql-connector, mariadb) and SQLite (sqlite3), SQLAlchemy's ``Session`` and ``Connection``, and Django's ``connection``.
The tables are those of ``tenure outbox schema``.
"""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any, ContextManager, Iterator, Optional, Sequence, Union, overload

from .database import driver_of, plain_cursor
from .election import Leadership
from .errors import EffectsDone, Invalid, Lost, NotFound, NotLeading, NoTransaction
from .types import Claim, Claimed, Json
from .wire import written
from .worker import Task

__all__ = ["Fenced", "fence"]

#: A connection of some driver: there is no common type.
Connection = Any

_IDLE_SECONDS_MIN = 1.0
#: The lease of a claim that does not say it: that of a worker by default.
_LEASE_SECONDS = 30.0
#: The databases' numbers have 63 bits.
_NUMBER_MAX = 2**63 - 1
_NO_TABLE = "this database lacks a table of Tenure; create them: tenure outbox schema (for a leadership: tenure schema)"
#: MySQL: "transaction characteristics can't be changed while a transaction is in progress".
_IN_TRANSACTION = 1568
#: MySQL and PostgreSQL: there is no such table.
_NO_SUCH_TABLE = 1146
_UNDEFINED_TABLE = "42P01"


class Fenced:
    """A job whose claim is fenced: what :func:`fence` gives its block."""

    def __init__(self, database: _Database, claim: Claim, number: int) -> None:
        self._database, self._claim, self._number = database, claim, number
        self._is_done = False

    def complete(self, result: Json = None) -> None:
        """Completes the job with this result, if the transaction commits.

        In the same transaction it leaves a row in this database's outbox, and the relay tells the broker: the job is completed
        even if this program does not live to say so. The relay has to be one to the queue that the job is in. A handler
        that returns afterwards completes the job once more, which is harmless: let it return the same result.
        """
        self._is_done = True
        self._database.note_done(self._claim, self._number)
        end: dict[str, Json] = {"token": self._claim.token}
        if result is not None:
            end["result"] = result
        text = written(end).decode()
        if result is not None:
            self._database.note_result(self._claim, written(result).decode())
        self._database.note_end(self._claim, text)

    def _finish(self) -> None:
        if not self._is_done:
            self._database.note_done(self._claim, self._number)


@overload
def fence(
    connection: Connection, of: Leadership, *, namespace: str = "default", finish: bool = True
) -> ContextManager[None]: ...


@overload
def fence(
    connection: Connection, of: Union[Task, Claim], *, namespace: str = "default", finish: bool = True
) -> ContextManager[Fenced]: ...


def fence(
    connection: Connection, of: Union[Task, Claim, Leadership], *, namespace: str = "default", finish: bool = True
) -> ContextManager[Any]:
    """Makes the open transaction of ``connection`` commit only while ``of`` is the newest.

    ``of`` is a job's :class:`Task` or :class:`Claimed`, or a :class:`Leadership`. Begin with this block in a transaction,
    do the work inside, and commit after it::

        with connection.transaction():           # psycopg; sqlite3: with connection; Django: with transaction.atomic()
            with tenure.fence(connection, task):
                connection.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 7")

    For a job the end of the block notes that the transaction has all of its effects, so that no later attempt does them again;
    with ``finish=False`` it does not, for work in several transactions. To complete the job by the same transaction, too, call
    :meth:`Fenced.complete` at the end of the block::

            with tenure.fence(connection, task) as job:
                connection.execute("UPDATE accounts SET balance = balance + 1 WHERE id = 7")
                job.complete({"paid": True})

    Raises, before the block is entered:

    * :class:`EffectsDone` if an earlier attempt has committed them: complete the job, with its ``result``. In the handler of a
      :class:`Worker` you may let it pass: the worker completes the job.
    * :class:`Lost` if a later claim of the job was seen, :class:`NotLeading` if a later term was: drop the work.
    * :class:`NoTransaction` if the connection is in autocommit mode.
    * :class:`Invalid` if the claim's token is none, :class:`NotFound` if the database has no such tables.

    The server ends the transaction when it is idle for the claim's lease, or for 30 s with a plain :class:`Claim`, which
    does not know its lease. MySQL and MariaDB keep this limit on the connection after the commit.

    ``namespace`` is that of the brokers, and only matters for a leadership.

    >>> import sqlite3
    >>> connection = sqlite3.connect(":memory:", isolation_level=None)
    >>> claim = Claim("order-7", "5-0a1b2c3d", 1)
    >>> with fence(connection, claim): pass
    Traceback (most recent call last):
      ...
    tenure.errors.NoTransaction: a fence needs a transaction, and none is open on this connection
    """
    return _fence(connection, of, namespace, finish)


@contextlib.contextmanager
def _fence(
    connection: Connection, of: Union[Task, Claim, Leadership], namespace: str, finish: bool
) -> Iterator[Optional[Fenced]]:
    database = _database(connection)
    if isinstance(of, Leadership):
        database.check_term(of, namespace)
        yield None
        return
    claim = of.claimed if isinstance(of, Task) else of
    number = _number(claim)
    database.note_claim(claim, number)
    fenced = Fenced(database, claim, number)
    yield fenced
    if finish:
        fenced._finish()


def _number(claim: Claim) -> int:
    """Numbers of claims only grow.

    >>> _number(Claim("a", "1f-0a1b2c3d", 1))
    31
    >>> _number(Claim("a", "1f", 1))
    Traceback (most recent call last):
      ...
    tenure.errors.Invalid: the token of a claim looks like 1f-0a1b2c3d
    """
    token = claim.token
    found = re.fullmatch("([0-9a-f]{1,16})-[0-9a-f]{8}", token) if isinstance(token, str) else None
    number = int(found[1], 16) if found else 0
    # Not with the token, which may be nearly a right one: whoever has that can end the claim.
    if found is None or number > _NUMBER_MAX:
        raise Invalid("the token of a claim looks like 1f-0a1b2c3d", field="token")
    return number


def _idle_seconds(claim: Claim) -> float:
    if not isinstance(claim, Claimed):
        return _LEASE_SECONDS
    return max(_IDLE_SECONDS_MIN, claim.lease_ms / 1000)


class _Database:
    """A driver's connection, and the words of its database."""

    mark = "%s"

    def __init__(self, driver: str, connection: Connection) -> None:
        self.driver, self.connection = driver, connection

    def note_claim(self, claim: Claim, number: int) -> None:
        newest, done = self.insert_claim(claim, number)
        if done:
            raise EffectsDone(f"the effects of job {claim.id} are committed already", self.result(claim), claim.id)
        if newest > number:
            raise Lost(f"claim {number} of job {claim.id} is over: claim {newest} was seen")

    def note_done(self, claim: Claim, number: int) -> None:
        statement = f"UPDATE tenure_claims SET done = {self.true} WHERE job = {self.mark} AND claim = {self.mark}"
        if self.run(statement, (claim.id, number), counts=True) == 0:
            # The transaction was ended inside the block.
            raise NoTransaction()

    def note_result(self, claim: Claim, result: str) -> None:
        self.run(self.replace_result, (claim.id, result))

    def note_end(self, claim: Claim, end: str) -> None:
        statement = f"INSERT INTO tenure_outbox (id, type, payload) VALUES ({self.mark}, 'tenure/complete', {self.mark})"
        self.run(statement, (claim.id, end))

    def result(self, claim: Claim) -> Json:
        """What the attempt has returned that has done the work, if it was kept. Tables of an earlier version keep none."""
        row = self.run(self.find_results)
        if row is None or row[0] is None or row[0] == 0:
            return None
        column = self.result_text
        row = self.run(f"SELECT {column} FROM tenure_claim_results WHERE job = {self.mark}", (claim.id,))
        return None if row is None else json.loads(row[0])

    def check_term(self, leadership: Leadership, namespace: str) -> None:
        key = f"{namespace}/fences/{leadership._election}"
        value = self.lock_object(key, max(_IDLE_SECONDS_MIN, leadership.remaining()))
        if value is None:
            raise NotLeading(f"this database has no {key}: is it the store of the brokers?")
        record = json.loads(bytes(value))
        lineage, _, term = leadership.token.partition(":")
        if (record["lineage"], record["term"]) != (lineage, int(term)):
            raise NotLeading(f"term {term} of {leadership._election} is over: term {record['term']} was seen")

    def run(self, statement: str, values: Sequence[Any] = (), *, counts: bool = False) -> Any:
        """Runs a statement; its first row, or how many rows it changed."""
        cursor = plain_cursor(self.driver, self.connection)
        try:
            cursor.execute(statement, tuple(values))
            if counts:
                return cursor.rowcount
            return cursor.fetchone() if cursor.description else None
        except Exception as error:
            if self.lacks_table(error):
                raise NotFound(_NO_TABLE) from error
            raise
        finally:
            cursor.close()

    def lacks_table(self, error: Exception) -> bool:
        raise NotImplementedError

    true = "TRUE"
    replace_result = "REPLACE INTO tenure_claim_results (job, result) VALUES (%s, %s)"
    find_results = ""
    result_text = "result"

    def insert_claim(self, claim: Claim, number: int) -> tuple[int, bool]:
        raise NotImplementedError

    def lock_object(self, key: str, idle_seconds: float) -> Optional[bytes]:
        raise NotImplementedError


class _Postgres(_Database):
    replace_result = (
        "INSERT INTO tenure_claim_results (job, result) VALUES (%s, %s) "
        "ON CONFLICT (job) DO UPDATE SET result = excluded.result"
    )
    find_results = "SELECT to_regclass('tenure_claim_results')::text"
    result_text = "result::text"

    def lacks_table(self, error: Exception) -> bool:
        return _UNDEFINED_TABLE in (getattr(error, "sqlstate", None), getattr(error, "pgcode", None))

    def bound_idle(self, seconds: float) -> None:
        """A program that is paused in its transaction must not keep others waiting for ever. Ends with the transaction."""
        self.run(f"SET LOCAL idle_in_transaction_session_timeout = {round(seconds * 1000)}")

    def insert_claim(self, claim: Claim, number: int) -> tuple[int, bool]:
        # Outside a transaction the server only warns, and some drivers print that: the check below says it.
        self.bound_idle(_idle_seconds(claim))
        row = self.run(
            "INSERT INTO tenure_claims AS c (job, claim) VALUES (%s, %s) ON CONFLICT (job) DO UPDATE "
            "SET claim = greatest(c.claim, excluded.claim), seen_at = clock_timestamp() RETURNING claim, done",
            (claim.id, number),
        )
        # The insert has given the transaction an id, which is gone by now if it was a transaction of one statement.
        (is_open,) = self.run("SELECT pg_current_xact_id_if_assigned() IS NOT NULL")
        if not is_open:
            raise NoTransaction()
        return row[0], bool(row[1])

    def lock_object(self, key: str, idle_seconds: float) -> Optional[bytes]:
        self.bound_idle(idle_seconds)
        # The mark ends with the transaction, so it is there for the next statement only if both are in one.
        self.run("SET LOCAL tenure.fence = 'held'")
        (held,) = self.run("SELECT coalesce(current_setting('tenure.fence', true), '') = 'held'")
        if not held:
            raise NoTransaction()
        row = self.run("SELECT value FROM tenure_objects WHERE key = %s FOR SHARE", (key,))
        return None if row is None else bytes(row[0])


class _MySql(_Database):
    find_results = (
        "SELECT COUNT(*) FROM information_schema.tables "
        "WHERE table_schema = DATABASE() AND table_name = 'tenure_claim_results'"
    )

    def lacks_table(self, error: Exception) -> bool:
        return _is_number(error, _NO_SUCH_TABLE)

    def note_done(self, claim: Claim, number: int) -> None:
        try:
            super().note_done(claim, number)
        except NoTransaction:
            # Drivers tell how many rows are other than before: none if the same claim was fenced twice, and noted once.
            statement = "SELECT 1 FROM tenure_claims WHERE job = %s AND claim = %s AND done FOR UPDATE"
            if self.run(statement, (claim.id, number)) is None:
                raise

    def bound_idle(self, seconds: float) -> None:
        """MariaDB bounds idle transactions, MySQL only idle sessions; each takes the other's words for a comment."""
        whole = max(1, round(seconds + 0.5))
        self.run(
            f"SET SESSION /*M!100300 idle_transaction_timeout = {whole} */ /*!50700 wait_timeout = {whole} */"
        )

    def require_transaction(self) -> None:
        """MySQL has no way to ask, but refuses this while a transaction is open, and changes nothing by it."""
        try:
            self.run("SET TRANSACTION READ WRITE")
        except Exception as error:
            if _is_number(error, _IN_TRANSACTION):
                return
            raise
        raise NoTransaction()

    def insert_claim(self, claim: Claim, number: int) -> tuple[int, bool]:
        self.bound_idle(_idle_seconds(claim))
        self.run(
            "INSERT INTO tenure_claims (job, claim) VALUES (%s, %s) ON DUPLICATE KEY UPDATE "
            "claim = GREATEST(claim, VALUES(claim)), seen_at = UTC_TIMESTAMP(6)",
            (claim.id, number),
        )
        self.require_transaction()
        # The newest, not what was there when the transaction began.
        row = self.run("SELECT claim, done FROM tenure_claims WHERE job = %s FOR UPDATE", (claim.id,))
        return row[0], bool(row[1])

    def lock_object(self, key: str, idle_seconds: float) -> Optional[bytes]:
        self.bound_idle(idle_seconds)
        row = self.run("SELECT value FROM tenure_objects WHERE `key` = %s LOCK IN SHARE MODE", (key,))
        # Asked after the row was read: without autocommit that is what opens the transaction.
        self.require_transaction()
        return None if row is None else bytes(row[0])


class _Sqlite(_Database):
    mark = "?"
    true = "1"
    replace_result = "REPLACE INTO tenure_claim_results (job, result) VALUES (?, ?)"
    find_results = "SELECT count(*) FROM sqlite_master WHERE name = 'tenure_claim_results'"

    def lacks_table(self, error: Exception) -> bool:
        return str(error).startswith("no such table: ")

    def begin(self) -> None:
        """The module begins a transaction by itself, but too late: at the first change, without the right to write."""
        if self.connection.in_transaction:
            return
        if self.connection.isolation_level is None and getattr(self.connection, "autocommit", None) is not False:
            raise NoTransaction()
        self.run("BEGIN IMMEDIATE")

    def insert_claim(self, claim: Claim, number: int) -> tuple[int, bool]:
        self.begin()
        self.run(
            "INSERT INTO tenure_claims (job, claim) VALUES (?, ?) ON CONFLICT (job) DO UPDATE "
            "SET claim = max(claim, excluded.claim), seen_at = julianday('now')",
            (claim.id, number),
        )
        row = self.run("SELECT claim, done FROM tenure_claims WHERE job = ?", (claim.id,))
        return row[0], bool(row[1])

    def lock_object(self, key: str, idle_seconds: float) -> Optional[bytes]:
        # One writer at a time: if the fence is raised between this read and the first change, that change is refused.
        self.begin()
        row = self.run("SELECT value FROM tenure_objects WHERE key = ?", (key,))
        return None if row is None else bytes(row[0])


def _is_number(error: Exception, number: int) -> bool:
    """Whether this is MySQL's error of that number, whichever driver raises it."""
    return bool(error.args) and error.args[0] == number or getattr(error, "errno", None) == number


_DRIVERS = {
    "sqlite3": _Sqlite,
    "psycopg": _Postgres,
    "psycopg2": _Postgres,
    "pymysql": _MySql,
    "MySQLdb": _MySql,
    "mysql": _MySql,
    "mariadb": _MySql,
}


def _database(connection: Connection) -> _Database:
    """Finds the driver's own connection, and which database it is.

    >>> _database(object())
    Traceback (most recent call last):
      ...
    TypeError: cannot use a builtins.object: use a connection of psycopg, PyMySQL, mysqlclient or sqlite3, or SQLAlchemy's
    """
    name, own = driver_of(connection)
    return _DRIVERS[name](name, own)
