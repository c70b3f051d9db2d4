"""Checkpoints of unfinished fits, so that `diode-train --resume` goes on where an earlier run was interrupted.

While a model is made, each of its fits keeps its state in a file of the folder ``NAME.unfinished`` beside the model.
The folder goes when the model is written. A checkpoint belongs to one recipe, seed, device, torch and data, and a fit
of others is refused it. A fit that went on from one gives the same bytes as one that was never interrupted.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from diode_store.errors import ModelError, first_line
from diode_store.files import try_lock, write_durably

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from torch import Tensor

    from diode_trainer.data.tensors import Packed
    from diode_trainer.training.train import Beginning, Recipe

_FORMAT = 1
_SUFFIX = ".checkpoint"
_LOCK = "lock"
_SECONDS_BETWEEN = 2.0
"""Some epochs of a usual fit; where an epoch takes longer, each is kept."""
_START_ANEW = "leave out --resume to start from the beginning"


def folder_beside(model: Path) -> Path:
    """Return the folder with the checkpoints of the unfinished fits of a model."""
    return model.with_suffix(".unfinished")


def are_left(model: Path) -> bool:
    """Whether an interrupted run left checkpoints of a model."""
    return any(folder_beside(model).glob(f"*{_SUFFIX}"))


@contextlib.contextmanager
def unfinished(model: Path, *, resume: bool) -> Iterator[Unfinished]:
    """Keep checkpoints beside a model while it is made; they are removed at the end, and stay after an error.

    Args:
        model: where the model will be; its folder is there.
        resume: go on from what an earlier run left; else that is removed.

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
    """Remove the folder of a run that kept nothing, unless another process holds its lock."""
    with contextlib.suppress(OSError), (folder / _LOCK).open("ab") as lock:
        if try_lock(lock.fileno()):
            shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path, stack: contextlib.ExitStack) -> None:
    """Make ``folder``, and hold its lock for as long as ``stack`` lasts."""
    try:
        folder.mkdir(exist_ok=True)
        lock = stack.enter_context((folder / _LOCK).open("ab"))
    except OSError as error:
        raise _cannot_write(folder, error) from None
    if not try_lock(lock.fileno()):
        raise ModelError(f"{folder}: another diode-train makes this model; wait for it, or give another --name")


class Unfinished:
    """The folder with the checkpoints of one model."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def checkpoint(
        self, fit: str, packed: Packed, recipe: Recipe, seed: int, device: str, beginning: Beginning | None = None
    ) -> Checkpoint:
        """Return the checkpoint of a fit, with what an interrupted run left in it.

        Args:
            fit: its name among the fits of the model.
            packed: what it learns from.
            recipe: how.
            seed: likewise.
            device: where.
            beginning: what it begins with, if not with drawn weights.

        Raises:
            ModelError: it is of another fit, or damaged.
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
    """The state of one fit on disk."""

    def __init__(self, path: Path, identity: dict[str, Any], between_s: float | None = None) -> None:
        """Read what is there; ``between_s`` is how old the state on disk becomes, two seconds unless given.

        Raises:
            ModelError: it is of another fit, or damaged.
        """
        self.path = path
        self.seconds = 0.0
        """How long the fit took so far, in all runs; up to date once the fit has ended."""
        self._identity = identity
        self._between_s = _SECONDS_BETWEEN if between_s is None else between_s
        self._state: dict[str, Any] | None = None
        self._clock = self._written = time.perf_counter()
        if path.exists():
            self._read()

    def to_plain(self) -> dict[str, Any]:
        """Return what another process opens it by, as plain values."""
        return {"path": str(self.path), "identity": self._identity, "between_s": self._between_s}

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Checkpoint:
        """Open what ``to_plain`` told.

        Raises:
            ModelError: it is of another fit by now, or damaged.
        """
        return cls(Path(plain["path"]), plain["identity"], plain["between_s"])

    def start(self) -> dict[str, Any] | None:
        """Return the state to go on from, or None to start from the beginning; the fit's time counts from now."""
        self._clock = self._written = time.perf_counter()
        return self._state

    def is_due(self) -> bool:
        """Whether the last checkpoint is so old that another should be written."""
        return time.perf_counter() - self._written >= self._between_s

    def save(self, state: dict[str, Any]) -> None:
        """Replace the state on disk, whole or not at all.

        Raises:
            ModelError: it cannot be written.
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
            raise ModelError(f"{self.path}: not a whole checkpoint of a fit ({reason}); {_START_ANEW}") from None
        if differing:
            raise ModelError(
                f"{self.path}: the interrupted fit had {', '.join(differing)}; repeat its options to go on, or"
                f" {_START_ANEW}"
            )


def _differing(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Return in words how the fit of a checkpoint differs from the one that is asked for."""
    changed = [name for name in now if before.get(name) != now[name]]
    told = {"data": "other data", "beginning": "another --warm-start"}
    return [told.get(name, f"{name} {before.get(name)}, not {now[name]}") for name in changed]


def _digest(tensors: Mapping[str, Tensor]) -> str:
    """Return a digest of tensors and their names."""
    digest = hashlib.blake2b(digest_size=16)
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        digest.update(value.cpu().contiguous().numpy().data)
    return digest.hexdigest()


def _cannot_write(path: Path, error: OSError) -> ModelError:
    return ModelError(f"{path}: cannot write a checkpoint ({error.strerror or error}); choose another --output")
