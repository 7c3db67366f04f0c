"""Elections directly on a database, beside `tenure elect` and `tenure run` on the same one.

SQLite always, PostgreSQL and MySQL where a server is named.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import urllib.parse
import uuid
from pathlib import Path
from typing import Any, Callable, Iterator, List, Optional, Tuple
from unittest import mock

import tenure
from tenure import DatabaseElection, clock, database, direct, records

from .support import Claims, binary, eventually
from .test_fencing import driver, server

SOURCE = Path(__file__).parents[1] / "src"
BY_BOOTTIME = "import time; print(time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)"


class Place:
    """An empty database: how a driver connects to it, and its URL for the binary."""

    def __init__(self, engine: str, url: str, connect: Callable[..., Any], dialect: str) -> None:
        self.engine, self.url, self.connect, self.dialect = engine, url, connect, dialect
        self.mark = "?" if engine == "sqlite" else "%s"
        self.key = "`key`" if engine == "mysql" else "key"

    def election(self, candidate: str, name: str = "reports", ttl: float = 60, **rest: Any) -> DatabaseElection:
        return DatabaseElection(self.connect, name, candidate, ttl=ttl, **rest)

    def tenure(self, *arguments: str, name: str = "reports") -> subprocess.CompletedProcess[str]:
        program = binary()
        assert program is not None
        command = [program, arguments[0], "--store", self.url, "--election", name, *arguments[1:]]
        return subprocess.run(command, text=True, capture_output=True, env=_clean(), check=False)

    def elect(self, node: str, *arguments: str, ttl: str = "60s") -> Any:
        """The answer of `tenure elect`."""
        done = self.tenure("elect", "--node", node, "--ttl", ttl, "--json", *arguments)
        assert done.returncode in (0, 1), done.stderr
        answer = json.loads(done.stdout)
        assert answer["is_leader"] == (done.returncode == 0)
        return answer

    def query(self, statement: str, values: Tuple[Any, ...] = ()) -> List[Tuple[Any, ...]]:
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.cursor()
            cursor.execute(statement, values) if values else cursor.execute(statement)
            rows = cursor.fetchall() if cursor.description else []
            connection.commit()
            return [tuple(row) for row in rows]

    def objects(self) -> List[Tuple[str, bytes]]:
        rows = self.query(f"SELECT {self.key}, value FROM tenure_objects ORDER BY {self.key}")
        return [(_text(key), bytes(value)) for key, value in rows]

    def sql_engine(self) -> Any:
        sqlalchemy = driver("sqlalchemy")
        return sqlalchemy.create_engine(self.dialect, creator=self.connect)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _clean() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("TENURE_")}


def places(folder: str, *engines: str) -> Iterator[Place]:
    if not engines or "sqlite" in engines:
        path = os.path.join(folder, f"{uuid.uuid4().hex}.db")
        yield Place("sqlite", f"sqlite:{path}", lambda **rest: sqlite3.connect(path, timeout=30, **rest), "sqlite://")
    name = f"direct_{uuid.uuid4().hex}"
    postgres = server("TENURE_TEST_POSTGRES") if not engines or "postgres" in engines else None
    if postgres is not None:
        psycopg = driver("psycopg")
        with psycopg.connect(postgres.geturl(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        url = postgres._replace(path=f"/{name}").geturl()
        yield Place("postgres", url, lambda **rest: psycopg.connect(url, **rest), "postgresql+psycopg://")
    mysql = server("TENURE_TEST_MYSQL") if not engines or "mysql" in engines else None
    if mysql is not None:
        pymysql = driver("pymysql")
        user: dict[str, Any] = {"host": mysql.hostname, "port": mysql.port or 3306}
        user["user"] = urllib.parse.unquote(mysql.username or "")
        user["password"] = urllib.parse.unquote(mysql.password or "")
        with contextlib.closing(pymysql.connect(**user)) as connection:
            connection.cursor().execute(f"CREATE DATABASE {name}")
        url = mysql._replace(path=f"/{name}").geturl()
        yield Place("mysql", url, lambda **rest: pymysql.connect(**{"database": name, **user, **rest}), "mysql+pymysql://")


def on_each(*engines: str) -> Callable[[Callable[[Any, Place], None]], Callable[[Any], None]]:
    """A claim about each of the engines, or about these."""

    def of(claim: Callable[[Any, Place], None]) -> Callable[[Any], None]:
        def on_all(test: InFolder) -> None:
            for place in places(test.folder, *engines):
                with test.subTest(place.engine):
                    claim(test, place)

        return on_all

    return of


class InFolder(Claims):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name


class Direct(InFolder):
    @on_each()
    def only_one_of_two_leads_and_the_next_term_is_greater(self, place: Place) -> None:
        first, second = place.election("a"), place.election("b")
        won, lost = first.elect(), second.elect()
        self.assertEqual((won.is_leader, won.term, lost.is_leader, lost.token), (True, 1, False, None))
        assert lost.leader is not None
        self.assertEqual((lost.leader.node, lost.term), ("a", 1))
        self.assertLess(won.trusted_until, clock.now() + 60)
        self.assertGreater(won.trusted_until, clock.now() + 30)
        again = first.elect()
        self.assertEqual((again.token, again.is_leader), (won.token, True))
        standing = second.standing()
        self.assertEqual([candidate.id for candidate in standing.candidates], ["a", "b"])
        assert standing.leader is not None
        self.assertEqual((standing.leader.node, standing.term), ("a", 1))
        first.unregister()
        after = second.elect()
        self.assertEqual((after.is_leader, after.term), (True, 2))
        self.assertEqual((after.token or "").partition(":")[0], (won.token or "").partition(":")[0])
        self.assertEqual([key for key, _ in place.objects() if "/nodes/a/" in key], [], "it leaves nothing behind")

    @on_each()
    def each_election_goes_by_the_ttl_that_it_was_entered_with(self, place: Place) -> None:
        reports = {node: place.election(node) for node in "ab"}
        mails = {node: place.election(node, "mails", ttl=1) for node in "ab"}
        self.assertTrue(reports["a"].elect().is_leader and mails["a"].elect().is_leader)
        self.assertFalse(mails["b"].elect().is_leader or reports["b"].elect().is_leader)
        self.assertEqual(len([key for key, _ in place.objects() if "/nodes/a/" in key]), 2)
        time.sleep(1.1)
        self.assertTrue(mails["b"].elect().is_leader, "what a is told lasts for a second")
        self.assertFalse(reports["b"].elect().is_leader)
        self.assertEqual(reports["a"].elect().term, 1)

    @on_each()
    def an_engine_of_sqlalchemy_will_do_and_gets_its_connections_back_as_they_were(self, place: Place) -> None:
        settings = {
            "sqlite": "SELECT 1",
            "postgres": "SELECT current_setting('lock_timeout'), current_setting('statement_timeout')",
            "mysql": "SELECT @@innodb_lock_wait_timeout, @@lock_wait_timeout, @@autocommit",
        }
        engine = place.sql_engine()
        asked = settings[place.engine]
        with engine.connect() as connection:
            before = connection.exec_driver_sql(asked).fetchall()
            raw = connection.connection.driver_connection
            modes = [getattr(raw, name, None) for name in ("isolation_level", "autocommit")]
        election = DatabaseElection(engine, "reports", "a", ttl=60)
        self.assertTrue(election.elect().is_leader)
        with engine.connect() as connection:
            self.assertEqual(connection.exec_driver_sql(asked).fetchall(), before)
            self.assertIs(connection.connection.driver_connection, raw, "one connection is enough")
            after = [getattr(raw, name, None) for name in ("isolation_level", "autocommit")]
            self.assertEqual(*(list(map(str, found)) for found in (after, modes)))
        self.assertFalse(place.election("b").elect().is_leader)
        election.unregister()
        self.assertNotIn("Connections in use: 1", engine.pool.status())
        engine.dispose()

    @on_each()
    def a_connection_that_commits_by_itself_will_do(self, place: Place) -> None:
        own: Any = {"sqlite": {"isolation_level": None}, "postgres": {"autocommit": True}, "mysql": {"autocommit": True}}
        election = DatabaseElection(lambda: place.connect(**own[place.engine]), "reports", "a", ttl=60)
        self.assertTrue(election.elect().is_leader)
        self.assertFalse(place.election("b").elect().is_leader)

    @on_each()
    def connections_that_return_other_rows_than_tuples_will_do(self, place: Place) -> None:
        def connect() -> Any:
            connection = place.connect()
            module = type(connection).__module__.partition(".")[0]
            if module == "psycopg":
                connection.row_factory = importlib.import_module("psycopg.rows").dict_row
            elif module == "pymysql":
                connection.cursorclass = importlib.import_module("pymysql.cursors").DictCursor
            else:
                connection.row_factory = lambda cursor, row: {column[0]: value for column, value in zip(cursor.description, row)}
                connection.text_factory = bytes
            return connection

        election = DatabaseElection(connect, "reports", "a", ttl=60)
        answer = election.elect()
        self.assertTrue(answer.is_leader)
        self.assertFalse(place.election("b").elect().is_leader)
        with contextlib.closing(connect()) as connection:
            self.assertTrue(election.elect(connection=connection).is_leader)
            with tenure.fence(connection, election.leadership(answer)):
                pass
            connection.commit()

    def a_database_in_memory_is_refused(self) -> None:
        for path in (":memory:", "file:shared?mode=memory&cache=shared", ""):
            with self.assertRaisesRegex(ValueError, "in memory"):
                DatabaseElection(lambda: sqlite3.connect(path, uri=True), "reports", "a").elect()

    @on_each()
    def a_connection_in_the_middle_of_something_is_left_alone(self, place: Place) -> None:
        place.query("CREATE TABLE effects (id INTEGER)")
        connection = place.connect()
        connection.cursor().execute("INSERT INTO effects VALUES (1)")
        with self.assertRaisesRegex(ValueError, "open transaction"):
            DatabaseElection(lambda: connection, "reports", "a").elect()
        connection.rollback()
        connection.close()
        self.assertEqual(place.query("SELECT id FROM effects"), [])

    @on_each()
    def looking_makes_nothing(self, place: Place) -> None:
        election = place.election("a")
        self.assertEqual(election.standing().candidates, ())
        election.unregister()
        with self.assertRaises(tenure.NotLeading):
            election.unregister(term=1)
        with self.assertRaises(Exception):
            place.objects()

    @on_each()
    def a_withdrawal_that_names_another_term_changes_nothing(self, place: Place) -> None:
        election = place.election("a")
        election.elect()
        with self.assertRaises(tenure.NotLeading):
            election.unregister(term=7)
        self.assertEqual(election.elect().term, 1)
        election.unregister(term=1)
        self.assertTrue(place.election("b").elect().is_leader)

    @on_each()
    def two_blocks_under_one_name_exclude_each_other(self, place: Place) -> None:
        first, second = place.election("a", ttl=6), place.election("a", ttl=6)
        with first.leading() as leadership:
            with self.assertRaises(TimeoutError), second.leading(timeout=0.5):
                self.fail("another program of this name leads")
            self.assertTrue(leadership.is_leader())
        with second.leading(timeout=30) as after:
            self.assertEqual(after.term, 2)

    @on_each("sqlite")
    def a_forked_child_that_leaves_the_block_releases_nothing(self, place: Place) -> None:
        parent = os.getpid()
        try:
            with place.election("a").leading(timeout=30) as leadership:
                child = os.fork()
                if child == 0:
                    leads = leadership.is_leader()
                    raise SystemExit(int(leads))
                self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0, "it does not lead")
                self.assertFalse(place.election("b").elect().is_leader)
                self.assertTrue(leadership.is_leader())
        except SystemExit as leaving:
            os._exit(int(leaving.code or 0))
        finally:
            if os.getpid() != parent:
                os._exit(2)
        self.assertTrue(place.election("b").elect().is_leader)

    def names_that_cannot_be_keys_are_refused(self) -> None:
        connect = sqlite3.connect
        for name in ("", "a/b", ".a", "x" * 201, "a'b", "tenure.queue"):
            with self.assertRaises(tenure.Invalid):
                DatabaseElection(connect, name, "a")
        for rest in ({"candidate": "a b"}, {"namespace": "a/b"}, {"ttl": 0.1}, {"ttl": 100_000}, {"ttl": "10"}, {"ttl": None}):
            with self.assertRaises(tenure.Invalid):
                DatabaseElection(connect, "x", **rest)
        with self.assertRaises(TypeError):
            DatabaseElection("sqlite:x")

    @on_each()
    def a_lease_that_was_deleted_is_waited_for_and_goes_on_with_a_higher_term(self, place: Place) -> None:
        place.election("a", ttl=2).elect()
        place.query(f"DELETE FROM tenure_objects WHERE {place.key} = 'default/elections/reports'")
        begun = clock.now()
        with self.assertLogs("tenure.election"):
            after = place.election("b", ttl=2).elect()
        self.assertGreaterEqual(clock.now() - begun, 2)
        self.assertEqual((after.is_leader, after.term), (True, 2))

    @on_each()
    def a_leader_whose_session_is_gone_is_replaced_after_its_ttl(self, place: Place) -> None:
        place.election("a", ttl=1).elect()
        self._delete_session(place, "a")
        begun = clock.now()
        self.assertFalse(place.election("b", ttl=1).elect().is_leader)
        # Another object, since the first one has noted what it saw in its session.
        eventually(lambda: place.election("b", ttl=1).elect().is_leader, "the next leader")
        self.assertGreaterEqual(clock.now() - begun, 1)

    def _delete_session(self, place: Place, node: str) -> None:
        for key, _ in place.objects():
            if key.startswith(f"default/nodes/{node}/"):
                place.query(f"DELETE FROM tenure_objects WHERE {place.key} = {place.mark}", (key,))

    @on_each()
    def trust_counts_from_before_the_session_was_written(self, place: Place) -> None:
        put = database._Own.put

        def slowly(store: database._Own, key: str, value: bytes, expected: Optional[str]) -> str:
            version = put(store, key, value, expected)
            if "/nodes/" in key:
                time.sleep(1)
            return version

        with mock.patch.object(database._Own, "put", slowly):
            answer = place.election("a", ttl=20).elect()
        self.assertTrue(answer.is_leader)
        self.assertLessEqual(answer.trusted_until, clock.now() - 1 + 20 * 0.9)

    @on_each("postgres", "mysql")
    def a_row_that_somebody_has_locked_is_not_waited_for_for_ever(self, place: Place) -> None:
        place.election("a").elect()
        place.election("a").unregister()
        ended: List[BaseException] = []

        def elect() -> None:
            try:
                DatabaseElection(lambda: place.connect(autocommit=True), "reports", "b", ttl=1).elect()
            except tenure.Unavailable as error:
                ended.append(error)

        with contextlib.closing(place.connect()) as holder:
            holder.cursor().execute("SELECT version FROM tenure_objects WHERE %s LIKE 'default/elections/%%' FOR UPDATE" % place.key)
            thread = threading.Thread(target=elect, daemon=True)
            thread.start()
            thread.join(60)
            self.assertFalse(thread.is_alive())
            holder.rollback()
        self.assertEqual(len(ended), 1)

    @on_each()
    def a_record_of_another_format_is_not_touched(self, place: Place) -> None:
        place.election("a").elect()
        newer = b'{"format":2,"whatever":true}'
        place.query(
            f"UPDATE tenure_objects SET value = {place.mark} WHERE {place.key} = 'default/elections/reports'", (newer,)
        )
        with self.assertRaisesRegex(tenure.ServerError, "format 2"):
            place.election("b").elect()
        self.assertIn(newer, [value for _, value in place.objects()])


class InTheCallersTransaction(InFolder):
    @on_each()
    def leadership_is_taken_if_and_only_if_the_transaction_commits(self, place: Place) -> None:
        place.election("other").register()
        place.query("CREATE TABLE effects (term INTEGER)")
        election, effect = place.election("a"), f"INSERT INTO effects VALUES ({place.mark})"
        for ends in ("rollback", "commit"):
            connection = place.connect()
            answer = election.elect(connection=connection)
            self.assertEqual((answer.is_leader, answer.term), (True, 1))
            connection.cursor().execute(effect, (answer.term,))
            getattr(connection, ends)()
            connection.close()
            self.assertEqual(place.query("SELECT term FROM effects"), [(1,)] if ends == "commit" else [])
            standing = election.standing()
            self.assertEqual(standing.leader is not None, ends == "commit")
        self.assertFalse(place.election("b").elect().is_leader)
        connection = place.connect()
        election.unregister(connection=connection)
        connection.rollback()
        self.assertFalse(place.election("b").elect().is_leader)
        election.unregister(connection=connection)
        connection.commit()
        connection.close()
        self.assertTrue(place.election("b").elect().is_leader)

    @on_each()
    def sessions_of_sqlalchemy_will_do(self, place: Place) -> None:
        orm = driver("sqlalchemy.orm")
        place.election("other").register()
        engine = place.sql_engine()
        election = DatabaseElection(engine, "reports", "a", ttl=60)
        with orm.Session(engine) as session, session.begin():
            self.assertTrue(election.elect(connection=session).is_leader)
        self.assertFalse(place.election("b").elect().is_leader)
        engine.dispose()

    @on_each()
    def two_transactions_at_one_time_give_one_leader(self, place: Place) -> None:
        place.election("other").register()
        answers: List[Tuple[str, Optional[int]]] = []

        def take(node: str) -> None:
            for _ in range(100):
                connection = place.connect()
                try:
                    answer = place.election(node).elect(connection=connection)
                    time.sleep(0.05)
                    connection.commit()
                    if answer.is_leader:
                        answers.append((node, answer.term))
                    return
                except Exception:
                    # As in any transaction: a deadlock, or a busy database.
                    with contextlib.suppress(Exception):
                        connection.rollback()
                finally:
                    connection.close()

        threads = [threading.Thread(target=take, args=(f"n{number}",)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(len(answers), 1, answers)

    @on_each()
    def without_a_transaction_or_a_table_it_is_refused(self, place: Place) -> None:
        own: Any = {"sqlite": {"isolation_level": None}, "postgres": {"autocommit": True}, "mysql": {"autocommit": True}}
        election = place.election("a")
        connection = place.connect()
        with self.assertRaises(tenure.NotFound):
            election.elect(connection=connection)
        connection.rollback()
        connection.close()
        place.election("b").register()
        with contextlib.closing(place.connect(**own[place.engine])) as connection:
            with self.assertRaises(tenure.NoTransaction):
                election.elect(connection=connection)
        self.assertEqual([key for key, _ in place.objects() if "/nodes/a/" in key], [])

    @on_each()
    def an_older_leader_commits_nothing(self, place: Place) -> None:
        first, second = place.election("a"), place.election("b")
        old = first.leadership(first.elect())
        first.unregister()
        new = second.leadership(second.elect())
        connection = place.connect()
        with tenure.fence(connection, new):
            pass
        connection.commit()
        with self.assertRaises(tenure.NotLeading), tenure.fence(connection, old):
            self.fail("its term is over")
        connection.rollback()
        connection.close()
        with self.assertRaises(tenure.NotLeading):
            first.leadership(first.elect())


class Beside(InFolder):
    """One protocol: `tenure elect` and `tenure run` on the same database."""

    @on_each()
    def the_command_line_and_this_exclude_each_other_and_hand_over(self, place: Place) -> None:
        election = place.election("python")
        self.assertEqual(election.elect().term, 1)
        answer = place.elect("cli")
        self.assertEqual((answer["is_leader"], answer["leader"], answer["term"]), (False, "python", 1))
        status = json.loads(place.tenure("status", "--json").stdout)["elections"][0]
        self.assertEqual((status["state"], status["leader"]["node"], status["leader"]["live"]), ("held", "python", True))
        self.assertEqual(sorted(each["node"] for each in status["candidates"]), ["cli", "python"])
        election.unregister()
        self.assertEqual(place.elect("cli")["term"], 2)
        mine = election.elect()
        assert mine.leader is not None
        self.assertEqual((mine.is_leader, mine.leader.node, mine.term), (False, "cli", 2))
        self.assertEqual(place.tenure("elect", "--node", "cli", "--release").returncode, 0)
        self.assertEqual((election.elect().is_leader, election.elect().term), (True, 3))
        history = json.loads(place.tenure("history", "--json").stdout)["terms"]
        ended = [(term["term"], term["node"], term.get("reason")) for term in history if term.get("reason")]
        self.assertEqual(sorted(ended), [(1, "python", "resigned"), (2, "cli", "resigned")])

    @on_each()
    def one_name_is_one_candidate_of_both(self, place: Place) -> None:
        self.assertTrue(place.elect("same")["is_leader"])
        mine = place.election("same").elect()
        self.assertEqual((mine.is_leader, mine.term), (True, 1))
        again = place.elect("same")
        self.assertEqual((again["is_leader"], again["token"]), (True, mine.token))
        self.assertEqual(len([key for key, _ in place.objects() if "/nodes/same/" in key]), 1)
        place.election("same").unregister()
        self.assertTrue(place.elect("other")["is_leader"])

    @on_each()
    def what_the_others_wrote_is_written_again_byte_for_byte(self, place: Place) -> None:
        kinds: Any = {"nodes": records.Session, "elections": records.Lease, "fences": records.Fence}
        for node in ("a", "b"):
            place.elect(node)
        place.elect("a")
        self.assertEqual(place.tenure("resign", "--wait", "0s").returncode, 0)
        before = place.objects()
        place.tenure("elect", "--node", "a", "--release")
        place.elect("b")
        self.assertEqual(place.tenure("transfer", "--wait", "0s", "b").returncode, 0)
        place.elect("c")
        self.assertEqual(place.tenure("transfer", "--wait", "0s", "c").returncode, 0)
        run = self._run(place, "node", f"exec {sys.executable} -c '{BY_BOOTTIME}'", "--election", "more", "--once")
        run.wait()
        seen = set()
        for key, value in before + place.objects():
            kind = key.split("/")[1]
            seen.add(kind)
            self.assertEqual(kinds[kind].decode(value).encode().decode(), value.decode(), key)
        self.assertEqual(seen, set(kinds))

    def the_table_is_the_one_that_others_make(self) -> None:
        asked = {
            "sqlite": "SELECT sql FROM sqlite_master WHERE name = 'tenure_objects'",
            "postgres": "SELECT column_name, data_type, is_nullable, collation_name FROM information_schema.columns "
            "WHERE table_name = 'tenure_objects' ORDER BY ordinal_position",
            "mysql": "SHOW CREATE TABLE tenure_objects",
        }
        for ours, theirs in zip(places(self.folder), places(self.folder)):
            with self.subTest(ours.engine):
                ours.election("a").register()
                theirs.elect("a")
                self.assertEqual(ours.query(asked[ours.engine]), theirs.query(asked[ours.engine]))

    @on_each()
    def a_request_to_resign_is_honoured(self, place: Place) -> None:
        election, other = place.election("a"), place.election("b")
        election.elect()
        other.elect()
        self.assertEqual(place.tenure("resign", "--wait", "0s", "--node", "ops").returncode, 0)
        asked = election.elect()
        self.assertEqual((asked.is_leader, asked.asked_by), (False, "ops"))
        self.assertFalse(other.elect().is_leader, "it has not said that its work has ended")
        election.unregister()
        self.assertEqual(other.elect().term, 2)
        election.elect()
        self.assertEqual(place.tenure("transfer", "--wait", "0s", "--node", "ops", "a").returncode, 0)
        self.assertEqual(other.elect().asked_by, "ops")
        other.unregister()
        third = place.election("c").elect()
        self.assertEqual((third.is_leader, third.leader, third.reserved_for), (False, None, "a"))
        self.assertEqual((election.elect().is_leader, election.elect().term), (True, 3))
        reasons = [term.get("reason") for term in json.loads(place.tenure("history", "--json").stdout)["terms"]]
        self.assertIn("resigned, asked by ops", reasons)
        self.assertIn("transferred to a", reasons)

    @on_each()
    def a_leader_that_does_not_heed_a_request_is_replaced_after_its_ttl(self, place: Place) -> None:
        place.election("a", ttl=1).elect()
        self.assertFalse(place.election("b", ttl=1).elect().is_leader)
        # Taken before the request is written: the lease lapses a ttl after that.
        asked_at = clock.now()
        self.assertEqual(place.tenure("resign", "--wait", "0s", "--node", "ops").returncode, 0)

        def next_one() -> Any:
            # Its session lives on, for another election.
            place.election("a", "others", ttl=1).elect()
            return place.election("b", ttl=1).elect().is_leader

        eventually(next_one, "the next leader")
        self.assertGreaterEqual(clock.now() - asked_at, 1)

    @on_each()
    def a_block_ends_when_it_is_asked_to(self, place: Place) -> None:
        election = place.election("a", ttl=3)
        with election.leading() as leadership:
            self.assertEqual(place.tenure("resign", "--wait", "0s").returncode, 0)
            eventually(lambda: not leadership.is_leader(), "the end of its term")
        with self.assertRaises(TimeoutError), election.leading(timeout=0.1):
            self.fail("it leaves the next term to others")
        self.assertEqual(place.elect("cli")["term"], 2)

    def _run(self, place: Place, node: str, script: str, *arguments: str, ttl: str = "3s") -> subprocess.Popen[bytes]:
        program = binary()
        assert program is not None
        command = [program, "run", "--store", place.url, "--node", node, "--ttl", ttl, *arguments, "--", "sh", "-c", script]
        output = open(os.path.join(self.folder, f"{node}.out"), "wb")
        self.addCleanup(output.close)
        run = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL, env=_clean())
        self.addCleanup(_end, run)
        return run

    @on_each()
    def a_killed_node_is_replaced_here_only_after_its_program_has_ended(self, place: Place) -> None:
        beats = Path(self.folder) / f"beats-{place.engine}"
        beats.touch()
        loop = f"exec {sys.executable} -c 'import time\nwhile True:\n open(\"{beats}\", \"a\").write(str(time.clock_gettime(time.CLOCK_BOOTTIME)) + \"\\n\")\n time.sleep(0.02)'"
        run = self._run(place, f"node-{place.engine}", loop, "--election", "reports")
        eventually(beats.read_text, "the program of the node")
        election = place.election("python", ttl=3)
        self.assertFalse(election.elect().is_leader)
        killed_at = clock.now()
        run.send_signal(signal.SIGKILL)
        run.wait()
        with election.leading(timeout=120) as leadership:
            led_at = clock.now()
            self.assertEqual(leadership.term, 2)
            # It was heard from a heartbeat before it was killed, or later.
            self.assertGreater(led_at - killed_at, 3 - 1.2)
            time.sleep(0.3)
            last = float(beats.read_text().splitlines()[-1])
            self.assertLess(last, led_at)

    @on_each()
    def a_killed_program_is_replaced_by_a_node_only_after_its_trust_has_ended(self, place: Place) -> None:
        trusts = Path(self.folder) / f"trusts-{place.engine}"
        leader = _program(
            place,
            f"""
            with DatabaseElection(connect, "reports", "python", ttl=3).leading() as leadership:
                while leadership.is_leader():
                    with open({str(trusts)!r}, "w") as file:
                        file.write(str(clock.now() + leadership.remaining()))
                    os.replace({str(trusts)!r}, {str(trusts) + ".whole"!r})
                    time.sleep(0.02)
            """,
        )
        self.addCleanup(_end, leader)
        whole = Path(str(trusts) + ".whole")
        eventually(whole.exists, "a leader")
        node = f"node-{place.engine}"
        self._run(place, node, f"{sys.executable} -c '{BY_BOOTTIME}'; exec sleep 1000", "--election", "reports")
        output = Path(self.folder) / f"{node}.out"
        eventually(lambda: f"/nodes/{node}/" in str([key for key, _ in place.objects()]), "a second candidate")
        time.sleep(1)
        self.assertEqual(output.read_text(), "")
        leader.kill()
        leader.wait()
        trusted_until = float(whole.read_text())
        eventually(output.read_text, "the program of the node")
        self.assertGreater(float(output.read_text()), trusted_until)
        status = json.loads(place.tenure("status", "--json").stdout)["elections"][0]
        self.assertEqual((status["leader"]["node"], status["term"]), (node, 2))

    @on_each("postgres")
    def a_node_is_told_at_once_when_a_program_withdraws(self, place: Place) -> None:
        """By NOTIFY: with this ttl its next look is up to 18 seconds away."""
        election = place.election("python")
        election.elect()
        self._run(place, "node", "echo leads; exec sleep 1000", "--election", "reports", ttl="60s")
        output = Path(self.folder) / "node.out"
        eventually(lambda: "/nodes/node/" in str([key for key, _ in place.objects()]), "a second candidate")
        time.sleep(3)
        begun = clock.now()
        election.unregister()
        eventually(output.read_text, "the program of the node")
        self.assertLess(clock.now() - begun, 10)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _program(place: Place, body: str) -> subprocess.Popen[bytes]:
    """Another process on the same database."""
    if place.engine == "sqlite":
        connect = f"lambda: sqlite3.connect({place.url.partition(':')[2]!r}, timeout=30)"
    elif place.engine == "postgres":
        connect = f"lambda: __import__('psycopg').connect({place.url!r})"
    else:
        url = urllib.parse.urlparse(place.url)
        user = {"host": url.hostname, "port": url.port, "user": urllib.parse.unquote(url.username or "")}
        user.update(password=urllib.parse.unquote(url.password or ""), database=url.path[1:])
        connect = f"lambda: __import__('pymysql').connect(**{user!r})"
    script = "import os, sqlite3, sys, time\nfrom tenure import DatabaseElection, clock\n"
    script += f"connect = {connect}\n" + textwrap.dedent(body)
    return subprocess.Popen([sys.executable, "-c", script], env={**_clean(), "PYTHONPATH": str(SOURCE)})


class Proxy:
    """A proxy between a driver and its server, which loses the answer to one of the commits, or the commit itself."""

    def __init__(self, url: str, port: int) -> None:
        parts = urllib.parse.urlparse(url)
        self._target = (parts.hostname or "127.0.0.1", parts.port or port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.commits, self.lost, self.delivers = 0, 0, True
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, lost: int, delivers: bool) -> None:
        self.commits, self.lost, self.delivers = 0, lost, delivers

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client, socket.create_connection(self._target)), daemon=True).start()

    def _serve(self, client: socket.socket, upstream: socket.socket) -> None:
        cut = threading.Event()

        def back() -> None:
            with contextlib.suppress(OSError):
                while data := upstream.recv(65536):
                    if cut.is_set():
                        break
                    client.sendall(data)
            client.close()

        threading.Thread(target=back, daemon=True).start()
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if b"COMMIT" in data.upper():
                    self.commits += 1
                    if self.commits == self.lost:
                        cut.set()
                        if self.delivers:
                            upstream.sendall(data)
                            # Its answer has come by the time that the driver is told anything.
                            time.sleep(0.1)
                        client.shutdown(socket.SHUT_RDWR)
                        break
                upstream.sendall(data)
        with contextlib.suppress(OSError):
            upstream.shutdown(socket.SHUT_RDWR)
        upstream.close()


class LostAnswers(InFolder):
    @on_each("postgres", "mysql")
    def a_commit_whose_answer_was_lost_is_read_back(self, place: Place) -> None:
        proxy = Proxy(place.url, 5432 if place.engine == "postgres" else 3306)
        self.addCleanup(proxy.close)
        self.assertTrue(place.election("warm").elect().is_leader)
        place.election("warm").unregister()

        def connect() -> Any:
            rest = {"sslmode": "disable"} if place.engine == "postgres" else {}
            return place.connect(host="127.0.0.1", port=proxy.port, **rest)

        term = 1
        for delivers in (True, False):
            for lost in range(1, 12):
                name = f"n{lost}-{int(delivers)}"
                election = DatabaseElection(connect, "reports", name, ttl=60)
                proxy.arm(lost, delivers)
                for _ in range(3):
                    # If a read fails before anything was begun, the caller has to repeat the call.
                    with contextlib.suppress(tenure.Unavailable):
                        answer = election.elect()
                        break
                else:
                    self.fail("only one answer was lost")
                self.assertTrue(answer.is_leader, (lost, delivers))
                term += 1
                self.assertEqual(answer.term, term, (lost, delivers, "one term for one leader"))
                own = [key for key, _ in place.objects() if f"/nodes/{name}/" in key]
                self.assertEqual(len(own), 1, "one session for one candidate")
                proxy.arm(max(1, lost - 4), delivers)
                for _ in range(3):
                    with contextlib.suppress(tenure.Unavailable):
                        election.unregister()
                        break
                proxy.arm(0, True)
                self.assertIsNone(election.standing().leader, (lost, delivers))


class Race(InFolder):
    @on_each()
    def of_two_hundred_calls_at_a_time_at_most_one_leads_each_term(self, place: Place) -> None:
        place.election("first").register()
        place.election("first").unregister()
        led: List[Tuple[int, str, float, float]] = []
        lock = threading.Lock()
        written = direct._Call.write_lease

        def later(call: direct._Call, lease: records.Lease, expected: Optional[str]) -> Any:
            # Many have read the same lease by the time that the first of them writes.
            time.sleep(random.random() * 0.05)
            return written(call, lease, expected)

        # In rounds: there is no leader when one begins.
        together = threading.Barrier(8, timeout=60)
        rounds_led: List[int] = []

        def race(node: str, rounds: int) -> None:
            election = place.election(node, ttl=20)
            for number in range(rounds):
                together.wait()
                answer = None
                with contextlib.suppress(tenure.Unavailable):
                    answer = election.elect()
                if answer is not None and answer.is_leader:
                    begun = clock.now()
                    time.sleep(0.1)
                    ended = min(clock.now(), answer.trusted_until)
                    with lock:
                        led.append((answer.term or 0, node, begun, ended))
                        rounds_led.append(number)
                together.wait()
                with contextlib.suppress(tenure.Unavailable):
                    election.unregister()

        threads = [threading.Thread(target=race, args=(f"n{number}", 25)) for number in range(8)]
        with mock.patch.object(direct._Call, "write_lease", later):
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        # Only one of those that read the same lease takes it, and nobody releases it before the round ends.
        self.assertEqual(len(set(rounds_led)), len(rounds_led), rounds_led)
        led.sort()
        for (term, node, _, ended), (next_term, next_node, begun, _) in zip(led, led[1:]):
            self.assertLess(term, next_term, (node, next_node))
            self.assertLessEqual(ended, begun, f"no two at a time: {node} and {next_node}")
        self.assertGreater(len(led), 8)
