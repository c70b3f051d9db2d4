"""Takes from Inductor's choices the kernel that a picks file names for a problem: measured beats predicted.

The hook looks here first. The picked kernel is kept alone, and nothing is benchmarked. Inductor may ask in several
calls for one op, so a call only drops what is not picked where something is; ``settle`` then sees the choices of all
calls, and those that Inductor lists without asking, such as C++ kernels.
"""

from __future__ import annotations

import hashlib
import logging
import re
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Protocol

import torch

from diode_collectors.inductor.adapter import POLICY_ANNOTATION, annotations_of, config_of_choice, detect_hardware
from diode_integration.finding import find, is_listed_elsewhere, is_switched_off, source_of
from diode_integration.listing import uid_of, vendors_best
from diode_integration.stats import DecidedBy, Decision, PredictedConfig
from diode_store import safely
from diode_store.devices import describe
from diode_store.kernels import agrees, is_vendor_template

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._inductor.kernel_template_choice import KernelTemplateChoice

    from diode_integration.listing import Lister
    from diode_integration.stats import Stats
    from diode_store.exchange.picks import Pick, Picks
    from diode_store.kernels import KernelConfig
    from diode_store.records import Hardware

log = logging.getLogger("diode_integration")

_BUILD = re.compile(r"\+(cpu|cu\d+|rocm[\d.]+|xpu)$")
ANNOTATION = "diode_pick"
"""Key of the mark in a choice's ``annotations``."""


class Owner(Protocol):
    """The handler that looks for picks."""

    observe: bool

    def settled(self, decision: Decision) -> None:
        """Record a decision."""

    def failed(self, error: Exception) -> None:
        """Record an error that the compile survived."""


