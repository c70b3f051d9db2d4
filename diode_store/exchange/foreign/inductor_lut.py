"""Inductor's lookup table: the kernels to use for each problem instead of a search (torch 2.10 and later).

``torch._inductor.config.lookup_table.table`` takes the table. ``LookupTableChoices`` makes a text from a problem's
inputs, looks it up, and uses only the entries it finds. This module makes the same texts and entries from records,
without torch; tests compare them with Inductor's own in several versions.

Versions differ. Until 2.11 an entry must name every parameter of its kernel. From 2.12 on an entry overrides the
parameters of the first kernel in Inductor's own list. From 2.12 on Inductor looks up an addmm's vendor kernel apart
from its Triton kernels, so no entry can mean "only the vendor kernel".
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from diode_store.errors import ExportError
from diode_store.exchange.jsonl import kwargs_of
from diode_store.kernels import INT_COLUMNS
from diode_store.ops import DEFAULT_SCALARS, OPS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from diode_store.records import Hardware, KernelConfig, Problem, Scalar

Entry = dict[str, Any]
OLDEST, NEWEST = (2, 10), (2, 15)
"""Oldest and newest torch with a known table."""

_MERGES_SINCE = (2, 12)
_SPLITS_ADDMM_SINCE = (2, 12)
_BLACKWELL_RENAMED_IN = (2, 15)
_BLACKWELL = {"triton::blackwell_ws_persistent_device_tma", "triton::blackwell_ws_persistent_tma"}
_TRITON = "triton::"
_TOLD = ("alpha", "beta")
"""Scalars that are part of a table's key."""
_KNOWN_SCALARS = frozenset({"alpha", "beta", "out_dtype", "ALLOW_TF32"})
# Parameters of the persistent TMA template: those that follow from the problem or the device, and the constant ones.
_TMA = "triton::mm_persistent_tma"
_TMA_NEEDED = ("A_ROW_MAJOR", "B_ROW_MAJOR", "NUM_SMS", "TMA_SIZE", "TMA_EXPERIMENTAL_API")
_TMA_IMPLIED = {"tma_store": False, "transpose_discontiguous_tensor_descriptors_override": True}
_COMPLETE = frozenset({"triton::mm", "triton::bmm", "triton::mm_plus_mm", _TMA})
"""Templates for which this module can name every parameter."""
_VERSION = re.compile(r"(\d+)\.(\d+)")


@dataclass(frozen=True)
class Ranked:
    """A problem and its kernels, the fastest first."""

    problem: Problem
    configs: tuple[KernelConfig, ...]
    """The fastest kernel and its tie set."""
    runtime_us: float | None = None
    """Time of the fastest kernel; a table has no times."""
    regime: str | None = None
    """Regime of the timing."""


@dataclass
class LookupTable:
    """The table and counts of the problems left out."""

    table: dict[str, list[Entry]] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)
    """Number of problems left out, by reason."""

    def lines(self) -> list[str]:
        """Return one sentence for each reason to leave problems out."""
        return [f"{n} problems left out: {why}" for why, n in self.left_out.items()]


def torch_version(text: str) -> tuple[int, int]:
    """Return major and minor of a torch version with a known table.

    Raises:
        ExportError: the version's table is unknown.
    """
    found = _VERSION.match(text)
    version = (int(found[1]), int(found[2])) if found else None
    if version is None or not OLDEST <= version <= NEWEST:
        known = f"{OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}"
        raise ExportError(f"no lookup table is known for torch {text!r}; give --torch as one of {known}")
    return version


def device_key(hardware: Hardware) -> str:
    """Return Inductor's name of a device in a table.

    Raises:
        ExportError: the records lack that name.
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
        version: version of the reader's torch.
        device: the device's name there; empty for a table for any device.
        template_hashes: hash of each template's source when timed, by template uid; Inductor refuses other sources.
        top: maximum kernels for a problem; Inductor times them if there are several.
        tf32: take float32 timed with TF32 allowed, else without; a table cannot tell them apart.
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
    """Return the text by which Inductor looks up a problem on a device."""
    inputs = ", ".join(f"(torch.{s.dtype}, {list(s.size)}, {list(s.stride)})" for s in problem.inputs)
    usual = {name: DEFAULT_SCALARS[name] for name in _TOLD} if OPS[problem.op].has_bias else {}
    scalars = {**usual, **_told_scalars(problem)}
    told = "&".join(f"{name}={value}" for name, value in sorted(scalars.items()))
    return "+".join(part for part in (device, f"({inputs})", told, problem.op) if part)


def _told_scalars(problem: Problem) -> dict[str, Scalar]:
    return {name: value for name, value in problem.scalars if name in _TOLD}


def _why_not(problem: Problem, *, tf32: bool) -> str | None:
    """Return why no table can hold a problem; None if one can."""
    if not problem.is_known:
        return problem.why_no_shape
    if not OPS[problem.op].has_table_key:
        return f"Inductor's lookup tables cannot name problems of {problem.op}; `diode lock` can"
    scalars = dict(problem.scalars)
    if scalars.get("out_dtype") != OPS[problem.op].out_dtype:
        return "a table cannot distinguish dtypes of the output"
    if scalars.keys() - _KNOWN_SCALARS:
        return "a table has no room for some of their scalars"
    if problem.shape.dtype == "float32" and problem.shape.tf32 != tf32:
        return "float32 timed with TF32 allowed (--tf32 takes it)" if not tf32 else "float32 timed without TF32"
    return None


def _why_no_entry(problem: Problem, version: tuple[int, int]) -> str:
    if len(OPS[problem.op].vendors) > 1 and version >= _SPLITS_ADDMM_SINCE:
        return f"no table of torch {version[0]}.{version[1]} can choose an addmm's vendor kernel alone"
    return "none of its fastest kernels can be written for this version"


def _entry(config: KernelConfig, problem: Problem, version: tuple[int, int], hashes: Mapping[str, str]) -> Entry | None:
    """Return the entry that chooses a kernel; None if no entry can."""
    if config.is_vendor:
        splits = len(OPS[problem.op].vendors) > 1 and version >= _SPLITS_ADDMM_SINCE
        return None if splits or config.kwargs else {"template_id": config.template}
    if not config.template.startswith(_TRITON) or any(getattr(config, name) is None for name in INT_COLUMNS):
        return None
    template = config.template
    if template in _BLACKWELL:
        template = f"{_TRITON}blackwell_ws_persistent_{'' if version >= _BLACKWELL_RENAMED_IN else 'device_'}tma"
    arguments = kwargs_of(config)
    if version < _MERGES_SINCE and not _is_complete(template, arguments):
        return None
    # The process's settings decide on TF32; it is no parameter here.
    arguments.pop("ALLOW_TF32", None)
    entry: Entry = {
        "template_id": template,
        "EVEN_K": problem.shape.k % (config.block_k or 1) == 0,
        "USE_FAST_ACCUM": False,
        "ACC_TYPE": f"tl.{OPS[problem.op].out_dtype or 'float32'}",
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
