"""The lake's folder: local, or a URL that fsspec can write and DuckDB can read.

Files appear whole in both. A local folder renames a finished file; an object store always publishes whole files. The
module is light: it loads fsspec for URLs only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from diode_store.errors import LakeError, first_line
from diode_store.system.files import PRIVATE_FILE, entries_of, expanded, read_bounded, whole_file
from diode_store.system.urls import is_url, redact

if TYPE_CHECKING:
    from collections.abc import Iterator


_MOST_BYTES = 2**31
"""Size of the largest manifest that a reader accepts."""


class Folder(Protocol):
    """A place for files that are replaced whole and never changed."""

    @property
    def path(self) -> Path | None:
        """Path of a local folder, else None."""

    @property
    def filesystem(self) -> Any:
        """File system that DuckDB needs to read the folder, or None."""

    def address(self, name: str) -> str:
        """Return DuckDB's name for a file."""

    def read(self, name: str) -> bytes:
        """Return a file's content.

        Raises:
            FileNotFoundError: the file does not exist.
            OSError: the file cannot be read.
        """

    def open(self, name: str) -> Any:
        """Return a path or open file from which Arrow can read."""

    def writing(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """Yield a path to write to; the file gets its name afterwards."""

    def sizes(self) -> dict[str, int]:
        """Return the size of every file in bytes; empty if the folder does not exist."""

    def modified_at(self, name: str) -> float | None:
        """Return the time of a file's last write in seconds since 1970; None if unknown."""

    def remove(self, name: str) -> None:
        """Delete a file if it exists."""

    def lock_file(self) -> Path:
        """Make the folder; return a local file whose lock keeps other syncs out."""


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.filesystem = None

    def __str__(self) -> str:
        """Return the path, for messages."""
        return str(self.path)

    def address(self, name: str) -> str:
        """See ``Folder``."""
        return str(self.path / name)

    def read(self, name: str) -> bytes:
        """See ``Folder``."""
        return read_bounded(self.path / name, _MOST_BYTES)

    def open(self, name: str) -> Path:
        """See ``Folder``."""
        return self.path / name

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """See ``Folder``."""
        with whole_file(self.path / name) as beside:
            os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, PRIVATE_FILE))
            yield beside

    def sizes(self) -> dict[str, int]:
        """See ``Folder``."""
        return {entry.name: found.st_size for entry, found in entries_of(self.path) if not stat.S_ISDIR(found.st_mode)}

    def modified_at(self, name: str) -> float | None:
        """See ``Folder``."""
        try:
            return (self.path / name).lstat().st_mtime
        except OSError:
            return None

    def remove(self, name: str) -> None:
        """See ``Folder``."""
        (self.path / name).unlink(missing_ok=True)

    def lock_file(self) -> Path:
        """See ``Folder``."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.path / "lock"


class RemoteFolder:
    """A folder in an object store, or at any other place that fsspec reaches."""

    def __init__(self, url: str) -> None:
        self.path = None
        self._url = url
        try:
            import fsspec  # type: ignore[import-untyped]
        except ModuleNotFoundError as error:
            raise LakeError(f"{redact(url)}: a lake at a URL needs fsspec; run `pip install fsspec`") from error
        try:
            self.filesystem, self._root = fsspec.core.url_to_fs(url.rstrip("/"))
        except (ImportError, ValueError) as error:
            raise LakeError(f"{redact(url)}: {first_line(error)}") from error

    def __str__(self) -> str:
        """Return the URL without a password, for messages."""
        return redact(self._url)

    def address(self, name: str) -> str:
        """See ``Folder``."""
        return str(self.filesystem.unstrip_protocol(self._path(name)))

    def read(self, name: str) -> bytes:
        """See ``Folder``."""
        with self._asking():
            return bytes(self.filesystem.cat_file(self._path(name)))

    def open(self, name: str) -> Any:
        """See ``Folder``."""
        with self._asking():
            return self.filesystem.open(self._path(name), "rb")

    @contextlib.contextmanager
    def writing(self, name: str) -> Iterator[Path]:
        """See ``Folder``; the file is written locally and then sent."""
        with tempfile.TemporaryDirectory(prefix="diode-lake-") as folder:
            local = Path(folder) / name
            yield local
            with self._asking():
                self.filesystem.makedirs(self._root, exist_ok=True)
                self.filesystem.put_file(str(local), self._path(name))

    def sizes(self) -> dict[str, int]:
        """See ``Folder``."""
        self.filesystem.invalidate_cache()
        try:
            with self._asking():
                entries = self.filesystem.ls(self._root, detail=True)
        except FileNotFoundError:
            return {}
        return {str(entry["name"]).rpartition("/")[2]: int(entry["size"] or 0) for entry in entries}

    def modified_at(self, name: str) -> float | None:
        """See ``Folder``."""
        try:
            with self._asking():
                return float(self.filesystem.modified(self._path(name)).timestamp())
        except (NotImplementedError, FileNotFoundError):
            return None

    def remove(self, name: str) -> None:
        """See ``Folder``."""
        with contextlib.suppress(FileNotFoundError), self._asking():
            self.filesystem.rm_file(self._path(name))

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn a library's error into our one-line error; the libraries' errors have no common base."""
        try:
            yield
        except (FileNotFoundError, NotImplementedError):
            raise
        except Exception as error:
            reason = redact(first_line(error)).rstrip(".")
            raise LakeError(f"{self}: {reason}; check the address, the credentials and the network") from error

    def lock_file(self) -> Path:
        """See ``Folder``; it blocks only this user's syncs on this machine."""
        from diode_store.system.settings import data_dir

        folder = data_dir() / "locks"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / f"{hashlib.blake2b(redact(self._url).encode(), digest_size=8).hexdigest()}.lock"

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"


def folder_at(location: Path | str) -> Folder:
    """Return the folder at a path or URL; ``file://`` is a path.

    Raises:
        LakeError: the URL cannot be used.
    """
    path = local_path(location)
    return RemoteFolder(str(location)) if path is None else LocalFolder(path)


def local_path(location: Path | str) -> Path | None:
    """Return a location as a local path; None for a remote URL.

    Raises:
        LakeError: the path is in the home of an unknown user.
    """
    if isinstance(location, Path):
        return location
    if not is_url(location):
        return expanded(location, LakeError)
    return Path(unquote(urlsplit(location).path)) if location.startswith("file://") else None
