"""Problems from files: JSON and CSV shape sets of torch-diode's first data package, and plain text.

The JSON maps an op to shapes (``B``, ``M``, ``N``, ``K`` and dtypes). The CSV has the columns
``name,B,M,K,N,Transposed``. ``Transposed``, or in JSON an output of (B, N, M), makes the second matrix the transposed
view of a row-major matrix. A linear layer's weight is such a view. In plain text each line is a problem in the form of
``parse_problem``, such as ``mm:512x768x1024/nt/bf16``. A name may follow after ``#``.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from diode_collectors.problems.problem import SweepProblem, parse_dtype, parse_problem
from diode_store.errors import SettingsError, first_line
from diode_store.ops import OPS, swept_ops
from diode_store.system.files import read_bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

CSV_COLUMNS = ("name", "B", "M", "K", "N", "Transposed")
CSV_DTYPE = ("float16", False)
"""Dtype of a file without dtypes, as in torch-diode's first toolkit."""
_SHOWN = 5
_SIZES = ("B", "M", "N", "K")
_BOOLEANS = {"true": True, "false": False}


def read_shapeset(path: Path, dtypes: Sequence[tuple[str, bool]] = ()) -> list[SweepProblem]:
    """Return the different problems of a shape set, in the set's order.

    Args:
        path: JSON, CSV or text file.
        dtypes: Dtypes to read each shape in; by default the file's.

    Raises:
        SettingsError: the file cannot be read, or has an invalid entry. Then none of it is used.
    """
    try:
        text = read_bounded(path).decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as error:
        raise SettingsError(f"{path}: cannot read the shape set: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(
            f"{path}: not a shape set: it is not text; JSON, CSV or a problem per line is expected"
        ) from error
    problems = _problems(path, _entries(path, text), dtypes)
    if not problems:
        raise SettingsError(f"{path}: the shape set is empty")
    return list(dict.fromkeys(problems))


def as_text(problems: Iterable[SweepProblem]) -> str:
    """Return problems as a shape set in plain text, one line each with its name."""
    return "".join(f"{problem}  # {problem.name}\n" if problem.name else f"{problem}\n" for problem in problems)


def families_of(paths: Iterable[Path]) -> dict[bytes, str]:
    """Return the families named in shape sets by the keys of the problems. The first name counts.

    Raises:
        SettingsError: a file cannot be read.
    """
    found: dict[bytes, str] = {}
    for problem in (problem for path in paths for problem in read_shapeset(path)):
        if problem.family:
            found.setdefault(problem.problem().key, problem.family)
    return found


def _problems(
    path: Path, entries: Iterable[tuple[str, Callable[[], SweepProblem]]], dtypes: Sequence[tuple[str, bool]]
) -> list[SweepProblem]:
    found, bad = [], []
    for where, read in entries:
        try:
            problem = read()
        except (SettingsError, KeyError, TypeError, ValueError) as error:
            bad.append(f"{where}: {_reason(error)}")
            continue
        name = problem.name or f"{path.stem}/{where}"
        problem = replace(problem, name=name)
        if not dtypes or not problem.entry.is_plain:
            found.append(problem)
        else:
            found += [replace(problem, dtype=dtype, allow_tf32=tf32) for dtype, tf32 in dtypes]
    if bad:
        more = f"; and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        entries_are = "entry is" if len(bad) == 1 else "entries are"
        raise SettingsError(f"{path}: {len(bad)} {entries_are} unreadable: {'; '.join(bad[:_SHOWN])}{more}")
    return found


def _reason(error: Exception) -> str:
    return f"{error.args[0]} is missing" if isinstance(error, KeyError) else first_line(error)


def _entries(path: Path, text: str) -> Iterator[tuple[str, Callable[[], SweepProblem]]]:
    if text.lstrip()[:1] in {"{", "["}:
        return _json_entries(path, text)
    first = next((line for line in text.splitlines() if line.split("#")[0].strip()), "")
    return _text_entries(text) if ":" in first else _csv_entries(path, text)


