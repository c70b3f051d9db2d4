"""Loads the data that a command names, from the warehouse or a file, with notes for the user."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from diode_store.devices import KNOWN_DEVICES, describe, known_device, match_hardware
from diode_store.errors import DatasetError, HardwareError
from diode_store.render import counted
from diode_trainer.data.dataset import ExampleSet, what_there_is
from diode_trainer.data.from_warehouse import ExampleFilter, load_warehouse

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from pathlib import Path

    from diode_store.records import Hardware, Measurement


@dataclass(frozen=True)
class LoadedData:
    """A dataset and what to tell the user about it."""

    dataset: ExampleSet
    notes: tuple[str, ...]
    """One line each: the hardware that was matched, and how much data there is."""


def load(url: str, file: Path | None, wanted: ExampleFilter) -> LoadedData:
    """Read the examples of ``wanted`` from ``file`` if there is one, else from the warehouse at ``url``.

    Raises:
        HardwareError: the name matches nothing, or devices that differ; lists what there is.
        SchemaError: the database has another schema revision.
        DatasetError: nothing to learn from, or a bad line; says what to do.
    """
    if file is not None:
        dataset = _from_file(file, wanted)
        matched = describe({example.hardware.key: example.hardware for example in dataset}.values())
    else:
        loaded = load_warehouse(url, wanted)
        dataset, matched = loaded.dataset, describe(loaded.matched)
    return LoadedData(dataset, (f"hardware: {matched}", f"data: {_summary(dataset)}"))


def _from_file(file: Path, wanted: ExampleFilter) -> ExampleSet:
    from diode_store.exchange.context import NO_HARDWARE
    from diode_trainer.data.from_file import load_file

    try:
        known = None if wanted.hardware is None else known_device(wanted.hardware)
    except HardwareError:
        # Several known devices, of which the file may have only one.
        known = None
    try:
        return load_file(file, hardware=known, select=lambda usable: _wanted(file, wanted, usable))
    except DatasetError as error:
        if NO_HARDWARE in str(error) and wanted.hardware is not None:
            # Lines without a device need a known one by its name: this lists them.
            known_device(wanted.hardware) or match_hardware(KNOWN_DEVICES, wanted.hardware)
        raise


def _wanted(file: Path, wanted: ExampleFilter, usable: Sequence[Measurement]) -> list[Measurement]:
    """Return the measurements of a file that ``wanted`` means."""
    keys = {device.key for device in _devices(file, wanted, usable)}
    on_device = [m for m in usable if m.hardware.key in keys]
    shapes = ((m, m.problem.shape) for m in on_device)
    chosen = [
        m for m, shape in shapes if wanted.op in (None, shape.op) and wanted.full_dtype in (None, shape.arithmetic)
    ]
    if not chosen:
        there = what_there_is((m.problem.shape.op, m.problem.shape.arithmetic) for m in on_device)
        raise DatasetError(f"{file}: no examples of {wanted.describe()}; there is: {there}")
    return chosen


def _devices(file: Path, wanted: ExampleFilter, usable: Sequence[Measurement]) -> list[Hardware]:
    devices = list({m.hardware.key: m.hardware for m in usable}.values())
    if wanted.hardware is not None:
        try:
            return match_hardware(devices, wanted.hardware, all_matches=wanted.all_matches)
        except HardwareError as error:
            raise HardwareError(f"{file}: {error}") from None
    if not wanted.all_matches and len({(device.arch, device.multiprocessors) for device in devices}) > 1:
        raise HardwareError(
            f"{file}: holds different devices: {describe(devices)}; name one with --hardware, or pass --all-matches"
        )
    return devices


def _summary(dataset: ExampleSet) -> str:
    domain = dataset.domain()
    ops = _named((example.shape.op for example in dataset), domain.ops)
    dtypes = _named((example.shape.arithmetic for example in dataset), domain.dtypes)
    return (
        f"{counted(len(dataset), 'problem')}, {counted(dataset.timings, 'timing')} ({dataset.failures:,} failed), "
        f"{ops}, {dtypes}"
    )


def _named(values: Iterable[str], covered: Collection[str]) -> str:
    """Return the distinct values; those too rare for a model to cover come with their number of problems."""
    found = sorted(Counter(values).items(), key=lambda item: (item[0] not in covered, item[0]))
    return ", ".join(value if value in covered else f"{value} ({counted(n, 'problem')})" for value, n in found)
