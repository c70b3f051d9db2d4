"""What PostgreSQL refuses is one line with the remedy and without a password; a lost server is no lost store."""

from __future__ import annotations

import re
import stat
from typing import TYPE_CHECKING

import pytest

import samples
from diode_store.errors import DatabaseError, DiodeError
from diode_store.warehouse import migrate
from diode_store.warehouse.database import make_engine, write_transaction
from diode_store.warehouse.drivers.postgres_errors import reason
from diode_store.warehouse.facts import insert_timings
from diode_store.warehouse.store import Store, WriteReport
from lanes import long
from postgres_server import PASSWORD, PostgresServer, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import sqlalchemy as sa

    from conftest import RunCommand
    from diode_store.warehouse.drivers.copy_format import TimingRow

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))

MANY_ROWS: list[TimingRow] = [(9, n, 1.0, "ok", 0, 1, 1.0, 1.0) for n in range(50_000)]


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """Return a server that a test may stop and kill, with an empty warehouse called ``own``."""
    with PostgresServer.in_temp_folder() as server:
        engine = make_engine(server.create_database("own"))
        migrate.upgrade(engine)
        engine.dispose()
        yield server


def refused(url: str) -> str:
    """Return the one line with which opening a warehouse fails."""
    with pytest.raises(DiodeError) as error:
        Store.open(url)
    assert "\n" not in str(error.value)
    return str(error.value)


def name_of(url: str) -> str:
    """Return the database's name."""
    return url.partition("?")[0].rpartition("/")[2]


def test_a_password_that_is_wrong_or_missing(
    postgres_server: PostgresServer, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line says what to check; neither password is in it."""
    name = name_of(postgres_url)
    monkeypatch.setenv("PGPASSFILE", "/nonexistent")
    wrong = refused(postgres_server.tcp_url(name, "Tr0ub4dor"))
    assert 'password authentication failed for user "diode"; check the user and the password' in wrong
    assert "diode:***@127.0.0.1" in wrong
    assert "Tr0ub4dor" not in wrong
    assert "no password supplied; check the user and the password" in refused(postgres_server.tcp_url(name, None))


@pytest.mark.parametrize("password", ["half@other", "a@b/c", "x@y@z", "q?w@e#r"])
def test_a_password_with_an_at_sign_is_not_taken_for_a_host(password: str) -> None:
    """What stands behind a plain @ would be looked up as a host and named in the message: no part of it is shown."""
    message = refused(f"postgresql://me:{password}@127.0.0.1:1/w")
    assert message == (
        "postgresql://me:***@127.0.0.1:1/w is not a database URL: only the @ before the host may be unescaped; "
        "write any other as %40"
    )


@pytest.mark.parametrize(
    "text",
    [
        "host=db dbname=w password=sesame",
        "dbname=w user=me",
        "postgresql:me:sesame@db/w",
        "postgres+psycopg:/me:sesame@db/w",
    ],
)
def test_an_address_that_is_no_url_is_not_taken_for_a_file(text: str, tmp_path: Path) -> None:
    """Other ways to write a server's address are refused without being shown: they may hold a password."""
    assert refused(text) == ("the database address is neither a file nor a URL; write postgresql://USER@HOST/DATABASE")
    assert list(tmp_path.iterdir()) == []


def test_a_password_of_the_environment_or_of_a_file(
    postgres_server: PostgresServer, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A URL without a password works with PGPASSWORD, and with PGPASSFILE, which only its owner may read."""
    url = postgres_server.tcp_url(name_of(postgres_url), None)
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with Store.open(url) as store:
        assert store.write([samples.measurement(1)]) == WriteReport(1, 0, 3)
    monkeypatch.delenv("PGPASSWORD")
    file = tmp_path / "pgpass"
    file.write_text(f"127.0.0.1:{postgres_server.port}:*:diode:{PASSWORD}\n")
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    monkeypatch.setenv("PGPASSFILE", str(file))
    with Store.open(url) as store:
        assert store.counts()["measurements"] == 1


def test_the_password_of_the_url_works(postgres_server: PostgresServer, postgres_url: str) -> None:
    """A URL that holds a password, out of the environment say, opens; the engine does not show it."""
    with Store.open(postgres_server.tcp_url(name_of(postgres_url))) as store:
        assert PASSWORD not in f"{store.engine!r} {store.engine.url}"


@pytest.mark.parametrize(
    "command", [("db", "upgrade"), ("db", "stats"), ("hardware", "list"), ("query", "SELECT 1"), ("sync",)]
)
def test_no_command_shows_a_password(
    command: tuple[str, ...], postgres_server: PostgresServer, diode: RunCommand, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever command finds that the password of the environment is wrong says so on one line, without it."""
    monkeypatch.setenv("DIODE_DATABASE_URL", postgres_server.tcp_url("warehouse_template", "Tr0ub4dor%26%2F3"))
    result = diode(*command)
    assert (result.code, result.out) == (1, "")
    assert "password authentication failed" in result.err
    assert (result.err.count("\n"), "Tr0ub" in result.err) == (1, False)


@pytest.mark.parametrize("option", ["postgresql://me:{}@h/w", "postgresql://me@h/w?password={}"])
def test_a_password_on_the_command_line_is_refused(option: str, diode: RunCommand) -> None:
    """Before anything is opened, and without showing it."""
    result = diode("db", "current", "--database", option.format("sesame"))
    assert (result.code, result.out, "sesame" in result.err) == (2, "", False)
    assert "a password on the command line is visible to every user" in " ".join(result.err.replace("│", " ").split())


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("postgresql://me:s3cret@127.0.0.1:1/w", "Connection refused; start the server, or check the URL's host and"),
        ("postgresql://me:s3cret@/w?host=/none", "No such file or directory; start the server, or check the URL's"),
        ("postgresql://me:s3cret@127.0.0.1:99999/w", 'invalid port number: "99999"'),
        ("postgresql://me@127.0.0.1:1/w?password=s3cret", "Connection refused; start the server"),
    ],
)
def test_no_server(url: str, expected: str) -> None:
    """A server that is not there is named, with what to check, and without the password."""
    message = refused(url)
    assert expected in message
    assert "s3cret" not in message


