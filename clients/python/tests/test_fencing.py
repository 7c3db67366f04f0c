"""Fences in one's own database: SQLite always, PostgreSQL and MySQL where a server is named."""

from __future__ import annotations

import importlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.parse
import uuid
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

import tenure

from .support import PATIENCE_SECONDS, Claims, Server, eventually

SCHEMAS = Path(__file__).parents[3] / "crates/tenure/src/outbox/schema"


class Ground:
    """A database with the outbox's tables and one for effects."""

    def __init__(
        self, engine: str, connect: Callable[[], Any], mark: str, url: str = "", connecting: str = ""
    ) -> None:
        self.engine, self.connect, self.mark = engine, connect, mark
        # For the broker, and for another program in Python.
        self.url, self.connecting = url, connecting

    def script(self, text: str) -> None:
        connection = self.connect()
        if self.engine == "sqlite":
            connection.executescript(text)
        elif self.engine == "postgres":
            connection.execute(text)
        else:
            cursor = connection.cursor()
            for statement in text.split(";\n"):
                lines = [line for line in statement.splitlines() if not line.startswith("--")]
                if "".join(lines).strip():
                    cursor.execute("\n".join(lines))
        connection.commit()
        connection.close()

    def effects(self) -> int:
        connection = self.connect()
        cursor = connection.cursor()
        cursor.execute("SELECT count(*) FROM effects")
        (count,) = cursor.fetchone()
        connection.close()
        return int(count)


def driver(name: str) -> Any:
    """A driver of the user's own. Without it the test is skipped, or fails if nothing may be skipped."""
    try:
        return importlib.import_module(name)
    except ImportError as missing:
        if os.environ.get("TENURE_TEST_REQUIRE") == "all":
            raise
        print(f"skipped: needs {name}: run scripts/test-python", file=sys.stderr)
        raise unittest.SkipTest(name) from missing


def server(variable: str) -> Optional[urllib.parse.ParseResult]:
    url = os.environ.get(variable)
    if url:
        return urllib.parse.urlparse(url)
    print(f"skipped: {variable} is not set", file=sys.stderr)
    return None


