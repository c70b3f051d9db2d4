"""Which picks file the hook obeys: the one that is named to it, if it can be used."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING

from diode_integration.picking import FilePicks
from diode_store import safely
from diode_store.devices import describe
from diode_store.errors import DiodeError, PicksError
from diode_store.exchange.picks import Picks
from diode_store.exchange.picks_reading import read_picks

if TYPE_CHECKING:
    from diode_integration.stats import Stats
    from diode_store.records import Hardware

log = logging.getLogger("diode_integration")

VARIABLE = "DIODE_PICKS"


def usable_picks(
    picks: Picks | Path | str | None, hardware: Hardware | None, stats: Stats, *, enable_fallback: bool
) -> FilePicks | None:
    """Return the picks to look into, or None without any.

    Args:
        picks: the file, or what was read from it; None for the file that ``DIODE_PICKS`` names, if it does.
        hardware: the device that is chosen for; None for whichever compiles.
        stats: where ops are counted whose picks are not to be had.
        enable_fallback: go on without those that cannot be used, which is logged; if False, raise.

    Raises:
        PicksError: they cannot be used, and ``enable_fallback`` is False.
    """
    named = picks_named(picks)
    if not named:
        return None
    try:
        return FilePicks(read_for(named, hardware), stats)
    except DiodeError as error:
        line = str(error) if picks else f"{VARIABLE}: {error}"
        if not enable_fallback:
            raise PicksError(line) from None
        safely.log(log, logging.WARNING, f"no picks file is used: {line}")
        return None


def picks_named(picks: Picks | Path | str | None) -> Picks | Path | str | None:
    """Return the option, or what stands in for it in the environment; empty text is none."""
    return os.environ.get(VARIABLE) if picks is None else picks


def read_for(named: Picks | Path | str, hardware: Hardware | None) -> Picks:
    """Return the picks of a file, which must be of ``hardware`` if that is given.

    Raises:
        PicksError: they cannot be used.
    """
    found = named if isinstance(named, Picks) else read_picks(expanded(Path(named)))
    if hardware is not None and hardware.key != found.device.key:
        where = found.file or "the given picks"
        raise PicksError(f"{where}: picks of {describe([found.device])}, not of {describe([hardware])}")
    return found


def expanded(path: Path) -> Path:
    """Return the path of a picks file, ``~`` replaced.

    Raises:
        PicksError: nobody has that home.
    """
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise PicksError(f"{path}: cannot find the picks ({error}); write the folder out") from None
