"""The page on the schema says what the tables are: names, types, keys, indexes and revisions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import sqlalchemy as sa

from diode_store.system.resources import migrations_dir
from diode_store.warehouse import schema

PAGE = (Path(__file__).parents[3] / "docs" / "schema.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE))
ROW = re.compile(r"^\| `(\w+)` \| ([\w()]+) \| (yes|) \| (.+) \|$", re.MULTILINE)
UNITS = {
    "_bytes": "bytes",
    "_bytes_per_s": "bytes per second",
    "_mhz": "MHz",
    "_us": "microseconds",
    "_c": "°C",
    "_at": "UTC",
}
TYPES = {
    sa.String: "text",
    sa.Integer: "integer",
    sa.BigInteger: "integer",
    sa.Boolean: "boolean",
    sa.DateTime: "time",
    sa.JSON: "JSON",
    sa.Float: "float",
    sa.LargeBinary: "bytes",
}


def type_of(column: sa.Column[object]) -> str:
    """Return a column's type as the page writes it."""
    length = getattr(column.type, "length", None)
    return TYPES[type(column.type)] + (f"({length})" if length else "")


def listed(section: str, what: str) -> list[str]:
    """Return the things that the line on keys lists after a word, each as its columns."""
    found = re.search(rf"{what}: (.*?)\.(?: |\n|$)", section)
    return found[1].split("; ") if found else []


def columns_of(columns: object) -> str:
    """Return columns as the page lists them."""
    return ", ".join(f"`{column.name}`" for column in columns)  # type: ignore[attr-defined] # of constraints and indexes


def test_every_table_has_its_section() -> None:
    """Tables and sections are the same, in the same order."""
    assert list(SECTIONS) == list(schema.metadata.tables)


@pytest.mark.parametrize("name", schema.metadata.tables)
def test_columns_are_those_of_the_schema(name: str) -> None:
    """Every column is there with its type, whether it may be NULL, and a meaning."""
    table = schema.metadata.tables[name]
    rows = ROW.findall(SECTIONS[name])
    expected = [(c.name, type_of(c), "yes" if c.nullable else "") for c in table.columns]
    assert [row[:3] for row in rows] == expected
    assert all(len(meaning) > 5 for *_, meaning in rows)


@pytest.mark.parametrize("name", schema.metadata.tables)
def test_units_are_said(name: str) -> None:
    """A column whose name carries a unit says which."""
    for column, _, _, meaning in ROW.findall(SECTIONS[name]):
        [unit] = [UNITS[end] for end in sorted(UNITS, key=len)[::-1] if column.endswith(end)][:1] or [""]
        assert unit in meaning, column


@pytest.mark.parametrize("name", schema.metadata.tables)
def test_keys_are_those_of_the_schema(name: str) -> None:
    """Primary, unique and foreign keys and the indexes are what the line below the table says."""
    table, section = schema.metadata.tables[name], SECTIONS[name]
    unique = [columns_of(key.columns) for key in table.constraints if isinstance(key, sa.UniqueConstraint)]
    foreign = sorted(f"`{key.parent.name}` → `{key.target_fullname}`" for key in table.foreign_keys)
    assert listed(section, "Primary key") == [columns_of(table.primary_key.columns)]
    assert sorted(listed(section, "Unique")) == sorted(unique)
    assert sorted(listed(section, "Indexes")) == sorted(f"({columns_of(index.columns)})" for index in table.indexes)
    assert [part for line in listed(section, "Foreign keys") for part in line.split(", ")] == foreign


def test_revisions_are_the_migrations() -> None:
    """The table of revisions names every migration."""
    files = sorted(path.name[:4] for path in (migrations_dir() / "versions").glob("0*.py"))
    assert re.findall(r"^\| (\d{4}) \| ", PAGE, re.MULTILINE) == files
    assert files[-1] == schema.HEAD_REVISION
