"""The candidates of one call of Inductor's choices hook.

Inductor hands the hook a generator of choices for each template. They can be iterated once only, so a
``CandidateOffer`` keeps their choices: whatever goes wrong later, stock Inductor still gets its list.
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

from diode_integration.candidates import Candidates, class_of
from diode_integration.dynamic import inputs_at
from diode_store.errors import RecordError
from diode_store.normalise import template_uid
from diode_store.records import is_vendor_template

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

    from torch._inductor.choices import InductorChoices
    from torch._inductor.kernel_inputs import KernelInputs
    from torch._inductor.kernel_template_choice import KernelTemplateChoice

    from diode_integration.candidates import KnownLists
    from diode_store.records import Problem

EXHAUSTIVE = "EXHAUSTIVE"
AS_IF_TEMPLATES = {"mm": "triton::mm", "addmm": "triton::mm", "bmm": "triton::bmm", "baddbmm": "triton::bmm"}
"""op → the template that any large GPU is offered for it."""
_WITH_BIAS = "bias_addmm"
"""Runs through cuBLASLt, which adds the bias before it stores; ``addmm`` may need a copy of it in full size first."""
_one_at_a_time = threading.RLock()


@dataclass
class CandidateOffer:
    """What Inductor offers in one call: the arguments of ``_finalize_template_configs``."""

    generators: Mapping[str, Iterator[KernelTemplateChoice]]
    kernel_inputs: KernelInputs
    templates: list[Any]
    op_name: str
    kwarg_overrides: Mapping[str, dict[str, Any]]
    started: float = field(default_factory=perf_counter)
    """When the hook began with it, by ``perf_counter``."""
    on_listed: Callable[[Sequence[KernelTemplateChoice]], None] | None = None
    """Is told which choices Inductor goes on with."""
    _listed: dict[str, list[KernelTemplateChoice]] = field(default_factory=dict)
    _first: dict[str, KernelTemplateChoice] = field(default_factory=dict)
    _broken: set[str] = field(default_factory=set)

    def stock(self, uid: str) -> list[KernelTemplateChoice]:
        """Return what Inductor itself lists for the template ``uid``."""
        if uid not in self._listed:
            with self._noting_failure(uid):
                rest = list(self.generators[uid])
            first = self._first.pop(uid, None)
            self._listed[uid] = rest if first is None else [first, *rest]
        return self._listed[uid]

    def first(self, uid: str) -> KernelTemplateChoice | None:
        """Return the first of what Inductor lists for the template ``uid``; None if it lists nothing."""
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
        """Return what it lists for ``uid`` and ``inputs`` in another search space; its own list if that is empty."""
        # The heuristics read the setting while they are walked, so the list must be made inside.
        with searching(search_space):
            listed = list(self._regenerated(uid, handler, inputs))
        return listed or self.stock(uid)

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
    """The candidates of one call, by whether the model can rank them."""

    ranked: Candidates
    unranked: list[KernelTemplateChoice]


@contextmanager
def searching(search_space: str) -> Iterator[None]:
    """Have Inductor list the configs of a search space; one thread at a time.

    Until torch 2.12 its configuration is the whole process's, and two threads that each put back what they found
    would leave the wrong one.
    """
    with patched(max_autotune_gemm_search_space=search_space):
        yield


@contextmanager
def patched(**settings: Any) -> Iterator[None]:
    """Have Inductor's configuration say something else; one thread at a time, as for ``searching``."""
    with _one_at_a_time, inductor_config.patch(settings):
        yield


def is_tuned() -> bool:
    """Whether Inductor is to benchmark the choices of matrix products, in what this thread compiles now."""
    return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)


def lists_for_cpu(offer: CandidateOffer) -> bool:
    """Whether Inductor compiles for a CPU with C++, and so lists no Triton template."""
    return bool(offer.kernel_inputs.device_type == "cpu" and inductor_config.cpu_backend != "triton")


