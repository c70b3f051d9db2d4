"""Convert what Inductor timed of one fused kernel to a ``Measurement``."""

from __future__ import annotations

import socket
import uuid
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from diode_collectors.feedback.records import inductors_method, timing_in_ms
from diode_collectors.inductor.device import collector_version, detect_environment, detect_hardware, device_uuid
from diode_collectors.inductor.kernel_metrics import as_metrics
from diode_store.errors import RecordError
from diode_store.records import Measurement, Source

if TYPE_CHECKING:
    from diode_collectors.inductor.fused_timings import FusedTimings


WITH_COPIES = "with_copies"
"""Key of a measurement's ``extra`` for times that include copying the inputs that a kernel writes over."""


def measurement_of_fused(timings: FusedTimings) -> Measurement:
    """Return the times of one search over a fused kernel's configs as a record.

    Raises:
        RecordError: a device that is not known.
    """
    hardware = detect_hardware(timings.device)
    if hardware is None:
        raise RecordError(f"{timings.problem.op}: timings of the device {timings.device} cannot be recorded")
    return Measurement(
        uid=uuid.uuid4().bytes,
        hardware=hardware,
        environment=detect_environment(),
        problem=timings.problem,
        timings=tuple(timing_in_ms(config, milliseconds) for config, milliseconds in timings.times_ms.items()),
        source=Source.FEEDBACK,
        measured_at=datetime.now(UTC),
        host=socket.gethostname(),
        device_uuid=device_uuid(timings.device),
        collector_version=collector_version(),
        search_space=timings.search_space,
        timing_method=inductors_method(timings.device.partition(":")[0]),
        metrics=as_metrics(timings.times_ms, timings.told),
        extra={WITH_COPIES: True} if timings.with_copies else {},
    )
