"""A model's card: its purpose, its origin and how good it is; one JSON file beside the checkpoint."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, NamedTuple

from diode_store.devices import describe
from diode_store.errors import ModelError, first_line
from diode_store.keys import content_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from diode_store.records import Hardware, ProblemShape

_FEW_TRITON_CONFIGS = 250
"""A sweep of Inductor's DEFAULT list has some 20, and as many again for each size that it scales them down for; ten
problems with 50 drawn from its EXHAUSTIVE list have 500."""
MATMUL_PURPOSE = "matmul_kernel_runtime_prediction"


@dataclass(frozen=True)
class CoveredHardware:
    """One device model whose timings the model was trained on."""

    name: str
    arch: str
    multiprocessors: int
    vendor: str = "nvidia"

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> CoveredHardware:
        """Rebuild what ``asdict`` made.

        Raises:
            TypeError: ``content`` is not that.
        """
        found = cls(**content)
        texts = (found.name, found.arch, found.vendor)
        if not isinstance(found.multiprocessors, int) or not all(isinstance(text, str) for text in texts):
            raise TypeError("its hardware is none")
        return found


class Miss(NamedTuple):
    """One way in which a problem or its device is outside a domain."""

    reason: str
    """One word: hardware, op, dtype, layout or shape."""
    summary: str
    """In a few words, the same for all problems alike."""
    detail: str
    """A line for a person, of this very problem."""


@dataclass(frozen=True)
class Domain:
    """Where a model can be trusted: what its training problems covered."""

    hardware: tuple[CoveredHardware, ...] = ()
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    """``tf32`` is float32 that may be multiplied as TF32, ``float32`` the rest of it."""
    layouts: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Smallest and largest b, m, n and k."""

    def covers(self, hardware: Hardware) -> bool:
        """Return whether the model was trained on this device model, or on any."""
        identity = (hardware.name, hardware.arch, hardware.multiprocessors)
        return not self.hardware or identity in {(d.name, d.arch, d.multiprocessors) for d in self.hardware}

    def misses(self, shape: ProblemShape, hardware: Hardware) -> Iterator[Miss]:
        """Yield what of a device and a problem is not covered; what the domain leaves empty is open."""
        if not self.covers(hardware):
            names = dict.fromkeys(device.name for device in self.hardware)
            detail = f"the model knows {', '.join(names)}, not {describe([hardware])}"
            yield Miss("hardware", f"hardware {hardware.name}", detail)
        # Of float32 a model knows what was asked of it: it may have learned from TF32 alone, or from IEEE alone.
        for name, value, known in (
            ("op", shape.op, self.ops),
            ("dtype", shape.arithmetic, self.dtypes),
            ("layout", shape.layout, self.layouts),
        ):
            if known and value not in known:
                yield Miss(name, f"{name} {value}", f"the model knows {', '.join(known)}, not {value}")
        for name, (low, high) in self.shapes.items():
            value, size = getattr(shape, name), name.upper()
            if not low <= value <= high:
                detail = f"{size}={value} is outside {low} to {high}, which the model knows"
                yield Miss("shape", f"{size} outside {low} to {high}", detail)

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Domain:
        """Rebuild what ``asdict`` made.

        Raises:
            TypeError, KeyError, ValueError: ``content`` is not that.
        """
        return cls(
            hardware=tuple(CoveredHardware.from_plain(device) for device in content["hardware"]),
            ops=tuple(content["ops"]),
            dtypes=tuple(content["dtypes"]),
            layouts=tuple(content["layouts"]),
            templates=tuple(content["templates"]),
            shapes={name: (int(low), int(high)) for name, (low, high) in content["shapes"].items()},
        )


