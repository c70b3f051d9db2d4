"""Where a lake's files are: a local folder, or a URL that fsspec can write and DuckDB can read.

Both hold files that appear whole. A local folder does so by renaming; an object store always does. Light:
fsspec is loaded for URLs only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from diode_store.errors import LakeError, first_line
from diode_store.files import PRIVATE_FILE, whole_file
from diode_store.urls import is_url, redact

if TYPE_CHECKING:
    from collections.abc import Iterator


class Folder(Protocol):
    """A place for files that are never changed, only replaced as a whole."""

    @property
    def path(self) -> Path | None:
        """The folder, if it is a local one."""

    @property
    def filesystem(self) -> Any:
        """The file system that DuckDB needs to read from it, or None."""

    def address(self, name: str) -> str:
        """Return DuckDB's name for a file."""

    def read(self, name: str) -> bytes:
        """Return a file's content.

        Raises:
            FileNotFoundError: there is none.
            OSError: it cannot be read.
        """

    def open(self, name: str) -> Any:
        """Return a path or open file from which Arrow can read."""

    def writing(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """Yield a path to write a file to; it gets its name afterwards."""

    def sizes(self) -> dict[str, int]:
        """Return the size of every file in bytes; nothing if there is no such folder."""

    def modified_at(self, name: str) -> float | None:
        """Return when a file was written, in seconds since 1970; None if unknown."""

    def remove(self, name: str) -> None:
        """Delete a file, if it is there."""

    def lock_file(self) -> Path:
        """Return a local file whose lock keeps other syncs out; make the folder."""


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.filesystem = None

    def __str__(self) -> str:
        """Return its path, for messages."""
        return str(self.path)

    def address(self, name: str) -> str:
        """See ``Folder``."""
        return str(self.path / name)

    def read(self, name: str) -> bytes:
        """See ``Folder``."""
        return (self.path / name).read_bytes()

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
        found = {}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(self.path) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    found[entry.name] = entry.stat().st_size
        return found

    def modified_at(self, name: str) -> float | None:
        """See ``Folder``."""
        try:
            return (self.path / name).stat().st_mtime
        except FileNotFoundError:
            return None

    def remove(self, name: str) -> None:
        """See ``Folder``."""
        (self.path / name).unlink(missing_ok=True)

    def lock_file(self) -> Path:
        """See ``Folder``."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return self.path / "lock"


class RemoteFolder:
    """A folder in an object store, or anywhere else that fsspec can reach."""

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
        """Return its URL without a password, for messages."""
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
        """Turn a library's error into our one-line error; each library has its own, many without a common base."""
        try:
            yield
        except (FileNotFoundError, NotImplementedError):
            raise
        except Exception as error:
            reason = redact(first_line(error)).rstrip(".")
            raise LakeError(f"{self}: {reason}; check the address, the credentials and the network") from error

    def lock_file(self) -> Path:
        """See ``Folder``; it blocks only this user's syncs on this machine."""
        from diode_store.settings import data_dir

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
    """Return a location as a local path, None if it is a URL of somewhere else."""
    if isinstance(location, Path):
        return location
    if not is_url(location):
        return Path(location).expanduser()
    return Path(unquote(urlsplit(location).path)) if location.startswith("file://") else None
