"""What a device's name means, in every command that takes ``--hardware``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

import samples
from decided import decision
from diode_store.command_line.cli import command_entries, load_command
from diode_store.exchange.bundled import bundled_segments
from diode_store.warehouse.store import Store
from lanes import long

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from _pytest.mark.structures import ParameterSet

    from conftest import RunCommand

COMMANDS = {
    "fastest": "",
    "lock": "-o {out}/picks.json",
    "export": "-o {out}/rows.jsonl",
    "db prune": "",
    "import": "{out}/rows-without-device.jsonl",
    "ingest pack": "-o {out} {out}/rows-without-device.jsonl",
    "collect": "--dry-run --shape mm:64x64x64",
    "collect create-validation": "--dry-run --output {out}/validation.json --shape mm:64x64x64",
    "tune": "--dry-run --shape mm:64x64x64",
    "train": "--folds 0 --warm-start none",
    "evaluate": "--model v4_model",
    "compare": "--model v4_model --max-autotune-solution {out}/solution.json --json",
    "models list": "",
    "models show": "v4_model",
    "corrections": "-o {out}/corrections.json",
    "predict": "--shape mm:64x64x64 --top 1",
    "report": "-o {out}/report --problems 0",
}
"""Every command with the option → what else it takes here."""
PLANS = {"collect", "collect create-validation", "tune"}
"""What plans for a known device, whatever a warehouse holds."""
MODELS = {"models list", "models show"}
"""What asks models about a device, whatever a warehouse holds."""
STRICT = {"db prune", "import", "ingest pack"}
"""What deletes or labels data never guesses which of several devices is meant."""


def in_lanes(commands: Collection[str]) -> list[str | ParameterSet]:
    """Return commands; a report takes 20 s, so its case is long."""
    return [pytest.param(command, marks=long) if command == "report" else command for command in sorted(commands)]


class Asked(NamedTuple):
    """Runs commands on a warehouse."""

    diode: RunCommand
    database: str
    out: Path

    def __call__(self, command: str, hardware: str) -> tuple[int, str]:
        """Run a command with ``--hardware``; return its status and all that it printed."""
        words = [word.format(out=self.out) for word in COMMANDS[command].split()]
        if command not in {"ingest pack", *MODELS}:
            words += ["--database", self.database]
        ended = self.diode(*command.split(), *words, "--hardware", hardware)
        assert "Traceback" not in ended.err
        return ended.code, ended.out + ended.err


@pytest.fixture
def asked(diode: RunCommand, database_url: str, tmp_path: Path) -> Asked:
    """Return a runner of commands on a warehouse in which an H100 SXM was measured and an H100 PCIe was not."""
    with Store.open(database_url) as store:
        store.write([samples.measurement(n, hardware=samples.H100) for n in range(3)])
        store.write([decision(1, hardware=samples.H100_PCIE)])
    row = '{"op": "mm", "m": 64, "n": 64, "k": 64, "dtype": "bf16", "configs": []}\n'
    (tmp_path / "rows-without-device.jsonl").write_text(row)
    exported = diode(
        *("export", "--database", database_url, "--format", "max-autotune-solution", "--search-space", "EXHAUSTIVE"),
        *("-o", str(tmp_path / "solution.json")),
    )
    if exported.code:
        (tmp_path / "solution.json").write_text('{"config": {}}')
    return Asked(diode, database_url, tmp_path)


def takes_hardware(command: Any, name: str) -> Iterator[str]:
    """Yield the names of a command and those in it that have the option."""
    if any("--hardware" in parameter.opts for parameter in command.params):
        yield name
    for own, sub in getattr(command, "commands", {}).items():
        yield from takes_hardware(sub, f"{name} {own}")


def test_every_command_with_the_option_is_here() -> None:
    """A new command with the option has to be listed, and so obeys what the other tests say."""
    found = {each for name, entry in command_entries().items() for each in takes_hardware(load_command(entry), name)}
    assert found == set(COMMANDS)


@pytest.mark.quick(4)
@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_device(asked: Asked, command: str) -> None:
    """A name that nobody knows is one line that says what to do next, and exit status 1."""
    code, said = asked(command, "NVIDIA RTX 6000")
    assert code == 1
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "'NVIDIA RTX 6000'" in line
    if command not in {"import", "ingest pack"}:
        assert "run `diode tune` on it, or `diode-collect`" in line


@pytest.mark.quick(3)
@pytest.mark.parametrize("command", in_lanes(set(COMMANDS) - STRICT))
def test_the_name_alone_decides(asked: Asked, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the devices that a name may mean it is the one that was measured, and it is named."""
    sxm = next(iter(bundled_segments().values()), samples.H100)
    monkeypatch.setattr("diode_store.exchange.bundled.bundled_segments", lambda: {asked.out: replace(sxm, **H100)})
    _, said = asked(command, "NVIDIA H100")
    assert "could be any of" not in said
    assert "different devices" not in said
    assert command == "report" or "NVIDIA H100 80GB HBM3" in said


H100 = {"name": "NVIDIA H100 80GB HBM3", "arch": "sm_90", "multiprocessors": 132}


@pytest.mark.quick(2)
@pytest.mark.parametrize("command", in_lanes(set(COMMANDS) - PLANS - MODELS - {"ingest pack"}))
def test_two_devices_of_one_name(asked: Asked, command: str) -> None:
    """They are one line that lists both, and each can be named as it is listed."""
    smaller = replace(samples.H100, multiprocessors=66)
    with Store.open(asked.database) as store:
        store.write([samples.measurement(9, hardware=smaller)])
    code, said = asked(command, "NVIDIA H100 80GB HBM3")
    assert code == 1
    (line,) = [line for line in said.splitlines() if line.startswith("error: ")]
    assert "NVIDIA H100 80GB HBM3 (sm_90, 132 multiprocessors), NVIDIA H100 80GB HBM3 (sm_90, 66" in line
    assert "name one exactly as it is listed here" in line
    _, said = asked(command, "NVIDIA H100 80GB HBM3 (sm_90, 66 multiprocessors)")
    assert "132 multiprocessors" not in said
