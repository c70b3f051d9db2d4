"""Records of decisions for tests that do not care which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import samples
from diode_store.candidates.names import kernel_config
from diode_store.decisions import DecisionRecord, KeptConfig

if TYPE_CHECKING:
    from diode_store.kernels import KernelConfig

POLICY = "adaptive/3/1.1/model's"
EVERY_FIELD: dict[str, Any] = {
    "candidates": 1401,
    "predicted_vendor_us": 12.5,
    "p_within_2pct": 0.75,
    "similar_to": "NVIDIA H200",
    "model_sha256": "a" * 64,
    "seconds": 0.0125,
    "observed": True,
    "failure": "CompilationError: größer\nas it is",
    "host": "gpu-7",
    "hook_version": 3,
    "extra": {"note": "ä", "list": [1, 2.5, None]},
}
"""A value for every field of a decision that may be left out, but what was kept."""


def decision(number: int = 0, *kept: tuple[KernelConfig, float | None], **overrides: Any) -> DecisionRecord:
    """Return a decision; every number makes another one, on the problem of the measurement of that number.

    Args:
        number: what makes its uid, which no measurement has, and its problem.
        kept: configs with their predicted microseconds; one Triton kernel and the vendor's if not given.
        overrides: replace its fields.
    """
    both = ((samples.triton_config(), 9.5), (kernel_config("mm", {}), 10.25))
    fields: dict[str, Any] = {
        "uid": b"decision" + number.to_bytes(8, "big"),
        "hardware": samples.H200,
        "environment": samples.ENVIRONMENT,
        "problem": samples.measurement(number).problem,
        "decided_by": "model",
        "reason": "a template is predicted fastest",
        "policy": POLICY,
        "mode": "adaptive",
        "decided_at": samples.MEASURED_AT,
        "kept": tuple(KeptConfig(config, us) for config, us in kept or both),
    }
    return DecisionRecord(**{**fields, **overrides})
