"""Candidates of one call, made only when they are needed.

Inductor spends nearly all of the listing on objects that the hook drops. A list depends on few facts about the problem,
and problems that share these facts form a class (``class_of``). Inductor lists a class once. For another problem of the
class, Inductor lists its first candidate only. Every further candidate is a copy of it with parameters from the list.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from torch._inductor import config as inductor_config

from diode_collectors.inductor.adapter import annotations_of, columns_of_choices
from diode_store.candidates.columns import ConfigColumns

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping

    from torch._inductor.kernel_inputs import KernelInputs
    from torch._inductor.kernel_template_choice import KernelTemplateChoice

    from diode_store.records import Problem

_CLASSED = frozenset({"triton::mm", "triton::bmm", "triton::mm_persistent_tma"})
"""Templates whose lists depend on the class alone."""
_LARGEST_BLOCK = 256
"""Size from which a dimension does not make Inductor scale blocks down; lists with larger blocks are not kept."""
_EVEN_K = "EVEN_K"
_ALLOW_TF32 = "ALLOW_TF32"
_SETTINGS = (
    ("", "max_autotune"),
    ("", "max_autotune_gemm_search_space"),
    ("", "max_autotune_prune_choices_based_on_shared_mem"),
    ("", "force_same_precision"),
    ("test_configs", "max_mm_configs"),
    ("triton", "enable_epilogue_subtiling"),
    ("triton", "enable_template_tma_store"),
    ("triton", "enable_tma_load_for_template_epilogue"),
    ("triton", "use_block_ptr"),
    ("rocm", "origami"),
    ("rocm", "origami_topk"),
)
"""Section and name of each Inductor setting that the heuristics of these templates read, in torch 2.10 to 2.15."""
_KEPT_CLASSES = 32
"""Number of lists to keep; each takes 0.3 MB, and the configs of a call 0.1 MB."""


@dataclass(frozen=True, eq=False)
class KnownList:
    """The n candidates of a template for all problems of a class."""

    names: tuple[str, ...]
    """Names of a candidate's parameters."""
    values: tuple[tuple[Any, ...], ...]
    """Each candidate's parameters, in the order of ``names``."""
    columns: Mapping[bool, ConfigColumns]
    """Configs without and with TF32."""

    @classmethod
    def of(cls, listed: Sequence[KernelTemplateChoice], k: int) -> KnownList | None:
        """Return Inductor's list for a problem with this K, or None if the list cannot serve other problems."""
        arguments = [ktc.params.to_kwargs() for ktc in listed]
        names = tuple(arguments[0])
        values = tuple(tuple(found.values()) for found in arguments)
        is_plain = all(value is None or isinstance(value, (bool, int, float, str)) for row in values for value in row)
        same_names = all(tuple(found) == names for found in arguments)
        follows = all(found == _with_even_k(dict(found), k) for found in arguments)
        extra = listed[0].extra_kwargs
        columns = columns_of_choices(listed)
        # Whether a product takes TF32 may depend on its sizes; ``extend_like`` reads it from the problem's own choice.
        same_names = same_names and _ALLOW_TF32 not in names
        fits = max(column.max() for column in (columns.block_m, columns.block_n, columns.block_k)) <= _LARGEST_BLOCK
        if not (is_plain and same_names and follows and fits and all(ktc.extra_kwargs is extra for ktc in listed)):
            return None
        by_tf32 = {tf32: replace(columns, allow_tf32=np.full(len(columns), tf32)) for tf32 in (False, True)}
        return cls(names, values, by_tf32)

    def arguments(self, index: int, k: int) -> dict[str, Any]:
        """Return the parameters of a candidate for a problem with this K."""
        return _with_even_k(dict(zip(self.names, self.values[index], strict=True)), k)


class KnownLists:
    """Lists by class, safe to share between threads."""

    def __init__(self) -> None:
        self._lists: OrderedDict[Hashable, KnownList] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> KnownList | None:
        """Return the list of a class."""
        with self._lock:
            if key not in self._lists:
                return None
            self._lists.move_to_end(key)
            return self._lists[key]

    def keep(self, key: Hashable, listed: Sequence[KernelTemplateChoice], k: int) -> KnownList | None:
        """Keep Inductor's list for a problem with this K, if the list can serve all problems of the class ``key``."""
        known = KnownList.of(listed, k) if listed else None
        if known is None:
            return None
        with self._lock:
            self._lists[key] = known
            while len(self._lists) > _KEPT_CLASSES:
                self._lists.popitem(last=False)
        return known


