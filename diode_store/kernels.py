"""Kernel configs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from diode_store.values import checks
from diode_store.values.keys import content_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Scalar = bool | int | float | str
"""Value of a problem's scalar or of a kernel's keyword argument."""


@dataclass(frozen=True, eq=False)
class KernelConfig:
    """One kernel that can solve a problem: a template and its parameters.

    Make one with ``diode_store.candidates.names.kernel_config``, which maps every source's names to these.
    Vendor kernels (``aten::mm``) are configs without parameters.
    """

    template: str
    block_m: int | None = None
    block_n: int | None = None
    block_k: int | None = None
    group_m: int | None = None
    num_stages: int | None = None
    num_warps: int | None = None
    allow_tf32: bool | None = None
    use_fast_accum: bool | None = None
    acc_type: str | None = None
    kwargs: tuple[tuple[str, Scalar], ...] = ()
    """Every other scalar keyword argument of the template, sorted by name."""
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @cached_property
    def key(self) -> bytes:
        """16-byte content key over everything but ``extra``."""
        return content_key("config", 1, [*self._parts, self.kwargs])

    def __eq__(self, other: object) -> bool:
        """Compare fields; keyword arguments as the keys do, which tell True from 1."""
        if not isinstance(other, KernelConfig):
            return NotImplemented
        return self._parts == other._parts and same_scalars(self.kwargs, other.kwargs) and self.extra == other.extra

    def __hash__(self) -> int:
        """Return the cached hash: each timing's config is looked up several times on its way to the warehouse."""
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((self._parts, self.kwargs))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the hash, which differs between processes."""
        return {name: value for name, value in vars(self).items() if name != "_hash"}

    @property
    def _parts(self) -> tuple[Scalar | None, ...]:
        return _COLUMNS_OF(self)

    @property
    def is_vendor(self) -> bool:
        """Return whether a vendor library runs the kernel, such as cuBLAS through ATen."""
        return is_vendor_template(self.template)

    def describe(self) -> str:
        """Return a short name for a person: ``triton::mm 128x64x32 s3 w4`` (block M x N x K, stages, warps).

        Other blocks have names: ``triton::reduction R0_BLOCK=512 XBLOCK=8 s1 w4``, ``triton::flex_attention m64 n32 s3
        w4``.
        """
        sizes = {"m": self.block_m, "n": self.block_n, "k": self.block_k}
        known = {name: size for name, size in sizes.items() if size is not None}
        if len(known) == len(sizes):
            blocks = ["x".join(map(str, known.values()))]
        else:
            blocks = [f"{name}{size}" for name, size in known.items()]
            blocks += [f"{name}={value}" for name, value in self.kwargs if is_named_block(name)]
        return " ".join([self.template, *blocks, *([f"s{self.num_stages} w{self.num_warps}"] if blocks else [])])


BLOCK = "BLOCK"
"""End of the names of a fused kernel's block sizes, and start of those of attention's gradients (``BLOCK_M1``)."""
_NUMBERED = f"{BLOCK}_"
INT_COLUMNS = ("block_m", "block_n", "block_k", "group_m", "num_stages", "num_warps")
FLAG_COLUMNS = ("allow_tf32", "use_fast_accum")
CONFIG_COLUMNS = ("template", *INT_COLUMNS, *FLAG_COLUMNS, "acc_type")
"""Fields of ``KernelConfig`` that are columns of their own, in the order every table and record uses."""

_COLUMNS_OF: Callable[[KernelConfig], tuple[Scalar | None, ...]] = attrgetter(*CONFIG_COLUMNS)


def is_named_block(name: str) -> bool:
    """Return whether an argument is a block size that has no column of its own."""
    return name.endswith(BLOCK) or name.startswith(_NUMBERED)


def is_vendor_template(template: str) -> bool:
    """Return whether a vendor library runs this template, such as cuBLAS through ATen."""
    return template.startswith("aten::")


def agrees(found: KernelConfig, wanted: KernelConfig) -> bool:
    """Return whether ``found`` agrees with every parameter that ``wanted`` names; some sources name only a few."""
    named = ((name, getattr(wanted, name)) for name in CONFIG_COLUMNS)
    has_columns = all(value is None or getattr(found, name) == value for name, value in named)
    return has_columns and set(wanted.kwargs) <= set(found.kwargs)


def plain_scalar(value: Scalar) -> Scalar:
    """Return whole floats as ints, so that ``alpha=1.0`` and ``alpha=1`` are one problem.

    Whole floats beyond 64 bits stay floats, since neither a record nor a database holds them as ints.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) <= checks.INT64:
        return int(value)
    return value


def same_scalars(some: tuple[tuple[str, Scalar], ...], others: tuple[tuple[str, Scalar], ...]) -> bool:
    """Return whether names and values are equal, where True differs from 1."""
    return some == others and [type(value) for _, value in some] == [type(value) for _, value in others]
