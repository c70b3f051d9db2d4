"""The PostgreSQL server that tests start: fresh databases, stopped, killed and started again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from diode_store.warehouse.store import Store
from lanes import long
from postgres_server import PostgresServer, missing

if TYPE_CHECKING:
    from samples import MakeMeasurement

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def test_every_test_has_an_empty_database_of_its_own(any_store: Store, make_measurement: MakeMeasurement) -> None:
    """A store on either database starts empty and keeps what it is given."""
    assert any_store.write([make_measurement(1)]).measurements == 1
    assert any_store.counts()["measurements"] == 1


@long
def test_a_server_killed_and_started_again_keeps_its_address_and_what_was_committed() -> None:
    """After SIGKILL nothing answers; after a start the same URL finds every committed row."""
    with PostgresServer.in_temp_folder() as server:
        server.create_database("kept")
        server.sql("CREATE TABLE rows AS SELECT generate_series(1, 1000) AS number", "kept")
        server.kill()
        assert not server.is_running()
        with pytest.raises(psycopg.OperationalError):
            server.sql("SELECT 1")
        server.start()
        assert server.sql("SELECT count(*) FROM rows", "kept") == [(1000,)]
        server.stop()
        server.start()
        assert server.sql("SELECT count(*) FROM rows", "kept") == [(1000,)]
    assert not server.folder.exists()


@long
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv of util-linux")
def test_a_server_ends_with_the_tests_that_are_killed() -> None:
    """Tests that are killed clean nothing up: the server must not stay behind."""
    import psutil

    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); from postgres_server import PostgresServer;"
        "server = PostgresServer.in_temp_folder(); server.start();"
        "print(server.process.pid, server.folder, flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(Path(__file__).parents[2])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        pid, folder = tests.stdout.readline().split()
        postmaster = psutil.Process(int(pid))
        assert "postgres" in postmaster.name()
        tests.kill()
    postmaster.wait(60)
    shutil.rmtree(folder)


def test_the_server_commits_durably_and_runs_a_role_that_is_no_superuser(
    postgres_server: PostgresServer, postgres_url: str
) -> None:
    """Tests see what a warehouse set up as documented sees: fsync is on and the role is an ordinary one."""
    with Store.open(postgres_url) as store, store.engine.connect() as connection:
        shown = [connection.exec_driver_sql(f"SHOW {name}").scalar() for name in ("fsync", "synchronous_commit")]
        role = connection.exec_driver_sql("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").scalar()
    assert (shown, role) == (["on", "on"], False)
    assert "PANIC" not in postgres_server.log()
