"""Decisions of the hook, and the rankings of one op from which the policy makes them."""

from __future__ import annotations

import bisect
import itertools
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from diode_integration.decide.ranking import SizeRange
from diode_trainer.policy import Policy, Spread, select

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_integration.decide.ranking import Ranking
    from diode_store.kernels import KernelConfig
    from diode_store.records import Hardware, Problem
    from diode_trainer.policy import KeptCandidates

ERROR = "error: "
"""Start of the reason of a decision in which the hook failed and stock Inductor chose."""


@dataclass(frozen=True)
class PredictedConfig:
    """A config and its time."""

    config: KernelConfig
    predicted_us: float | None
    """Predicted time in microseconds; for a pick the measured time, or None if its file has none."""

    def describe(self) -> str:
        """Return both for a person."""
        return self.config.describe() + ("" if self.predicted_us is None else f" {self.predicted_us:.1f} us")


class DecidedBy(StrEnum):
    """Who decided on an op."""

    PICKS = "picks"
    """A picks file."""
    MODEL = "model"
    VENDOR = "vendor"
    """Nobody: the model abstained, and the hook kept the vendor kernel alone."""
    STOCK = "stock"
    """Stock Inductor: the model abstained."""


@dataclass(frozen=True)
class Decision:
    """Choice of the hook for one matrix product, with the reason."""

    op: str
    problem: Problem | None
    """None when the inputs are no matrix product that torch-diode has a name for."""
    hardware: str
    candidates: int
    """Number of candidates that the model ranked, 0 when it abstained; for picks the number of picked kernels."""
    chosen: tuple[PredictedConfig, ...]
    """Candidates left to Inductor, fastest first; empty when the model abstained."""
    vendor_us: float | None
    """Best prediction for a vendor kernel, in microseconds; None when none was offered."""
    reason: str
    observed: bool = False
    """True if the hook only recorded the choice, and stock Inductor went on."""
    p_within_2pct: float | None = None
    """Probability that the first of ``chosen`` is within 2% of the best candidate; None if the model cannot say."""
    decided_by: DecidedBy = DecidedBy.MODEL
    model_sha256: str | None = None
    """SHA-256 of the model that decided; None if none did."""
    policy: Policy | None = None
    """Policy that was applied instead of the handler's own; None for the handler's own."""
    picks_sha256: str | None = None
    """SHA-256 of the picks file that decided; None if none did."""
    device: Hardware | None = None
    """Device that ``hardware`` names; None if it cannot be identified."""
    similar_to: str | None = None
    """Name of the similar device whose model decided; None if the model knows this device."""
    seconds: float = 0.0
    """Seconds that the hook spent on the op."""
    failure: str | None = None
    """Reason why the decision's graph could not be compiled, or was not compiled to its end; None if it was."""

    @property
    def abstained(self) -> bool:
        """True if no model and no picks file decided."""
        return self.decided_by in {DecidedBy.VENDOR, DecidedBy.STOCK}

    @property
    def keeps_template(self) -> bool:
        """True if a template is left, which Inductor may compile with the graph, and which may fail there."""
        return not self.observed and not all(choice.config.is_vendor for choice in self.chosen)

    def describe(self) -> str:
        """Return one line for a person."""
        shape = self.problem.shape if self.problem else None
        size = f" {shape.arithmetic} B={shape.b} M={shape.m} N={shape.n} K={shape.k} {shape.layout}" if shape else ""
        what = f"{self.op}{size} on {self.hardware}"
        failed = f"; the graph could not be compiled so: {self.failure}" if self.failure is not None else ""
        if self.abstained:
            kept = "the vendor kernel is kept alone" if self.decided_by is DecidedBy.VENDOR else "left to Inductor"
            return f"{what}: {kept} ({self.reason}){failed}"
        kept = ", ".join(choice.describe() for choice in self.chosen)
        verb = "would keep" if self.observed else "kept"
        return f"{what}: {verb} {len(self.chosen)} of {self.candidates}: {kept} ({self.reason}){failed}"


class OpRankings:
    """Rankings of all calls for one op, end to end; a position counts through the candidates of all calls."""

    def __init__(self, rankings: Sequence[Ranking]) -> None:
        self._first = rankings[0]
        self._starts = list(itertools.accumulate((len(each.predicted_us) for each in rankings), initial=0))
        self._predicted = np.concatenate([each.predicted_us for each in rankings])
        self._vendor = np.concatenate([each.is_vendor for each in rankings])
        spreads = [(start, each.spread) for start, each in zip(self._starts, rankings, strict=False)]
        known = [(start, spread) for start, spread in spreads if spread is not None]
        # The spread of one call alone would leave out the candidates of the others.
        self._spread = Spread.joined(known) if len(known) == len(rankings) else None
        self.kernels_us = np.concatenate([each.kernels_us for each in rankings])
        unfused_us = max(each.unfused_us for each in rankings)
        self._note = f"; {unfused_us:.1f} us are counted for what a vendor's leaves unfused" if unfused_us else ""
        if self._first.near_to:
            self._note += f"; by a model of {self._first.near_to}"
        ranges = [each.over for each in rankings if each.over is not None]
        if ranges and len(ranges) == len(rankings):
            # The best candidate at a size may be in another call: a vendor kernel alone in its own has no regret there.
            joined = SizeRange(np.concatenate([over.predicted_us for over in ranges], axis=1), ranges[0].text)
            self._predicted, note = joined.worst_regret_us()
            self._note += f"; {note}"

    def __len__(self) -> int:
        """Return the number of positions."""
        return self._starts[-1]

    def position(self, call: int, index: int) -> int:
        """Return the position of a call's candidate."""
        return self._starts[call] + index

    def place(self, position: int) -> tuple[int, int]:
        """Return the call of a position, and the candidate's index in that call."""
        call = bisect.bisect_right(self._starts, position) - 1
        return call, position - self._starts[call]

    def decide(self, positions: Sequence[int], policy: Policy, op: str) -> tuple[KeptCandidates, Decision]:
        """Apply a policy to the candidates at ``positions``.

        Returns:
            Which of ``positions`` to keep, and the record of it, as yet without ``chosen``.
        """
        at = list(positions)
        predicted, vendor = self._predicted[at], self._vendor[at]
        spread = None if self._spread is None else self._spread.left(at, self._vendor)
        applied = policy.near(spread) if self._first.near_to else policy
        kept = select(predicted, vendor, applied, spread)
        decision = Decision(
            op=op,
            problem=self._first.problem,
            hardware=self._first.hardware.name,
            device=self._first.hardware,
            candidates=len(self),
            chosen=(),
            vendor_us=float(self.kernels_us[at][vendor].min()) if vendor.any() else None,
            reason=kept.reason + self._note,
            p_within_2pct=kept.p_within_2pct,
            model_sha256=self._first.model_sha256,
            policy=None if applied is policy else applied,
            similar_to=self._first.near_to or None,
        )
        return kept, decision
