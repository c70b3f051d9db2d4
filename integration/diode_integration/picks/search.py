"""Select from Inductor's choices the kernel that a picks file names: measured beats predicted.

The hook looks here first. It keeps the picked kernel alone, and nothing is benchmarked. Inductor may call several times
for one op, so a call with a picked kernel drops only its other kernels. ``settle_picks`` then sees the choices of all
calls, and those that Inductor lists without asking, such as C++ kernels.
"""

from __future__ import annotations

import hashlib
import logging
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from diode_collectors.inductor.adapter import POLICY_ANNOTATION, config_of_choice, detect_hardware
from diode_integration.decide.decision import DecidedBy, Decision, PredictedConfig
from diode_integration.inductor.entry import Mark, mark_of
from diode_integration.inductor.fused import why_not
from diode_integration.inductor.kernel_search import find, is_listed_elsewhere, is_switched_off, source_of
from diode_integration.inductor.listing import OpCalls, uid_of, vendors_best
from diode_store.devices.known import describe
from diode_store.kernels import agrees, is_vendor_template
from diode_store.values import safely

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from torch._inductor.kernel_template_choice import KernelTemplateChoice

    from diode_collectors.inductor.fused_source import FusedSource
    from diode_integration.inductor.entry import Handler
    from diode_integration.inductor.listing import Lister
    from diode_store.exchange.picks import Pick, Picks
    from diode_store.kernels import KernelConfig
    from diode_store.records import Hardware, Problem

log = logging.getLogger("diode_integration")

_BUILD = re.compile(r"\+(cpu|cu\d+|rocm[\d.]+|xpu)$")


