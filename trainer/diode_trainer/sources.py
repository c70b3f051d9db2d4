"""The data a command was pointed at: the warehouse or a file, and what to tell the user about it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diode_store.devices import KNOWN_DEVICES, describe, match_hardware
from diode_store.errors import DatasetError
from diode_store.render import counted
from diode_trainer.dataset import REMEDY, Dataset
from diode_trainer.from_warehouse import Selection, load_warehouse

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Source:
    """What was found."""

    dataset: Dataset
    notes: tuple[str, ...]
    """One line each: the hardware that was matched, and how much data there is."""


def load(url: str, file: Path | None, selection: Selection) -> Source:
    """Read the examples of ``selection`` from ``file`` if there is one, else from the warehouse at ``url``.

    Raises:
        HardwareError: the name matches nothing, or devices that differ; lists what there is.
        SchemaError: the database has another schema revision.
        DatasetError: nothing to learn from, or a bad line; says what to do.
    """
    if file is not None:
        dataset = _from_file(file, selection)
        matched = describe({example.hardware.key: example.hardware for example in dataset}.values())
    else:
        loaded = load_warehouse(url, selection)
        dataset, matched = loaded.dataset, describe(loaded.matched)
    return Source(dataset, (f"hardware: {matched}", f"data: {_summary(dataset)}"))


def _from_file(file: Path, selection: Selection) -> Dataset:
    from diode_trainer.from_file import load_file

    hardware = None
    if selection.hardware is not None:
        hardware = match_hardware(KNOWN_DEVICES, selection.hardware)[0]
    dataset = load_file(file, hardware=hardware)
    chosen = tuple(
        example
        for example in dataset
        if selection.op in (None, example.shape.op) and selection.full_dtype in (None, example.shape.dtype)
    )
    if not chosen:
        raise DatasetError(f"{file}: no examples of {selection.describe()}; {REMEDY}")
    return replace(dataset, examples=chosen)


def _summary(dataset: Dataset) -> str:
    domain = dataset.domain()
    return (
        f"{counted(len(dataset), 'problem')}, {dataset.timings:,} timings ({dataset.failures:,} failed), "
        f"{', '.join(domain.ops)}, {', '.join(domain.dtypes)}"
    )
