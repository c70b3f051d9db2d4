"""Candidates that Inductor lists for one call of the hook.

Inductor gives the hook a generator of choices for each template. A generator can be iterated only once, so a
``CandidateOffer`` keeps the choices: whatever goes wrong later, stock Inductor still gets its list.
"""

from __future__ import annotations

import functools
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from time import perf_counter
from typing import TYPE_CHECKING, Any

from torch._inductor import config as inductor_config

from diode_collectors.inductor.adapter import fast_accum_of
from diode_integration.inductor import as_if_cuda
from diode_integration.inductor.candidates import Candidates, class_of
from diode_integration.inductor.products import inputs_at
from diode_store.candidates.names import template_uid
from diode_store.errors import RecordError
from diode_store.ops import standard_ops
from diode_store.records import is_vendor_template

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from torch._inductor.choices import InductorChoices
    from torch._inductor.kernel_inputs import KernelInputs
    from torch._inductor.kernel_template_choice import KernelTemplateChoice

    from diode_integration.inductor.candidates import KnownLists
    from diode_store.records import Hardware, Problem

EXHAUSTIVE = "EXHAUSTIVE"
_WITH_BIAS = "bias_addmm"
"""Vendor kernel of cuBLASLt that adds the bias in its epilogue; ``addmm`` may need a full-size copy of the bias."""
_APART = frozenset(standard_ops())
"""Ops whose vendor kernels come in a separate first call in some versions of torch."""
_one_at_a_time = threading.RLock()


@dataclass
class CandidateOffer:
    """Inductor's offer in one call: the arguments of ``_finalize_template_configs``."""

    generators: Mapping[str, Iterator[KernelTemplateChoice]]
    kernel_inputs: KernelInputs
    templates: list[Any]
    op_name: str
    kwarg_overrides: Mapping[str, dict[str, Any]]
    started: float = field(default_factory=perf_counter)
    """Time at which the hook began with the call, by ``perf_counter``."""
    on_listed: list[Callable[[Sequence[KernelTemplateChoice]], None]] = field(default_factory=list)
    """Functions that receive the choices Inductor goes on with."""
    _listed: dict[str, list[KernelTemplateChoice]] = field(default_factory=dict)
    _first: dict[str, KernelTemplateChoice] = field(default_factory=dict)
    _broken: set[str] = field(default_factory=set)

    def stock(self, uid: str) -> list[KernelTemplateChoice]:
        """Return Inductor's own choices for the template ``uid``."""
        if uid not in self._listed:
            with self._noting_failure(uid):
                rest = list(self.generators[uid])
            first = self._first.pop(uid, None)
            self._listed[uid] = rest if first is None else [first, *rest]
        return self._listed[uid]

    def first(self, uid: str) -> KernelTemplateChoice | None:
        """Return Inductor's first choice for the template ``uid``; None if there is none."""
        if uid in self._listed:
            return next(iter(self._listed[uid]), None)
        if uid not in self._first:
            with self._noting_failure(uid):
                found = next(iter(self.generators[uid]), None)
            if found is None:
                self._listed[uid] = []
                return None
            self._first[uid] = found
        return self._first[uid]

    def vendors(self) -> list[KernelTemplateChoice]:
        """Return the vendor kernels of the call."""
        return [ktc for uid in self.generators if is_vendor_template(uid_of(uid)) for ktc in self.stock(uid)]

    @contextmanager
    def _noting_failure(self, uid: str) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._broken.add(uid)
            raise

    def replay(self, handler: InductorChoices) -> dict[str, Iterator[KernelTemplateChoice]]:
        """Return the generators unchanged, for stock Inductor to iterate."""
        return {uid: self._replayed(uid, handler) for uid in self.generators}

    def expanded(
        self, uid: str, handler: InductorChoices, search_space: str, inputs: KernelInputs
    ) -> list[KernelTemplateChoice]:
        """Return the choices for ``uid`` and ``inputs`` in another search space; if there are none, Inductor's own."""
        # The heuristics read the setting while they are iterated, so the list must be made inside.
        with searching(search_space):
            listed = list(self._regenerated(uid, handler, inputs))
        return listed or self.stock(uid)

    def as_if_on_cuda(self, uid: str, inputs: KernelInputs, _device: Hardware | None) -> Iterator[KernelTemplateChoice]:
        """Return the choices for ``uid`` and ``inputs`` on a CUDA device, on a machine without one."""
        return as_if_cuda.listed(uid, self.op_name, inputs, self.overrides_as_if())

    def overrides_as_if(self) -> dict[str, Any]:
        """Return the arguments of the vendor kernels that a Triton template would get too."""
        asked = fast_accum_of(self.kwarg_overrides.values())
        is_given = any("use_fast_accum" in given for given in self.kwarg_overrides.values())
        return {"USE_FAST_ACCUM": bool(asked)} if is_given else {}

    def _replayed(self, uid: str, handler: InductorChoices) -> Iterator[KernelTemplateChoice]:
        if uid in self._broken:
            return self._regenerated(uid, handler, self.kernel_inputs)
        if uid in self._listed:
            return iter(self._listed[uid])
        first = self._first.get(uid)
        return self.generators[uid] if first is None else chain([first], self.generators[uid])

    def _regenerated(self, uid: str, handler: InductorChoices, inputs: KernelInputs) -> Iterator[KernelTemplateChoice]:
        template = next(template for template in self.templates if template.uid == uid)
        overrides = self.kwarg_overrides.get(uid, {})
        return iter(handler.get_ktc(inputs, template, self.op_name, overrides))


