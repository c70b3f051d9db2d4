"""Inductor's lookup table: for each problem the kernels to use, instead of a search (torch 2.10 and later).

The table is what ``torch._inductor.config.lookup_table.table`` takes; ``LookupTableChoices`` looks a problem up by
a text made from its inputs, and uses the entries it finds instead of all others. This module makes the same texts
and entries from records, without torch; tests compare them with Inductor's own in several versions.

Versions differ: until 2.11 an entry must name every parameter of its kernel, from 2.12 on it overrides those of the
first of Inductor's own list. From 2.12 on an addmm's vendor kernel is looked up apart from the Triton ones, so
no entry can mean "only the vendor's".
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diode_store.errors import ExportError
from diode_store.exchange.jsonl import kwargs_of
from diode_store.kernels import INT_COLUMNS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from diode_store.records import Hardware, KernelConfig, Problem, Scalar

Entry = dict[str, Any]
OLDEST, NEWEST = (2, 10), (2, 15)
"""Versions whose tables we know."""

_MERGES_SINCE = (2, 12)
_SPLITS_ADDMM_SINCE = (2, 12)
_BLACKWELL_RENAMED_IN = (2, 15)
_BLACKWELL = {"triton::blackwell_ws_persistent_device_tma", "triton::blackwell_ws_persistent_tma"}
_TRITON = "triton::"
_DEFAULT_SCALARS: dict[str, dict[str, Scalar]] = {op: {"alpha": 1, "beta": 1} for op in ("addmm", "baddbmm")}
_OUT_DTYPES = {"int_mm": "int32"}
"""What an op's output is of anyway, so that the table's texts need not say it."""
_KNOWN_SCALARS = frozenset({"alpha", "beta", "out_dtype", "ALLOW_TF32"})
_OPS = frozenset({"mm", "addmm", "bmm", "baddbmm", "int_mm", "mm_plus_mm"})
# The parameters of the persistent TMA template that follow from the problem or the device, and those at one value.
_TMA = "triton::mm_persistent_tma"
_TMA_NEEDED = ("A_ROW_MAJOR", "B_ROW_MAJOR", "NUM_SMS", "TMA_SIZE", "TMA_EXPERIMENTAL_API")
_TMA_IMPLIED = {"tma_store": False, "transpose_discontiguous_tensor_descriptors_override": True}
_COMPLETE = frozenset({"triton::mm", "triton::bmm", "triton::mm_plus_mm", _TMA})
"""Templates whose every parameter we know how to name."""
_VERSION = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True)
class Ranked:
    """A problem and its kernels, the fastest first."""

    problem: Problem
    configs: tuple[KernelConfig, ...]
    """The fastest one and those within noise of it."""
    runtime_us: float | None = None
    """Of the fastest; a table has no times."""
    regime: str | None = None
    """How it was timed."""


@dataclass
class LookupTable:
    """The table, and what was left out."""

    table: dict[str, list[Entry]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    """Why a problem is not in it → how many."""

    def lines(self) -> list[str]:
        """Return what was left out, one sentence a line."""
        return [f"{n} problems left out: {why}" for why, n in self.left_out.items()]


def torch_version(text: str) -> tuple[int, int]:
    """Return major and minor of a torch version, which must be one whose tables we know.

    Raises:
        ExportError: it is not.
    """
    found = _VERSION.match(text)
    version = (int(found[1]), int(found[2])) if found else None
    if version is None or not OLDEST <= version <= NEWEST:
        known = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        raise ExportError(f"no lookup table is known for torch {text!r}; give --torch as one of {known}")
    return version


def device_key(hardware: Hardware) -> str:
    """Return what Inductor calls a device in a table.

    Raises:
        ExportError: the records do not say.
    """
    if hardware.vendor != "nvidia":
        raise ExportError(
            f"Inductor's name for {hardware.name} is not recorded; give it with --device-key, as "
            "torch.cuda.get_device_properties(0).gcnArchName says it there"
        )
    return hardware.name


def build(
    ranked: Iterable[Ranked],
    version: tuple[int, int],
    device: str,
    *,
    template_hashes: Mapping[str, str],
    top: int = 1,
    tf32: bool = False,
) -> LookupTable:
    """Return the table of problems and their kernels.

    Args:
        ranked: the problems.
        version: of the torch that will read it.
        device: its name there; empty for a table that any device may use.
        template_hashes: template uid → hash of its source when it was timed; Inductor refuses others.
        top: how many kernels a problem gets at most; Inductor times them if there are several.
        tf32: for float32, take what was timed with TF32 allowed, not without; a table cannot distinguish the two.
    """
    made = LookupTable()
    for item in ranked:
        problem = item.problem
        why = _why_not(problem, tf32=tf32)
        entries = [] if why else [e for c in item.configs if (e := _entry(c, problem, version, template_hashes))]
        if entries:
            made.table[key_of(problem, device)] = entries[:top]
        else:
            made.left_out[why or _why_no_entry(problem, version)] += 1
    return made


def key_of(problem: Problem, device: str) -> str:
    """Return the text by which Inductor looks a problem up on a device."""
    inputs = ", ".join(f"(torch.{s.dtype}, {list(s.size)}, {list(s.stride)})" for s in problem.inputs)
    scalars = {**_DEFAULT_SCALARS.get(problem.op, {}), **_told_scalars(problem)}
    told = "&".join(f"{name}={value}" for name, value in sorted(scalars.items()))
    return "+".join(part for part in (device, f"({inputs})", told, problem.op) if part)


def _told_scalars(problem: Problem) -> dict[str, Scalar]:
    return {name: value for name, value in problem.scalars if name in {"alpha", "beta"}}


def _why_not(problem: Problem, *, tf32: bool) -> str | None:
    """Return why no table can hold a problem, or None."""
    if problem.op not in _OPS:
        return f"{problem.op} is looked up by inputs that are not those recorded"
    scalars = dict(problem.scalars)
    if scalars.get("out_dtype") != _OUT_DTYPES.get(problem.op):
        return "a table cannot distinguish dtypes of the output"
    if scalars.keys() - _KNOWN_SCALARS:
        return "a table has no room for some of their scalars"
    if problem.shape.dtype == "float32" and problem.shape.tf32 != tf32:
        return "float32 timed with TF32 allowed (--tf32 takes it)" if not tf32 else "float32 timed without TF32"
    return None


def _why_no_entry(problem: Problem, version: tuple[int, int]) -> str:
    if problem.op == "addmm" and version >= _SPLITS_ADDMM_SINCE:
        return f"no table of torch {version[0]}.{version[1]} can choose an addmm's vendor kernel alone"
    return "none of its fastest kernels can be written for this version"


def _entry(config: KernelConfig, problem: Problem, version: tuple[int, int], hashes: Mapping[str, str]) -> Entry | None:
    """Return the entry that chooses a kernel, or None if none can."""
    if config.is_vendor:
        splits = problem.op == "addmm" and version >= _SPLITS_ADDMM_SINCE
        return None if splits or config.kwargs else {"template_id": config.template}
    if not config.template.startswith(_TRITON) or any(getattr(config, name) is None for name in INT_COLUMNS):
        return None
    template = config.template
    if template in _BLACKWELL:
        template = f"{_TRITON}blackwell_ws_persistent_{'' if version >= _BLACKWELL_RENAMED_IN else 'device_'}tma"
    arguments = kwargs_of(config)
    if version < _MERGES_SINCE and not _is_complete(template, arguments):
        return None
    # Whether TF32 is used follows from the process's settings; here it is no parameter.
    arguments.pop("ALLOW_TF32", None)
    entry: Entry = {
        "template_id": template,
        "EVEN_K": problem.shape.k % (config.block_k or 1) == 0,
        "USE_FAST_ACCUM": False,
        "ACC_TYPE": "tl.int32" if problem.op == "int_mm" else "tl.float32",
        "hint_override": None,
        **(_TMA_IMPLIED if template == _TMA else {}),
        **arguments,
    }
    sha = hashes.get(config.template)
    return {**entry, "template_hash": sha} if sha else entry


def _is_complete(template: str, arguments: Mapping[str, Any]) -> bool:
    if template not in _COMPLETE:
        return False
    return template != _TMA or all(name in arguments for name in _TMA_NEEDED)
