"""The record of a decision: the hook's choice for one matrix product inside a compile, and its reason.

A decision travels and is stored like a measurement. Later measurements of the same problem show the cost of the choice.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_store.errors import RecordError
from diode_store.values.keys import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from diode_store.kernels import KernelConfig
    from diode_store.records import Environment, Hardware, Problem

MOST_KEPT = 10_000
"""Limit on the kernels that one decision may keep, above the length of any list of candidates."""


class KeptConfig(NamedTuple):
    """A kernel that was left to Inductor, and its predicted time in microseconds; None without a prediction."""

    config: KernelConfig
    predicted_us: float | None = None


@dataclass(frozen=True)
class DecisionRecord:
    """One decision, self-contained."""

    uid: bytes
    hardware: Hardware
    environment: Environment
    problem: Problem
    decided_by: str
    """Who decided: ``model``, ``vendor`` (the vendor's kernel was kept alone), ``stock``, ``picks`` (a file); later
    versions may add others."""
    reason: str
    policy: str
    """The policy in full, as in cache keys; ``picks/`` and the file's SHA-256 if a picks file decided."""
    mode: str
    """The policy's mode: ``adaptive``, ``top_k``, ``zero``."""
    decided_at: datetime
    """Timezone-aware."""
    candidates: int = 0
    """Number of candidates that were ranked or that a picks file names; 0 if neither the model nor a file decided."""
    kept: tuple[KeptConfig, ...] = ()
    """Configs left to Inductor, fastest prediction first; empty if neither the model nor a picks file decided."""
    predicted_vendor_us: float | None = None
    """Prediction for the vendor's best kernel, in microseconds; None without a vendor kernel."""
    p_within_2pct: float | None = None
    """Probability that the first of ``kept`` is within 2% of the best candidate; None if unknown."""
    model_sha256: str | None = None
    """SHA-256 of the model; None without a model, or if a picks file decided."""
    similar_to: str | None = None
    """Name of the similar device whose model decided; None if the model knows this device, or if unrecorded."""
    seconds: float | None = None
    """Time that the hook took for the decision."""
    observed: bool = False
    """True if the decision was only recorded and stock Inductor went on."""
    failure: str | None = None
    """Reason why the graph with the kept configs was not compiled to its end; None if it was."""
    host: str | None = None
    hook_version: int | None = None
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """JSON values that this version has no field for."""

    def __post_init__(self) -> None:
        """Check what no reader could repair.

        Raises:
            RecordError: a uid of another length, a time without a zone, or too many kernels kept.
        """
        if not isinstance(self.uid, bytes) or len(self.uid) != KEY_BYTES:
            raise RecordError(f"a decision's uid must be {KEY_BYTES} bytes, not {self.uid!r}")
        if self.decided_at.tzinfo is None:
            raise RecordError(f"decided_at must name its time zone: {self.decided_at.isoformat()}")
        if len(self.kept) > MOST_KEPT:
            raise RecordError(f"a decision may keep {MOST_KEPT:,} kernels, not {len(self.kept):,}")
