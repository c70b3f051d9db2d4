"""Loads the data that a command names, from the warehouse or from files, with notes for the user."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from diode_store.devices import KNOWN_DEVICES, describe, known_device, match_hardware
from diode_store.errors import DatasetError, HardwareError
from diode_store.render import counted
from diode_trainer.data.dataset import ExampleSet, what_there_is
from diode_trainer.data.from_files import Files, FilesRead, read_files, regime_name
from diode_trainer.data.from_warehouse import ExampleFilter, load_warehouse

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from diode_store.records import Measurement

ALL_REGIMES = "all"
"""What to ask for where timings of different regimes may be mixed."""


@dataclass(frozen=True)
class LoadedData:
    """A dataset and what to tell the user about it."""

    dataset: ExampleSet
    notes: tuple[str, ...]
    """One line each: the hardware that was matched, how much data there is, and what of it could not be read."""


def load(url: str, wanted: ExampleFilter) -> LoadedData:
    """Read the examples of ``wanted`` from the warehouse at ``url``.

    Raises:
        HardwareError: the name matches nothing, or devices that differ; lists what there is.
        SchemaError: the database has another schema revision.
        DatasetError: nothing to learn from; says what to do.
    """
    loaded = load_warehouse(url, wanted)
    return LoadedData(loaded.dataset, _notes(loaded.dataset, describe(loaded.matched)))


def load_files(
    files: Files, wanted: ExampleFilter, regime: str | None = None, on_file: Callable[[], None] = lambda: None
) -> LoadedData:
    """Read the examples of ``wanted`` from files, merged as the warehouse merges them.

    Args:
        files: where from.
        wanted: which examples.
        regime: how they were timed: a regime's name, ``unknown``, or ``all``; unless it is given, several files must
            be of one.
        on_file: called after each file that was read.

    Raises:
        HardwareError: the name matches nothing, or devices that differ; says which files they are in.
        DatasetError: nothing to learn from, a bad entry of a named file, or different regimes; names the files.
    """
    from diode_trainer.data.from_file import load_measurements

    read = _read(files, wanted, on_file)
    chosen = _Choice(files, read, wanted, regime)
    dataset = load_measurements(read.measurements, files.where, chosen)
    if read.left_out:
        dataset = replace(dataset, lineage={**dataset.lineage, "left_out": read.notes()})
    matched = describe({example.hardware.key: example.hardware for example in dataset}.values())
    return LoadedData(dataset, (*read.notes(), *_notes(dataset, matched)))


def _read(files: Files, wanted: ExampleFilter, on_file: Callable[[], None]) -> FilesRead:
    from diode_store.exchange.context import NO_HARDWARE

    try:
        known = None if wanted.hardware is None else known_device(wanted.hardware)
    except HardwareError:
        # Several known devices, of which the files may have only one.
        known = None
    try:
        return read_files(files, known, on_file)
    except DatasetError as error:
        if NO_HARDWARE in str(error) and wanted.hardware is not None:
            # Lines without a device need a known one by its name: this lists them.
            known_device(wanted.hardware) or match_hardware(KNOWN_DEVICES, wanted.hardware)
        raise


@dataclass(frozen=True)
class _Choice:
    """Takes the usable measurements of files and returns those that are wanted."""

    files: Files
    read: FilesRead
    wanted: ExampleFilter
    regime: str | None

    def __call__(self, usable: list[Measurement]) -> list[Measurement]:
        on_device = self._on_device(usable)
        op, dtype = self.wanted.op, self.wanted.full_dtype
        shapes = ((m, m.problem.shape) for m in on_device)
        chosen = [m for m, shape in shapes if op in (None, shape.op) and dtype in (None, shape.arithmetic)]
        if not chosen:
            there = what_there_is((m.problem.shape.op, m.problem.shape.arithmetic) for m in on_device)
            raise DatasetError(f"{self.files.where}: no examples of {self.wanted.describe()}; there is: {there}")
        return self._of_regime(chosen)

    def _on_device(self, usable: Sequence[Measurement]) -> list[Measurement]:
        """Return the measurements on the devices that are wanted, which must be alike unless told otherwise."""
        devices = list({m.hardware.key: m.hardware for m in usable}.values())
        if self.wanted.hardware is not None:
            try:
                devices = match_hardware(devices, self.wanted.hardware, all_matches=True)
            except HardwareError as error:
                raise HardwareError(f"{self.files.where}: {error}") from None
        keys = {device.key for device in devices}
        found = [m for m in usable if m.hardware.key in keys]
        # Unless a name was given that covers both, an H100 is no H200, whatever they have in common.
        any_name = self.wanted.hardware is not None
        kinds = {(any_name or device.name, device.arch, device.multiprocessors) for device in devices}
        if not self.wanted.all_matches and len(kinds) > 1:
            raise HardwareError(
                f"{self.files.where}: holds different devices: {self._places(found, lambda m: describe([m.hardware]))};"
                " name one with --hardware, or pass --all-matches"
            )
        return found

    def _of_regime(self, chosen: list[Measurement]) -> list[Measurement]:
        """Return the measurements of the regime that is wanted; those of several files must be alike."""
        regimes = sorted({regime_name(m) for m in chosen})
        if self.regime is None and len(self.files.paths) > 1 and len(regimes) > 1:
            raise DatasetError(
                f"{self.files.where}: holds timings of different regimes: {self._places(chosen, regime_name)};"
                f" name one with --regime, or pass --regime {ALL_REGIMES}"
            )
        found = [m for m in chosen if self.regime in (None, ALL_REGIMES, regime_name(m))]
        if not found:
            raise DatasetError(
                f"{self.files.where}: no timings of regime {self.regime}; there is: {', '.join(regimes)}"
            )
        return found

    def _places(self, measurements: Iterable[Measurement], name_of: Callable[[Measurement], str]) -> str:
        """Return each distinct name, and where several files were read those that hold it."""
        by_name: dict[str, list[Measurement]] = defaultdict(list)
        for measurement in measurements:
            by_name[name_of(measurement)].append(measurement)
        if len(self.files.paths) == 1:
            return ", ".join(sorted(by_name))
        return "; ".join(f"{name} in {self.read.where(by_name[name])}" for name in sorted(by_name))


def _notes(dataset: ExampleSet, matched: str) -> tuple[str, ...]:
    return f"hardware: {matched}", f"data: {_summary(dataset)}"


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
