"""The measurements that ship with torch-diode: the files and the device of each."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from diode_store.errors import DiodeError
from diode_store.exchange import records
from diode_store.records import Measurement
from diode_store.system.resources import bundled_data_dir
from diode_store.wire.segments import SEALED_SUFFIX

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from diode_store.records import Hardware


def bundled_segments() -> dict[Path, Hardware]:
    """Return each shipped segment and the device of its first measurement; a segment has one device.

    Raises:
        DiodeError: the installation is incomplete.
    """
    paths = sorted(bundled_data_dir().glob(f"*{SEALED_SUFFIX}"))
    found = {path: hardware for path in paths if (hardware := _device_of(path)) is not None}
    if not found:
        raise DiodeError("the bundled measurements are not installed; reinstall torch-diode with `pip install`")
    return found


def bundled_devices() -> Iterator[Hardware]:
    """Yield the devices of the bundled measurements; none if the installation is incomplete."""
    with contextlib.suppress(DiodeError):
        yield from {device.key: device for device in bundled_segments().values()}.values()


def _device_of(path: Path) -> Hardware | None:
    with path.open("rb") as stream:
        first = next(records.read(stream), None)
    return first.hardware if isinstance(first, Measurement) else None