class FilePicks:
    """Picks of one handler; any thread may use them."""

    def __init__(self, picks: Picks, count: Callable[[str], None]) -> None:
        """Keep the picks; ``count`` adds one to a statistic by name."""
        self._picks = picks
        self._count = count
        self.file = picks.file or "the given picks"
        self.name = Path(self.file).name
        """File name without folders, as decisions may leave the machine."""
        self.key = picks.sha256 or hashlib.sha256(picks.to_json().encode()).hexdigest()
        """Hash of the picks, for cache keys."""
        self._ops = frozenset(pick.problem.op for pick in picks.picks.values())
        self.calls = OpCalls()
        """Rank of the pick that an earlier call of an op has."""
        self._once = safely.Once(log)

    @property
    def device(self) -> Hardware:
        """Device of the picks."""
        return self._picks.device

    def sought(self, lister: Lister, hardware: Hardware, *, observe: bool) -> Sought | None:
        """Look in a call for the kernels that are picked for its problem; return None without a pick.

        Args:
            lister: lists the call's candidates.
            hardware: the device to choose for.
            observe: True if the hook only observes, perhaps on another device.
        """
        offer = lister.offer
        pick = self._pick(lister.problem, hardware)
        if pick is None:
            return None
        sought = Sought(self, pick, hardware, offer.op_name)
        here = detect_hardware(offer.kernel_inputs.device())
        if observe and (here is None or here.key != hardware.key):
            sought.rank = self._rank_elsewhere(lister, pick)
        else:
            self._find(lister, sought)
        sought.seconds = perf_counter() - offer.started
        return sought

    def has_any(self, ops: Collection[str]) -> bool:
        """Return whether there is a pick for a problem of any of some ops."""
        return not self._ops.isdisjoint(ops)

    def fused(self, source: FusedSource, hardware: Hardware) -> KernelConfig | None:
        """Return the config that is picked for a fused kernel; None without one that can be used."""
        sought = self.alone(source.problem, hardware, lambda config: why_not(source, config))
        return None if sought is None else sought.pick.configs[0]

    def alone(
        self, problem: Problem, hardware: Hardware, why_not: Callable[[KernelConfig], str | None] = lambda _: None
    ) -> Sought | None:
        """Return the pick for a problem whose list of kernels the hook does not see; None without one to use.

        Args:
            problem: the problem.
            hardware: the device to choose for.
            why_not: returns why a config cannot be used, which is logged once.
        """
        pick = self._pick(problem, hardware)
        if pick is None:
            return None
        config = pick.configs[0]
        if self.takes(pick, config.template, None):
            why = why_not(config)
            if why is None:
                return Sought(self, pick, hardware, problem.op, rank=0)
            line = f"{self.file}: {_in_full(config)}, picked for {pick.name}, cannot be used: {why}"
            self._once.log(f"unfit {pick.name}", line)
        self._count("picks_missed")
        return None

    def takes(self, pick: Pick, template: str, source: str | None) -> bool:
        """Return whether to take picks of a template; if not, log the reason once.

        Args:
            pick: the pick that names the template.
            template: uid of the template.
            source: hash of its source in this torch; None if it has none.
        """
        if self._picks.allow_changed_template or is_unchanged(pick, template, source):
            return True
        then, measured_in = pick.template_hashes[template], pick.environment.torch
        if then is None or source is None:
            why = f"its source in torch {measured_in} is not known, and this is torch {torch.__version__}"
        else:
            why = f"its source has changed since torch {measured_in} ({then[:8]} there, {source[:8]} here)"
        remedy = "measure in this torch, or allow it with `diode lock --allow-changed-template`"
        self._once.log(f"changed {template}", f"{self.file}: picks of {template} are ignored: {why}; {remedy}")
        return False

    def missed(self, pick: Pick, *, vendor_is_kept: bool) -> None:
        """Count an op without any of its picked kernels, and log it once for each template."""
        self._count("picks_missed")
        config = next((each for each in pick.configs if f"changed {each.template}" not in self._once), None)
        if config is None:  # a changed template was logged
            return
        hint = ", with torch._inductor.config.triton.enable_persistent_tma_matmul off"
        why = f"this torch does not list it{hint if is_switched_off(config.template) else ''}; the model decides"
        if vendor_is_kept:
            why = "Inductor cannot generate its code; the vendor's kernel is kept"
        what = f"{self.file}: {_in_full(config)}, picked for {pick.name}, is not available: {why}"
        self._once.log(f"missed {config.template}", what)

    def _pick(self, problem: Problem, hardware: Hardware) -> Pick | None:
        """Return the pick for a problem; None, which is logged once, on another device than that of the picks."""
        if hardware.key == self.device.key:
            return self._picks.picks.get(problem.key)
        line = f"{self.file}: picks of {describe([self.device])}; none is used on {describe([hardware])}"
        self._once.log(hardware.name, line)
        return None

    def _find(self, lister: Lister, sought: Sought) -> None:
        """Find the best pick of a call, unless an earlier call of the op had a better one."""
        offer = lister.offer
        vendors = offer.vendors()
        if vendors:
            self.calls.forget()  # a new op: its first call has the vendor kernels
        before = self.calls.recall(offer)
        sought.is_found_before = before is not None
        configs = sought.pick.configs
        for rank, config in enumerate(configs if before is None else configs[: before + 1]):
            if all(uid_of(uid) != config.template for uid in offer.generators):
                continue
            if not self.takes(sought.pick, config.template, source_of(offer, config.template)):
                continue
            found = find(lister, config)
            if found is not None:
                sought.rank, sought.found = rank, found
                sought.stand_ins = [] if config.is_vendor else vendors
                self.calls.remember(offer, rank)
                return

    def _rank_elsewhere(self, lister: Lister, pick: Pick) -> int | None:
        """Return the rank of the kernel of ``pick`` that its device would take, while another device compiles."""
        for rank, config in enumerate(pick.configs):
            if not self.takes(pick, config.template, source_of(lister.offer, config.template)):
                continue
            if is_listed_elsewhere(lister, config):
                return rank
        return None


