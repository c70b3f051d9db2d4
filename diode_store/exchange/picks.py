"""A picks file: the kernel to use for each problem on one device, for people to review and for the hook to read.

The file is JSON in a fixed order and layout. Equal picks make equal bytes, and a diff of two files is readable.
``picks_reading`` reads it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import count
from typing import TYPE_CHECKING, Any

from diode_store.command_line.render import problem_text
from diode_store.exchange.exporting import new_file
from diode_store.exchange.jsonl import kwargs_of
from diode_store.ops.fused import is_fused
from diode_store.records import UNKNOWN, Environment, Hardware, KernelConfig, Problem

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

FORMAT = "torch-diode picks"
VERSION = 1
DEVICE_FIELDS = ("vendor", "name", "arch", "multiprocessors")
ENVIRONMENT_FIELDS = ("torch", "triton", "compute", "driver", "python", "os")

_DIGITS = 5
"""Significant digits of a runtime; no two measurements agree in more."""


@dataclass(frozen=True)
class Pick:
    """The kernel to use for one problem."""

    problem: Problem
    configs: tuple[KernelConfig, ...]
    """The pick, then its tie set, the fastest first."""
    environment: Environment
    """Environment of the pick, with the hashes of its templates there."""
    runtime_us: float | None = None
    """Time of the pick; None if the choice was left with a single kernel that nobody timed."""
    regime: str | None = None
    """Timing regime; None if Inductor timed the pick, or nobody did."""

    @property
    def name(self) -> str:
        """Short name of the problem: ``mm bf16 16x4096x4096 nt``; problems of one name may differ in strides."""
        return problem_text(self.problem)

    @cached_property
    def template_hashes(self) -> dict[str, str | None]:
        """SHA-256 of each config's template source, by template uid; None if unknown."""
        known = self.environment.template_hashes
        return {uid: known.get(uid) for uid in sorted({config.template for config in self.configs})}


@dataclass(frozen=True)
class Picks:
    """The picks of one device, at most one for each problem."""

    device: Hardware
    picks: Mapping[bytes, Pick]
    """Picks by the problem's key."""
    allow_changed_template: bool = False
    """True if the picks hold even after a change of a template's source."""
    sha256: str = field(default="", compare=False)
    """SHA-256 of the file read, 64 hexadecimal digits."""
    file: str = field(default="", compare=False)
    """Path of the file read."""

    @classmethod
    def of(cls, device: Hardware, picks: Iterable[Pick], *, allow_changed_template: bool = False) -> Picks:
        """Return the picks of a device; of several picks for one problem the last counts."""
        return cls(device, {pick.problem.key: pick for pick in picks}, allow_changed_template)

    def updated(self, picks: Iterable[Pick]) -> Picks:
        """Return these picks with others, which replace those of the same problems."""
        return replace(self, picks={**self.picks, **{pick.problem.key: pick for pick in picks}}, sha256="")

    def write(self, path: Path, *, force: bool = False) -> None:
        """Write the file whole or not at all.

        Args:
            path: the file to make.
            force: replace an existing file.

        Raises:
            ExportError: the file exists, or cannot be written.
        """
        with new_file(path, force=force) as beside:
            beside.write_text(self.to_json(), encoding="utf-8")

    def to_json(self) -> str:
        """Return the content of the file."""
        ordered = sorted(self.picks.values(), key=_order)
        table = _Environments(ordered)
        head = {
            "format": FORMAT,
            "version": VERSION,
            "device": {name: getattr(self.device, name) for name in DEVICE_FIELDS},
            "allow_changed_template": self.allow_changed_template,
        }
        lines = ["{", *(f" {_text(name)}: {_text(value)}," for name, value in head.items())]
        lines += [' "environments": {', *_separated(table.lines()), " },", ' "picks": [']
        lines += _separated(_entry(pick, table.number(pick)) for pick in ordered)
        return "\n".join([*lines, " ]", "}", ""])