def grounds(folder: str) -> Iterator[Ground]:
    path = os.path.join(folder, f"{uuid.uuid4().hex}.db")
    connecting = f"__import__('sqlite3').connect({path!r}, timeout=30)"
    sqlite = Ground("sqlite", lambda: sqlite3.connect(path, timeout=30), "?", f"sqlite:{path}", connecting)
    yield made(sqlite, "sqlite.sql")
    name = f"fence_{uuid.uuid4().hex}"
    postgres = server("TENURE_TEST_POSTGRES")
    if postgres is not None:
        psycopg = driver("psycopg")
        with psycopg.connect(postgres.geturl(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        url = postgres._replace(path=f"/{name}").geturl()
        connecting = f"__import__('psycopg').connect({url!r})"
        yield made(Ground("postgres", lambda: psycopg.connect(url), "%s", url, connecting), "postgres.sql")
    mysql = server("TENURE_TEST_MYSQL")
    if mysql is not None:
        pymysql = driver("pymysql")
        user = {"host": mysql.hostname, "port": mysql.port or 3306, "user": urllib.parse.unquote(mysql.username or "")}
        user["password"] = urllib.parse.unquote(mysql.password or "")
        connection = pymysql.connect(**user)
        with connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE {name}")
        connection.close()
        url = mysql._replace(path=f"/{name}").geturl()
        connecting = f"__import__('pymysql').connect(database={name!r}, **{user!r})"
        ground = Ground("mysql", lambda: pymysql.connect(database=name, **user), "%s", url, connecting)
        yield made(ground, "mysql.sql")


def made(ground: Ground, schema: str) -> Ground:
    ground.script((SCHEMAS / schema).read_text())
    ground.script("CREATE TABLE effects (job VARCHAR(200) NOT NULL);\n")
    return ground


#: A worker that is killed between its commit and the completion.
KILLED = """
import os, signal, tenure
client = tenure.Client(["{url}"])
(job,) = client.claim("w", lease=600.0, wait=60.0)
connection = {connect}
with tenure.fence(connection, job) as fenced:
    cursor = connection.cursor()
    cursor.execute("INSERT INTO effects VALUES ('order-7')")
    fenced.complete({{"paid": 7}})
connection.commit()
os.kill(os.getpid(), signal.SIGKILL)
"""


def rows(connection: Any, table: str, columns: str = "*") -> list[Any]:
    cursor = connection.cursor()
    cursor.execute(f"SELECT {columns} FROM {table}")
    found = list(cursor.fetchall())
    cursor.close()
    return found


def finished(client: tenure.Client, job: str) -> Optional[tenure.Job]:
    found = client.job(job)
    return found if found.state == "completed" else None


def claim(job: str, number: int) -> tenure.Claim:
    return tenure.Claim(id=job, token=f"{number:x}-0a1b2c3d", attempt=1)


def work(ground: Ground, connection: Any, of: tenure.Claim) -> None:
    """The effect of a job, in a transaction of its own."""
    try:
        with tenure.fence(connection, of):
            cursor = connection.cursor()
            cursor.execute(f"INSERT INTO effects VALUES ({ground.mark})", (of.id,))
            cursor.close()
        connection.commit()
    except BaseException:
        connection.rollback()
        raise


class Fences(Claims):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def a_job_has_one_effect_whichever_attempt_comes_first(self) -> None:
        for ground in grounds(self.folder):
            with self.subTest(ground.engine):
                first, second = ground.connect(), ground.connect()
                work(ground, first, claim("a", 16))
                with self.assertRaises(tenure.EffectsDone):
                    work(ground, second, claim("a", 255))
                # Not done, but a later claim was seen.
                with tenure.fence(second, claim("b", 255), finish=False):
                    pass
                second.commit()
                with self.assertRaises(tenure.Lost):
                    work(ground, first, claim("b", 16))
                work(ground, second, claim("b", 255))
                self.assertEqual(ground.effects(), 2)
                first.close()
                second.close()

    def one_that_is_paused_in_its_transaction_is_waited_for(self) -> None:
        for ground in grounds(self.folder):
            with self.subTest(ground.engine):
                first, second = ground.connect(), ground.connect()
                ended: list[object] = []

                def follow() -> None:
                    try:
                        connection = ground.connect()
                        work(ground, connection, claim("a", 2))
                    except tenure.TenureError as error:
                        ended.append(error)
                    finally:
                        connection.close()

                with tenure.fence(first, claim("a", 1)):
                    follower = threading.Thread(target=follow)
                    follower.start()
                    cursor = first.cursor()
                    cursor.execute(f"INSERT INTO effects VALUES ({ground.mark})", ("a",))
                    cursor.close()
                    follower.join(0.2)
                    self.assertTrue(follower.is_alive())
                first.commit()
                follower.join()
                self.assertIsInstance(ended[0], tenure.EffectsDone)
                self.assertEqual(ground.effects(), 1)
                first.close()
                second.close()

    def what_fails_in_the_block_is_not_done(self) -> None:
        for ground in grounds(self.folder):
            with self.subTest(ground.engine):
                connection = ground.connect()
                with self.assertRaises(ZeroDivisionError), tenure.fence(connection, claim("a", 1)):
                    raise ZeroDivisionError
                connection.rollback()
                work(ground, connection, claim("a", 2))
                self.assertEqual(ground.effects(), 1)
                connection.close()

    def what_is_completed_with_the_transaction_is_left_for_the_relay(self) -> None:
        for ground in grounds(self.folder):
            with self.subTest(ground.engine):
                connection = ground.connect()
                with tenure.fence(connection, claim("a", 16)) as job:
                    job.complete({"name": "Zoë", "paid": 7})
                connection.rollback()
                self.assertEqual(rows(connection, "tenure_outbox"), [])
                connection.rollback()
                with tenure.fence(connection, claim("a", 16)) as job:
                    job.complete({"name": "Zoë", "paid": 7})
                connection.commit()
                ((name, payload),) = rows(connection, "tenure_outbox", "id, payload")
                connection.commit()
                end = {"token": "10-0a1b2c3d", "result": {"name": "Zoë", "paid": 7}}
                self.assertEqual((name, payload if isinstance(payload, dict) else json.loads(payload)), ("a", end))
                # A later attempt is told the result of the first.
                with self.assertRaises(tenure.EffectsDone) as done, tenure.fence(connection, claim("a", 17)):
                    self.fail("it is done")
                self.assertEqual(done.exception.result, {"name": "Zoë", "paid": 7})
                connection.rollback()
                # Without a result there is none, also in tables of an earlier version.
                cursor = connection.cursor()
                cursor.execute("DROP TABLE tenure_claim_results")
                cursor.close()
                connection.commit()
                with tenure.fence(connection, claim("b", 1)) as job:
                    job.complete()
                connection.commit()
                with self.assertRaises(tenure.EffectsDone) as done, tenure.fence(connection, claim("b", 2)):
                    self.fail("it is done")
                self.assertIsNone(done.exception.result)
                connection.close()

    def a_worker_that_is_killed_after_its_commit_has_completed_its_job(self) -> None:
        for ground in grounds(self.folder):
            with self.subTest(ground.engine):
                broker = Server("memory:", "--outbox", ground.url)
                self.addCleanup(broker.stop)
                broker.ready()
                with tenure.Client([broker.url]) as client:
                    client.submit("work", id="order-7")
                    program = KILLED.format(url=broker.url, connect=ground.connecting)
                    killed = subprocess.run([sys.executable, "-c", program], timeout=PATIENCE_SECONDS)
                    self.assertEqual(killed.returncode, -signal.SIGKILL)
                    job = eventually(lambda: finished(client, "order-7"), "the job is completed")
                    self.assertEqual((job.result, job.attempt), ({"paid": 7}, 1))
                    self.assertEqual(ground.effects(), 1)

    def a_handler_whose_transaction_has_completed_its_job_is_no_error(self) -> None:
        path = os.path.join(self.folder, "shop.db")
        ground = made(Ground("sqlite", lambda: sqlite3.connect(path, timeout=30), "?", f"sqlite:{path}"), "sqlite.sql")
        broker = Server("memory:", "--outbox", ground.url)
        self.addCleanup(broker.stop)
        broker.ready()
        told: list[str] = []
        with tenure.Client([broker.url]) as client:
            worker = tenure.Worker(
                client,
                lease=3.0,
                on_completed=lambda task: told.append(f"completed {task.id}"),
                on_failed=lambda task, error: told.append(f"failed {task.id}: {error}"),
                on_lost=lambda task: told.append(f"lost {task.id}"),
            )

            @worker.handles("work")
            def work(task: tenure.Task) -> Any:
                connection = sqlite3.connect(path, timeout=30)
                with connection, tenure.fence(connection, task) as job:
                    job.complete({"paid": 7})
                connection.close()
                # The relay ends the claim meanwhile, and heartbeats go on.
                eventually(lambda: finished(client, task.id), "the job is completed")
                task.stopped.wait(2.0)
                self.assertFalse(task.stopped.is_set())
                return task.payload

            client.submit("work", {"paid": 7}, id="same")
            client.submit("work", None, id="other")
            worker.run(signals=False, until_idle=True)
            self.assertEqual(sorted(told), ["completed other", "completed same"])
            for name in ("same", "other"):
                self.assertEqual(client.job(name).result, {"paid": 7})

    def a_handler_that_ends_since_its_effects_are_there_has_done_its_job(self) -> None:
        path = os.path.join(self.folder, "shop.db")
        ground = made(Ground("sqlite", lambda: sqlite3.connect(path, timeout=30), "?", f"sqlite:{path}"), "sqlite.sql")
        broker = Server("memory:")
        self.addCleanup(broker.stop)
        broker.ready()
        connection = ground.connect()
        with tenure.fence(connection, claim("other", 1)):
            pass
        connection.commit()
        connection.close()
        with tenure.Client([broker.url]) as client:
            worker = tenure.Worker(client, lease=3.0)

            @worker.handles("work")
            def work(task: tenure.Task) -> None:
                connection = sqlite3.connect(path, timeout=30)
                try:
                    with connection, tenure.fence(connection, task) as job:
                        job.complete({"paid": 7})
                    raise RuntimeError("after its commit")
                finally:
                    connection.close()

            @worker.handles("other")
            def fail(task: tenure.Task) -> None:
                connection = sqlite3.connect(path, timeout=30)
                try:
                    with connection, tenure.fence(connection, claim("other", 2)):
                        self.fail("it is done")
                finally:
                    connection.close()

            backoff = tenure.Backoff(first_ms=50)
            client.submit("work", id="own", max_attempts=3, backoff=backoff)
            client.submit("other", id="another", max_attempts=1)
            worker_thread = threading.Thread(target=lambda: worker.run(signals=False))
            worker_thread.start()
            try:
                own = eventually(lambda: finished(client, "own"), "the job is completed")
                self.assertEqual((own.attempt, own.result), (2, {"paid": 7}))
                eventually(lambda: client.job("another").state == "dead", "another job's effects are not its own")
            finally:
                worker.stop()
                worker_thread.join()

    def the_same_claim_may_be_fenced_twice_in_a_transaction(self) -> None:
        for ground in grounds(self.folder):
            with self.subTest(ground.engine):
                connection = ground.connect()
                with tenure.fence(connection, claim("a", 1)), tenure.fence(connection, claim("a", 1)):
                    pass
                connection.commit()
                with self.assertRaises(tenure.EffectsDone), tenure.fence(connection, claim("a", 2)):
                    self.fail("it is done")
                connection.close()

    def a_plain_claim_gives_its_transaction_time(self) -> None:
        limits = {
            "postgres": ("SHOW idle_in_transaction_session_timeout", "30s"),
            "mysql": ("SELECT @@idle_transaction_timeout", 30),
        }
        for ground in grounds(self.folder):
            if ground.engine in limits:
                with self.subTest(ground.engine):
                    connection = ground.connect()
                    question, limit = limits[ground.engine]
                    with tenure.fence(connection, claim("a", 1)):
                        cursor = connection.cursor()
                        cursor.execute(question)
                        self.assertEqual(cursor.fetchone(), (limit,))
                        cursor.close()
                    connection.close()

    def a_token_that_is_none_is_refused(self) -> None:
        connection = sqlite3.connect(":memory:")
        big = "8000000000000000-0badc0de"
        for token in ("", "1a", "1a-", "-0badc0de", " 1a-0badc0de", "0x1a-0badc0de", "1_0-0badc0de", "٣-0badc0de", big, None, 5):
            with self.subTest(token):
                of = tenure.Claim("a", token, 1)  # type: ignore[arg-type]
                with self.assertRaises(tenure.Invalid), tenure.fence(connection, of):
                    self.fail("it has no number")
        connection.close()

    def without_its_tables_it_says_so(self) -> None:
        for ground in grounds(self.folder):
            with self.subTest(ground.engine):
                ground.script("DROP TABLE tenure_claims;\n")
                connection = ground.connect()
                with self.assertRaises(tenure.NotFound), tenure.fence(connection, claim("a", 1)):
                    self.fail("there is nothing to note it in")
                connection.close()

    def without_a_transaction_it_is_refused(self) -> None:
        for ground in grounds(self.folder):
            with self.subTest(ground.engine):
                connection = ground.connect()
                if ground.engine == "sqlite":
                    connection.isolation_level = None
                elif ground.engine == "postgres":
                    connection.autocommit = True
                else:
                    connection.autocommit(True)
                with self.assertRaises(tenure.NoTransaction), tenure.fence(connection, claim("a", 1)):
                    self.fail("nothing would hold")
                connection.close()

    def sessions_of_sqlalchemy_are_connections_too(self) -> None:
        sqlalchemy = driver("sqlalchemy")
        orm = driver("sqlalchemy.orm")
        for ground in grounds(self.folder):
            with self.subTest(ground.engine):
                dialects = {"sqlite": "sqlite://", "postgres": "postgresql+psycopg://", "mysql": "mysql+pymysql://"}
                pools = {"poolclass": sqlalchemy.NullPool}
                engine = sqlalchemy.create_engine(dialects[ground.engine], creator=ground.connect, **pools)
                effect = sqlalchemy.text("INSERT INTO effects VALUES ('a')")
                with orm.Session(engine) as session, session.begin(), tenure.fence(session, claim("a", 1)):
                    session.execute(effect)
                with self.assertRaises(tenure.EffectsDone):
                    with engine.begin() as connection, tenure.fence(connection, claim("a", 2)):
                        connection.execute(effect)
                self.assertEqual(ground.effects(), 1)
                engine.dispose()

    def a_leader_that_was_followed_commits_nothing(self) -> None:
        store = os.path.join(self.folder, "store.db")
        broker = Server(f"sqlite:{store}")
        self.addCleanup(broker.stop)
        broker.ready()
        with tenure.Client([broker.url]) as client:
            with client.election("reports", "a").leading() as old:
                pass
            with client.election("reports", "b").leading() as new:
                connection = sqlite3.connect(store, timeout=30)
                with connection, tenure.fence(connection, new):
                    connection.execute("CREATE TABLE effects (term INTEGER)")
                with self.assertRaises(tenure.NotLeading), connection, tenure.fence(connection, old):
                    self.fail("its term is over")
                with self.assertRaises(tenure.NotLeading), connection, tenure.fence(connection, new, namespace="other"):
                    self.fail("another store's")
                connection.close()
