"""The choices hook: Inductor lists candidates, a model ranks them, few are compiled and timed.

One method of ``InductorChoices`` is overridden, ``_finalize_template_configs`` (torch 2.10 and later). Whatever goes
wrong in it, stock Inductor's own list is used: the hook never raises inside a user's compile.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from torch._inductor import config as inductor_config
from torch._inductor.choices import InductorChoices

from diode_collectors.inductor.adapter import POLICY_ANNOTATION, detect_hardware
from diode_collectors.inductor.indexing import overflows
from diode_integration import convolution, dynamic, final
from diode_integration.candidates import KnownLists
from diode_integration.epilogue import unfused_us
from diode_integration.fallbacks import Fallbacks
from diode_integration.listing import EXHAUSTIVE, CandidateOffer, Lister, Listing, is_tuned, lists_for_cpu
from diode_integration.options import asks_similar, hardware_named, policy_for, unknown_for, usable_models
from diode_integration.picked import usable_picks
from diode_integration.policy import Mode, Policy, select
from diode_integration.predictor import AbstentionError
from diode_integration.retry import Graph
from diode_integration.spooling import recorder_for
from diode_integration.stats import DecidedBy, Decision, Stats
from diode_integration.unknown import FAILED, OVERFLOW, Unknown, VendorCalls, why_vendor
from diode_store import safely
from diode_store.devices import AMD, NVIDIA
from diode_store.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from torch._inductor.kernel_inputs import KernelInputs
    from torch._inductor.kernel_template_choice import KernelTemplateChoice

    from diode_integration.model_set import KnownModel, ModelSet
    from diode_integration.picking import Sought
    from diode_integration.predictor import Model, Predictor
    from diode_store.exchange.picks import Picks
    from diode_store.records import Hardware, Problem

HOOK_VERSION = 7
"""Part of every cache key; raise it when the same model and policy would choose differently."""
INHERIT = "inherit"
_FOR_A_RANGE = Policy(mode=Mode.TOP_K, top_k_configs=8, performance_threshold=2.0)
"""What one call of several leaves over a range of sizes, as candidates of the others move the regret of its own."""


class DiodeInductorChoices(InductorChoices):  # type: ignore[misc]  # Inductor is not typed
    """Leaves to Inductor the few candidates that a model finds worth a try.

    One handler may serve every thread. Use ``diode_integration.install`` to make it the process's; with
    ``V.set_choices_handler`` it applies to one thread only, and Inductor's FX graph cache does not know of it.

    Args:
        model_path: the checkpoint, or a model's name; when None what DIODE_MODEL says, else for each product the
            first of the user's models and the shipped ones that knows the device and it (`diode models list`).
        top_k_configs: how many candidates to leave in "top_k" mode; when None what DIODE_TOP_K says, else 3.
        enable_fallback: without a usable model, leave everything to stock Inductor; if False, raise now.
            Inside a compile nothing is raised in either case.
        performance_threshold: in "top_k" mode, leave only candidates within this ratio of the best prediction; 1.1
            when None.
        mode: "adaptive": leave one where the model is sure, else as many as are worth benchmarking; "top_k"; or
            "zero": leave exactly one and benchmark nothing. When None, what DIODE_MODE says, else "adaptive", or
            "top_k" where one of its options is given or the model does not know how sure it is.
        kernel_price: in "adaptive" mode, for what relative gain a kernel is worth benchmarking, such as 0.01 for
            1%; when None the model's own, for which one kernel an op is benchmarked in the mean.
        search_space: of the Triton templates that the model knows, rank Inductor's "EXHAUSTIVE" list, its
            "DEFAULT" list, or ("inherit") the one that its configuration asks for.
        hardware: rank as if on this device, by name or alias, instead of the one that compiles.
        unknown: who chooses where the model is not believed. "vendor": the vendor's kernel is kept alone and
            nothing is benchmarked, convolutions included; "stock": Inductor; "auto": the vendor's kernel where
            little could be won, and Inductor elsewhere and on devices that the model does not know. When None,
            what DIODE_UNKNOWN says, else "vendor" in zero mode and "auto" in the others.
        similar: "top_k": on a device that no model knows, have those of the most similar one rank, and benchmark
            as in top-k mode; "": do not. When None, what DIODE_SIMILAR says. Zero mode never does.
        observe: rank and record decisions, but let stock Inductor choose.
        corrections: a file by ``diode corrections``, whose offsets correct what the model predicts; when None,
            the one that the environment variable DIODE_CORRECTIONS names, if it does.
        spool: the folder that ``diode-ingest`` reads, for a record of each decision; when None, the one that
            DIODE_SPOOL names, if it does; "" for none.
        picks: a file by ``diode lock`` or ``torch_diode.lock``, whose kernels are kept before the model is asked;
            when None, the one that DIODE_PICKS names, if it does.
        model: a loaded model, or several in the order in which they are asked, instead of ``model_path``.

    Raises:
        ModelError: no usable model, or corrections that cannot be used, and ``enable_fallback`` is False.
        PicksError: picks that cannot be used, and ``enable_fallback`` is False.
        SettingsError: an option has a value that cannot be used.
        HardwareError: no device is known by the name ``hardware``.
        SpoolError: ``spool`` cannot be used.
    """

    annotates_choices = True
    """Tells collectors that a list is stock Inductor's unless its choices say otherwise."""

    def __init__(  # noqa: PLR0913 - the documented options
        self,
        model_path: Path | str | None = None,
        *,
        top_k_configs: int | None = None,
        enable_fallback: bool = True,
        performance_threshold: float | None = None,
        mode: Mode | str | None = None,
        kernel_price: float | None = None,
        search_space: str = EXHAUSTIVE,
        hardware: Hardware | str | None = None,
        unknown: Unknown | str | None = None,
        similar: str | None = None,
        observe: bool = False,
        corrections: Path | str | None = None,
        spool: Path | str | None = None,
        picks: Picks | Path | str | None = None,
        model: Model | Sequence[KnownModel] | None = None,
    ) -> None:
        super().__init__()
        if search_space not in {EXHAUSTIVE, "DEFAULT", INHERIT}:
            raise SettingsError(f"search_space must be {EXHAUSTIVE}, DEFAULT or {INHERIT}, not {search_space!r}")
        self.observe = observe
        self._search_space = None if search_space == INHERIT else search_space
        self._hardware = hardware_named(hardware)
        self._stats = Stats()
        self._known_lists = KnownLists()
        self._fallbacks = Fallbacks(self._stats)
        self._picks = usable_picks(picks, self._hardware, self._stats, enable_fallback=enable_fallback)
        ranks_all = search_space == EXHAUSTIVE
        self.models, self._lacking = usable_models(
            model, model_path, corrections, self._hardware, ranks_all=ranks_all, enable_fallback=enable_fallback
        )
        self.policy = policy_for(self.models, mode, top_k_configs, performance_threshold, kernel_price)
        self.unknown = unknown_for(unknown, self.policy.mode)
        self._similar = asks_similar(similar, self.policy.mode)
        self._vendor_calls = VendorCalls()
        self._recorder = recorder_for(spool, self._stats, self.policy, self.models, HOOK_VERSION)
        forget_picks = () if self._picks is None else (self._picks.forget,)
        self.graph = Graph(self._stats, self._recorder, self._vendor_calls.forget, *forget_picks)

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
        parts = (HOOK_VERSION, self._sha256, self.policy.key, self.unknown, self._search_space or INHERIT, device)
        corrected = self.models.corrections if self.models else None
        also = [f"corrected by {corrected.key}"] if corrected else []
        also += [f"picks {self._picks.key}"] if self._picks else []
        also += ["similar"] if self._similar else []
        return "torch-diode/" + "/".join(str(part) for part in (*parts, "observe" if self.observe else "choose", *also))

    def get_stats(self) -> dict[str, float]:
        """Return what the hook has done so far.

        ``total_calls`` of the hook; ``passed_through``: calls outside max-autotune; ``model_selections``: ops that
        the model decided; ``picked_from_file``: those that a picks file did, and ``picks_missed``: those whose picks
        were not to be had; ``unknown_vendor`` and ``unknown_stock``: ops that neither decided, by who chose;
        ``fallback_<reason>``: calls in which it did not, by why; ``configs_filtered``: candidates dropped,
        ``configs_kept``: those left; ``kept_alone``: ops of which one was left, and nothing benchmarked;
        ``failed_graphs``: graphs that were compiled again as a kernel that was kept could not be used;
        ``decisions_recorded``: those handed over to be spooled, ``decisions_dropped``: of these, those that were lost,
        ``decisions_unrecorded``: those that no record can hold, on no known matrix product;
        ``corrected``: calls whose predictions were corrected; ``seconds`` spent, ``seconds_listing`` of them in
        Inductor's own listing of candidates.
        """
        return self._stats.snapshot()

    def reset_stats(self) -> None:
        """Begin anew: ``get_stats()`` counts from 0, and ``decisions()`` holds those from now on."""
        self._stats.reset()

    def decisions(self) -> list[Decision]:
        """Return the most recent decisions, oldest first."""
        return self._stats.decisions()

    def _finalize_template_configs(
        self,
        template_choices: dict[str, Iterator[KernelTemplateChoice]],
        kernel_inputs: KernelInputs,
        templates: list[Any],
        op_name: str,
        kwarg_overrides: dict[str, dict[str, Any]] | None = None,
    ) -> list[KernelTemplateChoice]:
        """Return the candidates of one call that Inductor goes on with (overrides Inductor's method)."""
        offer = CandidateOffer(template_choices, kernel_inputs, templates, op_name, kwarg_overrides or {})
        result = self._result(offer)
        if isinstance(result, list):
            return self._marked(offer, result)
        stock: list[KernelTemplateChoice] = super()._finalize_template_configs(
            offer.replay(self), kernel_inputs, templates, op_name, kwarg_overrides
        )
        if result is not None:
            for ktc in stock:
                self._mark(ktc, result)
        return self._marked(offer, stock)

    def keeps_vendors_convolution(self) -> bool:
        """Whether the next convolution is to be the vendor's, without tuning."""
        try:
            wanted = (self.unknown is Unknown.VENDOR or self.graph.is_without_model) and not self.observe and is_tuned()
            return wanted and convolution.offers_vendor()
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            self.failed(error)
            return False

    def settled(self, decision: Decision) -> None:
        """Record a decision on a whole op."""
        self._stats.decide(decision)
        self.graph.settled(decision)

    def flush(self) -> None:
        """Put the decisions that wait into the spool, for ``diode-ingest`` to take; harmless without one."""
        if self._recorder is not None:
            self._recorder.close()

    def failed(self, error: Exception) -> None:
        """Record an error that the compile survived."""
        self._fallbacks.count("error", safely.in_words(error), logging.WARNING, error)

    def _result(
        self, offer: CandidateOffer
    ) -> list[KernelTemplateChoice] | final.RankedCall | final.AbstainedCall | None:
        """Return what to keep; or, where stock Inductor chooses, how to mark its choices, None for not at all."""
        self._stats.count("total_calls")
        try:
            if not is_tuned():
                self._stats.count("passed_through")
                return None
            final.ensure_registered()  # makes Inductor's selector, which takes long once, and which it needs anyway
            offer.started = perf_counter()
            with self._stats.timed("seconds"):
                return self._choose(offer)
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            self.failed(error)
            reason = f"error: {safely.in_words(error)}"
            decision = Decision(offer.op_name, None, "", 0, (), None, reason, decided_by=DecidedBy.STOCK)
            return final.AbstainedCall(self, decision)

    def _choose(
        self, offer: CandidateOffer
    ) -> list[KernelTemplateChoice] | final.RankedCall | final.AbstainedCall | None:
        with self._stats.timed("seconds_listing"):
            sought = self._sought(offer)
        if sought is not None:
            offer.on_listed = sought.mark
            if (picked := sought.kept()) is not None:
                return picked
        try:
            listing, call = self._rank(offer)
        except AbstentionError as abstention:
            return self._unranked(offer, abstention)
        if call is None:
            self._stats.count("passed_through")
            return None
        return call if self.observe else self._preselect(call) + listing.unranked

    def _sought(self, offer: CandidateOffer) -> Sought | None:
        """Look for what a picks file names for a call; None if it names nothing."""
        hinted = getattr(inductor_config, "multi_kernel_hints", None)
        if self._picks is None or self.graph.is_without_model or hinted:
            return None
        hardware = self._hardware or detect_hardware(offer.kernel_inputs.device())
        problem = dynamic.problem_or_none(offer.kernel_inputs, offer.op_name)
        if hardware is None or problem is None or dynamic.stated_range(offer.kernel_inputs, offer.op_name):
            return None  # a kernel that was measured at one size says nothing of a range
        return self._picks.sought(Lister(offer, self, problem, self._known_lists, None), self, hardware)

    def _marked(self, offer: CandidateOffer, listed: list[KernelTemplateChoice]) -> list[KernelTemplateChoice]:
        try:
            if offer.on_listed is not None:
                offer.on_listed(listed)
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            self.failed(error)
        return listed

    def _rank(self, offer: CandidateOffer) -> tuple[Listing, final.RankedCall | None]:
        """Rank the candidates of a call; None when it offers nothing that the model knows.

        Raises:
            AbstentionError: there is no model, or this is outside its domain.
        """
        models = self._ready()
        hardware = self._device(offer)
        problem = dynamic.problem_at_hint(offer.kernel_inputs, offer.op_name)
        over = dynamic.stated_range(offer.kernel_inputs, offer.op_name)
        largest = over.largest if over else None
        if hardware.vendor in {NVIDIA, AMD} and overflows(largest or problem):
            raise AbstentionError(OVERFLOW, "Triton's kernels of this torch would read memory outside the matrices")
        predictor = models.asked_about(problem, hardware, over.problems if over else (), similar=self._similar)
        with self._stats.timed("seconds_listing"):
            listing = self._list(offer, problem, predictor, hardware, largest)
        if not listing.ranked:
            return listing, None
        columns = listing.ranked.columns
        ranking = predictor.rank(problem, hardware, columns, distinct=not dynamic.is_dynamic(offer.kernel_inputs))
        if over is None:
            ranking = ranking.charged(unfused_us(problem, hardware))
        else:
            ranking = dynamic.over_range(predictor, ranking, over, hardware, columns)
        if ranking.corrected:
            self._stats.count("corrected")
        return listing, final.RankedCall(
            self, offer.op_name, ranking, listing.ranked, seconds=perf_counter() - offer.started
        )

    def _ready(self) -> ModelSet:
        if self.graph.is_without_model:
            raise AbstentionError(FAILED, "a kernel that was picked for this graph cannot be used")
        if self.models is None:
            raise AbstentionError("no_model", self._lacking)
        if getattr(inductor_config, "multi_kernel_hints", None):
            raise AbstentionError("multi_kernel", "kernels for several hinted sizes at once are not ranked")
        return self.models

    def _device(self, offer: CandidateOffer) -> Hardware:
        device = offer.kernel_inputs.device()
        hardware = self._hardware or detect_hardware(device)
        if hardware is None:
            raise AbstentionError("hardware", f"torch-diode cannot identify this {device.type} device")
        return hardware

    def _list(
        self,
        offer: CandidateOffer,
        problem: Problem,
        predictor: Predictor,
        hardware: Hardware,
        largest: Problem | None = None,
    ) -> Listing:
        lister = Lister(offer, self, problem, self._known_lists, self._search_space, largest)
        listing = lister.list_candidates(predictor.knows)
        if self.observe and hardware.vendor == NVIDIA and lists_for_cpu(offer):
            lister.add_as_if_on_cuda(listing.ranked)
        return listing

    def _preselect(self, call: final.RankedCall) -> list[KernelTemplateChoice]:
        """Return the choices that may survive the final selection, marked.

        Another call of the same op may have better ones but never more candidates, so the best of this call are
        enough; of those that go together nearly always, as a vendor's kernel of another call is not among them yet (of
        687 products 4 would have kept another template). All vendor kernels are kept: they cost nothing until then, and
        replace a template that fails.
        """
        ranking = call.ranking
        policy = self.policy.benchmarking if ranking.similar_to else self.policy
        policy = policy if ranking.over is None else _FOR_A_RANGE
        best = select(ranking.predicted_us, ranking.is_vendor, policy, ranking.spread, preliminary=True).indices
        kept = list(dict.fromkeys((*best, *np.flatnonzero(ranking.is_vendor).tolist())))
        for index in kept:
            annotations = call.ktcs[index].annotations
            annotations[final.ANNOTATION] = final.Mark(call, index)
            annotations[POLICY_ANNOTATION] = f"hook:{ranking.model_sha256}"
        return [call.ktcs[index] for index in kept]

    def _mark(self, ktc: KernelTemplateChoice, call: final.RankedCall | final.AbstainedCall) -> None:
        """Mark one of stock Inductor's choices as one of ``call``, if it can be marked."""
        try:
            ktc.annotations.pop(POLICY_ANNOTATION, None)  # left by a selection that failed half-way
            ktc.annotations[final.ANNOTATION] = final.Mark(call)
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            self.failed(error)

    def _unranked(
        self, offer: CandidateOffer, abstention: AbstentionError
    ) -> list[KernelTemplateChoice] | final.AbstainedCall:
        """Return the vendor's kernels of a call that the model does not rank; or how to mark what Inductor lists."""
        hardware = self._hardware or detect_hardware(offer.kernel_inputs.device())
        problem = dynamic.problem_or_none(offer.kernel_inputs, offer.op_name)
        why = None if self.observe else why_vendor(self.unknown, abstention.reason, problem, hardware)
        vendors = None if why is None else self._vendor_calls.kept(offer)
        chooser = DecidedBy.STOCK if vendors is None else DecidedBy.VENDOR
        reason = str(abstention) if vendors is None else f"{abstention}; {why}"
        name = hardware.name if hardware else str(offer.kernel_inputs.device())
        decision = Decision(offer.op_name, problem, name, 0, (), None, reason, decided_by=chooser, device=hardware)
        call = final.AbstainedCall(self, replace(decision, seconds=perf_counter() - offer.started))
        self._fallbacks.abstained(abstention, offer.kernel_inputs.device_type, chooser)
        if vendors is None:
            return call
        for ktc in vendors:
            ktc.annotations[final.ANNOTATION] = final.Mark(call)
            ktc.annotations[POLICY_ANNOTATION] = f"hook:{self._sha256}"
        return vendors
