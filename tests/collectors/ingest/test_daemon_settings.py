from __future__ import annotations

import contextlib
import json
import signal
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from daemon_process import Daemon
from daemon_samples import fill, stored_in
from hypothesis import given
from hypothesis import strategies as st
from run_ingest import ingest

from diode_collectors.ingest.settings import DEFAULT_LISTEN, SETTINGS, DaemonSettings, load, read
from diode_store.errors import SettingsError
from diode_store.system.settings import own_database_url
from diode_store.system.urls import Address
from diode_store.values.units import MIB
from waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Sequence

EVERYTHING = """
database = "postgresql://me@db/w"
spool = ["/spool/a", "/spool/b"]
group = "users"
poll_interval_s = 2
backoff_first_s = 0.25
backoff_most_s = 60.5
listen = "[::1]:9000"
hang_after_s = 60
min_free_bytes = 1
quarantine_bytes = 0
log_level = "debug"
log_format = "json"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Return the path of a settings file that is not there yet."""
    return tmp_path / "d.toml"


def test_every_setting_from_a_file(config: Path) -> None:
    """Each key of the file sets its field."""
    config.write_text(EVERYTHING)
    assert load({}, config) == DaemonSettings(
        database="postgresql://me@db/w",
        spool=(Path("/spool/a"), Path("/spool/b")),
        group="users",
        poll_interval_s=2.0,
        backoff_first_s=0.25,
        backoff_most_s=60.5,
        listen=Address("::1", 9000),
        hang_after_s=60.0,
        min_free_bytes=1,
        quarantine_bytes=0,
        log_level="DEBUG",
        log_format="json",
    )
    assert len([line for line in EVERYTHING.splitlines() if line]) == len(fields(DaemonSettings)) == len(SETTINGS)


def test_defaults(tmp_path: Path) -> None:
    """Without a file everything has its default, which is on this machine and in the user's folder."""
    expected = DaemonSettings(own_database_url(), (tmp_path / "data-home" / "torch-diode" / "spool",))
    assert load({}, None) == expected == DaemonSettings()
    assert (expected.listen, str(expected.listen)) == (DEFAULT_LISTEN, "127.0.0.1:19464")
    assert (expected.min_free_bytes, expected.quarantine_bytes) == (512 * MIB, 256 * MIB)


def test_the_users_own_file_is_found(tmp_path: Path) -> None:
    """In the config folder, without being named."""
    own = tmp_path / "config-home" / "torch-diode" / "diode-ingest.toml"
    own.parent.mkdir(parents=True)
    own.write_text('listen = "off"\n')
    assert load({}, None).listen is None