@dataclass(frozen=True)
class Listing:
    """Candidates of one call; the model can rank some, and the others stay as they are."""

    ranked: Candidates
    unranked: list[KernelTemplateChoice]


@contextmanager
def searching(search_space: str) -> Iterator[None]:
    """Have Inductor list the configs of a search space; one thread at a time.

    Until torch 2.12 Inductor's configuration belongs to the whole process. Two threads that each restore the setting
    they found would leave the wrong one.
    """
    with patched(max_autotune_gemm_search_space=search_space):
        yield


@contextmanager
def patched(**settings: Any) -> Iterator[None]:
    """Change Inductor's configuration in a block; one thread at a time, as for ``searching``."""
    with _one_at_a_time, inductor_config.patch(settings):
        yield


def is_tuned() -> bool:
    """Return whether Inductor benchmarks the choices of matrix products in this thread's compile."""
    return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)


def is_multi_kernel() -> bool:
    """Return whether Inductor wants kernels for several hinted sizes at once."""
    return bool(getattr(inductor_config, "multi_kernel_hints", None))


def lists_for_cpu(offer: CandidateOffer) -> bool:
    """Return whether Inductor compiles for a CPU with C++, and so lists no Triton template."""
    return bool(offer.kernel_inputs.device_type == "cpu" and inductor_config.cpu_backend != "triton")


