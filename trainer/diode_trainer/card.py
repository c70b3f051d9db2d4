"""The card of a model: its purpose, origin and quality, in a JSON file beside the checkpoint."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from diode_store.errors import ModelError, first_line
from diode_store.system.files import read_bounded
from diode_store.values.keys import content_key
from diode_trainer.covered import NEAR_MARGIN, CoveredHardware, DeviceCheck, Standing, standing_of
from diode_trainer.op_domain import Miss, OpDomain, out_of_range

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from diode_store.records import Hardware, ProblemShape

_FEW_TRITON_CONFIGS = 250
"""Fewer measured Triton configs make a model narrow. A sweep of Inductor's DEFAULT list measures some 20, and as many
again for each size that scales them down. Ten problems with 50 sampled from the EXHAUSTIVE list have 500.
"""
MATMUL_PURPOSE = "matmul_kernel_runtime_prediction"
ATTENTION_PURPOSE = "attention_kernel_runtime_prediction"
CONVOLUTION_PURPOSE = "convolution_kernel_runtime_prediction"
PURPOSES = (MATMUL_PURPOSE, ATTENTION_PURPOSE, CONVOLUTION_PURPOSE)


@dataclass(frozen=True)
class Domain:
    """Problems and devices that a model can be trusted on, as its training data covered them.

    ``dtypes``, ``layouts`` and ``shapes`` are about the ops that are not in ``of_ops``.
    """

    hardware: tuple[CoveredHardware, ...] = ()
    ops: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = ()
    """``tf32`` is float32 that may use TF32, ``float32`` is IEEE float32."""
    layouts: tuple[str, ...] = ()
    templates: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Smallest and largest b, m, n and k."""
    device_checks: tuple[DeviceCheck, ...] = ()
    """Results of leaving out each device, for architectures with several devices."""
    plain_hardware: tuple[CoveredHardware, ...] = ()
    """Devices that measured the ops that are not in ``of_ops``; empty if all did."""
    of_ops: Mapping[str, OpDomain] = field(default_factory=dict)
    """Domains of scaled, grouped, summed and int8 products, by op; older cards have none."""

    @property
    def all_dtypes(self) -> tuple[str, ...]:
        """Known dtypes of any op."""
        return tuple(sorted({*self.dtypes, *(dtype for own in self.of_ops.values() for dtype in own.dtypes)}))

    def knows_op(self, op: str) -> bool:
        """Return whether the model learned an op on any device."""
        return not self.ops or op in self.ops

    def devices_of(self, op: str = "") -> tuple[CoveredHardware, ...]:
        """Return the devices that measured an op; without an op, those that measured plain products."""
        own = self.of_ops.get(op)
        return (self.plain_hardware or self.hardware) if own is None else own.hardware

    def dtypes_of(self, op: str) -> tuple[str, ...]:
        """Return the known dtypes of an op."""
        own = self.of_ops.get(op)
        return self.dtypes if own is None else own.dtypes

    def standing(self, hardware: Hardware | CoveredHardware, op: str = "") -> Standing:
        """Return how well the model knows a device, and why: for an op, or without one for plain products."""
        devices = self.devices_of(op)
        # A check left the device out of what others learned of the op, so one device alone has none.
        return standing_of(devices, self.device_checks if len(devices) > 1 else (), hardware)

    def covers(self, hardware: Hardware | CoveredHardware, op: str = "") -> bool:
        """Return whether the model knows a device well enough to decide alone, as in ``standing``."""
        return self.standing(hardware, op).is_known

    def learned_from(self, hardware: Hardware) -> bool:
        """Return whether the model was trained on this device model, or on any."""
        identity = (hardware.name, hardware.arch, hardware.multiprocessors)
        return not self.hardware or identity in {device.identity for device in self.hardware}

    def misses(self, shape: ProblemShape, hardware: Hardware, *, near: bool = False) -> Iterator[Miss]:
        """Yield every way in which a problem on a device is outside the domain; empty fields accept anything.

        Args:
            shape: problem.
            hardware: device.
            near: accept a device that the model is only near to.
        """
        standing = self.standing(hardware, shape.op)
        if not standing.is_known and not (near and standing.is_near):
            yield Miss("hardware", f"hardware {hardware.name}", standing.reason)
        if self.ops and shape.op not in self.ops:
            yield _unknown("op", shape.op, self.ops)
        own = self.of_ops.get(shape.op)
        if own is not None:
            yield from own.misses(shape)
            return
        # A model may know float32 as TF32 alone, or as IEEE alone.
        for name, value, known in (("dtype", shape.arithmetic, self.dtypes), ("layout", shape.layout, self.layouts)):
            if known and value not in known:
                yield _unknown(name, value, known)
        yield from out_of_range(shape, self.shapes)

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Domain:
        """Rebuild a domain from the result of ``asdict``.

        Raises:
            TypeError, KeyError, ValueError: ``content`` is not such a result.
        """
        return cls(
            hardware=tuple(CoveredHardware.from_plain(device) for device in content["hardware"]),
            ops=tuple(content["ops"]),
            dtypes=tuple(content["dtypes"]),
            layouts=tuple(content["layouts"]),
            templates=tuple(content["templates"]),
            shapes={name: (int(low), int(high)) for name, (low, high) in content["shapes"].items()},
            device_checks=tuple(DeviceCheck.from_plain(check) for check in content.get("device_checks", ())),
            plain_hardware=tuple(CoveredHardware.from_plain(device) for device in content.get("plain_hardware", ())),
            of_ops={op: OpDomain.from_plain(own) for op, own in content.get("of_ops", {}).items()},
        )