class FilePicks:
    """The picks of one handler; any thread may use them."""

    def __init__(self, picks: Picks, stats: Stats) -> None:
        """Keep the picks; what is missed is counted in ``stats``."""
        self._picks = picks
        self._stats = stats
        self.file = picks.file or "the given picks"
        self.name = Path(self.file).name
        """Without folders, as decisions may leave the machine."""
        self.key = picks.sha256 or hashlib.sha256(picks.to_json().encode()).hexdigest()
        """What tells them from others."""
        self._said: set[str] = set()
        self._lock = threading.Lock()
        self._thread = threading.local()

    @property
    def device(self) -> Hardware:
        """The device that they are of."""
        return self._picks.device

    def forget(self) -> None:
        """Begin a graph in this thread: names of nodes come again in the next."""
        self._thread.op = None

    def sought(self, lister: Lister, owner: Owner, hardware: Hardware) -> Sought | None:
        """Look in a call for the kernels that are picked for its problem; None if none is.

        Args:
            lister: lists the call's candidates.
            owner: the handler.
            hardware: the device that is chosen for.
        """
        offer, problem = lister.offer, lister.problem
        if hardware.key != self.device.key:
            line = f"{self.file}: picks of {describe([self.device])}; none is used on {describe([hardware])}"
            self.say_once(hardware.name, line)
            return None
        pick = self._picks.picks.get(problem.key)
        if pick is None:
            return None
        sought = Sought(self, owner, pick, hardware, offer.op_name)
        here = detect_hardware(offer.kernel_inputs.device())
        if owner.observe and (here is None or here.key != hardware.key):
            sought.rank = self._rank_elsewhere(lister, pick)
        else:
            self._find(lister, sought)
        sought.seconds = perf_counter() - offer.started
        return sought

    def takes(self, pick: Pick, template: str, source: str | None) -> bool:
        """Whether picks of a template are taken; if not, that is said once by name.

        Args:
            pick: what names it.
            template: its uid.
            source: the hash of its source in this torch; None where it has none.
        """
        if self._picks.allow_changed_template or is_unchanged(pick, template, source):
            return True
        then, measured_in = pick.template_hashes[template], pick.environment.torch
        if then is None or source is None:
            why = f"its source in torch {measured_in} is not known, and this is torch {torch.__version__}"
        else:
            why = f"its source has changed since torch {measured_in} ({then[:8]} there, {source[:8]} here)"
        remedy = "measure in this torch, or allow it with `diode lock --allow-changed-template`"
        self.say_once(f"changed {template}", f"{self.file}: picks of {template} are ignored: {why}; {remedy}")
        return False

    def missed(self, pick: Pick, *, vendor_is_kept: bool) -> None:
        """Count an op for which none of the picked kernels is to be had, and say it once for each template."""
        self._stats.count("picks_missed")
        config = next((each for each in pick.configs if f"changed {each.template}" not in self._said), None)
        if config is None:  # that was said
            return
        hint = ", with torch._inductor.config.triton.enable_persistent_tma_matmul off"
        why = f"this torch does not list it{hint if is_switched_off(config.template) else ''}; the model decides"
        if vendor_is_kept:
            why = "Inductor cannot generate its code; the vendor's kernel is kept"
        what = f"{self.file}: {_in_full(config)}, picked for {pick.name}, is not to be had: {why}"
        self.say_once(f"missed {config.template}", what)

    def say_once(self, what: str, line: str) -> None:
        """Log a line the first time that it is about ``what``."""
        with self._lock:
            first = what not in self._said
            self._said.add(what)
        if first:
            safely.log(log, logging.WARNING, f"{line} (logged once)")

    def _find(self, lister: Lister, sought: Sought) -> None:
        """Find the best pick of a call, unless an earlier call of the op had a better one."""
        offer = lister.offer
        vendors = [ktc for uid in offer.generators if is_vendor_template(uid_of(uid)) for ktc in offer.stock(uid)]
        if vendors:
            self.forget()  # they are in an op's first call, and another op may have the same matrices
        # Only the matrices: the bias is another node in the call that lists templates.
        op = (offer.op_name, *(node.get_name() for node in offer.kernel_inputs.nodes()[-2:]))
        earlier, before = getattr(self._thread, "op", None) or (None, 0)
        sought.is_found_before = earlier == op
        configs = sought.pick.configs
        for rank, config in enumerate(configs[: before + 1] if sought.is_found_before else configs):
            if all(uid_of(uid) != config.template for uid in offer.generators):
                continue
            if not self.takes(sought.pick, config.template, source_of(offer, config.template)):
                continue
            found = find(lister, config)
            if found is not None:
                sought.rank, sought.found = rank, found
                sought.stand_ins = [] if config.is_vendor else vendors
                self._thread.op = op, rank
                return

    def _rank_elsewhere(self, lister: Lister, pick: Pick) -> int | None:
        """Return which kernel of ``pick`` its device would take, where another one compiles."""
        for rank, config in enumerate(pick.configs):
            if not self.takes(pick, config.template, source_of(lister.offer, config.template)):
                continue
            if is_listed_elsewhere(lister, config):
                return rank
        return None


@dataclass(eq=False)
class Sought:
    """What one call of the hook has of the kernels that are picked for its problem."""

    source: FilePicks
    owner: Owner
    pick: Pick
    hardware: Hardware
    op: str
    rank: int | None = None
    """Which of the pick's configs it has; 0 is the fastest."""
    found: KernelTemplateChoice | None = None
    """That config's candidate; None where another device is chosen for."""
    stand_ins: list[KernelTemplateChoice] = field(default_factory=list)
    """The vendor's kernels beside it, which cost nothing, for when its code cannot be generated."""
    is_found_before: bool = False
    """Whether an earlier call of the op had one."""
    seconds: float = 0.0
    """What it took to look."""

    def kept(self) -> list[KernelTemplateChoice] | None:
        """Return what the call is cut down to; None where it has no pick, and the model decides."""
        if self.owner.observe or (self.found is None and not self.is_found_before):
            return None
        kept = [] if self.found is None else [self.found, *self.stand_ins]
        for ktc in kept:
            ktc.annotations[POLICY_ANNOTATION] = f"hook:{self.source.key}"
        return kept

    def mark(self, listed: Sequence[KernelTemplateChoice]) -> None:
        """Have ``settle`` know the choices of this call."""
        for ktc in listed:
            ktc.annotations[ANNOTATION] = PickMark(self, self.rank if ktc is self.found else None)

    def rank_of(self, choice: Any) -> int | None:
        """Return which of the picked kernels a choice is that did not pass through the hook."""
        try:
            found = config_of_choice(choice)
        except Exception:  # noqa: BLE001 - as in ``mark_of``
            return None
        for rank, config in enumerate(self.pick.configs):
            if agrees(found, config):
                return rank if self.source.takes(self.pick, config.template, None) else None
        return None

    def decision(self, rank: int) -> Decision:
        """Return the record of taking one of the picked kernels."""
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
            observed=self.owner.observe,
            decided_by=DecidedBy.PICKS,
            picks_sha256=self.source.key,
        )

    def _reason(self, rank: int) -> str:
        time = self.pick.runtime_us
        if rank:  # earlier ones are not listed by this torch, or their template has changed: the log says which
            first = self.pick.configs[0].describe()
            return f"within noise of {first}, which {self.source.name} picks and which is not to be had"
        how = "not timed" if time is None else f"measured {time:.1f} us in torch {self.pick.environment.torch}"
        return f"picked in {self.source.name}, {how}"


