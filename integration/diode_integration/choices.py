"""The choices hook: Inductor lists candidates, a model ranks them, few are compiled and timed.

One method of ``InductorChoices`` is overridden, ``_finalize_template_configs`` (torch 2.10 and later). Whatever goes
wrong in it, stock Inductor's own list is used: the hook never raises inside a user's compile.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from torch._inductor import config as inductor_config
from torch._inductor.choices import InductorChoices

from diode_collectors.inductor.adapter import POLICY_ANNOTATION, columns_of_choices, detect_hardware, problem_of_inputs
from diode_integration import final, uncovered
from diode_integration.corrected import usable_corrections
from diode_integration.listing import EXHAUSTIVE, CandidateOffer, Listing, list_as_if_on_cuda, list_candidates
from diode_integration.policy import Mode, Policy, make_policy, select
from diode_integration.predictor import AbstentionError, Predictor
from diode_integration.stats import Decision, Stats
from diode_store import safely
from diode_store.devices import NVIDIA, known_device
from diode_store.errors import DiodeError, HardwareError, RecordError, SettingsError
from diode_trainer import artifact

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch._inductor.kernel_inputs import KernelInputs
    from torch._inductor.kernel_template_choice import KernelTemplateChoice

    from diode_integration.predictor import Model
    from diode_store.records import Hardware, Problem

log = logging.getLogger("diode_integration")

HOOK_VERSION = 2
"""Part of every cache key; raise it when the same model and policy would choose differently."""
INHERIT = "inherit"


class DiodeInductorChoices(InductorChoices):  # type: ignore[misc]  # Inductor is not typed
    """Leaves to Inductor the few candidates that a model predicts to be fastest.

    One handler may serve every thread. Use ``diode_integration.install`` to make it the process's; with
    ``V.set_choices_handler`` it applies to one thread only, and Inductor's FX graph cache does not know of it.
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
        observe: bool = False,
        corrections: Path | str | None = None,
        model: Model | None = None,
    ) -> None:
        """Load the model and check the options.

        Args:
            model_path: the checkpoint; the best shipped model when None.
            top_k_configs: how many candidates to leave in "top_k" mode; 3 when None.
            enable_fallback: without a usable model, leave everything to stock Inductor; if False, raise now.
                Inside a compile nothing is raised in either case.
            performance_threshold: in "top_k" mode, leave only candidates within this ratio of the best prediction; 1.1
                when None.
            mode: "adaptive": leave one where the model is sure, else as many as are worth benchmarking; "top_k"; or
                "zero": leave exactly one and benchmark nothing. When None, "adaptive", or "top_k" where one of its
                options is given or the model does not know how sure it is.
            kernel_price: in "adaptive" mode, for what relative gain a kernel is worth benchmarking, such as 0.01 for
                1%; when None the model's own, for which one kernel an op is benchmarked in the mean.
            search_space: of the Triton templates that the model knows, rank Inductor's "EXHAUSTIVE" list, its
                "DEFAULT" list, or ("inherit") the one that its configuration asks for.
            hardware: rank as if on this device, by name or alias, instead of the one that compiles.
            observe: rank and record decisions, but let stock Inductor choose.
            corrections: a file by ``diode corrections``, whose offsets correct what the model predicts; when None,
                the one that the environment variable DIODE_CORRECTIONS names, if it does.
            model: a loaded model, instead of ``model_path``.

        Raises:
            ModelError: no usable model, or corrections that cannot be used, and ``enable_fallback`` is False.
            SettingsError: an option has a value that cannot be used.
            HardwareError: no device is known by the name ``hardware``.
        """
        super().__init__()
        if search_space not in {EXHAUSTIVE, "DEFAULT", INHERIT}:
            raise SettingsError(f"search_space must be {EXHAUSTIVE}, DEFAULT or {INHERIT}, not {search_space!r}")
        self.observe = observe
        self._search_space = None if search_space == INHERIT else search_space
        self._hardware = _known_hardware(hardware)
        self._stats = Stats()
        self._logged: set[str] = set()
        self._lock = threading.Lock()
        self._predictor, self._lacking = _usable_predictor(
            model, model_path, corrections, enable_fallback=enable_fallback
        )
        self.policy = _policy_for(self._predictor, mode, top_k_configs, performance_threshold, kernel_price)

    @property
    def model(self) -> Model | None:
        """The model, or None without one, when stock Inductor chooses."""
        return self._predictor.model if self._predictor else None

    @property
    def _sha256(self) -> str:
        return self._predictor.model.sha256 if self._predictor else "no model"

    def uuid(self) -> str:
        """Return this handler's part of Inductor's cache key: everything that its choices depend on."""
        device = self._hardware.key.hex() if self._hardware else "detected"
        parts = (HOOK_VERSION, self._sha256, self.policy.key, self._search_space or INHERIT, device)
        corrected = self._predictor.corrections if self._predictor else None
        also = (f"corrected by {corrected.key}",) if corrected else ()
        return "torch-diode/" + "/".join(str(part) for part in (*parts, "observe" if self.observe else "choose", *also))

    def get_stats(self) -> dict[str, float]:
        """Return what the hook has done so far.

        ``total_calls`` of the hook; ``passed_through``: calls outside max-autotune; ``model_selections``: ops that
        the model decided; ``fallback_<reason>``: calls left to stock Inductor; ``configs_filtered``: candidates
        dropped, ``configs_kept``: those left; ``kept_alone``: ops of which one was left, and nothing benchmarked;
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
            return result
        stock: list[KernelTemplateChoice] = super()._finalize_template_configs(
            offer.replay(self), kernel_inputs, templates, op_name, kwarg_overrides
        )
        if result is not None:
            for ktc in stock:
                self._mark(ktc, result)
        return stock

    def settled(self, decision: Decision) -> None:
        """Record a decision on a whole op."""
        self._stats.decide(decision)

    def failed(self, error: Exception) -> None:
        """Record an error that the compile survived."""
        self._fall_back("error", safely.in_words(error), logging.WARNING, error)

    def _result(
        self, offer: CandidateOffer
    ) -> list[KernelTemplateChoice] | final.RankedCall | final.AbstainedCall | None:
        """Return what to keep; or, where stock Inductor chooses, how to mark its choices, None for not at all."""
        self._stats.count("total_calls")
        try:
            if not _max_autotune():
                self._stats.count("passed_through")
                return None
            with self._stats.timed("seconds"):
                final.ensure_registered()
                return self._choose(offer)
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            self.failed(error)
            reason = f"error: {safely.in_words(error)}"
            return final.AbstainedCall(self, Decision(offer.op_name, None, "", 0, (), None, reason))

    def _choose(
        self, offer: CandidateOffer
    ) -> list[KernelTemplateChoice] | final.RankedCall | final.AbstainedCall | None:
        try:
            listing, call = self._rank(offer)
        except AbstentionError as abstention:
            self._say_abstained(offer, abstention)
            return final.AbstainedCall(self, self._abstained(offer, abstention))
        if call is None:
            self._stats.count("passed_through")
            return None
        return call if self.observe else self._preselect(call) + listing.unranked

    def _rank(self, offer: CandidateOffer) -> tuple[Listing, final.RankedCall | None]:
        """Rank the candidates of a call; None when it offers nothing that the model knows.

        Raises:
            AbstentionError: there is no model, or this is outside its domain.
        """
        predictor = self._ready()
        hardware = self._device(offer)
        problem = _problem(offer)
        predictor.check(problem, hardware)
        with self._stats.timed("seconds_listing"):
            listing = self._list(offer, predictor, hardware)
        if not listing.ranked:
            return listing, None
        ranking = predictor.rank(problem, hardware, columns_of_choices(listing.ranked))
        if ranking.corrected:
            self._stats.count("corrected")
        return listing, final.RankedCall(self, offer.op_name, ranking, listing.ranked)

    def _ready(self) -> Predictor:
        if self._predictor is None:
            raise AbstentionError("no_model", self._lacking)
        if getattr(inductor_config, "multi_kernel_hints", None):
            raise AbstentionError("multi_kernel", "kernels for several hinted sizes at once are not ranked")
        return self._predictor

    def _device(self, offer: CandidateOffer) -> Hardware:
        device = offer.kernel_inputs.device()
        hardware = self._hardware or detect_hardware(device)
        if hardware is None:
            raise AbstentionError("hardware", f"torch-diode cannot identify this {device.type} device")
        return hardware

    def _list(self, offer: CandidateOffer, predictor: Predictor, hardware: Hardware) -> Listing:
        listing = list_candidates(offer, self, predictor.knows, self._search_space)
        if self.observe and hardware.vendor == NVIDIA and _lists_for_cpu(offer):
            listing.ranked.extend(list_as_if_on_cuda(offer, self._search_space))
        return listing

    def _preselect(self, call: final.RankedCall) -> list[KernelTemplateChoice]:
        """Return the choices that may survive the final selection, marked.

        Another call of the same op may have better ones but never more candidates, so the best of this call are
        enough. All vendor kernels are kept: they cost nothing until then, and replace a template that fails.
        """
        ranking = call.ranking
        best = select(ranking.predicted_us, ranking.is_vendor, self.policy, ranking.spread, preliminary=True).indices
        kept = list(dict.fromkeys((*best, *np.flatnonzero(ranking.is_vendor).tolist())))
        for index in kept:
            annotations = call.ktcs[index].annotations
            annotations[final.ANNOTATION] = final.Mark(call, index)
            annotations[POLICY_ANNOTATION] = f"hook:{self._sha256}"
        return [call.ktcs[index] for index in kept]

    def _mark(self, ktc: KernelTemplateChoice, call: final.RankedCall | final.AbstainedCall) -> None:
        """Mark one of stock Inductor's choices as one of ``call``, if it can be marked."""
        try:
            ktc.annotations.pop(POLICY_ANNOTATION, None)  # left by a selection that failed half-way
            ktc.annotations[final.ANNOTATION] = final.Mark(call)
        except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
            self.failed(error)

    def _say_abstained(self, offer: CandidateOffer, abstention: AbstentionError) -> None:
        """Count an abstention; warn of an unknown GPU, unless that was done at import."""
        unknown_gpu = abstention.reason == "hardware" and offer.kernel_inputs.device_type != "cpu"
        if unknown_gpu and uncovered.first_time():
            self._fall_back(abstention.reason, f"{abstention}; {uncovered.REMEDY}", logging.WARNING)
        else:
            self._fall_back(abstention.reason, str(abstention), logging.INFO)

    def _abstained(self, offer: CandidateOffer, abstention: AbstentionError) -> Decision:
        hardware = self._hardware or detect_hardware(offer.kernel_inputs.device())
        name = hardware.name if hardware else str(offer.kernel_inputs.device())
        try:
            problem = _problem(offer)
        except AbstentionError:
            problem = None
        return Decision(offer.op_name, problem, name, 0, (), None, str(abstention))

    def _fall_back(self, reason: str, detail: str, level: int, error: Exception | None = None) -> None:
        """Count a call left to stock Inductor, and log the reason the first time."""
        self._stats.count(f"fallback_{reason}")
        with self._lock:
            first = reason not in self._logged
            self._logged.add(reason)
        if first:
            safely.log(log, level, f"stock Inductor chooses: {detail} (logged once for each reason)", error)