def test_what_the_server_does_not_have(postgres_server: PostgresServer, postgres_url: str) -> None:
    """A database, a role or a right that is missing is named with what to do."""
    assert 'database "nowhere" does not exist; create it' in refused(postgres_server.url("nowhere"))
    name = name_of(postgres_url)
    assert 'role "stranger" does not exist; create it' in refused(postgres_server.url(name, "stranger"))
    postgres_server.sql("CREATE ROLE guest LOGIN")
    guest = refused(postgres_server.url(name, "guest"))
    postgres_server.sql("DROP ROLE guest")
    assert guest.endswith(
        "permission denied for table diode_schema_version; connect as the role that owns the warehouse"
    )


def test_a_standby(postgres_server: PostgresServer, postgres_url: str) -> None:
    """A database that only reads says which server is wanted."""
    postgres_server.sql(f"ALTER DATABASE {name_of(postgres_url)} SET default_transaction_read_only = on")
    with Store.open(postgres_url) as store:
        with pytest.raises(DatabaseError, match="read-only transaction; connect to the primary server") as error:
            store.write([samples.measurement(1)])
        assert "\n" not in str(error.value)


def test_a_row_is_not_quoted(postgres_url: str) -> None:
    """The database's DETAIL, which quotes values, stays out of messages and logs."""
    with Store.open(postgres_url) as store:
        with write_transaction(store.engine) as connection:
            insert_timings(connection, MANY_ROWS[:1])
        with pytest.raises(DatabaseError) as error, write_transaction(store.engine) as connection:
            insert_timings(connection, MANY_ROWS[:1])
    assert str(error.value).endswith('duplicate key value violates unique constraint "pk_timings"')


def kill(server: PostgresServer) -> None:
    """End the server as a crash of its machine would, and start it again."""
    server.kill()
    server.start()


def restart(server: PostgresServer) -> None:
    """Restart the server in order, which ends every session."""
    server.stop()
    server.start()


def select(connection: sa.Connection) -> None:
    """Run a statement that writes nothing."""
    connection.exec_driver_sql("SELECT 1")


def write_few(connection: sa.Connection) -> None:
    """Write less than the server waits for."""
    insert_timings(connection, MANY_ROWS[:10])


def write_many(connection: sa.Connection) -> None:
    """Write more than fits on the way to the server."""
    insert_timings(connection, MANY_ROWS)


def commit(connection: sa.Connection) -> None:
    """Do nothing more: the commit is next."""