@dataclass(frozen=True, eq=False)
class PickMark:
    """Ties a choice to the call that let it through."""

    sought: Sought
    rank: int | None
    """Which of the picked kernels it is; None for any other."""


def _in_full(config: KernelConfig) -> str:
    more = ", ".join(f"{name}={value}" for name, value in config.kwargs)
    return f"{config.describe()} ({more})" if more else config.describe()


def is_unchanged(pick: Pick, template: str, source: str | None) -> bool:
    """Whether a template is still what was measured: by its source, or where that is not known by torch's version."""
    then = pick.template_hashes[template]
    if is_vendor_template(template) or (then is not None and then == source):
        return True
    return (then is None or source is None) and _release(pick.environment.torch) == _release(str(torch.__version__))


def _release(version: str) -> str:
    """Return a version of torch without the platform that it was built for, on which templates do not depend."""
    return _BUILD.sub("", version)


def mark_of(choice: Any) -> PickMark | None:
    """Return the mark of a choice, if it has one."""
    try:
        found = annotations_of(choice).get(ANNOTATION)
    except Exception:  # noqa: BLE001 - this may be any other hook's object
        return None
    return found if isinstance(found, PickMark) else None


def settle(choices: list[Any]) -> list[Any] | None:
    """Return the picked kernel of an op alone; None where nothing is picked for it, or that is not to be had.

    Never raises.

    Args:
        choices: those of all calls for the op, and those that did not pass through the hook.
    """
    marks = [mark_of(choice) for choice in choices]
    everything = list({id(mark.sought): mark.sought for mark in marks if mark is not None}.values())
    if not everything:
        return None
    first = everything[0]
    try:
        ranks = [first.rank_of(each) if mark is None else mark.rank for each, mark in zip(choices, marks, strict=True)]
        there = [(rank, place) for place, rank in enumerate(ranks) if rank is not None]
        if first.owner.observe:
            there += [(each.rank, len(choices)) for each in everything if each.rank is not None]
        if not there:
            return _without_pick(first, choices, marks)
        rank, place = min(there)
        first.owner.settled(first.decision(rank))
        return choices if first.owner.observe else [choices[place]]
    except Exception as error:  # noqa: BLE001 - the user's compile must go on, whatever happened here
        first.owner.failed(error)
        return None


def _without_pick(sought: Sought, choices: list[Any], marks: list[PickMark | None]) -> list[Any] | None:
    """Return the vendor's kernel where the pick's code cannot be generated; else None, and the model decides."""
    stand_ins = [choice for choice, mark in zip(choices, marks, strict=True) if mark and mark.sought.stand_ins]
    vendor_is_kept = bool(stand_ins) and not sought.owner.observe
    sought.source.missed(sought.pick, vendor_is_kept=vendor_is_kept)
    if not vendor_is_kept:
        return None
    reason = f"Inductor cannot generate {sought.pick.configs[0].describe()}, which {sought.source.name} picks"
    device, problem = sought.hardware, sought.pick.problem
    decision = Decision(
        sought.op, problem, device.name, 0, (), None, reason, decided_by=DecidedBy.VENDOR, device=device
    )
    sought.owner.settled(replace(decision, seconds=sought.seconds))
    return vendors_best(stand_ins)
