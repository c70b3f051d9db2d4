"""What is said of files that a user may not read; root may read all, so it goes without that power here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ordinary import AS_ORDINARY, needs_ordinary

PROGRAM = Path(sys.executable).with_name("diode")

pytestmark = needs_ordinary


def errors_of(*args: object) -> str:
    """Run ``diode`` as an ordinary user and return what it says on stderr; it must fail."""
    done = subprocess.run([*AS_ORDINARY, PROGRAM, *map(str, args)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr


# Commands that read through SQLAlchemy, and through the cache.
READERS = (("db", "stats"), ("query", "SELECT 1"), ("fastest", "--hardware", "h200"))


@pytest.mark.quick(1)
@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader[0])
def test_a_database_that_may_not_be_read(database_path: Path, reader: tuple[str, ...]) -> None:
    """Its owner and mode are what to look at; its folder is there."""
    database_path.chmod(0)
    expected = f"error: {database_path}: this user may not read it; check its owner and its mode\n"
    assert errors_of(*reader, "--database", database_path) == expected


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader[0])
def test_a_database_in_a_folder_that_may_not_be_entered(
    database_path: Path, tmp_path: Path, reader: tuple[str, ...]
) -> None:
    """Nothing can be seen of it or of the cache beside it, and that is what is said on one line."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = Path(shutil.copy(database_path, folder))
    folder.chmod(0)
    try:
        said = errors_of(*reader, "--database", path)
    finally:
        folder.chmod(0o700)
    assert re.fullmatch(rf"error: {folder}/warehouse\.\S+: Permission denied; check [^\n]*\n", said)


def test_a_database_in_a_folder_that_may_not_be_written(database_path: Path, tmp_path: Path) -> None:
    """SQLite keeps files beside the database; that the folder is the reason is said."""
    folder = tmp_path / "folder"
    folder.mkdir()
    path = Path(shutil.copy(database_path, folder))
    folder.chmod(0o500)
    assert str(folder) in (said := errors_of("db", "vacuum", "--database", path))
    assert said.endswith("check the owner and mode of the file and its folder\n")
    folder.chmod(0o700)


def test_a_file_to_import_that_may_not_be_read(database_path: Path, jsonl_path: Path) -> None:
    """Its name is right, its owner or its mode is not."""
    jsonl_path.chmod(0)
    said = errors_of("import", "--hardware", "h200", "--database", database_path, jsonl_path)
    assert said.endswith(f"error: {jsonl_path}: Permission denied; check its owner and its mode\n")