def test_what_is_given_goes_before_the_file(config: Path) -> None:
    """The command line and the environment, key by key."""
    config.write_text('log_level = "ERROR"\npoll_interval_s = 5.0\n')
    settings = load({"log_level": "WARNING", "spool": ["/x"]}, config)
    assert (settings.log_level, settings.poll_interval_s, settings.spool) == ("WARNING", 5.0, (Path("/x"),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("spol = 'x'", "there is no setting 'spol'; there are database, spool, group"),
        ("[daemon]\nspool = 'x'", "there is no setting 'daemon'"),
        ("poll_interval_s = '1'", "poll_interval_s must be seconds, from 0.01 to 1e\\+09, not '1'"),
        ("poll_interval_s = true", "poll_interval_s must be seconds, from 0.01 to 1e\\+09, not True"),
        ("poll_interval_s = 0", "poll_interval_s must be seconds, from 0.01 to 1e\\+09, not 0"),
        ("hang_after_s = nan", "hang_after_s must be seconds, from 1 to 1e\\+09, not nan"),
        ("backoff_most_s = inf", "backoff_most_s must be seconds, from 0.01 to 1e\\+09, not inf"),
        ("min_free_bytes = 1.5", "min_free_bytes must be a whole number of bytes, not 1.5"),
        ("quarantine_bytes = -1", "quarantine_bytes must be a whole number of bytes, not -1"),
        ("spool = []", r"spool must be a folder or a list of folders, not \[\]"),
        ("spool = [1]", r"spool must be a folder or a list of folders, not \[1\]"),
        ("spool = ['a', './a']", "spool must be different folders"),
        ("listen = 'here'", 'listen must be HOST:PORT, such as "127.0.0.1:19464", or "off", not \'here\''),
        ("listen = 'h:70000'", "listen must be HOST:PORT"),
        ("spool = ['~no-such-user/x']", "spool must be a folder or a list of folders"),
        ("database = '~no-such-user/x'", "database must be a URL, or the path of an SQLite file$"),
        ("listen = 'two words:80'", "listen must be HOST:PORT"),
        ("listen = 9000", "listen must be HOST:PORT"),
        ("log_level = 'loud'", "log_level must be one of DEBUG, INFO, WARNING, ERROR, not 'loud'"),
        ("log_format = 'xml'", "log_format must be one of text, json, not 'xml'"),
        ("database = 3", "database must be a URL, or the path of an SQLite file$"),
        ("database = 'sqlite://'", "database must be a URL, or the path of an SQLite file$"),
        ("group = ''", "group must be text, not ''"),
        ("backoff_first_s = 40", r"backoff_first_s \(40\) must not be above backoff_most_s \(30\)"),
        ("spool = ? ", "this is not TOML: .*line 1"),
    ],
)
def test_a_bad_file_is_one_line(config: Path, text: str, message: str) -> None:
    """What is wrong, in which file and at which key."""
    config.write_text(text)
    with pytest.raises(SettingsError, match=message) as refused:
        load({}, config)
    assert "\n" not in str(refused.value)
    assert str(refused.value).startswith(f"{config}: ") or text.startswith("backoff_first_s")


def test_a_file_that_is_not_there(config: Path) -> None:
    """One that was named must exist; bytes that are no text are no settings."""
    with pytest.raises(SettingsError, match=f"{config}: cannot be read: No such file or directory"):
        read(config)
    config.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="this is not TOML"):
        read(config)


@pytest.mark.parametrize(("mode", "is_good"), [(0o600, True), (0o400, True), (0o640, False), (0o644, False)])
def test_a_password_only_in_a_private_file(config: Path, mode: int, *, is_good: bool) -> None:
    """Where others can read it, it is refused, and the message does not repeat it."""
    config.write_text('database = "postgresql://me:geheim@db/w"\n')
    config.chmod(mode)
    if is_good:
        assert read(config) == {"database": "postgresql://me:geheim@db/w"}
        return
    with pytest.raises(SettingsError, match=f"{config}: database holds a password.*chmod 600 {config}") as refused:
        read(config)
    assert "geheim" not in str(refused.value)


@given(
    name=st.sampled_from(sorted(SETTINGS)),
    value=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just(10**400) | st.just("~x\0"),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=2),
        max_leaves=4,
    ),
)
def test_whatever_is_in_a_file_is_a_setting_or_an_error(name: str, value: object) -> None:
    """No value of any kind gets further than that."""
    with contextlib.suppress(ValueError):
        SETTINGS[name].parse(value)


def test_listening() -> None:
    """Addresses of both kinds are taken and written the same way; off is nowhere."""
    for text in ("127.0.0.1:0", "localhost:80", "[::1]:9464"):
        assert str(SETTINGS["listen"].parse(text)) == text
    assert SETTINGS["listen"].parse("off") is None


# The command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--listen", "nowhere"), "Invalid value for '--listen' (env var: 'DIODE_LISTEN'): must be HOST:PORT"),
        (("--spool", "a", "--spool", "./a"), "must be different folders"),
        (("--log-level", "loud"), "must be one of DEBUG"),
        (("--min-free-bytes", "-1"), "must be a whole number"),
        (("--database", "postgresql://me:geheim@db/w"), "visible to every user"),
    ],
)
def test_a_bad_option_is_bad_usage(arguments: Sequence[str], message: str) -> None:
    """It exits with 2, names the option and repeats no password."""
    ended = ingest("run", *arguments)
    assert ended.code == 2
    assert message in " ".join(ended.err.split())
    assert "geheim" not in ended.err


def test_a_bad_file_ends_the_command(config: Path) -> None:
    """With 1 and one line."""
    config.write_text("listen = 1")
    ended = ingest("run", "--config", config)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith(f"error: {config}: listen must be HOST:PORT")
    assert ended.err.count("\n") == 1


