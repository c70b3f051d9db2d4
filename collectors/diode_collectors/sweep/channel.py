"""Messages between a sweep and its lanes: JSON objects, one a line, over pipes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from typing import Any

from diode_collectors.problems.problem import SweepProblem
from diode_collectors.sweep.plan import ProblemResult
from diode_store.records import CONFIG_COLUMNS, Environment, Hardware, KernelConfig, Outcome

_CHUNK = 65536


class Channel:
    """One end of a pair of pipes."""

    def __init__(self, read_fd: int, write_fd: int) -> None:
        self.read_fd, self._write_fd = read_fd, write_fd
        self._buffer = b""

    def send(self, **message: Any) -> None:
        """Send one message.

        Raises:
            BrokenPipeError: the reader has gone.
        """
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            data = data[os.write(self._write_fd, data) :]

    def receive(self) -> dict[str, Any] | None:
        """Return the next message, waiting for it; None when the other end is closed."""
        while b"\n" not in self._buffer:
            if not self._fill():
                return None
        line, _, self._buffer = self._buffer.partition(b"\n")
        return dict(json.loads(line))

    def waiting(self) -> tuple[list[dict[str, Any]], bool]:
        """Read once and return the whole messages that are there, and whether the other end is still open."""
        is_open = self._fill()
        *lines, self._buffer = self._buffer.split(b"\n")
        return [json.loads(line) for line in lines], is_open

    def hang_up(self) -> None:
        """Close what is written to; the other end notices. Doing so twice is harmless."""
        if self._write_fd != -1:
            os.close(self._write_fd)
        self._write_fd = -1

    def close(self) -> None:
        """Close both pipes; closing twice is harmless."""
        self.hang_up()
        if self.read_fd != -1:
            os.close(self.read_fd)
        self.read_fd = -1

    def _fill(self) -> bool:
        data = os.read(self.read_fd, _CHUNK)
        self._buffer += data
        return bool(data)


def problem_to_message(problem: SweepProblem) -> dict[str, Any]:
    """Return what ``problem_of_message`` takes."""
    return asdict(problem)


def problem_of_message(message: dict[str, Any]) -> SweepProblem:
    """Return the problem of a message."""
    return SweepProblem(**message)


def result_to_message(result: ProblemResult) -> dict[str, Any]:
    """Return what ``result_of_message`` takes."""
    return asdict(result)


def result_of_message(message: dict[str, Any]) -> ProblemResult:
    """Return the result of a message."""
    flags, problem = tuple(message["flags"]), problem_of_message(message["problem"])
    return ProblemResult(**{**message, "problem": problem, "flags": flags})


def config_to_message(config: KernelConfig) -> dict[str, Any]:
    """Return what ``config_of_message`` takes."""
    return {name: getattr(config, name) for name in CONFIG_COLUMNS} | {"kwargs": dict(config.kwargs)}


def config_of_message(message: dict[str, Any]) -> KernelConfig:
    """Return the config of a message."""
    return KernelConfig(**{**message, "kwargs": tuple(sorted(message["kwargs"].items()))})


def excluded_of_message(message: list[list[Any]]) -> dict[KernelConfig, Outcome]:
    """Return the configs that are not to be tried again, with how trying them ended."""
    return {config_of_message(config): Outcome(outcome) for config, outcome in message}


def hardware_of_message(message: dict[str, Any]) -> Hardware:
    """Return the hardware of a message."""
    return Hardware(**message)


def environment_of_message(message: dict[str, Any]) -> Environment:
    """Return the environment of a message."""
    return Environment(**message)