class _Environments:
    """The numbered, distinct environments of some picks.

    Picks share an environment if they agree in every template's hash, so that no pick gets another's hash.
    """

    def __init__(self, picks: Iterable[Pick]) -> None:
        rows: dict[bytes, list[tuple[Environment, dict[str, str | None]]]] = {}
        homes: list[tuple[Pick, dict[str, str | None]]] = []
        for pick in picks:
            there = rows.setdefault(pick.environment.key, [])
            hashes = next((known for _, known in there if _agree(known, pick.template_hashes)), None)
            if hashes is None:
                hashes = {}
                there.append((pick.environment, hashes))
            hashes.update(pick.template_hashes)
            homes.append((pick, hashes))
        plain = [(_plain(environment, hashes), hashes) for row in rows.values() for environment, hashes in row]
        self._plain = dict(zip(count(1), sorted(plain, key=lambda row: _text(row[0])), strict=False))
        numbers = {id(hashes): number for number, (_, hashes) in self._plain.items()}
        self._numbers = {pick.problem.key: numbers[id(hashes)] for pick, hashes in homes}

    def number(self, pick: Pick) -> int:
        """Return the number of a pick's environment."""
        return self._numbers[pick.problem.key]

    def lines(self) -> Iterator[str]:
        """Yield the text of each environment."""
        for number, (plain, _) in self._plain.items():
            rest = {name: value for name, value in plain.items() if name != "template_hashes"}
            hashes = _separated(f"    {_text(uid)}: {_text(sha)}" for uid, sha in plain["template_hashes"].items())
            inner = "\n".join(['   "template_hashes": {', *hashes, "   }"]) if hashes else '   "template_hashes": {}'
            about = "\n".join(f"   {_text(name)}: {_text(value)}," for name, value in rest.items())
            yield f'  "{number}": {{\n{about}\n{inner}\n  }}'


def _agree(known: Mapping[str, str | None], wanted: Mapping[str, str | None]) -> bool:
    return all(known.get(uid, sha) == sha for uid, sha in wanted.items())


def _plain(environment: Environment, hashes: Mapping[str, str | None]) -> dict[str, Any]:
    said = {name: value for name in ENVIRONMENT_FIELDS if (value := getattr(environment, name)) != UNKNOWN}
    return {**said, "template_hashes": {uid: sha for uid, sha in sorted(hashes.items()) if sha is not None}}


def _entry(pick: Pick, environment: int) -> str:
    """Return the text of an entry, with a line for each input and config."""
    problem = pick.problem
    inputs = [f"    {_text(spec._asdict())}" for spec in problem.inputs]
    first, *others = (_text({"template": config.template, **kwargs_of(config)}) for config in pick.configs)
    lines = [
        f'   "problem": {_text(pick.name)},',
        f'   "op": {_text(problem.op)},',
        *('   "inputs": [', *_separated(inputs), "   ],"),
        *([f'   "scalars": {_text(dict(problem.scalars))},'] if problem.scalars else []),
        f'   "environment": {environment},',
        f'   "regime": {_text(pick.regime)},',
        f'   "runtime_us": {_text(_short(pick.runtime_us))},',
        f'   "pick": {first},',
        *(('   "ties": [', *_separated(f"    {other}" for other in others), "   ]") if others else ('   "ties": []',)),
    ]
    return "\n".join(["  {", *lines, "  }"])


def _order(pick: Pick) -> tuple[Any, ...]:
    """Return the sort key of an entry: visible fields first, then the others; fused kernels come last."""
    problem = pick.problem
    if is_fused(problem.op):
        return (1, pick.name, problem.inputs, _text(problem.scalars))
    shape = problem.shape
    sizes = (shape.b, shape.m, shape.n, shape.k)
    return (0, shape.op, shape.dtype, shape.tf32, *sizes, shape.layout, problem.inputs, _text(problem.scalars))


def _separated(items: Iterable[str]) -> list[str]:
    """Return ``items`` with a comma after each but the last."""
    found = list(items)
    return [f"{item}," for item in found[:-1]] + found[-1:]


def _short(runtime_us: float | None) -> float | None:
    return None if runtime_us is None else float(f"{runtime_us:.{_DIGITS}g}")


def _text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
