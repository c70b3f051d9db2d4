"""The candidates of one call of Inductor's choices hook.

Inductor hands the hook a generator of choices for each template. They can be iterated once only, so a
``CandidateOffer`` keeps their choices: whatever goes wrong later, stock Inductor still gets its list.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from torch._inductor import config as inductor_config

from diode_store.errors import RecordError
from diode_store.normalise import template_uid
from diode_store.records import is_vendor_template

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from torch._inductor.choices import InductorChoices
    from torch._inductor.kernel_inputs import KernelInputs
    from torch._inductor.kernel_template_choice import KernelTemplateChoice

EXHAUSTIVE = "EXHAUSTIVE"
_AS_IF_TEMPLATES = {"mm": "triton::mm", "addmm": "triton::mm", "bmm": "triton::bmm", "baddbmm": "triton::bmm"}
"""op → the template that any large GPU is offered for it."""
_one_at_a_time = threading.RLock()


@dataclass
class CandidateOffer:
    """What Inductor offers in one call: the arguments of ``_finalize_template_configs``."""

    generators: Mapping[str, Iterator[KernelTemplateChoice]]
    kernel_inputs: KernelInputs
    templates: list[Any]
    op_name: str
    kwarg_overrides: Mapping[str, dict[str, Any]]
    _listed: dict[str, list[KernelTemplateChoice]] = field(default_factory=dict)
    _broken: set[str] = field(default_factory=set)

    def stock(self, uid: str) -> list[KernelTemplateChoice]:
        """Return what Inductor itself lists for the template ``uid``."""
        if uid not in self._listed:
            try:
                self._listed[uid] = list(self.generators[uid])
            except BaseException:
                self._broken.add(uid)
                raise
        return self._listed[uid]

    def replay(self, handler: InductorChoices) -> dict[str, Iterator[KernelTemplateChoice]]:
        """Return the generators unchanged, for stock Inductor to iterate."""
        return {uid: self._replayed(uid, handler) for uid in self.generators}

    def expanded(self, uid: str, handler: InductorChoices, search_space: str) -> list[KernelTemplateChoice]:
        """Return what Inductor lists for ``uid`` in another search space; its own list if that is empty."""
        # The heuristics read the setting while they are walked, so the list must be made inside.
        with searching(search_space):
            listed = list(self._regenerated(uid, handler))
        return listed or self.stock(uid)

    def _replayed(self, uid: str, handler: InductorChoices) -> Iterator[KernelTemplateChoice]:
        if uid in self._listed:
            return iter(self._listed[uid])
        return self._regenerated(uid, handler) if uid in self._broken else self.generators[uid]

    def _regenerated(self, uid: str, handler: InductorChoices) -> Iterator[KernelTemplateChoice]:
        template = next(template for template in self.templates if template.uid == uid)
        overrides = self.kwarg_overrides.get(uid, {})
        return iter(handler.get_ktc(self.kernel_inputs, template, self.op_name, overrides))


@dataclass(frozen=True)
class Listing:
    """The candidates of one call, by whether the model can rank them."""

    ranked: list[KernelTemplateChoice]
    unranked: list[KernelTemplateChoice]


@contextmanager
def searching(search_space: str) -> Iterator[None]:
    """Have Inductor list the configs of a search space; one thread at a time.

    Until torch 2.12 its configuration is the whole process's, and two threads that each put back what they found
    would leave the wrong one.
    """
    with _one_at_a_time, inductor_config.patch(max_autotune_gemm_search_space=search_space):
        yield


def list_candidates(
    offer: CandidateOffer, handler: InductorChoices, knows: Callable[[str], bool], search_space: str | None
) -> Listing:
    """List everything that the call may choose among.

    Args:
        offer: the call.
        handler: whose ``get_ktc`` lists a template.
        knows: whether the model was trained on a template uid.
        search_space: what to list of the templates that the model knows; None for what Inductor lists.
    """
    listing = Listing([], [])
    for uid in offer.generators:
        name = _uid(uid)
        if not knows(name):
            listing.unranked.extend(offer.stock(uid))
        elif search_space is None or is_vendor_template(name):
            listing.ranked.extend(offer.stock(uid))
        else:
            listing.ranked.extend(offer.expanded(uid, handler, search_space))
    return listing


def list_as_if_on_cuda(offer: CandidateOffer, search_space: str | None) -> list[KernelTemplateChoice]:
    """List the Triton choices that a CUDA device would be offered, on a machine that has none.

    They can be ranked, but not built or run.
    """
    from torch._inductor.kernel_template_choice import make_ktc_generator  # needs the lowerings to be loaded first

    uid = _AS_IF_TEMPLATES.get(offer.op_name)
    vendor_only = bool(offer.generators) and all(is_vendor_template(_uid(other)) for other in offer.generators)
    if uid is None or not vendor_only:
        return []
    heuristic = _heuristic_registry().get_template_heuristic(uid, "cuda", offer.op_name)
    space = search_space or inductor_config.max_autotune_gemm_search_space
    with searching(space):
        generator = make_ktc_generator(
            template=_template(uid),
            cs=heuristic.get_template_configs(offer.kernel_inputs, offer.op_name),
            extra_kwargs=heuristic.get_extra_kwargs(offer.kernel_inputs, offer.op_name),
            overrides={},
            layout=offer.kernel_inputs.output_layout(),
            inputs=offer.kernel_inputs,
        )
        return list(generator)


def _template(uid: str) -> Any:
    from torch._inductor.kernel import bmm, mm  # importing them registers lowerings; inside a compile that is done

    return {"triton::mm": mm.mm_template, "triton::bmm": bmm.bmm_template}[uid]


def _heuristic_registry() -> Any:
    try:
        from torch._inductor.heuristics.template import registry  # torch 2.14 and later
    except ImportError:
        from torch._inductor.template_heuristics import registry  # torch 2.13 and before
    return registry


def _uid(uid: str) -> str:
    """Return a template's name in records, or Inductor's own where there is none."""
    try:
        return template_uid(uid)
    except RecordError:
        return uid
