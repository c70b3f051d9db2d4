"""Families of problems: the layers of public models, for many numbers of tokens.

The TOML files in ``family_data`` have a table for each family: ``source``, the page that publishes the model's sizes;
``layers``, the entries for ``family_layers.read_block``; and ``m``, the sizes of M, by default ``TOKENS``.
"""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diode_collectors.problems.family_layers import Layer, check_sizes, read_block
from diode_collectors.problems.problem import SweepProblem, parse_problem
from diode_store.errors import SettingsError
from diode_store.ops import OPS

if TYPE_CHECKING:
    from collections.abc import Sequence

_FOLDER = Path(__file__).with_name("family_data")
_FILES = (
    "first.toml",
    "language.toml",
    "other.toml",
    "scaled.toml",
    "experts.toml",
    "sums.toml",
    "convolutions.toml",
    "attention.toml",
)
"""The standard problems of ``diode tune`` are drawn from the families in this order."""
TOKENS = (2, 4, 7, 8, 16, 32, 33, 64, 100, 128, 256, 333, 512, 1000, 1024, 2048, 3000, 4096, 8192, 16384)
"""Numbers of tokens that go through a layer at once: decoding, prefilling and training; not only powers of two."""
_KEYS = {"source", "layers", "m"}


@dataclass(frozen=True)
class Family:
    """Layers of one public model."""

    name: str
    source: str
    """Page that publishes the model's sizes."""
    layers: tuple[Layer, ...]
    m: tuple[int, ...] = TOKENS


@cache
def families() -> tuple[Family, ...]:
    """Return all families.

    Raises:
        SettingsError: a file of families is damaged.
    """
    return tuple(family for name in _FILES for family in read_families(_FOLDER / name))


def read_families(path: Path) -> list[Family]:
    """Return the families of a TOML file.

    Raises:
        SettingsError: the file cannot be read, or has an invalid entry; the message names the entry.
    """
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingsError(f"{path}: cannot read the families: {error}") from error
    return [_read_family(path, name, table) for name, table in tables.items()]


def find_family(name: str) -> Family:
    """Return the family of that name.

    Raises:
        SettingsError: the family is unknown; the message lists the known ones.
    """
    by_name = {family.name: family for family in families()}
    family = by_name.get(name.strip().lower())
    if family is None:
        close = difflib.get_close_matches(name.strip().lower(), by_name, n=1)
        meant = f" did you mean {close[0]}?" if close else ""
        raise SettingsError(f"unknown family {name!r};{meant} known families: {', '.join(by_name)}")
    return family


def family_problems(name: str, dtypes: Sequence[tuple[str, bool]] = (("bfloat16", False),)) -> list[SweepProblem]:
    """Return the different problems of a family, layer by layer.

    Args:
        name: Name of the family.
        dtypes: Dtypes as ``parse_dtype`` returns them, for ops that take any of them.

    Raises:
        SettingsError: there is no such family.
    """
    family = find_family(name)
    found = [
        _problem(layer, m, dtype, f"{family.name}/{layer.name}", tf32=tf32)
        for dtype, tf32 in dtypes
        for layer in family.layers
        for m in layer.m or family.m
    ]
    return list(dict.fromkeys(found))


def _problem(layer: Layer, m: int, dtype: str, name: str, *, tf32: bool) -> SweepProblem:
    rows = m * layer.rows
    if OPS[layer.op].is_plain:
        return SweepProblem(layer.op, rows, layer.n, layer.k, layer.b, dtype, layer.layout, tf32, name)
    if not OPS[layer.op].has_matrices:
        return parse_problem(f"{layer.op}:{layer.words.format(rows)}", dtype=dtype, allow_tf32=tf32, name=name)
    sizes = (layer.n, layer.k, rows) if layer.is_weight_gradient else (rows, layer.n, layer.k)
    words = "/".join(filter(None, (layer.layout, layer.words)))
    return parse_problem(f"{layer.op}:{'x'.join(map(str, sizes))}:{layer.b}/{words}", name=name)


def _read_family(path: Path, name: str, table: Any) -> Family:
    place = f"{path}: family {name}"
    if not isinstance(table, dict) or not {"source", "layers"} <= table.keys() <= _KEYS:
        raise SettingsError(f"{place}: a table with source, layers and perhaps m is expected")
    if not isinstance(table["source"], str) or not isinstance(table["layers"], list):
        raise SettingsError(f"{place}: source is text, and layers a list of tables")
    layers: list[Layer] = []
    for number, entry in enumerate(table["layers"], 1):
        try:
            layers += read_block(entry)
        except (TypeError, ValueError) as error:
            raise SettingsError(f"{place}: layer {number}: {error}") from error
    try:
        check_sizes("m", table.get("m", list(TOKENS)))
    except ValueError as error:
        raise SettingsError(f"{place}: {error}") from error
    return Family(name, table["source"], tuple(layers), tuple(table.get("m", TOKENS)))
