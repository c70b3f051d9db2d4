"""Corrections of a model's predictions by measurements: a small file that the hook reads.

A correction is an offset to the natural logarithm of a predicted time. Each measured config has an offset. So has each
measured side of a problem (the vendor library, or a Triton template), and the rest of the problem. ``correcting`` makes
the offsets; this module stores, reads and applies them, with NumPy alone.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_store.candidates.columns import INT_COLUMNS
from diode_store.errors import ModelError, first_line
from diode_store.records import ProblemShape, is_vendor_template
from diode_store.system.files import is_another, read_bounded, write_durably

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from numpy.typing import NDArray

    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import Hardware

_VERSION = 1
_MAKE = "make it again with `diode corrections`"
_BEGINNING = f'{{"version":{_VERSION},"model":{{'.encode()
_ALL_COLUMNS = (*INT_COLUMNS, "allow_tf32")
VENDOR = "vendor"
_MOST = 100.0
"""Bound of all offsets; e to this power exceeds any ratio of times."""

Device = tuple[str, str, int]
"""Name, architecture and multiprocessors."""
Config = tuple[Any, ...]
"""Template, the ``INT_COLUMNS`` in order, allow_tf32."""


@dataclass(frozen=True)
class ProblemOffsets:
    """Offsets to the logarithm of the predicted times of one problem."""

    others: float
    """Offset of configs whose side was not measured."""
    sides: Mapping[str, float]
    """Offset of the other configs of each measured side."""
    configs: Mapping[Config, float]
    """Offset of each measured config; infinite if it never ran."""

    def of(self, columns: ConfigColumns) -> NDArray[np.float64]:
        """Return the offset of each config, shape (n,)."""
        by_template = [self.sides.get(side_of(template), self.others) for template in columns.templates]
        offsets = np.array(by_template, dtype=np.float64)[columns.template_index]
        for position, config in enumerate(configs_of(columns)):
            known = self.configs.get(config)
            if known is not None:
                offsets[position] = known
        return offsets


@dataclass(frozen=True)
class Corrections:
    """Corrections of one model."""

    model_sha256: str
    problems: Mapping[tuple[Device, ProblemShape], ProblemOffsets]
    model_name: str = ""
    created_at: str = ""
    key: str = field(default="", compare=False)
    """Identity of the file, 16 hexadecimal digits; empty for corrections that were not read from a file."""

    def of(self, shape: ProblemShape, hardware: Hardware) -> ProblemOffsets | None:
        """Return the corrections of a problem on a device; None if it was not measured."""
        return self.problems.get((device_of(hardware), shape))

    @property
    def configs(self) -> int:
        """Number of configs with their own correction."""
        return sum(len(offsets.configs) for offsets in self.problems.values())

    def write(self, path: Path) -> None:
        """Write the corrections atomically, for ``read_corrections``.

        Raises:
            ModelError: the file cannot be written.
        """
        try:
            write_durably({path: self.to_json().encode()}, mode=0o644)
        except OSError as error:
            raise ModelError(f"{path}: cannot write the corrections ({error.strerror or error})") from None

    def to_json(self) -> str:
        """Return the content of the file."""
        problems = [
            {
                "device": device,
                "problem": _plain(shape),
                "others": _short(offsets.others),
                "sides": {side: _short(offset) for side, offset in offsets.sides.items()},
                "configs": [[*config, _short(offset)] for config, offset in offsets.configs.items()],
            }
            for (device, shape), offsets in self.problems.items()
        ]
        model = {"name": self.model_name, "sha256": self.model_sha256}
        head = {"version": _VERSION, "model": model, "created_at": self.created_at}
        return json.dumps({**head, "problems": problems}, allow_nan=False, separators=(",", ":")) + "\n"


def check_replaceable(path: Path) -> None:
    """Check that corrections may be written to ``path``.

    Raises:
        ModelError: a file with other content is there.
    """
    if is_another(path, _BEGINNING):
        raise ModelError(f"{path} exists and holds no corrections, so it was not replaced; give another --output")


def read_corrections(path: Path) -> Corrections:
    """Read a file of corrections.

    Raises:
        ModelError: the file is missing, damaged, or of another version.
    """
    try:
        content = read_bounded(path)
        plain = json.loads(content)
        version = plain["version"]
        problems = {} if version != _VERSION else dict(_problem(problem) for problem in plain["problems"])
        model, created_at = plain["model"], plain["created_at"]
        sha256, name = str(model["sha256"]), str(model["name"])
    except OSError as error:
        raise ModelError(f"{path}: cannot read the corrections ({error.strerror or error}); {_MAKE}") from None
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ModelError(f"{path}: not a file of corrections ({first_line(error)}); {_MAKE}") from None
    if version != _VERSION:
        raise ModelError(f"{path}: corrections of version {version!r}, expected {_VERSION}; {_MAKE}")
    return Corrections(sha256, problems, name, created_at, hashlib.sha256(content).hexdigest()[:16])


def side_of(template: str) -> str:
    """Return the side of a template: a group of kernels with similar errors of the model."""
    return VENDOR if is_vendor_template(template) else template


def device_of(hardware: Hardware) -> Device:
    """Return the identity of a device model."""
    return hardware.name, hardware.arch, hardware.multiprocessors


def configs_of(columns: ConfigColumns) -> list[Config]:
    """Return each config as a key of ``ProblemOffsets.configs``."""
    templates = [columns.templates[index] for index in columns.template_index.tolist()]
    return list(zip(templates, *(getattr(columns, name).tolist() for name in _ALL_COLUMNS), strict=True))


def _problem(plain: dict[str, Any]) -> tuple[tuple[Device, ProblemShape], ProblemOffsets]:
    name, arch, multiprocessors = plain["device"]
    offsets = ProblemOffsets(
        _offset(plain["others"]),
        {side: _offset(offset) for side, offset in plain["sides"].items()},
        {_config(config): math.inf if offset is None else _offset(offset) for *config, offset in plain["configs"]},
    )
    shape = dict(plain["problem"])
    named = tuple(sorted(dict(shape.pop("dimensions", {})).items()))
    return ((name, arch, multiprocessors), ProblemShape(**shape, dimensions=named)), offsets


def _plain(shape: ProblemShape) -> dict[str, Any]:
    """Return a problem for JSON; one without named dimensions is as in older files."""
    fields = {**vars(shape), "dimensions": dict(shape.dimensions)}
    return {name: value for name, value in fields.items() if name != "dimensions" or value}


def _config(values: list[Any]) -> Config:
    template, *numbers, allow_tf32 = values
    if len(numbers) != len(INT_COLUMNS):
        raise ValueError(f"a config has {len(numbers)} numbers, not {len(INT_COLUMNS)}")
    return (template, *numbers, bool(allow_tf32))


def _offset(value: Any) -> float:
    offset = float(value)
    if not abs(offset) < _MOST:
        raise ValueError(f"{value} is not an offset")
    return offset


def _short(offset: float) -> float | None:
    """Return an offset for JSON: five digits, null for a config that never ran."""
    return round(offset, 5) if math.isfinite(offset) else None
