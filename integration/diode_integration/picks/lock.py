"""``torch_diode.lock``: write the kernels chosen by the compiles in a block to a picks file."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from diode_collectors.inductor.adapter import detect_hardware
from diode_integration.inductor.selector import cached_graphs
from diode_integration.picks.compiled import ChosenKernels
from diode_store.command_line.render import counted
from diode_store.devices.known import describe
from diode_store.errors import DiodeError, ExportError, PicksError
from diode_store.exchange.picks import Picks
from diode_store.exchange.picks_reading import read_picks
from diode_store.system.files import alone_in, barrier_to, expanded
from diode_store.values import safely

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from diode_store.records import Hardware

log = logging.getLogger("diode_integration")


@contextmanager
def lock(
    path: Path | str, *, device: torch.device | str | None = None, replace: bool = False
) -> Iterator[ChosenKernels]:
    """Record the compiles in a block, and write their choices to a picks file at the end, even if the block raises.

    Args:
        path: the file. Its picks of the same device are kept, except for problems that are compiled here.
        device: the device whose choices are recorded; None for the GPU if there is one, else the CPU.
        replace: True to replace the file instead of adding to it.

    Yields:
        The recorder, with ``picks`` so far.

    Raises:
        PicksError: the file cannot be added to, or the device cannot be identified.
        ExportError: the file cannot be written. If the block raised too, this error is only logged.
    """
    file = expanded(path, PicksError)
    hardware = _hardware_of(device)
    before = Picks.of(hardware, []) if replace else _checked(file, hardware)
    cached = cached_graphs()
    recorder = ChosenKernels(hardware)
    try:
        with recorder:
            yield recorder
    except BaseException:
        try:
            _write(file, recorder, before, cached, is_new=replace)
        except Exception as error:  # noqa: BLE001 - what the block raised matters more
            safely.log(log, logging.WARNING, f"nothing was locked: {safely.in_words(error)}")
        raise
    _write(file, recorder, before, cached, is_new=replace)


def _write(file: Path, recorder: ChosenKernels, before: Picks, cached: int, *, is_new: bool) -> None:
    picks = recorder.picks
    graphs = cached_graphs() - cached
    if graphs > 0:
        what = f"{counted(graphs, 'graph')} came from Inductor's cache, without their choices"
        remedy = "compile with TORCHINDUCTOR_FORCE_DISABLE_CACHES=1 to lock them too"
        safely.log(log, logging.WARNING, f"{file}: {what}; {remedy}")
    if not picks:
        safely.log(log, logging.WARNING, f"{file}: not written: no matrix product was compiled with max-autotune")
        return
    try:
        with alone_in(file.parent):  # other processes may end at the same time
            made = before if is_new else _newest(file, before)
            made.updated(picks).write(file, force=True)
    except OSError as error:
        raise ExportError(f"{file} cannot be written: {error.strerror or error}; check its folder") from None
    safely.log(log, logging.INFO, f"{file}: locked {counted(len(picks), 'pick')}")


def _checked(file: Path, hardware: Hardware) -> Picks:
    """Return the picks of a file, none if it is new, and check that the file can be written."""
    try:
        if not file.parent.is_dir():
            raise PicksError(f"{file}: there is no folder {file.parent}; make it first")
        if barrier := barrier_to(file.parent):
            raise PicksError(f"{file}: cannot be written: {barrier}; name another file")
        if not file.exists():
            return Picks.of(hardware, [])
    except OSError as error:  # a name that is too long, or circular links
        raise PicksError(f"{file}: cannot be read: {error.strerror or error}; name another file") from None
    there = read_picks(file)
    if there.device.key != hardware.key:
        raise PicksError(
            f"{file}: picks of {describe([there.device])}, not of {describe([hardware])}; name another file, or replace"
            " it with replace=True"
        )
    return there


def _newest(file: Path, before: Picks) -> Picks:
    """Return the file's picks as of now, since another process may have added some; move a broken file aside."""
    try:
        return _checked(file, before.device) if file.is_file() else before
    except DiodeError as error:
        aside = file.with_name(f"{file.name}.old")
        file.replace(aside)
        safely.log(log, logging.WARNING, f"{error}; the file was replaced during the block and is now {aside}")
        return before


def _hardware_of(device: torch.device | str | None) -> Hardware:
    named = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        found = detect_hardware(named)
    except RuntimeError as error:
        raise PicksError(f"{named!r} is no device: {str(error).partition(chr(10))[0]}") from None
    if found is None:
        raise PicksError(f"torch-diode cannot identify the device {named!s}; name one that this machine has")
    return found
