"""Checkpoints that let `diode-train` continue an interrupted run.

Each fit of a model keeps its state in a file of the folder ``NAME.unfinished`` beside the model. The folder is removed
once the model is written. A checkpoint belongs to one recipe, seed, device, torch version and data set; other fits
refuse it. A resumed fit gives the same bytes as an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch

from diode_store.errors import ModelError, first_line
from diode_store.system.files import try_lock, write_durably
from diode_trainer.training.train import START_ANEW

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from torch import Tensor

    from diode_trainer.data.tensors import Packed
    from diode_trainer.training.recipe import Recipe
    from diode_trainer.training.train import Beginning

_FORMAT = 2
_SUFFIX = ".checkpoint"
_LOCK = "lock"
_SECONDS_BETWEEN = 2.0
"""Seconds between checkpoints, several epochs of a usual fit; longer epochs are all kept."""


def folder_beside(model: Path) -> Path:
    """Return the folder with the checkpoints of the unfinished fits of a model."""
    return model.with_suffix(".unfinished")


def are_left(model: Path) -> bool:
    """Return whether an interrupted run left checkpoints of a model."""
    return any(folder_beside(model).glob(f"*{_SUFFIX}"))


@contextlib.contextmanager
def unfinished(model: Path, *, resume: bool) -> Iterator[Unfinished]:
    """Keep checkpoints beside a model; remove them at the end, and leave them after an error.

    Args:
        model: path of the future model, in an existing folder.
        resume: continue from the checkpoints of an earlier run; otherwise remove them.

    Raises:
        ModelError: another process makes this model, or the folder cannot be written.
    """
    folder = folder_beside(model)
    try:
        with contextlib.ExitStack() as stack:
            _lock(folder, stack)
            if not resume:
                for path in folder.glob(f"*{_SUFFIX}"):
                    path.unlink(missing_ok=True)
            yield Unfinished(folder)
            shutil.rmtree(folder, ignore_errors=True)
    except BaseException:  # at any point, also before the lock is held
        if not are_left(model):
            _remove_unused(folder)
        raise


def _remove_unused(folder: Path) -> None:
    """Remove a folder without checkpoints, unless another process holds its lock."""
    with contextlib.suppress(OSError), (folder / _LOCK).open("ab") as lock:
        if try_lock(lock.fileno()):
            shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path, stack: contextlib.ExitStack) -> None:
    """Make ``folder`` and hold its lock until ``stack`` closes."""
    try:
        folder.mkdir(exist_ok=True)
        lock = stack.enter_context((folder / _LOCK).open("ab"))
        is_ours = try_lock(lock.fileno())
    except OSError as error:
        raise _cannot_write(folder, error) from None
    if not is_ours:
        raise ModelError(f"{folder}: another diode-train makes this model; wait for it, or give another --name")


class Unfinished:
    """Folder with the checkpoints of one model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def checkpoint(
        self, fit: str, packed: Packed, recipe: Recipe, seed: int, device: str, beginning: Beginning | None = None
    ) -> Checkpoint:
        """Return the checkpoint of a fit, with the state of an interrupted run if there is one.

        Args:
            fit: name of the fit.
            packed: training data.
            recipe: hyperparameters.
            seed: seed of the fit.
            device: device of the fit.
            beginning: initial weights and repeats; random weights by default.

        Raises:
            ModelError: the checkpoint belongs to another fit, or is damaged.
        """
        identity = {
            "format": _FORMAT,
            "data": _digest(vars(packed)),
            "beginning": _digest(tensors) if beginning and (tensors := beginning.tensors()) else None,
            **asdict(recipe),
            "seed": seed,
            "device": device,
            "torch": str(torch.__version__),
        }
        return Checkpoint(self.folder / f"{fit.replace(' ', '-')}{_SUFFIX}", identity)


class Checkpoint:
    """State of one fit on disk."""

    def __init__(self, path: Path, identity: dict[str, Any], between_s: float | None = None) -> None:
        """Read the state on disk, and write another at most every ``between_s`` seconds (by default two).

        Raises:
            ModelError: the checkpoint belongs to another fit, or is damaged.
        """
        self.path = path
        self.seconds = 0.0
        """Duration of the fit over all runs; current once the fit has ended."""
        self._identity = identity
        self._between_s = _SECONDS_BETWEEN if between_s is None else between_s
        self._state: dict[str, Any] | None = None
        self._clock = self._written = time.perf_counter()
        if os.path.lexists(path):
            self._read()

    def of_part(self, number: int) -> Checkpoint:
        """Return the checkpoint of some ensemble members of the fit.

        Raises:
            ModelError: the checkpoint belongs to another fit, or is damaged.
        """
        return Checkpoint(self.path.with_name(f"{self.path.stem}.{number}{_SUFFIX}"), self._identity, self._between_s)

    def start(self) -> dict[str, Any] | None:
        """Start the clock, and return the state to resume from; None starts from the beginning."""
        self._clock = self._written = time.perf_counter()
        return self._state

    def is_due(self) -> bool:
        """Return whether the last checkpoint is old enough to write another."""
        return time.perf_counter() - self._written >= self._between_s

    def save(self, state: dict[str, Any]) -> None:
        """Replace the state on disk atomically.

        Raises:
            ModelError: the file cannot be written.
        """
        now = time.perf_counter()
        self.seconds, self._clock, self._written = self.seconds + now - self._clock, now, now
        buffer = io.BytesIO()
        torch.save({"identity": self._identity, "seconds": self.seconds, "state": state}, buffer)
        try:
            write_durably({self.path: buffer.getvalue()})
        except OSError as error:
            raise _cannot_write(self.path, error) from None

    def _read(self) -> None:
        try:
            content = torch.load(self.path, weights_only=True, map_location="cpu")
            identity, self.seconds, self._state = content["identity"], float(content["seconds"]), content["state"]
            differing = _differing(identity, self._identity)
        except Exception as error:  # noqa: BLE001 - damaged bytes make torch fail in any way
            reason = first_line(error)
            raise ModelError(f"{self.path}: not a whole checkpoint of a fit ({reason}); {START_ANEW}") from None
        if differing:
            raise ModelError(
                f"{self.path}: the interrupted fit had {', '.join(differing)}; repeat its options to continue;"
                f" {START_ANEW}"
            )


def _differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Describe how the fit of a checkpoint differs from the requested fit."""
    changed = [name for name in now if before.get(name) != now[name]]
    told = {
        "data": "other data (--dataset, --split, --folds, filters)",
        "beginning": "another --warm-start",
    }
    return [told.get(name, f"{name} {before.get(name)}, not {now[name]}") for name in changed]


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of named tensors."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _cannot_write(path: Path, error: OSError) -> ModelError:
    return ModelError(f"{path}: cannot write a checkpoint ({error.strerror or error}); choose another --output")