def _text_entries(text: str) -> Iterator[tuple[str, Callable[[], SweepProblem]]]:
    for number, line in enumerate(text.splitlines(), 1):
        typed, _, name = (part.strip() for part in line.partition("#"))
        if typed:
            yield f"line {number}", partial(parse_problem, typed, name=name)


def _json_entries(path: Path, text: str) -> Iterator[tuple[str, Callable[[], SweepProblem]]]:
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: not valid JSON: {error}") from error
    operations = content.get("operations") if isinstance(content, dict) else None
    if not isinstance(operations, dict):
        raise SettingsError(f'{path}: not a shape set: expected {{"operations": {{"mm": {{"shapes": [...]}}}}}}')
    for op, shape_set in operations.items():
        shapes = shape_set.get("shapes") if isinstance(shape_set, dict) else None
        if not isinstance(shapes, list):
            raise SettingsError(f'{path}: {op}: expected {{"shapes": [...]}}')
        for number, shape in enumerate(shapes, 1):
            yield f"{op} entry {number}", partial(_of_json, op, shape)


def _of_json(op: str, shape: Any) -> SweepProblem:
    if not isinstance(shape, dict):
        raise SettingsError(f"expected an object with B, M, N and K, not {type(shape).__name__}")
    b, m, n, k = (_size(name, shape[name]) for name in _SIZES)
    dtype, tf32 = parse_dtype(str(shape["M_dtype"]).removeprefix("torch."))
    for name in ("K_dtype", "out_dtype"):
        other = str(shape.get(name, dtype)).removeprefix("torch.")
        if other != dtype:
            raise SettingsError(f"{name} {other} is not M_dtype {dtype}; mixed dtypes cannot be swept")
    transposed = shape.get("out_size") == [b, n, m] and n != m
    return _problem(op, b, m, n, k, dtype, tf32=tf32, transposed=transposed)


def _csv_entries(path: Path, text: str) -> Iterator[tuple[str, Callable[[], SweepProblem]]]:
    lines = text.splitlines()
    header = [cell.strip() for cell in (lines[0].split(",") if lines else [])]
    if tuple(header[: len(CSV_COLUMNS)]) != CSV_COLUMNS:
        raise SettingsError(
            f"{path}: not a shape set: expected JSON, CSV whose first line is "
            f"{','.join(CSV_COLUMNS)}, or a problem such as mm:512x768x1024 on each line"
        )
    for number, row in enumerate(csv.reader(lines[1:]), 2):
        if any(cell.strip() for cell in row):
            yield f"line {number}", partial(_of_csv, [cell.strip() for cell in row])


def _of_csv(row: list[str]) -> SweepProblem:
    while row and not row[-1]:
        row.pop()
    if len(row) != len(CSV_COLUMNS):
        raise SettingsError(f"expected {len(CSV_COLUMNS)} values ({','.join(CSV_COLUMNS)}), not {len(row)}")
    cells = dict(zip(CSV_COLUMNS, row, strict=True))
    b, m, n, k = (_size(name, cells[name]) for name in _SIZES)
    transposed = _BOOLEANS.get(cells["Transposed"].lower())
    if transposed is None:
        raise SettingsError(f"Transposed must be True or False, not {cells['Transposed']!r}")
    return _problem(cells["name"], b, m, n, k, CSV_DTYPE[0], tf32=CSV_DTYPE[1], transposed=transposed)


def _problem(op: str, b: int, m: int, n: int, k: int, dtype: str, *, tf32: bool, transposed: bool) -> SweepProblem:
    known = [name for name in swept_ops() if OPS[name].is_plain]
    if op not in known:
        text = "; write such a problem in plain text" if op in swept_ops() else ""
        raise SettingsError(f"unknown op {op!r}; known ops: {', '.join(known)}{text}")
    return SweepProblem(op, m, n, k, b, dtype, "nt" if transposed else "nn", tf32)


def _size(name: str, value: Any) -> int:
    if isinstance(value, str) and value.isascii() and value.isdecimal():
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise SettingsError(f"{name} must be a positive whole number, not {value!r}")
    return value
