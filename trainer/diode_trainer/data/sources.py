"""Load the data that a command names, from the warehouse or from files, with notes for the user."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from diode_store.command_line.render import counted
from diode_store.devices.known import KNOWN_DEVICES, NEXT_STEP, describe, known_device, match_hardware
from diode_store.errors import DatasetError, HardwareError, NoHardwareError, NoMeasurementsError, NoWarehouseError
from diode_store.exchange.bundled import bundled_devices, bundled_segments
from diode_store.records import UNKNOWN_REGIME, regime_group, regime_rank
from diode_trainer.data.dataset import UNKNOWN_OPS, ExampleSet, ingest_bundled, what_there_is
from diode_trainer.data.from_files import Files, FilesRead, read_files
from diode_trainer.data.from_warehouse import ALL_REGIMES, ExampleFilter, load_warehouse, match_measured

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from diode_store.devices.known import DeviceModel
    from diode_store.records import Hardware, Measurement

BUNDLED = "the bundled measurements"


@dataclass(frozen=True)
class LoadedData:
    """Dataset with notes for the user."""

    dataset: ExampleSet
    notes: tuple[str, ...]
    """One line each: the matched hardware, the amount of data, and what could not be read."""


def load(url: str, wanted: ExampleFilter) -> LoadedData:
    """Read the examples that match ``wanted`` from the warehouse at ``url``.

    Raises:
        HardwareError: a name matches nothing, or different devices; lists the known ones.
        NoWarehouseError: the warehouse does not exist.
        SchemaError: the database has another schema revision.
        NoMeasurementsError: the warehouse is empty.
        DatasetError: no example matches; says what to do.
    """
    try:
        loaded = load_warehouse(url, wanted)
    except NoHardwareError as error:
        if not (bundled := _bundled_of(error.name)):
            raise
        said = str(error).removesuffix(f"; {NEXT_STEP}")
        raise NoHardwareError(f"{said}; {BUNDLED} have {describe(bundled)}: {ingest_bundled(url)} adds them") from None
    parts = {name: [row.hardware for row in rows] for name, rows in loaded.matched.items()}
    _check_that_each_has_run("the warehouse", loaded.dataset, parts, wanted)
    return LoadedData(loaded.dataset, _notes(loaded.dataset, _matched(parts)))


def device_names(url: str, wanted: ExampleFilter) -> list[str]:
    """Return the sorted names of the devices whose examples ``load`` or ``load_bundled`` will return.

    Only the list of devices is read. The result is empty if a name matches several devices, or none.
    """
    parts: Mapping[str, Sequence[DeviceModel]]
    try:
        try:
            parts = match_measured(url, wanted)
        except (NoMeasurementsError, NoWarehouseError):
            parts = _on(BUNDLED, list(bundled_devices()), wanted)
    except HardwareError:  # ``load`` reports the error
        return []
    names = [{device.name for device in devices} for devices in parts.values()]
    return sorted(set().union(*names)) if all(len(some) == 1 for some in names) else []


def load_bundled(wanted: ExampleFilter, on_file: Callable[[], None] = lambda: None) -> LoadedData:
    """Read the bundled examples that match ``wanted``, by default of all regimes, as from a warehouse.

    Args:
        wanted: filter.
        on_file: called after each segment.

    Raises:
        HardwareError: a name matches nothing, or different devices; lists the known ones.
        DatasetError: no example matches; says what there is.
    """
    segments = bundled_segments()
    devices = list({device.key: device for device in segments.values()}.values())
    keys = {device.key for some in _on(BUNDLED, devices, wanted).values() for device in some}
    paths = [path for path, device in segments.items() if device.key in keys]
    loaded = load_files(Files(tuple(paths), BUNDLED), replace(wanted, regime=wanted.regime or ALL_REGIMES), on_file)
    dataset = replace(loaded.dataset, lineage={**loaded.dataset.lineage, "origin": BUNDLED})
    return replace(loaded, dataset=dataset)


def _bundled_of(name: str) -> list[Hardware]:
    """Return the bundled devices that match a name."""
    try:
        return match_hardware(list(bundled_devices()), name, all_matches=True)
    except NoHardwareError:
        return []


def load_files(files: Files, wanted: ExampleFilter, on_file: Callable[[], None] = lambda: None) -> LoadedData:
    """Read the examples that match ``wanted`` from files, merged as in the warehouse.

    Without a regime in ``wanted``, each problem keeps its timings nearest to deployment: ``deployed``, else
    ``write_flush``, else unknown ones. The notes count the problems of each.

    Args:
        files: files to read.
        wanted: filter.
        on_file: called after each file.

    Raises:
        HardwareError: a name matches nothing, or different devices; says which files they are in.
        DatasetError: no example matches, or a named file has a bad entry; names the file.
    """
    from diode_trainer.data.from_file import load_measurements

    read = _read(files, wanted, on_file)
    choice = _Choice(files, read, wanted)
    dataset = load_measurements(read.measurements, files.where, choice)
    if read.left_out:
        dataset = replace(dataset, lineage={**dataset.lineage, "left_out": read.notes()})
    _check_that_each_has_run(files.where, dataset, choice.devices, wanted)
    there = {example.hardware.key for example in dataset}
    matched = _matched({name: [d for d in some if d.key in there] for name, some in choice.devices.items()})
    return LoadedData(dataset, (*read.notes(), *_notes(dataset, matched), *choice.notes))


def _check_that_each_has_run(
    where: str, dataset: ExampleSet, parts: Mapping[str, Sequence[Hardware]], wanted: ExampleFilter
) -> None:
    """Check that the data has a successful timing on the devices of each name.

    Raises:
        DatasetError: some name has no example, or only failures.
    """
    for name, devices in parts.items():
        keys = {device.key for device in devices}
        found = [example for example in dataset if example.hardware.key in keys]
        if not found:
            what = f"no examples of {wanted.describe() or 'any problem'} on {describe(devices)}"
            remedy = f"leave {name!r} out of --hardware, or change --op, --dtype or --regime"
            raise DatasetError(f"{where}: {what}; {remedy}")
        if not any(example.ran.any() for example in found):
            timings = counted(sum(len(example) for example in found), "timing")
            raise DatasetError(f"{where}: no kernel ran on {describe(devices)}: all of its {timings} are failures")


def _read(files: Files, wanted: ExampleFilter, on_file: Callable[[], None]) -> FilesRead:
    from diode_store.exchange.context import NO_HARDWARE

    try:
        known = known_device(wanted.names[0]) if len(wanted.names) == 1 else None
    except HardwareError:
        # The name means several known devices; the files may have only one of them.
        known = None
    try:
        return read_files(files, known, on_file)
    except DatasetError as error:
        if NO_HARDWARE in str(error) and len(wanted.names) == 1:
            # Lines without a device need a name that means one known device; this error lists the known ones.
            known_device(wanted.names[0]) or match_hardware(KNOWN_DEVICES, wanted.names[0])
        raise


@dataclass(frozen=True)
class _Choice:
    """Filters the usable measurements of files."""

    files: Files
    read: FilesRead
    wanted: ExampleFilter
    notes: list[str] = field(default_factory=list)
    """Notes about mixed or left-out regimes; filled by the call."""
    devices: dict[str, list[Hardware]] = field(default_factory=dict)
    """Devices by requested name; filled by the call."""

    def __call__(self, usable: list[Measurement]) -> list[Measurement]:
        on_device = self._on_device(usable)
        dtype = self.wanted.full_dtype
        shapes = ((m, m.problem.shape) for m in on_device)
        chosen = [m for m, shape in shapes if self.wanted.has_op(shape.op) and dtype in (None, shape.arithmetic)]
        if not chosen:
            there = what_there_is((m.problem.shape.op, m.problem.shape.arithmetic) for m in on_device)
            raise DatasetError(
                f"{self.files.where}: no examples of {self.wanted.describe() or 'matrix products'}; there is: {there}"
            )
        return self._of_regime(chosen)

    def _on_device(self, usable: Sequence[Measurement]) -> list[Measurement]:
        """Return the measurements on the requested devices, which must be alike unless ``all_matches``."""
        devices = list({m.hardware.key: m.hardware for m in usable}.values())
        parts = _on(self.files.where, devices, replace(self.wanted, all_matches=True))
        self.devices.update(parts)
        keys = {device.key for some in parts.values() for device in some}
        found = [m for m in usable if m.hardware.key in keys]
        # H100 and H200 are different kinds, even with equal descriptors, unless one requested name covers both.
        any_name = self.wanted.hardware is not None
        kinds = [{(any_name or each.name, each.arch, each.multiprocessors) for each in some} for some in parts.values()]
        if not self.wanted.all_matches and max(map(len, kinds)) > 1:
            raise HardwareError(
                f"{self.files.where}: has different devices: {self._places(found, lambda m: describe([m.hardware]))};"
                " name one with --hardware, or pass --all-matches"
            )
        return found

    def _of_regime(self, chosen: list[Measurement]) -> list[Measurement]:
        """Return the measurements of the requested regime, else those of each problem nearest to deployment."""
        if self.wanted.regime is None:
            return self._nearest(chosen)
        found = [m for m in chosen if self.wanted.has_regime(m.timing_method.regime)]
        if not found:
            there = sorted({m.timing_method.regime or UNKNOWN_REGIME for m in chosen})
            raise DatasetError(
                f"{self.files.where}: no timings of regime {self.wanted.regime}; there is: {', '.join(there)}"
            )
        return found

    def _nearest(self, chosen: list[Measurement]) -> list[Measurement]:
        groups: dict[tuple[bytes, bytes], dict[str, int]] = defaultdict(dict)
        for m in chosen:
            groups[_case(m)][regime_group(m.timing_method.regime)] = regime_rank(m.timing_method.regime)
        nearest = {case: min(found, key=lambda name: (found[name], name)) for case, found in groups.items()}
        self.notes.extend(_told(groups, nearest))
        return [m for m in chosen if nearest[_case(m)] == regime_group(m.timing_method.regime)]

    def _places(self, measurements: Iterable[Measurement], name_of: Callable[[Measurement], str]) -> str:
        """Return each distinct name, with its files if several files were read."""
        by_name: dict[str, list[Measurement]] = defaultdict(list)
        for measurement in measurements:
            by_name[name_of(measurement)].append(measurement)
        if len(self.files.paths) == 1:
            return ", ".join(sorted(by_name))
        return "; ".join(f"{name} in {self.read.where(by_name[name])}" for name in sorted(by_name))


def _case(measurement: Measurement) -> tuple[bytes, bytes]:
    return measurement.hardware.key, measurement.problem.key


def _told(
    groups: Mapping[tuple[bytes, bytes], Collection[str]], nearest: Mapping[tuple[bytes, bytes], str]
) -> list[str]:
    """Return a line about mixed regimes: the number of problems in each, and what was left out."""
    kept = Counter(nearest.values())
    left_out = Counter(name for case, found in groups.items() for name in found if name != nearest[case])
    if len(kept) + len(left_out) == 1:
        return []
    told = ", ".join(f"{name} of {counted(number, 'problem')}" for name, number in sorted(kept.items()))
    others = ", ".join(f"{name} of {counted(number, 'problem')}" for name, number in sorted(left_out.items()))
    ending = f"; left out, since these problems have timings nearer to deployment: {others}" if others else ""
    return [f"regimes: {told}{ending}; --regime selects one"]


def _on(where: str, devices: Sequence[Hardware], wanted: ExampleFilter) -> dict[str, list[Hardware]]:
    """Return the devices by requested name; all of them under an empty name if no name is given."""
    if wanted.hardware is None:
        return {"": list(devices)}
    try:
        return {name: match_hardware(devices, name, all_matches=wanted.all_matches) for name in wanted.names}
    except HardwareError as error:
        raise type(error)(f"{where}: {error}") from None


def _matched(parts: Mapping[str, Collection[DeviceModel]]) -> str:
    """Describe the devices that each name matched."""
    if len(parts) == 1:
        return describe(next(iter(parts.values())))
    return "; ".join(f"{name} is {describe(found)}" for name, found in parts.items())


def _notes(dataset: ExampleSet, matched: str) -> tuple[str, ...]:
    return f"hardware: {matched}", f"data: {_summary(dataset)}", *_unknown(dataset.lineage.get(UNKNOWN_OPS, {}))


def _unknown(ops: Mapping[str, int]) -> tuple[str, ...]:
    """Return a line that counts the problems of unknown ops; nothing without any."""
    told = ", ".join(f"{op} ({counted(number, 'problem')})" for op, number in ops.items())
    return (f"left out: ops that this torch-diode does not know: {told}",) if told else ()


def _summary(dataset: ExampleSet) -> str:
    domain = dataset.domain()
    ops = _named((example.shape.op for example in dataset), domain.ops)
    dtypes = _named((example.shape.arithmetic for example in dataset), domain.all_dtypes)
    shapes = len({example.shape for example in dataset})
    again = f" ({shapes:,} distinct: one counts again in each regime and environment)" if shapes < len(dataset) else ""
    return (
        f"{counted(len(dataset), 'problem')}{again}, "
        f"{counted(dataset.timings, 'timing')} ({dataset.failures:,} failed), "
        f"{ops}, {dtypes}"
    )


def _named(values: Iterable[str], covered: Collection[str]) -> str:
    """Return the distinct values; values too rare for a model to cover come with their number of problems."""
    found = sorted(Counter(values).items(), key=lambda item: (item[0] not in covered, item[0]))
    return ", ".join(value if value in covered else f"{value} ({counted(n, 'problem')})" for value, n in found)