@pytest.mark.quick(1)
@pytest.mark.parametrize(
    ("first", "then", "end"),
    [
        (write_few, commit, kill),
        pytest.param(write_few, commit, restart, marks=long),
        pytest.param(write_few, select, kill, marks=long),
        (write_few, select, restart),
        pytest.param(select, write_many, kill, marks=long),
        pytest.param(select, write_many, restart, marks=long),
    ],
)
def test_a_server_lost_in_a_transaction(
    own_server: PostgresServer,
    end: Callable[[PostgresServer], None],
    first: Callable[[sa.Connection], None],
    then: Callable[[sa.Connection], None],
) -> None:
    """Wherever in a write it happens it is a DatabaseError, nothing of the write is kept, and the next one works."""

    def interrupted(store: Store) -> None:
        with write_transaction(store.engine) as connection:
            first(connection)
            end(own_server)
            then(connection)

    with Store.open(own_server.url("own")) as store:
        assert store.write([samples.measurement(1)]) == WriteReport(1, 0, 3)
        before = store.counts()
        with pytest.raises(DatabaseError) as error:
            interrupted(store)
        assert re.fullmatch(r"postgresql\+psycopg://diode@/own[^\n]*; try again [^\n]*", str(error.value))
        assert store.counts() == before
        end(own_server)  # while the connection waits in the pool
        assert store.write([samples.measurement(1), samples.measurement(2)]) == WriteReport(1, 1, 3)


def test_a_server_that_is_away_for_a_while(own_server: PostgresServer) -> None:
    """Writes fail as long as it is away, each on one line; the same store goes on when it is back."""
    with Store.open(own_server.url("own")) as store:
        store.write([samples.measurement(1)])
        own_server.kill()
        for _ in range(3):
            with pytest.raises(DatabaseError, match="Connection refused; start the server") as error:
                store.write([samples.measurement(2)])
            assert "\n" not in str(error.value)
        own_server.start()
        assert store.write([samples.measurement(1), samples.measurement(2)]) == WriteReport(1, 1, 3)


def test_one_session_that_is_ended(postgres_server: PostgresServer, postgres_url: str) -> None:
    """A connection that an administrator ends is replaced."""
    with Store.open(postgres_url) as store:
        store.write([samples.measurement(1)])
        end = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name_of(postgres_url)}'"  # noqa: S608 - our own name
        assert postgres_server.sql(end) == [(True,)]
        assert store.write([samples.measurement(2)]) == WriteReport(1, 0, 3)


def test_a_lock_that_does_not_go_away(postgres_server: PostgresServer, postgres_url: str) -> None:
    """A table that somebody holds is an error after the time to wait, not a daemon that hangs."""
    holder, writer = make_engine(postgres_url), make_engine(postgres_url, busy_timeout_s=0.2)
    with write_transaction(holder) as held:
        held.exec_driver_sql("LOCK TABLE timings")
        with (
            pytest.raises(
                DatabaseError, match="another transaction holds it locked; try again when that transaction is done"
            ),
            write_transaction(writer) as connection,
        ):
            insert_timings(connection, MANY_ROWS[:1])
    holder.dispose()
    writer.dispose()


def test_options_of_the_url_are_kept(postgres_url: str) -> None:
    """What a URL says of the connection goes before our own settings, which stay where it says nothing."""
    engine = make_engine(f"{postgres_url}&application_name=nightly&options=-c%20work_mem%3D7MB")
    with engine.connect() as connection:
        shown = [connection.exec_driver_sql(f"SHOW {n}").scalar() for n in ("application_name", "work_mem")]
        timeout = connection.exec_driver_sql("SHOW lock_timeout").scalar()
    engine.dispose()
    assert (shown, timeout) == (["nightly", "7MB"], "30s")


def test_a_server_notices_a_client_that_is_gone(postgres_server: PostgresServer, postgres_url: str) -> None:
    """In about a minute, not after the two hours of its own default, for which a lost client would keep its locks."""
    engine = make_engine(postgres_server.tcp_url(name_of(postgres_url)))
    names = ("tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count")
    with engine.connect() as connection:
        shown = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in names]
    engine.dispose()
    assert shown == ["30", "10", "3"]


def test_an_error_without_words() -> None:
    """An error that says nothing is named by its class."""
    assert reason(ConnectionAbortedError()) == "ConnectionAbortedError"
