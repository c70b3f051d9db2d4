"""Write the losses of running fits as TensorBoard event files."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any

from diode_store.errors import SettingsError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from diode_trainer.training.train import EpochReport


@contextlib.contextmanager
def event_files(folder: Path, model: str) -> Iterator[Callable[[str, EpochReport], None]]:
    """Yield a function that writes the report of an epoch to ``folder/model/fit``.

    Raises:
        SettingsError: the package tensorboard is missing, or the folder cannot be written.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise SettingsError(
            "--tensorboard needs the package tensorboard: pip install 'torch-diode[tensorboard]'"
        ) from None
    writers: dict[str, Any] = {}
    lock = threading.Lock()

    def hear(fit: str, report: EpochReport) -> None:
        with lock:  # fits report from threads of their own
            if fit not in writers:
                writers[fit] = SummaryWriter(str(folder / model / fit.replace(" ", "-")))
            _write(writers[fit], report)

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingsError(
            f"{folder}: cannot write there ({error.strerror or error}); choose another --tensorboard"
        ) from None
    with contextlib.ExitStack() as stack:
        stack.callback(lambda: [writer.close() for writer in writers.values()])
        yield hear


def _write(writer: Any, report: EpochReport) -> None:
    writer.add_scalar("loss/training", report.training_loss, report.epoch)
    if report.validation_loss is not None:
        writer.add_scalar("loss/validation", report.validation_loss, report.epoch)
    of_members = (("training", report.member_training_losses), ("validation", report.member_validation_losses or ()))
    for part, losses in of_members:
        for member, loss in enumerate(losses, 1):
            if len(losses) > 1:
                writer.add_scalar(f"{part} loss of members/{member}", loss, report.epoch)
