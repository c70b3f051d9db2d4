"""``torch_diode.lock``: what the compiles within chose, in a picks file."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch._dynamo.utils import counters

from diode_collectors.inductor.adapter import detect_hardware
from diode_integration.chosen import ChosenKernels
from diode_integration.picked import expanded
from diode_store import safely
from diode_store.devices import describe
from diode_store.errors import DiodeError, ExportError, PicksError
from diode_store.exchange.picks import Picks
from diode_store.exchange.picks_reading import read_picks
from diode_store.files import alone_in, barrier_to
from diode_store.render import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from diode_store.records import Hardware

log = logging.getLogger("diode_integration")


@contextmanager
def lock(
    path: Path | str, *, device: torch.device | str | None = None, replace: bool = False
) -> Iterator[ChosenKernels]:
    """Record what is compiled within, and write it to a picks file at the end, also when the block raises.

    Args:
        path: the file; picks of the same device that are there are kept, but for problems that are compiled here.
        device: whose choices are recorded; the GPU where there is one, else the CPU.
        replace: start anew, instead of adding to what is there.

    Yields:
        The recorder; ``picks`` is what it has so far.

    Raises:
        PicksError: the file that is there cannot be added to, or the device cannot be identified.
        ExportError: the file cannot be written; if the block raised itself, that is logged instead.
    """
    file = expanded(Path(path))
    hardware = _hardware_of(device)
    before = Picks.of(hardware, []) if replace else _checked(file, hardware)
    cached = _cached_graphs()
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
    graphs = _cached_graphs() - cached
    if graphs > 0:
        what = f"{counted(graphs, 'graph')} came from Inductor's cache and told no choices"
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
    """Return the picks that are there, of which there may be none; and see that they can be written."""
    if not file.parent.is_dir():
        raise PicksError(f"{file}: there is no folder {file.parent}; make it first")
    if barrier := barrier_to(file.parent):
        raise PicksError(f"{file}: cannot be written: {barrier}; name another file")
    if not file.exists():
        return Picks.of(hardware, [])
    there = read_picks(file)
    if there.device.key != hardware.key:
        raise PicksError(
            f"{file}: picks of {describe([there.device])}, not of {describe([hardware])}; name another file, or replace"
            " it with replace=True"
        )
    return there


def _newest(file: Path, before: Picks) -> Picks:
    """Return what is there by now: another process may have added to it. What cannot be added to is moved aside."""
    try:
        return _checked(file, before.device) if file.is_file() else before
    except DiodeError as error:
        aside = file.with_name(f"{file.name}.old")
        file.replace(aside)
        safely.log(log, logging.WARNING, f"{error}; it has become so meanwhile, and is now {aside}")
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


def _cached_graphs() -> int:
    """Return how many graphs came whole from a cache, as PyTorch counts them."""
    return int(max(counters["inductor"]["fxgraph_cache_hit"], counters["aot_autograd"]["autograd_cache_hit"]))