@dataclass(eq=False)
class Sought:
    """Result of looking in one call for the kernels that are picked for its problem."""

    source: FilePicks
    pick: Pick
    hardware: Hardware
    op: str
    rank: int | None = None
    """Index of the found config in the pick; 0 is the fastest."""
    found: KernelTemplateChoice | None = None
    """Candidate of that config; None if another device compiles."""
    stand_ins: list[KernelTemplateChoice] = field(default_factory=list)
    """Vendor kernels beside it, which cost nothing, in case its code cannot be generated."""
    is_found_before: bool = False
    """True if an earlier call of the op had a picked kernel."""
    seconds: float = 0.0
    """Seconds spent on looking."""

    def kept(self, *, observe: bool) -> list[KernelTemplateChoice] | None:
        """Return the candidates to keep of the call; None without a picked kernel, so that the model decides."""
        if observe or (self.found is None and not self.is_found_before):
            return None
        kept = [] if self.found is None else [self.found, *self.stand_ins]
        for ktc in kept:
            ktc.annotations[POLICY_ANNOTATION] = f"hook:{self.source.key}"
        return kept

    def marker(self, owner: Handler) -> Callable[[Sequence[KernelTemplateChoice]], None]:
        """Return a function that marks the choices of this call for ``settle_picks``."""

        def mark(listed: Sequence[KernelTemplateChoice]) -> None:
            for ktc in listed:
                PickMark(owner, self, self.rank if ktc is self.found else None).put_on(ktc)

        return mark

    def rank_of(self, choice: Any) -> int | None:
        """Return the rank among the picked kernels of a choice that did not pass through the hook; None for others."""
        try:
            found = config_of_choice(choice)
        except Exception:  # noqa: BLE001 - as in ``mark_of``
            return None
        for rank, config in enumerate(self.pick.configs):
            if agrees(found, config):
                return rank if self.source.takes(self.pick, config.template, None) else None
        return None

    def decision(self, rank: int, *, observe: bool) -> Decision:
        """Return the decision for one of the picked kernels."""
        chosen = PredictedConfig(self.pick.configs[rank], None if rank else self.pick.runtime_us)
        return Decision(
            op=self.op,
            problem=self.pick.problem,
            hardware=self.hardware.name,
            device=self.hardware,
            seconds=self.seconds,
            candidates=len(self.pick.configs),
            chosen=(chosen,),
            vendor_us=None,
            reason=self._reason(rank),
            observed=observe,
            decided_by=DecidedBy.PICKS,
            picks_sha256=self.source.key,
        )

    def _reason(self, rank: int) -> str:
        time = self.pick.runtime_us
        if rank:  # this torch does not list the faster picks, or their templates have changed; the log has the reason
            first = self.pick.configs[0].describe()
            return f"within noise of {first}, which {self.source.name} picks and which is not available"
        how = "not timed" if time is None else f"measured {time:.1f} us in torch {self.pick.environment.torch}"
        return f"picked in {self.source.name}, {how}"


@dataclass(frozen=True, eq=False)
class PickMark(Mark):
    """Ties a choice to the call that looked for its picks."""

    KEY = "diode_pick"
    sought: Sought
    rank: int | None
    """Rank among the picked kernels; None for any other choice."""


def _in_full(config: KernelConfig) -> str:
    more = ", ".join(f"{name}={value}" for name, value in config.kwargs)
    return f"{config.describe()} ({more})" if more else config.describe()


def is_unchanged(pick: Pick, template: str, source: str | None) -> bool:
    """Return whether a template is as it was when measured: by its source, or without that by torch's version."""
    then = pick.template_hashes[template]
    if is_vendor_template(template) or (then is not None and then == source):
        return True
    return (then is None or source is None) and _release(pick.environment.torch) == _release(str(torch.__version__))


def _release(version: str) -> str:
    """Return a version of torch without its build platform, on which templates do not depend."""
    return _BUILD.sub("", version)


def settle_picks(choices: list[Any], *, observe: bool) -> tuple[list[Any], Decision] | None:
    """Return the picked kernel of an op alone, with the decision; None if no picked kernel is available.

    Args:
        choices: the choices of all calls for the op, and those that did not pass through the hook.
        observe: True to leave all choices.
    """
    marks = [mark_of(choice, PickMark) for choice in choices]
    everything = list({id(mark.sought): mark.sought for mark in marks if mark is not None}.values())
    if not everything:
        return None
    first = everything[0]
    ranks = [first.rank_of(each) if mark is None else mark.rank for each, mark in zip(choices, marks, strict=True)]
    there = [(rank, place) for place, rank in enumerate(ranks) if rank is not None]
    if observe:
        there += [(each.rank, len(choices)) for each in everything if each.rank is not None]
    if not there:
        return _without_pick(first, choices, marks, observe=observe)
    rank, place = min(there)
    return choices if observe else [choices[place]], first.decision(rank, observe=observe)


def _without_pick(
    sought: Sought, choices: list[Any], marks: list[PickMark | None], *, observe: bool
) -> tuple[list[Any], Decision] | None:
    """Return the vendor kernel if Inductor cannot generate the pick's code; else None, and the model decides."""
    replaced = [mark is not None and bool(mark.sought.stand_ins) for mark in marks]
    stand_ins = [choice for choice, is_replaced in zip(choices, replaced, strict=True) if is_replaced]
    vendor_is_kept = bool(stand_ins) and not observe
    sought.source.missed(sought.pick, vendor_is_kept=vendor_is_kept)
    if not vendor_is_kept:
        return None
    reason = f"Inductor cannot generate {sought.pick.configs[0].describe()}, which {sought.source.name} picks"
    device, problem = sought.hardware, sought.pick.problem
    decision = Decision(
        sought.op, problem, device.name, 0, (), None, reason, decided_by=DecidedBy.VENDOR, device=device
    )
    return vendors_best(stand_ins), replace(decision, seconds=sought.seconds)