def _unknown(name: str, value: str, known: Sequence[str]) -> Miss:
    return Miss(name, f"{name} {value}", f"the model knows {', '.join(known)}, not {value}")


_USUAL_LENGTH, _LENGTHS = 64, (8, 1024)
"""Reference length of a list for spreads and log-odds, and the range of lengths in which these change."""


@dataclass(frozen=True)
class Calibration:
    """Calibration of a model's uncertainty, fitted to problems outside its training data."""

    spread: float
    """Factor on the spread of the ensemble members."""
    vendor_spread: float
    """Factor on the spread for how much slower than predicted a vendor kernel may be."""
    within_offset: float
    within_slope: float
    """The log-odds that the first choice is within 2% of the best are the offset plus the slope times the log-odds of
    the draws.
    """
    kernel_price: float
    """Relative gain that makes a kernel worth timing; higher for kernels that compile slowly."""
    problems: int
    """Number of problems in the fit of the calibration."""
    odd_spread: float = 0.0
    """Log of the factor on both spreads if the rows of an operand are not a multiple of 16 bytes."""
    odd_offset: float = 0.0
    """Addition to the log-odds for such rows."""
    length_spread: float = 0.0
    """Log of the factor on both spreads for each doubling of the list from 64 candidates."""
    length_offset: float = 0.0
    """Addition to the log-odds for each doubling."""

    def widened(self, factor: float) -> Calibration:
        """Return the calibration for predictions that scatter by ``factor`` more."""
        return replace(self, spread=self.spread * factor, vendor_spread=self.vendor_spread * factor)

    @classmethod
    def from_plain(cls, content: Mapping[str, Any]) -> Calibration:
        """Rebuild a calibration from the result of ``asdict``; older cards lack the fields that have a default.

        Raises:
            TypeError, KeyError, ValueError: ``content`` is not such a result.
        """
        known = [field.name for field in fields(cls) if field.default is MISSING or field.name in content]
        numbers: dict[str, Any] = {name: float(content[name]) for name in known}
        if not all(math.isfinite(number) for number in numbers.values()):
            raise ValueError("a number of the calibration is not finite")
        return cls(**numbers | {"problems": int(content["problems"])})

    def at(self, *, is_odd: bool, length: int) -> Calibration:
        """Return the calibration for one list, with the terms for its kind applied.

        Args:
            is_odd: True if an operand has rows that are not a multiple of 16 bytes.
            length: number of candidates in the list.
        """
        doublings = length_in_doublings(length)
        return replace(
            self.widened(math.exp(self.odd_spread * is_odd + self.length_spread * doublings)),
            within_offset=self.within_offset + self.odd_offset * is_odd + self.length_offset * doublings,
            odd_spread=0.0,
            odd_offset=0.0,
            length_spread=0.0,
            length_offset=0.0,
        )


