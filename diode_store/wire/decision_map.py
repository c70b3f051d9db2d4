"""The record of a decision as a map, for ``codec`` to write and to read.

Layout of version 3, the only one so far::

    {"v": 3, "kind": "decision", "uid": bin16, "hardware": {...}, "environment": {...}, "problem": {...},
     "config_columns": [...], "configs": [bin, ...], "predicted_us": [39.4, ...],
     "decided_by": "model", "reason": "...", "policy": "adaptive/3/1.1/model's", "mode": "adaptive", ...}

The config table has the layout of a measurement's and holds the kept configs, fastest prediction first.
``predicted_us`` has a value for each config, null without a prediction. Both are left out if nothing was kept. Absent
optional fields are left out too. Unknown keys are kept in ``extra``.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from diode_store.decisions import MOST_KEPT, DecisionRecord, KeptConfig
from diode_store.errors import CodecError
from diode_store.values import checks
from diode_store.wire.record_parts import NIL, environment_of, hardware_of, moment, plain, problem_of, uid
from diode_store.wire.record_tables import read_configs, write_configs

if TYPE_CHECKING:
    from collections.abc import Sequence

DECISION = "decision"
"""The ``kind`` of these records."""
DECISION_VERSION = 3
"""Version of a decision's record; readers that know no kinds refuse it as newer than theirs."""

_MOST_SECONDS = 1e9
_count = partial(checks.integer, least=0, most=checks.INT32)
_CHECKS: dict[str, checks.Check] = {
    "decided_by": checks.text,
    "reason": checks.text,
    "policy": checks.text,
    "mode": checks.text,
    "candidates": _count,
    "predicted_vendor_us": checks.microseconds,
    "p_within_2pct": partial(checks.number, least=0, most=1),
    "model_sha256": checks.text,
    "similar_to": checks.text,
    "seconds": partial(checks.number, least=0, most=_MOST_SECONDS),
    "observed": checks.flag,
    "failure": checks.text,
    "host": checks.text,
    "hook_version": _count,
}
_NEEDED = ("uid", "hardware", "problem", "decided_by", "reason", "policy", "mode", "decided_at")
_KEPT = ("config_columns", "configs", "predicted_us")
_KNOWN = frozenset((*_CHECKS, *_NEEDED, *_KEPT, "v", "kind", "environment", "extra"))


def map_of(decision: DecisionRecord) -> dict[str, Any]:
    """Return ``decision`` as a map; the caller drops empty fields."""
    kept: dict[str, Any] = {}
    if decision.kept:
        configs, predicted = zip(*decision.kept, strict=True)
        kept = dict(zip(_KEPT, (*write_configs(configs), predicted), strict=True))
    return {
        "v": DECISION_VERSION,
        "kind": DECISION,
        "uid": decision.uid,
        "hardware": plain(decision.hardware),
        "environment": plain(decision.environment),
        "problem": plain(decision.problem),
        "decided_at": decision.decided_at.isoformat(),
        "extra": dict(decision.extra),
        **{name: getattr(decision, name) for name in _CHECKS},
        **kept,
    }


def decision_of(content: dict[str, Any]) -> DecisionRecord:
    """Return the decision in a map.

    Raises:
        RecordError: a field is missing or its value is wrong. Other errors of malformed content may pass through.
    """
    checks.require("the record of a decision", content, _NEEDED)
    known = checks.fields("decision", content, _CHECKS)
    checks.require("the record of a decision", known, ("decided_by", "reason", "policy", "mode"))
    return DecisionRecord(
        uid=uid("uid", content["uid"]),
        hardware=hardware_of(content["hardware"]),
        environment=environment_of(content.get("environment", NIL)),
        problem=problem_of(content["problem"]),
        decided_at=moment("decided_at", content["decided_at"]),
        kept=_kept(content),
        extra=checks.extra_fields(content, _KNOWN),
        **known,
    )


def _kept(content: dict[str, Any]) -> tuple[KeptConfig, ...]:
    if not any(name in content for name in _KEPT):
        return ()
    checks.require("the record of a decision", content, _KEPT)
    rows: Sequence[Any] = content["configs"]
    if len(rows) > MOST_KEPT:  # checked before any row is decoded
        raise CodecError(f"a decision may keep {MOST_KEPT:,} kernels, not {len(rows):,}")
    configs = read_configs(content)
    predicted = checks.array("predicted_us", content["predicted_us"], len(configs))
    times = (None if us is None else checks.microseconds(f"predicted_us[{i}]", us) for i, us in enumerate(predicted))
    return tuple(map(KeptConfig, configs, times))