def test_environment_over_file_and_command_line_over_both(
    config: Path, tmp_path: Path, database_path: Path, spool: Path
) -> None:
    """The spool of the option, the log of the environment, the warehouse of the file."""
    config.write_text(f'database = "{database_path}"\nspool = "{tmp_path}/no"\nlog_format = "text"\n')
    fill(spool, range(2))
    env = {"DIODE_CONFIG": str(config), "DIODE_SPOOL": str(tmp_path / "not"), "DIODE_LOG_LEVEL": "info"}
    with Daemon(spool, None, env=env) as daemon:
        eventually(lambda: stored_in(database_path) == [0, 1])
        assert daemon.end(signal.SIGTERM) == 0
    assert not (tmp_path / "no").exists()
    assert not (tmp_path / "not").exists()


def test_json_logs(spool: Path, database_path: Path) -> None:
    """Every line is an object with the same names as in the text, numbers as numbers, and no password in it."""
    fill(spool, range(2))
    with Daemon(spool, database_path, "--log-format", "json", started='"event": "started"') as daemon:
        daemon.wait_for('"event": "ingested"')
        assert daemon.end(signal.SIGTERM) == 0
    lines = [json.loads(line) for line in daemon.log]
    assert [line["event"] for line in lines] == ["started", "connected", "ingested", "stopped"]
    ingested = lines[2]
    assert (ingested["level"], ingested["measurements"], ingested["spool"]) == ("info", 2, str(spool))
    assert ingested["seconds"] > 0


# SIGHUP


def test_hangup_changes_the_settings(config: Path, spool: Path, database_path: Path, tmp_path: Path) -> None:
    """The log's level, and the warehouse, which is opened anew; the spool and what is in it stay."""
    other = tmp_path / "other.db"
    other.write_bytes(database_path.read_bytes())
    config.write_text(f'database = "{database_path}"\nspool = "{spool}"\n')
    with Daemon(None, None, "--config", config) as daemon:
        fill(spool, range(2))
        eventually(lambda: stored_in(database_path) == [0, 1])
        config.write_text(f'database = "{other}"\nspool = "{tmp_path}/elsewhere"\nhang_after_s = 10\n')
        daemon.process.send_signal(signal.SIGHUP)
        assert "changed=database" in daemon.wait_for("event=reloaded")
        assert 'kept="spool,hang_after_s"' in daemon.wait_for("event=needs_restart")
        fill(spool, range(5, 7))
        eventually(lambda: stored_in(other) == [5, 6])
        assert daemon.end(signal.SIGTERM) == 0
    assert stored_in(database_path) == [0, 1]
    assert not (tmp_path / "elsewhere").exists()


def test_a_bad_file_at_hangup_changes_nothing(config: Path, spool: Path, database_path: Path) -> None:
    """It is logged with what is wrong, and the daemon goes on as before."""
    config.write_text(f'database = "{database_path}"\nspool = "{spool}"\n')
    with Daemon(None, None, "--config", config) as daemon:
        config.write_text("database = 3")
        daemon.process.send_signal(signal.SIGHUP)
        assert f"{config}: database must be" in daemon.wait_for("event=not_reloaded")
        fill(spool, range(2))
        eventually(lambda: stored_in(database_path) == [0, 1])
        assert daemon.end(signal.SIGTERM) == 0


def test_hangup_ends_a_wait(config: Path, spool: Path, database_path: Path) -> None:
    """A daemon that waits long for a wrong database takes the right one at once."""
    wrong = "postgresql://diode@127.0.0.1:1/nobody-listens"
    config.write_text(f'database = "{wrong}"\nspool = "{spool}"\nbackoff_first_s = 600\nbackoff_most_s = 600\n')
    fill(spool, range(2))
    with Daemon(None, None, "--config", config) as daemon:
        daemon.wait_for("event=failed")
        config.write_text(f'database = "{database_path}"\nspool = "{spool}"\n')
        daemon.process.send_signal(signal.SIGHUP)
        eventually(lambda: stored_in(database_path) == [0, 1])
        assert daemon.end(signal.SIGTERM) == 0