def _policy_for(
    predictor: Predictor | None,
    mode: Mode | str | None,
    top_k_configs: int | None,
    performance_threshold: float | None,
    kernel_price: float | None,
) -> Policy:
    """Return the policy that options ask for, and log where the model cannot follow it."""
    is_sure = predictor is not None and predictor.knows_its_spread
    policy = make_policy(mode, top_k_configs, performance_threshold, kernel_price, knows_its_spread=is_sure)
    if policy.mode is Mode.ADAPTIVE and predictor is not None and not is_sure:
        what = f"adaptive mode keeps {policy.top_k_configs} candidates like top_k mode"
        remedy = "train one of several members with `diode-train --folds 5`"
        safely.log(log, logging.WARNING, f"the model does not say how sure it is, so {what}; {remedy}")
    return policy


def _max_autotune() -> bool:
    return bool(inductor_config.max_autotune or inductor_config.max_autotune_gemm)


def _problem(offer: CandidateOffer) -> Problem:
    try:
        return problem_of_inputs(offer.kernel_inputs, offer.op_name)
    except RecordError as error:
        raise AbstentionError("op", str(error)) from None


def _known_hardware(hardware: Hardware | str | None) -> Hardware | None:
    if not isinstance(hardware, str):
        return hardware
    known = known_device(hardware)
    if known is None:
        raise HardwareError(f"no device is known by the name {hardware!r}; pass a Hardware record instead")
    return known


def _usable_predictor(
    model: Model | None, model_path: Path | str | None, corrections: Path | str | None, *, enable_fallback: bool
) -> tuple[Predictor | None, str]:
    """Return the model's predictor; or, with ``enable_fallback``, None and the reason."""
    try:
        model = model or _load(model_path)
        return Predictor(model, usable_corrections(corrections, model, enable_fallback=enable_fallback)), ""
    except DiodeError as error:
        if not enable_fallback:
            raise
        safely.log(log, logging.WARNING, f"no usable model, stock Inductor chooses: {error}")
        return None, str(error)


def _load(model_path: Path | str | None) -> Model:
    return artifact.load_shipped() if model_path is None else artifact.load(model_path)


def _lists_for_cpu(offer: CandidateOffer) -> bool:
    """Whether Inductor compiles for a CPU with C++, and so lists no Triton template."""
    return bool(offer.kernel_inputs.device_type == "cpu" and inductor_config.cpu_backend != "triton")