def length_in_doublings(length: int) -> float:
    """Return the doublings from 64 candidates to ``length``, limited to the calibrated range."""
    shortest, longest = _LENGTHS
    return math.log2(min(max(length, shortest), longest) / _USUAL_LENGTH)


@dataclass(frozen=True)
class Card:
    """Content of ``NAME.json``, which describes ``NAME.pt``."""

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
    """Command line that reproduces the model."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    baselines: Mapping[str, Any] = field(default_factory=dict)
    compared: Mapping[str, Any] = field(default_factory=dict)
    """Comparisons with other models, on problems outside the training data of both, by the other's SHA-256. Each has
    the other's ``name``, the number of ``problems``, and the geometric means ``regret_at_1`` and ``its_regret_at_1``.
    """
    calibration: Calibration | None = None
    """Calibration of the members' spread; None if no problems were held out."""
    notes: str = ""
    """Hints for reading the figures."""
    sha256: str = ""
    """SHA-256 of the checkpoint."""
    created_at: str = ""
    torch: str = ""
    licence: str = "Apache-2.0"

    @property
    def hardware(self) -> tuple[CoveredHardware, ...]:
        """Device models in the training data."""
        return self.domain.hardware

    @property
    def ops(self) -> tuple[str, ...]:
        """Ops in the training data."""
        return self.domain.ops

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtypes in the training data."""
        return self.domain.all_dtypes

    def calibration_on(self, hardware: Hardware, op: str) -> Calibration | None:
        """Return the calibration for an op on a device, widened if the model is only near to knowing the device."""
        if self.calibration is None or not self.domain.standing(hardware, op).is_near:
            return self.calibration
        return self.calibration.widened(NEAR_MARGIN)

    @property
    def regret_at_1(self) -> float | None:
        """Geometric mean of regret@1 on problems outside the training data; None if the model was not judged."""
        try:
            regret = float(self.metrics["all_choices"]["regret"]["1"]["geomean"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        return regret if math.isfinite(regret) else None

    @property
    def narrow_note(self) -> str | None:
        """Warning about a model that learned from few of the kernels that the hook ranks, or None."""
        return narrow_note(self.data.get("triton_configs")) if self.purpose == MATMUL_PURPOSE else None

    def to_json(self) -> str:
        """Return the card as indented JSON."""
        return json.dumps(asdict(self), indent=2, allow_nan=False) + "\n"


def shape_digest(shape: ProblemShape) -> int:
    """Return a 64-bit digest of ``shape``; a checkpoint lists the digests of its training problems."""
    parts: list[Any] = [shape.op, shape.arithmetic, shape.b, shape.m, shape.n, shape.k, shape.layout]
    if shape.dimensions:
        parts.append([list(pair) for pair in shape.dimensions])
    return int.from_bytes(content_key("shape", 1, parts)[:8], "big", signed=True)


def narrow_note(triton_configs: Any) -> str | None:
    """Return a warning if few Triton configs were measured, with a remedy after the semicolon; None if enough were."""
    if not isinstance(triton_configs, int) or not 0 < triton_configs < _FEW_TRITON_CONFIGS:
        return None
    return (
        f"only {triton_configs} Triton configs were measured, and the hook ranks some 1,400; train on a sweep of"
        ' `diode-collect --search-space SAMPLE:50`, or give the hook search_space="DEFAULT"'
    )


_TEXTS = ("name", "purpose", "model_type", "sha256", "created_at")


def card_path(checkpoint: Path) -> Path:
    """Return the path of a checkpoint's card."""
    return checkpoint.with_suffix(".json")


def read_card(path: Path) -> Card:
    """Read a card.

    Raises:
        ModelError: the file is missing, not JSON or not a card.
    """
    try:
        content = _object(json.loads(read_bounded(path)))
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
            raise TypeError(f"its {name} is not a text")


def _object(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise TypeError(f"it holds a JSON {type(content).__name__}, not an object")
    return content


def _reason(error: Exception) -> str:
    """Describe an error in a card; the text of a KeyError is only a name."""
    return f"it has no {error}" if isinstance(error, KeyError) else first_line(error)