@dataclass(frozen=True)
class Calibration:
    """What a model's spread is worth, fitted to problems that it had not seen."""

    spread: float
    """By what the spread of the members is multiplied."""
    vendor_spread: float
    """The same for how much slower than predicted a vendor's kernel may be."""
    within_offset: float
    within_slope: float
    """The log-odds that the first choice is within 2% of the best are the offset plus the slope times those drawn."""
    kernel_price: float
    """The relative gain for which a kernel is worth timing, so that one kernel a problem is timed in the mean."""
    problems: int
    """To how many problems this was fitted."""

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Calibration:
        """Rebuild what ``asdict`` made.

        Raises:
            TypeError, KeyError, ValueError: ``content`` is not that.
        """
        numbers: dict[str, Any] = {field.name: float(content[field.name]) for field in fields(cls)}
        if not all(math.isfinite(number) for number in numbers.values()):
            raise ValueError("a number of the calibration is not finite")
        return cls(**numbers | {"problems": int(content["problems"])})


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
    compared: Mapping[str, Any] = field(default_factory=dict)
    """With other models on problems that none of both had seen, by the other's SHA-256: its ``name``, how many
    ``problems``, and both geometric means, ``regret_at_1`` and ``its_regret_at_1``."""
    calibration: Calibration | None = None
    """What the spread of its members is worth; None if nothing was held out to learn that from."""
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
            regret = float(self.metrics["all_choices"]["regret"]["1"]["geomean"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        return regret if math.isfinite(regret) else None

    @property
    def narrow_note(self) -> str | None:
        """A line about a model that learned from few of the kernels that the hook ranks; None if it did not."""
        return narrow_note(self.data.get("triton_configs"))

    def to_json(self) -> str:
        """Return the card as indented JSON."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"


def similar_device(cards: Iterable[Card], hardware: Hardware) -> str:
    """Return the name of the device, of those that models know, that is most like one; empty if none is like it.

    It has the same architecture and, by ratio, the nearest number of multiprocessors.
    """
    known = [device for card in cards for device in card.hardware]
    alike = [device for device in known if (device.vendor, device.arch) == (hardware.vendor, hardware.arch)]
    distances = [abs(math.log(max(device.multiprocessors, 1) / max(hardware.multiprocessors, 1))) for device in alike]
    return alike[distances.index(min(distances))].name if alike else ""


def shape_digest(shape: ProblemShape) -> int:
    """Return a 64-bit digest of ``shape``, by which a checkpoint says that its model learned from it."""
    parts = [shape.op, shape.arithmetic, shape.b, shape.m, shape.n, shape.k, shape.layout]
    return int.from_bytes(content_key("shape", 1, parts)[:8], "big", signed=True)


def narrow_note(triton_configs: Any) -> str | None:
    """Return a line about how many Triton configs were measured, with a remedy behind the semicolon; None if enough."""
    if not isinstance(triton_configs, int) or not 0 < triton_configs < _FEW_TRITON_CONFIGS:
        return None
    return (
        f"only {triton_configs} Triton configs were measured, and the hook ranks some 1,400; train on a sweep of"
        ' `diode-collect --search-space SAMPLE:50`, or give the hook search_space="DEFAULT"'
    )


_TEXTS = ("name", "purpose", "model_type", "sha256", "created_at")


def card_path(checkpoint: Path) -> Path:
    """Return where the card of a checkpoint is."""
    return checkpoint.with_suffix(".json")


def read_card(path: Path) -> Card:
    """Read a card.

    Raises:
        ModelError: it is missing, not JSON or not a card.
    """
    try:
        content = _object(json.loads(path.read_bytes()))
        known = {name: value for name, value in content.items() if name in {f.name for f in fields(Card)}}
        for name in ("data", "training", "metrics", "baselines", "compared"):
            _object(known.get(name, {}))
        _check_texts(known)
        uncertainty = known.get("calibration")
        calibration = None if uncertainty is None else Calibration.from_plain(uncertainty)
        return Card(**{**known, "domain": Domain.from_plain(known["domain"]), "calibration": calibration})
    except FileNotFoundError:
        raise ModelError(f"{path}: the model's card is missing; copy it beside the checkpoint or train again") from None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise ModelError(f"{path}: not a model card ({_reason(error)}); train again with `diode-train`") from None


def _check_texts(content: Mapping[str, Any]) -> None:
    for name in _TEXTS:
        if not isinstance(content.get(name, ""), str):
            raise TypeError(f"its {name} is no text")


def _object(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise TypeError(f"it holds a JSON {type(content).__name__}, not an object")
    return content


def _reason(error: Exception) -> str:
    """Return what is wrong with a card; a KeyError says no more than the name."""
    return f"it has no {error}" if isinstance(error, KeyError) else first_line(error)
