"""The record of a decision: what the hook chose for one matrix product inside a compile, and why.

It travels and is stored as a measurement is; later measurements of the same problem show what the choice cost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_store.errors import RecordError
from diode_store.keys import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from diode_store.kernels import KernelConfig
    from diode_store.records import Environment, Hardware, Problem

MOST_KEPT = 10_000
"""Most kernels that one decision may keep: more than any list of candidates has."""


class KeptConfig(NamedTuple):
    """A kernel that was left to Inductor, and its predicted time in microseconds; None where there is no prediction."""

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
    """The policy in full, as cache keys have it; ``picks/`` and the file's SHA-256 where a picks file decided."""
    mode: str
    """The policy's mode: ``adaptive``, ``top_k``, ``zero``."""
    decided_at: datetime
    """Timezone-aware."""
    candidates: int = 0
    """How many were ranked, or a picks file names; 0 where neither decided."""
    kept: tuple[KeptConfig, ...] = ()
    """What was left to Inductor, fastest predicted first; empty where neither the model nor a picks file decided."""
    predicted_vendor_us: float | None = None
    """Predicted for the vendor's best kernel, in microseconds; None when none was offered."""
    p_within_2pct: float | None = None
    """How likely the first of ``kept`` is within 2% of the best candidate, from 0 to 1; None if nobody knows."""
    model_sha256: str | None = None
    """None without a model, and where a picks file decided."""
    seconds: float | None = None
    """What the hook took for it."""
    observed: bool = False
    """Whether the choice was only recorded, and stock Inductor went on."""
    failure: str | None = None
    """Why the graph that had what was kept could not be compiled, or was not to its end; None unless that happened."""
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