class Candidates(Sequence["KernelTemplateChoice"]):
    """Candidates of one call, end to end; a candidate from a known list is made on its first use."""

    def __init__(self, k: int) -> None:
        self._k = k
        self._made: list[KernelTemplateChoice | None] = []
        self._parts: list[tuple[int, KernelTemplateChoice, KnownList]] = []
        self._columns: list[ConfigColumns] = []

    def extend(self, listed: Sequence[KernelTemplateChoice]) -> None:
        """Add candidates that Inductor listed."""
        if listed:
            self._made.extend(listed)
            self._columns.append(columns_of_choices(listed))

    def extend_like(self, first: KernelTemplateChoice, known: KnownList) -> None:
        """Add the candidates of ``known`` for the problem of ``first``, one of the template's choices for it."""
        self._parts.append((len(self._made), first, known))
        self._made.extend([None] * len(known.values))
        self._columns.append(known.columns[bool(columns_of_choices([first]).allow_tf32[0])])

    @property
    def columns(self) -> ConfigColumns:
        """Configs of the candidates, in order. The same parts give the same object, with its digest computed once."""
        return _joined(*self._columns)

    def __len__(self) -> int:
        """Return n."""
        return len(self._made)

    def __getitem__(self, index: Any) -> Any:
        """Return a candidate, each time the same object."""
        found = self._made[index]
        if found is None:
            start, first, known = next(part for part in reversed(self._parts) if part[0] <= index)
            found = self._made[index] = _like(first, known.arguments(index - start, self._k))
        return found


@lru_cache(maxsize=_KEPT_CLASSES)
def _joined(*parts: ConfigColumns) -> ConfigColumns:
    return ConfigColumns.joined(parts)


def class_of(
    uid: str,
    problem: Problem,
    kernel_inputs: KernelInputs,
    op_name: str,
    overrides: Mapping[str, Any],
    search_space: str,
) -> Hashable | None:
    """Return the class of a problem, in which Inductor lists the same candidates; None if it has none.

    Inductor scales blocks down to the next power of two of a smaller dimension. Some parameters follow from layouts and
    dtypes, others from Inductor's configuration. EVEN_K follows from K and is set for each problem.
    """
    k = kernel_inputs.mnk_symbolic()[2]
    if uid not in _CLASSED or not getattr(k, "is_Integer", isinstance(k, int)):
        return None
    shape = problem.shape
    return (
        uid,
        op_name,
        search_space,
        str(kernel_inputs.device()),
        tuple((spec.dtype, len(spec.size)) for spec in problem.inputs),
        str(kernel_inputs.out_dtype()),
        shape.arithmetic,
        shape.layout,
        tuple(node.get_layout().is_transposed() for node in kernel_inputs.mat1mat2()),
        tuple(min(_next_power_of_2(size), _LARGEST_BLOCK) for size in (shape.m, shape.n, shape.k)),
        repr(sorted(overrides.items())),
        _settings(),
    )


def _settings() -> tuple[Any, ...]:
    """Return the settings of this thread that the lists depend on.

    A hash of the whole configuration would copy everything that a user has put there, custom passes included.
    """
    sections = ((getattr(inductor_config, section, None) if section else inductor_config) for section, _ in _SETTINGS)
    return tuple(getattr(held, name, None) for held, (_, name) in zip(sections, _SETTINGS, strict=True))


def _next_power_of_2(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _with_even_k(arguments: dict[str, Any], k: int) -> dict[str, Any]:
    """Set the parameter that tells whether blocks divide K, which spares the kernel a mask, and return all of them."""
    if _EVEN_K in arguments:
        arguments[_EVEN_K] = k % arguments["BLOCK_K"] == 0
    return arguments


def _like(first: KernelTemplateChoice, arguments: dict[str, Any]) -> KernelTemplateChoice:
    """Return a choice of the same template for the same problem, with other parameters."""
    made = copy.copy(first)
    made.params = type(first.params).from_dict(arguments)
    made.annotations = {**annotations_of(first), "ktc": made}
    vars(made).pop("_choice", None)
    return made
