"""Fill the shipped systemd unit with an operator's paths, and write a settings file for it."""

from __future__ import annotations

import json
import os
import pwd
import re
import sys
from dataclasses import dataclass, fields
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from diode_collectors.ingest.settings import SETTINGS, DaemonSettings
from diode_store.errors import SettingsError
from diode_store.system.settings import (
    APP_NAME,
    FILE_NAME,
    data_dir,
    default_settings_file,
    own_database_file,
    own_spool_dir,
)
from diode_store.system.urls import Address

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

_NAME = "diode-ingest.service"
_READ, _ENTER = 0o4, 0o1
_PLAIN_PATH = re.compile(r"/[\w./+@=,-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class User:
    """User that the daemon runs as. The user need not exist until its folders are needed."""

    name: str
    is_me: bool

    @classmethod
    def named(cls, name: str | None) -> User:
        """Return the user of that name, or this process's user.

        Raises:
            SettingsError: no name was given, and this process's user has none.
        """
        try:
            me = pwd.getpwuid(os.geteuid()).pw_name
        except KeyError:
            me = None
        if name is None and me is None:
            raise SettingsError(f"user {os.geteuid()} has no name; name the daemon's user with --user")
        return cls(name or str(me), name in (None, me))

    def settings_file(self) -> Path:
        """Return the settings file that this user's commands read by default."""
        return default_settings_file() if self.is_me else self._home() / ".config" / APP_NAME / FILE_NAME

    def data_dir(self) -> Path:
        """Return this user's data folder."""
        return data_dir() if self.is_me else self._home() / ".local" / "share" / APP_NAME

    def own(self, path: Path) -> None:
        """Give this user a new file or folder."""
        if not self.is_me:
            entry = pwd.getpwnam(self.name)
            os.chown(path, entry.pw_uid, entry.pw_gid)

    def can_read(self, file: Path) -> bool:
        """Return True if modes let this user read ``file`` and enter its folders, or if the user does not exist yet."""
        if self.is_me:
            return os.access(file, os.R_OK)
        try:
            entry = pwd.getpwnam(self.name)
        except KeyError:
            return True
        groups = os.getgrouplist(self.name, entry.pw_gid)
        wanted = {file: _READ, **dict.fromkeys(file.resolve().parents, _ENTER)}
        return not entry.pw_uid or all(_allows(path.stat(), entry.pw_uid, groups, bit) for path, bit in wanted.items())

    def _home(self) -> Path:
        try:
            return Path(pwd.getpwnam(self.name).pw_dir)
        except KeyError:
            raise SettingsError(
                f"there is no user {self.name!r}; create it with `useradd --system --create-home {self.name}`, name "
                "another one with --user, or name a settings file with --config"
            ) from None


def _allows(found: os.stat_result, uid: int, groups: Container[int], bit: int) -> bool:
    shift = 6 if found.st_uid == uid else 3 if found.st_gid in groups else 0
    return bool(found.st_mode >> shift & bit)


def obstacles(user: User, file: Path, writes: Iterable[Path]) -> Iterator[str]:
    """Yield a line for each reason why the daemon could not start: the problem and its remedy.

    Args:
        user: user of the daemon.
        file: settings file of the daemon.
        writes: folders that the unit lets it write.
    """
    if not user.can_read(file):
        yield f"{user.name} cannot read {file}; change its owner or mode, or those of its folders"
    for folder in dict.fromkeys(writes):
        if not folder.is_dir():
            yield f"{folder} does not exist; create it for {user.name} before the daemon starts"


def default_settings(user: User) -> DaemonSettings:
    """Return the default settings of ``user``."""
    data = user.data_dir()
    return DaemonSettings(database=str(own_database_file(data)), spool=(own_spool_dir(data),))


def settings_text(settings: DaemonSettings) -> str:
    """Return a settings file that sets the database and the spool, and shows every other default in a comment."""
    lines = ["# Settings of diode-ingest; those in comments are the defaults."]
    for each in fields(settings):
        value = getattr(settings, each.name)
        is_default = each.name not in ("database", "spool")
        shown = SETTINGS[each.name].metavar if value is None else value
        lines += ["", f"# {SETTINGS[each.name].text}", f"{'# ' * is_default}{each.name} = {_toml(shown)}"]
    return "\n".join(lines) + "\n"


def write_defaults(file: Path, settings: DaemonSettings, user: User) -> None:
    """Write a settings file and make the spool's folder, both private to ``user``.

    Raises:
        SettingsError: one of them cannot be made.
    """
    try:
        for spool in settings.spool:
            _make_folder(spool, user)
        _make_folder(file.parent, user)
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as opened:
            opened.write(settings_text(settings))
        user.own(file)
    except OSError as error:
        raise SettingsError(
            f"{error.filename}: cannot be made: {error.strerror}; run this as root or as {user.name}, or name another "
            "settings file with --config"
        ) from error


def _make_folder(folder: Path, user: User) -> None:
    if not folder.exists():
        _make_folder(folder.parent, user)
        folder.mkdir(mode=0o700)
        user.own(folder)


def _toml(value: object) -> str:
    if isinstance(value, tuple) and not isinstance(value, Address):
        return json.dumps([str(each) for each in value]) if len(value) > 1 else json.dumps(str(value[0]))
    return f"{value:g}" if isinstance(value, float) else json.dumps(value if isinstance(value, int) else str(value))


def unit_text(program: Path, config: Path, user: str, writes: Iterable[Path]) -> str:
    """Return the unit file.

    Args:
        program: path of ``diode-ingest``.
        config: settings file of the daemon.
        user: name of the daemon's user.
        writes: folders that the daemon may write.

    Raises:
        SettingsError: a path or name that a unit file cannot hold unchanged.
    """
    if not _USER.fullmatch(user):
        raise SettingsError(f"{user!r} is not a user name; name one with --user")
    folders = " ".join(_fit(path) for path in dict.fromkeys(writes))
    lines = {
        "User=": f"User={user}",
        "ExecStart=": f"ExecStart={_fit(program)} run --config {_fit(config)}",
        "ReadWritePaths=": f"ReadWritePaths={folders}",
    }
    template = files("diode_collectors.ingest").joinpath("systemd", _NAME).read_text(encoding="utf-8")
    text = [
        next((new for start, new in lines.items() if line.startswith(start)), line) for line in template.split("\n")
    ]
    return "\n".join(text)


def program_path() -> Path:
    """Return the path of the ``diode-ingest`` that belongs to this Python."""
    return Path(sys.executable).absolute().with_name("diode-ingest")


def _fit(path: Path) -> str:
    """Return ``path`` for a unit file; refuse blanks, quotes and ``%``, which mean something else there."""
    text = str(path.absolute())
    if not _PLAIN_PATH.fullmatch(text):
        raise SettingsError(
            f"{text}: a unit file cannot hold this path as it is; use one without blanks or signs for --config, for the"
            " paths in that file and for the environment of torch-diode"
        )
    return text
