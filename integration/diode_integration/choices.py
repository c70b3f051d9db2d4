"""The choices handler: Inductor lists candidates, a model ranks them, few are compiled and timed.

If anything goes wrong, stock Inductor's own list is used: the hook never raises inside a user's compile.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_collectors.inductor.adapter import POLICY_ANNOTATION, detect_hardware
from diode_collectors.inductor.indexing import overflows
from diode_integration import convolution
from diode_integration.attention import AttentionChooser
from diode_integration.decide.abstention import Abstention, Asked, Question, Unknown, who_ranks, why_vendor
from diode_integration.decide.alone import alone_models
from diode_integration.decide.decision import ERROR, DecidedBy, Decision
from diode_integration.inductor import benchmark, entry, fused, unranked
from diode_integration.inductor.candidates import KnownLists
from diode_integration.inductor.convolutions import settle_kept
from diode_integration.inductor.entry import AbstainedCall, CallMark, RankedCall
from diode_integration.inductor.listing import Lister, VendorCalls, is_multi_kernel, is_tuned, lists_for_cpu
from diode_integration.inductor.products import over_range, product_of, unfused_us
from diode_integration.picks.search import FilePicks, settle_picks
from diode_integration.record.log import Graphs, Stats
from diode_integration.record.spooling import recorder_for
from diode_integration.settings import INHERIT, HookSettings
from diode_store.devices.known import AMD, NVIDIA
from diode_store.ops import FUSED_OPS, OPS
from diode_store.values import safely
from diode_trainer.policy import Mode, Policy, select

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import torch
    from torch._inductor.kernel_template_choice import KernelTemplateChoice

    from diode_collectors.inductor.fused_source import FusedSource
    from diode_integration.decide.clock import Timed
    from diode_integration.decide.ranking import Model
    from diode_integration.inductor.attention import Offered
    from diode_integration.inductor.candidates import Candidates
    from diode_integration.inductor.entry import LowerWith
    from diode_integration.inductor.fused import Retuned
    from diode_integration.inductor.listing import CandidateOffer, Listing
    from diode_integration.inductor.products import Product
    from diode_integration.picks.search import Sought
    from diode_store.kernels import KernelConfig
    from diode_store.records import Hardware

_SERVED_PLAIN = {*FUSED_OPS, *(name for name, op in OPS.items() if op.is_attention)}
"""Ops whose picks serve compiles without max-autotune too."""
_FOR_A_RANGE = Policy(mode=Mode.TOP_K, top_k_configs=8, performance_threshold=2.0)
"""Preselection policy for dynamic sizes. Candidates from other calls can change the regret."""


class DiodeInductorChoices(entry.Handler):
    """Leaves to Inductor the few candidates that a model finds worth a try.

    One handler may serve every thread. ``diode_integration.install`` makes it the process's handler.
    ``V.set_choices_handler`` applies it to one thread only, and Inductor's FX graph cache does not know of it.

    Args:
        model_path: the checkpoint, or a model's name.
        settings: all options; when None ``options``, completed from the environment.
        options: fields of ``HookSettings``.

    Raises:
        ModelError: no usable model, or corrections that cannot be used, and ``enable_fallback`` is False.
        PicksError: picks that cannot be used, and ``enable_fallback`` is False.
        SettingsError: an option has a value that cannot be used.
        HardwareError: no device is known by the name ``hardware``.
        SpoolError: ``spool`` cannot be used.
    """

    graphs: Graphs

    def __init__(
        self, model_path: Path | str | None = None, *, settings: HookSettings | None = None, **options: Any
    ) -> None:
        super().__init__()
        settings = settings or HookSettings.of(model_path=model_path, **options)
        self.settings = settings
        self.observe = settings.observe
        self._search_space = None if settings.search_space == INHERIT else settings.search_space
        self._hardware = settings.device()
        self._stats = Stats()
        self._known_lists = KnownLists()
        picks = settings.usable_picks(self._hardware)
        self._picks = None if picks is None else FilePicks(picks, self._stats.count)
        may_change_plain = settings.serves_plain and not self.observe
        self.serves_plain = may_change_plain and self._picks is not None and self._picks.has_any(_SERVED_PLAIN)
        self.models, self._why_no_model = settings.usable_models(self._hardware)
        self.policy = settings.policy_for(self.models)
        self.unknown = settings.unknown_for(self.policy.mode)
        self.alone = alone_models()
        self._attention = AttentionChooser(
            self.alone, self._hardware, self.unknown, self._stats.once, serves_plain=may_change_plain
        )
        self.serves_plain_attention = may_change_plain and self.alone is not None
        self.clock = settings.clock_in_use()
        self._vendor_calls = VendorCalls()
        self._recorder = recorder_for(
            settings.spool,
            self._stats,
            self.policy,
            self.models,
            entry.HOOK_VERSION,
            may_fail="spool" in settings.from_environment,
        )
        calls = [self._vendor_calls.calls, *([self._picks.calls] if self._picks else [])]
        self.graphs = Graphs(self._stats, self._recorder, self._attention.forget, *(each.forget for each in calls))

    @property
    def model(self) -> Model | None:
        """The model that is asked first, or None without one."""
        return self.models.first.model if self.models else None

    @property
    def _sha256(self) -> str:
        return self.models.key if self.models else "no model"

    def uuid(self) -> str:
        """Return this handler's part of Inductor's cache key: everything that its choices depend on."""
        device = self._hardware.key.hex() if self._hardware else "detected"
        parts = (entry.HOOK_VERSION, self._sha256, self.policy.key, self.unknown, self._search_space or INHERIT, device)
        corrected = self.models.corrections if self.models else None
        also = [f"corrected by {corrected.key}"] if corrected else []
        also += [f"picks {self._picks.key}"] if self._picks else []
        also += [f"alone {self.alone.key}"] if self.alone else []
        also += [] if self.settings.serves_plain else ["plain left alone"]
        also += [f"clock {self.clock}"] if self.policy.mode is not Mode.ZERO else []
        # Descriptors tell near from known, and are no part of the key of a named device.
        also += [self.models.standing(self._hardware).familiarity] if self.models and self._hardware else []
        return "torch-diode/" + "/".join(str(part) for part in (*parts, "observe" if self.observe else "choose", *also))

    def get_stats(self) -> dict[str, float]:
        """Return counts and seconds of the hook's work so far; docs/hook-settings.md explains each name."""
        return self._stats.snapshot()

    def reset_stats(self) -> None:
        """Forget earlier decisions: ``get_stats()`` counts from 0, and ``decisions()`` holds later decisions only."""
        self._stats.reset()

    def decisions(self) -> list[Decision]:
        """Return the most recent decisions, oldest first."""
        return self._stats.decisions()

    def flush(self) -> None:
        """Put waiting decisions into the spool, for ``diode-ingest`` to take; harmless without a spool."""
        if self._recorder is not None:
            self._recorder.close()

    def choose(self, offer: CandidateOffer) -> list[KernelTemplateChoice] | None:
        """Return the candidates of a call to go on with; None for stock Inductor's."""
        self._stats.count("total_calls")
        try:
            if not is_tuned():
                self._stats.count("passed_through")
                return None
            benchmark.engage_for(self)
            entry.ensure_registered()  # slow once, so outside the timed block; the compile needs it anyway
            offer.started = perf_counter()
            with self._stats.timed("seconds"):
                return self._choose(offer)
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            self.failed(error)
            reason = f"{ERROR}{safely.in_words(error)}"
            decision = Decision(offer.op_name, None, "", 0, (), None, reason, decided_by=DecidedBy.STOCK)
            offer.on_listed.append(CallMark(self, AbstainedCall(decision)).put_on_all)
            return None

    def selected(self, choices: list[Any]) -> list[Any]:
        """Return the choices of an op to go on with: its picked kernel, or those that the policy leaves."""
        picked = partial(settle_picks, observe=self.observe)
        for settle in (settle_kept, picked, partial(entry.settle, policy=self.policy, observe=self.observe)):
            try:
                settled = settle(choices)
                if settled is not None:
                    self.settled(settled[1])
                    return settled[0]
            except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
                self.failed(error)
        return choices

    @property
    def _picks_in_use(self) -> FilePicks | None:
        """The picks that decide in this thread's graph; None while the hook observes, or after one has failed."""
        return None if self.observe or self.graphs.is_without_model else self._picks

    def why_untuned(self, device: torch.device | None) -> str | None:
        """Return why to lower the next op, which no model ranks, without tuning; None if Inductor chooses."""
        try:
            if self.observe or not is_tuned() or not unranked.offers_vendor():
                return None
            unknown = Unknown.VENDOR if self.graphs.is_without_model else self.unknown
            return unranked.why_kept(unknown, self.models, self.device_of(device))
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            self.failed(error)
            return None

    def fused(self, source: FusedSource, device: torch.device) -> Retuned | None:
        """Return the source of a fused kernel to compile instead; None for the source as it is.

        A measured config needs no tuning. Other kernels lose max-autotune's long list and coordinate descent where the
        hook keeps vendor kernels. Zero mode takes the heuristics' first config, others the list of a plain compile.
        """
        try:
            if self.observe or not (source.is_tuned or self.settings.serves_plain):
                return None
            hardware = self.device_of(device)
            if (picks := self._picks_in_use) is not None and hardware is not None:
                picked = picks.fused(source, hardware)
                if picked is not None:
                    self._stats.count("fused_picked")
                    self.graphs.keeps_template()
                    return fused.retuned(source, picked)
            unknown = Unknown.VENDOR if self.graphs.is_without_model else self.unknown
            if not source.is_tuned or unranked.why_kept(unknown, self.models, hardware) is None:
                self._stats.count("fused_stock")
                return None
            self._stats.count("fused_untuned")
            first = fused.first_config(source) if self.policy.mode is Mode.ZERO else None
            return fused.Retuned(source.without_tuning()) if first is None else fused.retuned(source, first)
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            self.failed(error)
            return None

    def convolution(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> LowerWith | None:
        """Return how to lower a call of ``aten.convolution`` with its kernel; None without a pick or prediction."""
        try:
            if self.graphs.is_without_model or not is_tuned() or not unranked.offers_vendor():
                return None
            with self._stats.timed("seconds"):
                return convolution.choose(self, arguments, named, self._picks, self.alone)
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            self.failed(error)
            return None

    def attention(self, op: str, arguments: Sequence[Any], offered: Offered) -> KernelConfig | None:
        """Return the config for a call of flex attention; None for Inductor's own list."""
        try:
            with self._stats.timed("seconds"):
                again = self.graphs.is_without_model
                chosen = self._attention.choose(op, arguments, offered, self._picks_in_use, again=again)
            if chosen is None:
                return None
            self.settled(replace(chosen.decision, observed=self.observe), is_counted=True)
            if chosen.config is not None and not self.observe:
                self.graphs.keeps_template()
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            self.failed(error)
            return None
        return None if self.observe else chosen.config

    def device_of(self, device: torch.device | None) -> Hardware | None:
        """Return the device to choose for where ``device`` compiles; None if it cannot be identified."""
        return self._hardware or (detect_hardware(device) if device else None)

    def settled(self, decision: Decision, *, is_counted: bool = False) -> None:
        """Record a decision on a whole op; an abstention may be counted by the first word of its reason."""
        self._stats.decide(decision, is_counted=is_counted)
        self.graphs.settled(decision)

    def failed(self, error: Exception) -> None:
        """Record an error that the compile survived."""
        self._stats.fallback("error", safely.in_words(error), logging.WARNING, error)

    def passed_by(self, choices: list[Any]) -> None:
        """Count an op that Inductor tunes without asking the hook; each kind is logged once."""
        if len(choices) > 1:
            self._stats.uncovered(str(getattr(choices[0], "name", type(choices[0]).__name__)), len(choices))

    def clocked(self, timed: Timed) -> None:
        """Count a benchmark by torch-diode's clock."""
        self._stats.clocked(timed)

    def clock_failed(self, error: Exception) -> None:
        """Record why Inductor's benchmark runs instead of torch-diode's clock; logged once."""
        self._stats.count("clock_failures")
        self._stats.once.log("clock", f"Inductor benchmarks: {safely.in_words(error)}", error=error)

    def _choose(self, offer: CandidateOffer) -> list[KernelTemplateChoice] | None:
        hardware = self.device_of(offer.kernel_inputs.device())
        product = product_of(offer.kernel_inputs, offer.op_name, offer.kwarg_overrides)
        with self._stats.timed("seconds_listing"):
            sought = self._sought(offer, product, hardware)
        if sought is not None:
            offer.on_listed.append(sought.marker(self))
            if (kept := sought.kept(observe=self.observe)) is not None:
                return kept
        question = self._question(offer, product, hardware)
        asked = who_ranks(question)
        if isinstance(asked, Asked):
            with self._stats.timed("seconds_listing"):
                listing = self._list(offer, product, asked)
            if not listing.ranked:
                self._stats.count("passed_through")
                return None
            call = self._rank(offer, product, asked, listing.ranked)
            if call.ranking.defect is None:
                return self._ranked(offer, call, listing.unranked)
            asked = who_ranks(replace(question, defect=call.ranking.defect))
        return self._abstain(offer, question, asked) if isinstance(asked, Abstention) else None

    def _sought(self, offer: CandidateOffer, product: Product, hardware: Hardware | None) -> Sought | None:
        """Look for what a picks file names for a call; None if it names nothing."""
        if self._picks is None or self.graphs.is_without_model or is_multi_kernel():
            return None
        if hardware is None or product.problem is None or product.over is not None:
            return None  # a measurement at one size tells nothing about a range
        lister = Lister(offer, self, product.problem, self._known_lists, None, hardware)
        return self._picks.sought(lister, hardware, observe=self.observe)

    def _question(self, offer: CandidateOffer, product: Product, hardware: Hardware | None) -> Question:
        has_triton = hardware is not None and hardware.vendor in {NVIDIA, AMD}
        return Question(
            models=self.models,
            why_no_model=self._why_no_model,
            hardware=hardware,
            device_type=offer.kernel_inputs.device_type,
            problem=product.problem,
            defect=product.defect,
            others=product.others,
            may_benchmark=self.policy.mode is not Mode.ZERO,
            is_second_try=self.graphs.is_without_model,
            is_multi_kernel=is_multi_kernel(),
            overflows=has_triton and product.largest is not None and overflows(product.largest),
        )

    def _list(self, offer: CandidateOffer, product: Product, asked: Asked) -> Listing:
        largest = product.over.largest if product.over else None
        lister = Lister(offer, self, asked.problem, self._known_lists, self._search_space, asked.hardware, largest)
        listing = lister.list_candidates(asked.predictor.knows)
        if self.observe and asked.hardware.vendor == NVIDIA and lists_for_cpu(offer):
            lister.add_as_if_on_cuda(listing.ranked)
        return listing

    def _rank(self, offer: CandidateOffer, product: Product, asked: Asked, candidates: Candidates) -> RankedCall:
        predictor, problem, hardware = asked
        columns = candidates.columns
        ranking = predictor.rank(problem, hardware, columns, distinct=not product.is_dynamic)
        if ranking.defect is None:
            if product.over is None:
                ranking = ranking.charged(unfused_us(problem, hardware))
            else:
                ranking = over_range(predictor, ranking, product.over, hardware, columns)
        if ranking.corrected:
            self._stats.count("corrected")
        return RankedCall(offer.op_name, ranking, candidates, seconds=perf_counter() - offer.started)

    def _ranked(
        self, offer: CandidateOffer, call: RankedCall, unranked: list[KernelTemplateChoice]
    ) -> list[KernelTemplateChoice] | None:
        """Return the choices that may survive the final selection, marked; None if the hook only observes.

        Other calls of the same op can only lower the number of choices kept from this call, so its best are enough.
        This holds nearly always for complementary candidates, which depend on the vendor kernel of another call. All
        vendor kernels stay: they cost nothing until the final selection, and replace a template that fails.
        """
        if self.observe:
            offer.on_listed.append(CallMark(self, call).put_on_all)
            return None
        ranking = call.ranking
        policy = self.policy.near(ranking.spread) if ranking.near_to else self.policy
        policy = policy if ranking.over is None else _FOR_A_RANGE
        best = select(ranking.predicted_us, ranking.is_vendor, policy, ranking.spread, preliminary=True).indices
        kept = list(dict.fromkeys((*best, *np.flatnonzero(ranking.is_vendor).tolist())))
        for index in kept:
            CallMark(self, call, index).put_on(call.ktcs[index])
            call.ktcs[index].annotations[POLICY_ANNOTATION] = f"hook:{ranking.model_sha256}"
        return [call.ktcs[index] for index in kept] + unranked

    def _abstain(
        self, offer: CandidateOffer, question: Question, abstention: Abstention
    ) -> list[KernelTemplateChoice] | None:
        """Return the vendor kernels of a call that no model ranks; None if Inductor chooses."""
        hardware, problem = question.hardware, question.problem
        why = None if self.observe else why_vendor(self.unknown, abstention.reason, problem, hardware)
        vendors = None if why is None else self._vendor_calls.kept(offer)
        chooser = DecidedBy.STOCK if vendors is None else DecidedBy.VENDOR
        reason = str(abstention) if vendors is None else f"{abstention}; {why}"
        name = hardware.name if hardware else str(offer.kernel_inputs.device())
        decision = Decision(offer.op_name, problem, name, 0, (), None, reason, decided_by=chooser, device=hardware)
        mark = CallMark(self, AbstainedCall(replace(decision, seconds=perf_counter() - offer.started)))
        self._stats.abstained(abstention, question.device_type, chooser)
        if vendors is None:
            offer.on_listed.append(mark.put_on_all)
            return None
        for ktc in vendors:
            mark.put_on(ktc)
            ktc.annotations[POLICY_ANNOTATION] = f"hook:{self._sha256}"
        return vendors
