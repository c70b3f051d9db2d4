"""Choice of Inductor's candidates to time: a choices handler that lists, samples, and leaves out.

It replaces the hook of ``diode_integration``, in the sweep's own processes only.
"""

from __future__ import annotations

import random
from collections import defaultdict
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._inductor.choices import InductorChoices

from diode_collectors.inductor.adapter import config_of_choice, config_of_ktc, problem_of_inputs
from diode_collectors.inductor.indexing import reads_beyond_scales
from diode_collectors.problems.kinds import kernel_kind
from diode_collectors.problems.search_space import GUIDED, drawn_place
from diode_store.candidates.attention_space import accumulators_fit
from diode_store.candidates.default_space import GemmConfig
from diode_store.candidates.operands import has_whole_rows
from diode_store.candidates.pipelining import kernel_of
from diode_store.devices.known import AMD, NVIDIA
from diode_store.errors import RecordError
from diode_store.ops import OPS
from diode_store.ops.attending import BACKWARD, DECODING, FORWARD
from diode_store.records import is_vendor_template
from diode_store.values.keys import content_key

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from diode_collectors.problems.guide import Guide
    from diode_collectors.problems.search_space import SearchSpace
    from diode_store.records import KernelConfig, Problem

    Chooser = Callable[[list[Any], int], list[Any]]
    """Draw a number of entries from a list."""
    Kernel = Callable[[KernelConfig], KernelConfig]
    """Return equal values for configs that compile to the same kernel."""

# Each choice of these templates compiles its own graph, which takes seconds.
_SUBGRAPHS = ("contiguous", "decompose_k")
_TMA = "tma"
_PALETTE = 32
"""Number of a template's configs from which all problems that share kernels draw."""
DEFAULT, EXHAUSTIVE = "DEFAULT", "EXHAUSTIVE"