@dataclass(frozen=True)
class Lister:
    """Lists what a call of ``problem`` may choose among; what it lists for a class of problems is kept in ``known``."""

    offer: CandidateOffer
    handler: InductorChoices
    problem: Problem
    known: KnownLists
    search_space: str | None
    """What to list of the templates that the model knows; None for what Inductor lists."""
    largest: Problem | None = None
    """The largest one that the call may have to serve, if it is not ``problem``: blocks are not scaled down to less."""

    def list_candidates(self, knows: Callable[[str], bool]) -> Listing:
        """List everything; ``knows`` says whether the model was trained on a template uid."""
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
        """Return what Inductor lists for ``uid`` in a search space."""
        candidates = Candidates(self.problem.shape.k)
        self._expand(uid, search_space, candidates)
        return candidates

    def as_if_on_cuda(self, uid: str, search_space: str) -> Candidates:
        """Return what a CUDA device would be offered of the template ``uid``, on a machine that has none."""
        candidates = Candidates(self.problem.shape.k)
        self._expand_as_if(uid, search_space, candidates)
        return candidates

    def add_as_if_on_cuda(self, ranked: Candidates) -> None:
        """Add the Triton choices that a CUDA device would be offered, on a machine that has none.

        They can be ranked, but not built or run.
        """
        offer = self.offer
        uid = AS_IF_TEMPLATES.get(offer.op_name)
        vendor_only = bool(offer.generators) and all(is_vendor_template(uid_of(other)) for other in offer.generators)
        if uid is not None and vendor_only:
            self._expand_as_if(uid, self.search_space or inductor_config.max_autotune_gemm_search_space, ranked)

    def _expand_as_if(self, uid: str, search_space: str, ranked: Candidates) -> None:
        """Add what a CUDA device would be offered of ``uid``."""
        op_name = self.offer.op_name
        first = next(_as_if(uid, op_name, self.offer.kernel_inputs), None)
        list_all = functools.partial(_all_as_if, uid, op_name, search_space)
        self._add(ranked, first, self._class_of(uid, f"{search_space} as if on cuda"), list_all)

    def _expand(self, uid: str, search_space: str, ranked: Candidates) -> None:
        """Add what Inductor lists for ``uid`` in another search space."""
        list_all = functools.partial(self.offer.expanded, uid, self.handler, search_space)
        self._add(ranked, self.offer.first(uid), self._class_of(uid, search_space), list_all)

    def _add(
        self,
        ranked: Candidates,
        first: KernelTemplateChoice | None,
        key: Hashable | None,
        list_all: Callable[[KernelInputs], list[KernelTemplateChoice]],
    ) -> None:
        """Add a template's candidates: those of the class ``key`` where it is known, else what ``list_all`` gives."""
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

    def _class_of(self, uid: str, search_space: str) -> Hashable | None:
        offer, problem = self.offer, self.largest or self.problem
        overrides = offer.kwarg_overrides.get(uid, {})
        return class_of(uid_of(uid), problem, offer.kernel_inputs, offer.op_name, overrides, search_space)


def _all_as_if(uid: str, op_name: str, search_space: str, inputs: KernelInputs) -> list[KernelTemplateChoice]:
    with searching(search_space):
        return list(_as_if(uid, op_name, inputs))


def _as_if(uid: str, op_name: str, inputs: KernelInputs) -> Iterator[KernelTemplateChoice]:
    from torch._inductor.kernel_template_choice import make_ktc_generator  # needs the lowerings to be loaded first

    heuristic = _heuristic_registry().get_template_heuristic(uid, "cuda", op_name)
    generator: Iterator[KernelTemplateChoice] = make_ktc_generator(
        template=_template(uid),
        cs=heuristic.get_template_configs(inputs, op_name),
        extra_kwargs=heuristic.get_extra_kwargs(inputs, op_name),
        overrides={},
        layout=inputs.output_layout(),
        inputs=inputs,
    )
    return generator


def _template(uid: str) -> Any:
    from torch._inductor.kernel import bmm, mm  # importing them registers lowerings; inside a compile that is done

    return {"triton::mm": mm.mm_template, "triton::bmm": bmm.bmm_template}[uid]


def _heuristic_registry() -> Any:
    try:
        from torch._inductor.heuristics.template import registry  # torch 2.14 and later
    except ImportError:
        from torch._inductor.template_heuristics import registry  # torch 2.13 and before
    return registry


def uid_of(uid: str) -> str:
    """Return a template's name in records, or Inductor's own where there is none."""
    try:
        return template_uid(uid)
    except RecordError:
        return uid


def vendors_best(choices: Sequence[Any]) -> list[Any]:
    """Return one of the vendor's kernels: of an addmm's the one that adds the bias on the way, where there is one."""
    return sorted(choices, key=lambda choice: not str(choice.name).startswith(_WITH_BIAS))[:1]