@dataclass(frozen=True)
class Lister:
    """Lists the candidates of a call for ``problem``; lists of problem classes are kept in ``known``."""

    offer: CandidateOffer
    handler: InductorChoices
    problem: Problem
    known: KnownLists
    search_space: str | None
    """Search space for templates that the model knows; None for Inductor's own."""
    device: Hardware | None = None
    """Device to list for, if another one compiles."""
    largest: Problem | None = None
    """Largest product that the call may have to serve, which bounds the block sizes; None if it is ``problem``."""

    def list_candidates(self, knows: Callable[[str], bool]) -> Listing:
        """List everything; ``knows`` tells whether the model was trained on a template uid."""
        listing = Listing(Candidates(self.problem.shape.k), [])
        for uid in self.offer.generators:
            name = uid_of(uid)
            if not knows(name):
                listing.unranked.extend(self.offer.stock(uid))
            elif self.search_space is None or is_vendor_template(name):
                listing.ranked.extend(self.offer.stock(uid))
            else:
                self._expand(uid, self.search_space, listing.ranked)
        return listing

    def expanded(self, uid: str, search_space: str) -> Candidates:
        """Return the candidates for ``uid`` in a search space."""
        candidates = Candidates(self.problem.shape.k)
        self._expand(uid, search_space, candidates)
        return candidates

    def as_if_on_cuda(self, uid: str, search_space: str) -> Candidates:
        """Return the candidates of the template ``uid`` for a CUDA device, on a machine without one."""
        candidates = Candidates(self.problem.shape.k)
        self._expand_as_if(uid, search_space, candidates)
        return candidates

    def add_as_if_on_cuda(self, ranked: Candidates) -> None:
        """Add the Triton choices for a CUDA device, on a machine without one.

        A model can rank them, but they cannot be built or run.
        """
        offer = self.offer
        uid = as_if_cuda.template_of(self.problem, self.device)
        vendor_only = bool(offer.generators) and all(is_vendor_template(uid_of(other)) for other in offer.generators)
        if uid is not None and vendor_only:
            self._expand_as_if(uid, self.search_space or inductor_config.max_autotune_gemm_search_space, ranked)

    def _expand_as_if(self, uid: str, search_space: str, ranked: Candidates) -> None:
        """Add the candidates of ``uid`` for a CUDA device."""
        offer = self.offer

        def list_all(inputs: KernelInputs) -> list[KernelTemplateChoice]:
            with searching(search_space):
                return list(offer.as_if_on_cuda(uid, inputs, self.device))

        first = next(offer.as_if_on_cuda(uid, offer.kernel_inputs, self.device), None)
        self._add(
            ranked, first, self._class_of(uid, f"{search_space} as if on cuda", offer.overrides_as_if()), list_all
        )

    def _expand(self, uid: str, search_space: str, ranked: Candidates) -> None:
        """Add the candidates of ``uid`` in another search space."""
        list_all = functools.partial(self.offer.expanded, uid, self.handler, search_space)
        self._add(ranked, self.offer.first(uid), self._class_of(uid, search_space), list_all)

    def _add(
        self,
        ranked: Candidates,
        first: KernelTemplateChoice | None,
        key: Hashable | None,
        list_all: Callable[[KernelInputs], list[KernelTemplateChoice]],
    ) -> None:
        """Add a template's candidates: from the class ``key`` if its list is known, else from ``list_all``."""
        inputs, k = self.offer.kernel_inputs, self.problem.shape.k
        known = None if first is None or key is None else self.known.get(key)
        if known is None and first is not None and key is not None:
            listed = list_all(inputs_at(inputs, self.largest) if self.largest else inputs)
            known = self.known.keep(key, listed, k)
            if self.largest is None:
                ranked.extend(listed)
                return
        if first is not None and known is not None:
            ranked.extend_like(first, known)
        else:
            ranked.extend(list_all(inputs))

    def _class_of(self, uid: str, search_space: str, overrides: Mapping[str, Any] | None = None) -> Hashable | None:
        offer, problem = self.offer, self.largest or self.problem
        overrides = offer.kwarg_overrides.get(uid, {}) if overrides is None else overrides
        return class_of(uid_of(uid), problem, offer.kernel_inputs, offer.op_name, overrides, search_space)


def uid_of(uid: str) -> str:
    """Return a template's name in records, or Inductor's own name if it has none there."""
    try:
        return template_uid(uid)
    except RecordError:
        return uid


def vendors_best(choices: Sequence[Any]) -> list[Any]:
    """Return one vendor kernel; for an addmm the one with the bias in its epilogue, if there is one."""
    return sorted(choices, key=lambda choice: not str(choice.name).startswith(_WITH_BIAS))[:1]


class OpCalls:
    """Remembers a number for an op from one call to the next; each thread has its own ops."""

    def __init__(self) -> None:
        self._thread = threading.local()

    def forget(self) -> None:
        """Reset this thread's state for a new graph; node names repeat across graphs."""
        self._thread.op = None

    def remember(self, offer: CandidateOffer, value: int) -> None:
        """Keep a value for later calls of the same op."""
        self._thread.op = _op_of(offer), value

    def recall(self, offer: CandidateOffer) -> int | None:
        """Return the value that an earlier call of the same op kept; None without one."""
        op, value = getattr(self._thread, "op", None) or (None, None)
        return value if op == _op_of(offer) else None


class VendorCalls:
    """Finds the vendor kernels of an op, which Inductor may list in several calls."""

    def __init__(self) -> None:
        self.calls = OpCalls()

    def kept(self, offer: CandidateOffer) -> list[KernelTemplateChoice] | None:
        """Return the vendor kernels of a call; an empty list if an earlier call had them; None if there are none."""
        from torch._inductor.utils import use_aten_gemm_kernels

        choices = offer.vendors()
        if choices:
            self.calls.forget()
            if offer.op_name in _APART:
                self.calls.remember(offer, len(choices))
            return choices
        return [] if self.calls.recall(offer) is not None and use_aten_gemm_kernels() else None


def _op_of(offer: CandidateOffer) -> tuple[str, ...]:
    """Return the identity of an op: its matrices. The bias does not count, as it is another node in the later call."""
    return (offer.op_name, *(str(node.get_name()) for node in offer.kernel_inputs.nodes()[-2:]))
