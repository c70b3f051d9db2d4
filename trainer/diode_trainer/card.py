"""A model's card: what it is for, what it was made from, how good it is; one JSON file beside the checkpoint."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from diode_store.errors import ModelError, first_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from diode_store.records import Hardware, ProblemShape

MATMUL_PURPOSE = "matmul_kernel_runtime_prediction"


@dataclass(frozen=True)
class CoveredHardware:
    """One device model whose timings the model was trained on."""

    name: str
    arch: str
    multiprocessors: int
    vendor: str = "nvidia"


@dataclass(frozen=True)
class Domain:
    """Inside what a model may be believed: what its training problems covered."""

    hardware: tuple[CoveredHardware, ...] = ()
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    layouts: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Smallest and largest b, m, n and k."""

    def misses(self, shape: ProblemShape, hardware: Hardware) -> tuple[str, ...]:
        """Return what of a problem and its device is not covered, in words; what the domain leaves empty is open."""
        devices = {(device.name, device.arch, device.multiprocessors) for device in self.hardware}
        identity = (hardware.name, hardware.arch, hardware.multiprocessors)
        found = [f"hardware {hardware.name}"] if devices and identity not in devices else []
        covered = (("op", self.ops), ("dtype", self.dtypes), ("layout", self.layouts))
        found += [
            f"{name} {getattr(shape, name)}" for name, known in covered if known and getattr(shape, name) not in known
        ]
        sizes = {name: getattr(shape, name) for name in self.shapes}
        found += [
            f"{name.upper()} outside {low} to {high}"
            for name, (low, high) in self.shapes.items()
            if not low <= sizes[name] <= high
        ]
        return tuple(found)

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Domain:
        """Rebuild what ``asdict`` made.

        Raises:
            TypeError, KeyError, ValueError: ``content`` is not that.
        """
        return cls(
            hardware=tuple(CoveredHardware(**device) for device in content["hardware"]),
            ops=tuple(content["ops"]),
            dtypes=tuple(content["dtypes"]),
            layouts=tuple(content["layouts"]),
            templates=tuple(content["templates"]),
            shapes={name: (int(low), int(high)) for name, (low, high) in content["shapes"].items()},
        )


@dataclass(frozen=True)
class Card:
    """Everything a reader of ``NAME.json`` learns about ``NAME.pt``."""

    name: str
    purpose: str
    model_type: str
    feature_version: int
    domain: Domain
    data: Mapping[str, Any] = field(default_factory=dict)
    """Lineage: warehouse revision, problems, measurements, timings, failures, dates, environments, data sets."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Hyperparameters, seed, epochs and seconds."""
    command: str = ""
    """What to run to make this model again."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    baselines: Mapping[str, Any] = field(default_factory=dict)
    notes: str = ""
    """How to read the figures."""
    sha256: str = ""
    """Of the checkpoint's bytes."""
    created_at: str = ""
    torch: str = ""
    licence: str = "Apache-2.0"

    @property
    def hardware(self) -> tuple[CoveredHardware, ...]:
        """The device models whose timings it was trained on."""
        return self.domain.hardware

    @property
    def ops(self) -> tuple[str, ...]:
        """The ops it was trained on."""
        return self.domain.ops

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The dtypes it was trained on."""
        return self.domain.dtypes

    @property
    def regret_at_1(self) -> float | None:
        """How much slower than the best its first pick is, on problems it was not trained on; None if not judged."""
        try:
            return float(self.metrics["all_choices"]["regret"]["1"]["geomean"])
        except (KeyError, TypeError, ValueError):
            return None

    def to_json(self) -> str:
        """Return the card as indented JSON."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"


def read_card(path: Path) -> Card:
    """Read a card.

    Raises:
        ModelError: it is missing, not JSON or not a card.
    """
    try:
        content = _object(json.loads(path.read_bytes()))
        known = {name: value for name, value in content.items() if name in {f.name for f in fields(Card)}}
        return Card(**{**known, "domain": Domain.from_plain(known["domain"])})
    except FileNotFoundError:
        raise ModelError(f"{path}: the model's card is missing; copy it beside the checkpoint or train again") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ModelError(f"{path}: not a model card ({_reason(error)}); train again with `diode-train`") from None


def _object(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise TypeError(f"it holds a JSON {type(content).__name__}, not an object")
    return content


def _reason(error: Exception) -> str:
    """Return what is wrong with a card; a KeyError says no more than the name."""
    return f"it has no {error}" if isinstance(error, KeyError) else first_line(error)