class SweepChoices(InductorChoices):  # type: ignore[misc]  # Inductor is not typed
    """Inductor's choices, replaced by those that a sweep times.

    A sample of N holds Inductor's DEFAULT list and random configs of the EXHAUSTIVE list, up to N for each template.
    The same problem and seed always give the same sample. A guided sample has the guide's configs in place of the
    DEFAULT list; an op without a guide has some of that list. Problems that share kernels draw from few configs. Of
    configs that compile to the same kernel (``diode_store.candidates.pipelining``) a guided sample has one, and a draw
    adds no duplicate. Without a template only the vendor kernels remain.
    """

    annotates_choices = True
    """Mark the choices as stock ones: this handler filters by chance, not by a model."""

    def __init__(
        self, space: SearchSpace, seed: int, guide: Guide | None = None, *, shares_kernels: bool = False
    ) -> None:
        super().__init__()
        self._shares_kernels = shares_kernels
        self._guide = guide or {}
        self._space = space
        self._seed = seed
        self.excluded: Collection[KernelConfig] = ()
        """Configs not to try again because they broke the device."""
        self.asked: Problem | None = None
        """Problem that the sweep measures."""

    def _finalize_template_configs(
        self,
        template_choices: dict[str, Any],
        kernel_inputs: Any,
        templates: list[Any],
        op_name: str,
        kwarg_overrides: dict[str, Any] | None = None,
    ) -> list[Any]:
        """Return the choices of every template that takes part."""
        found: list[Any] = []
        is_left_out = self._space.is_vendor
        problem = _problem_or_none(kernel_inputs, op_name, kwarg_overrides)
        kernel = _kernel_for(problem)
        for template in templates:
            choices = template_choices.get(template.uid)
            if choices is None or template.uid.startswith(_SUBGRAPHS):
                continue
            if self._space.is_vendor and not is_vendor_template(template.uid):
                continue
            if problem is not None and reads_beyond_scales(template, problem.shape):
                is_left_out = True
                continue
            listed = list(choices)
            if self._space.sample is not None and not is_vendor_template(template.uid):
                size = self._space.tma_sample if _TMA in template.uid else self._space.sample
                own, shared = self._own_key(problem, template.uid, op_name), self._shared_key(problem, template.uid)
                if self._space.kind == GUIDED and (problem is None or OPS[problem.op].is_standard):
                    first = self._guided(problem, template.uid, listed, kernel)[: size // 2]
                else:
                    overrides = (kwarg_overrides or {}).get(template.uid, {})
                    first = self._default(kernel_inputs, template, op_name, overrides)
                if self._space.kind == GUIDED and len(first) > size // 2:
                    first = _chooser(own, None)(first, size // 2)
                listed = filled_up(first, listed, size, _chooser(own, shared), kernel, shared or own)
            found += listed
        if self.excluded:
            found = [ktc for ktc in found if config_of_ktc(ktc) not in self.excluded]
        # Inductor benchmarks no single choice.
        return found * 2 if is_left_out and len(found) == 1 else found

    def offered(self, choices: list[Any]) -> list[Any]:
        """Return the choices to benchmark, of those that the lowering of an op without a choices handler made."""
        kept = [c for c in choices if not self.excluded or config_of_choice(c) not in self.excluded]
        return kept * 2 if self._space.is_vendor and len(kept) == 1 else kept

    def grouped(self, configs: list[Any]) -> list[Any]:
        """Return the configs of a grouped product to time: all of them, or a sample.

        Inductor has one list for these ops, which DEFAULT and EXHAUSTIVE share.
        """
        if self._space.sample is None or self.asked is None:
            return configs
        own = self._own_key(self.asked, self.asked.op, self.asked.op)
        return _chooser(own, None)(configs, min(self._space.sample, len(configs)))

    def get_flex_attention_fwd_configs(self, *arguments: Any, **named: Any) -> list[Any]:
        """Return the configs of attention to time."""
        return self._flex(FORWARD, super().get_flex_attention_fwd_configs, arguments, named)

    def get_flex_decode_configs(self, *arguments: Any, **named: Any) -> list[Any]:
        """Return the configs of attention for few queries to time."""
        return self._flex(DECODING, super().get_flex_decode_configs, arguments, named)

    def get_flex_attention_bwd_configs(self, *arguments: Any, **named: Any) -> list[Any]:
        """Return the configs of attention's gradients to time."""
        return self._flex(BACKWARD, super().get_flex_attention_bwd_configs, arguments, named)

    def _flex(
        self, op: str, stock: Callable[..., list[Any]], arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> list[Any]:
        """Return Inductor's DEFAULT configs of attention, then those of EXHAUSTIVE that the search space asks for.

        The longer list lacks some of the shorter one. Inductor drops configs whose blocks do not divide the mask's. A
        sample draws none that spill. The forward pass before gradients that a sweep measures has stock's one config.
        """
        if op != BACKWARD and self.asked is not None and self.asked.op == BACKWARD:
            return _flex_list(None, stock, arguments, named)
        found = _flex_list(DEFAULT, stock, arguments, named)
        if self._space.listed == DEFAULT:
            return found
        others = [each for each in _flex_list(EXHAUSTIVE, stock, arguments, named) if each not in found]
        if self._space.sample is None:
            return found + others
        if self.asked is not None:
            others = [c for c in others if accumulators_fit(self.asked.shape, vars(c), c.num_warps)]
        missing = min(max(self._space.sample - len(found), 0), len(others))
        return found + _chooser(self._own_key(self.asked, op, op), None)(others, missing)

    def _default(self, kernel_inputs: Any, template: Any, op_name: str, overrides: dict[str, Any]) -> list[Any]:
        """Return Inductor's DEFAULT choices of a template."""
        from torch._inductor import config

        with config.patch(max_autotune_gemm_search_space=DEFAULT):
            return list(self.get_ktc(kernel_inputs, template, op_name, overrides))

    def _guided(self, problem: Problem | None, uid: str, listed: list[Any], kernel: Kernel) -> list[Any]:
        """Return the guide's configs among a template's choices, in the guide's order, each kernel once."""
        if problem is None:
            return []
        there = {GemmConfig.of(config_of_ktc(ktc)): ktc for ktc in listed}
        wanted = self._guide.get(problem.key, {}).get(uid, ())
        found: dict[KernelConfig, Any] = {}
        for ktc in (there[config] for config in wanted if config in there):
            found.setdefault(kernel(config_of_ktc(ktc)), ktc)
        return list(found.values())

    def _own_key(self, problem: Problem | None, uid: str, op_name: str) -> bytes:
        """Return the key of the draw for one problem; for a call that is no problem, a key of its op."""
        name = op_name if problem is None else problem.key.hex()
        return content_key("sweep-sample", 1, [self._seed, name, uid])

    def _shared_key(self, problem: Problem | None, uid: str) -> bytes | None:
        """Return the key of the draw for all problems that share kernels with this one; None without sharing."""
        if problem is None or not self._shares_kernels or not has_whole_rows(problem.shape):
            return None
        return content_key("sweep-kind", 1, [self._seed, *kernel_kind(problem.shape), uid])


def _chooser(own: bytes, shared: bytes | None) -> Chooser:
    """Return a function that draws a template's choices by ``own``; with ``shared``, from the few that it draws."""
    draw = random.Random(own).sample  # noqa: S311 - no secret
    if shared is None:
        return draw

    def draw_from_few(choices: list[Any], count: int) -> list[Any]:
        few = sorted(choices, key=lambda ktc: drawn_place(config_of_ktc(ktc), shared))[: max(_PALETTE, count)]
        return draw(few, count)

    return draw_from_few


def _flex_list(
    space: str | None, stock: Callable[..., list[Any]], arguments: tuple[Any, ...], named: dict[str, Any]
) -> list[Any]:
    """Return a copy of Inductor's list of configs for attention; without a space, its one config without tuning."""
    from torch._inductor import config

    settings = {"max_autotune": space is not None} | ({"max_autotune_flex_search_space": space} if space else {})
    with config.patch(settings):
        # Decoding changes a config's block to fit the mask.
        return [copy(each) for each in stock(*arguments, **named)]


def _problem_or_none(kernel_inputs: Any, op_name: str, overrides: Any = None) -> Problem | None:
    """Return the problem of a call; None for an op that we do not record."""
    try:
        return problem_of_inputs(kernel_inputs, op_name, overrides=overrides)
    except RecordError:
        return None


def _kernel_for(problem: Problem | None) -> Kernel:
    """Return a function that maps configs to their kernels for a problem; without a problem, to themselves."""
    if problem is None:
        return lambda config: config
    return partial(kernel_of, shape=problem.shape, vendor=AMD if torch.version.hip else NVIDIA)


def filled_up(
    chosen: list[Any], listed: list[Any], size: int, chooser: Chooser, kernel: Kernel, key: bytes
) -> list[Any]:
    """Return ``chosen`` followed by drawn others of ``listed``, ``size`` in all if there are enough.

    One of the configs that compile to the same kernel may be drawn. ``key`` also draws its number of stages, so that a
    model sees that the number does not matter.
    """
    known = {kernel(config_of_ktc(ktc)) for ktc in chosen}
    others: defaultdict[KernelConfig, list[Any]] = defaultdict(list)
    for ktc in listed:
        others[kernel(config_of_ktc(ktc))].append(ktc)
    distinct = [
        min(same, key=lambda ktc: drawn_place(config_of_ktc(ktc), key))
        for same_as, same in others.items()
        if same_as not in known
    ]
    missing = max(0, size - len(chosen))
    return [*chosen, *chooser(distinct, min(missing, len(distinct)))]
