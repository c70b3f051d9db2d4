"""The same kernel has one key, and so has the same problem, whoever reports it."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from diode_collectors.inductor.adapter import config_of_choice, config_of_ktc, problem_of_inputs, problem_of_nodes
from diode_store.devices.known import known_device
from diode_store.exchange.jsonl import ImportContext, measurement_of
from golden.capture import FOLDER, capture, golden_file, rows

if TYPE_CHECKING:
    from diode_store.records import KernelConfig, Measurement

VERSIONS = ("2.11", "2.13", "2.15")
ROWS = rows()
ROW_IDS = [f"{row['op']}-{row['dtype']}-{row['B']}x{row['M']}x{row['N']}x{row['K']}-{row['layout']}" for row in ROWS]
# Pinned by hand: a change here orphans every key that is in a warehouse already.
TMA_KEY = "3812cd9d41a09d4af837da6ff0a8b043"
MM_KEY = "3956b649d2bb1364c0a5385dbfc7fc19"


class Node:
    """An input as the golden files remember it."""

    def __init__(self, facts: dict[str, Any]) -> None:
        """Remember ``facts``."""
        self._facts = facts

    def get_size(self) -> list[int]:
        """Return what Inductor's node returned."""
        return list(self._facts["size"])

    def get_stride(self) -> list[int]:
        """Return what Inductor's node returned."""
        return list(self._facts["stride"])

    def get_dtype(self) -> torch.dtype:
        """Return what Inductor's node returned."""
        return getattr(torch, self._facts["dtype"].removeprefix("torch."))


def inputs_of(problem: dict[str, Any]) -> SimpleNamespace:
    """Return remembered ``KernelInputs``."""
    nodes = [Node(facts) for facts in problem["nodes"]]
    return SimpleNamespace(
        nodes=lambda: nodes,
        mat1mat2=lambda: nodes[-2:],
        out_dtype=lambda: problem["out_dtype"],
        _scalars=problem["scalars"],
    )


def ktc_of(kernel: dict[str, Any], problem: dict[str, Any]) -> SimpleNamespace:
    """Return a remembered ``KernelTemplateChoice``."""
    return SimpleNamespace(
        template=SimpleNamespace(uid=kernel["template_uid"], src_hash=kernel["src_hash"]),
        params=SimpleNamespace(to_kwargs=lambda: dict(kernel["params"])),
        extra_kwargs=kernel["extra_kwargs"],
        inputs=inputs_of(problem),
    )


def choice_of(facts: dict[str, Any], problem: dict[str, Any]) -> SimpleNamespace:
    """Return a remembered choice that carries no ``KernelTemplateChoice``, as conv's, say, or torch 2.9's."""
    return SimpleNamespace(
        name=facts["name"],
        description=facts["description"],
        info_dict=lambda: dict(facts["info_dict"]),
        input_nodes=inputs_of(problem).nodes(),
        annotations={},
    )


def facts_of(version: str, row: int) -> Any:
    """Return what that version's Inductor said of a row."""
    return json.loads((FOLDER / f"torch-{version}.json").read_text())["rows"][row]


def measured(row: dict[str, Any]) -> Measurement:
    """Return the row as an import makes it a record."""
    return measurement_of(row, ImportContext(hardware=known_device("NVIDIA H200")))


def triton_configs(row: dict[str, Any]) -> list[KernelConfig]:
    """Return the Triton kernels of the row, as an import makes them records."""
    configs = [timing.config for timing in measured(row).timings]
    return [config for config in configs if not config.is_vendor]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("row", range(len(ROWS)), ids=ROW_IDS)
def test_kernels_have_the_keys_of_the_measured_row(version: str, row: int) -> None:
    """A KernelTemplateChoice of any version is the config that the import makes of the same kernel."""
    facts = facts_of(version, row)
    configs = [config_of_ktc(ktc_of(kernel, facts["problem"])) for kernel in facts["kernels"]]
    assert triton_configs(ROWS[row]) == configs
    assert [kernel["key"] for kernel in facts["kernels"]] == [config.key.hex() for config in configs]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("row", range(len(ROWS)), ids=ROW_IDS)
def test_descriptions_have_the_keys_of_the_measured_row(version: str, row: int) -> None:
    """A built choice that tells of itself in print only is the same config too."""
    facts = facts_of(version, row)
    configs = [config_of_choice(choice_of(kernel["choice"], facts["problem"])) for kernel in facts["kernels"]]
    assert triton_configs(ROWS[row]) == configs


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("row", range(len(ROWS)), ids=ROW_IDS)
def test_problems_have_the_key_of_the_measured_row(version: str, row: int) -> None:
    """What the hook is asked and what a saver is told is the problem that the import makes."""
    facts = facts_of(version, row)
    asked, [event] = facts["problem"], facts["events"]
    expected = measured(ROWS[row]).problem
    assert expected == problem_of_inputs(inputs_of(asked), asked["op_name"])
    assert expected == problem_of_nodes(event["op_name"], [Node(node) for node in event["nodes"]])
    assert [expected.key.hex()] * 2 == [asked["key"], event["key"]]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("row", range(len(ROWS)), ids=ROW_IDS)
def test_vendor_kernels_have_the_keys_of_the_measured_row(version: str, row: int) -> None:
    """A vendor kernel that Inductor timed is one of those that the import knows (2.13 lists no bias_addmm)."""
    facts = facts_of(version, row)
    imported = {timing.config for timing in measured(ROWS[row]).timings if timing.config.is_vendor}
    vendor = facts["events"][0]["vendor"]
    configs = {config_of_choice(choice_of(choice, facts["problem"])) for choice in vendor}
    assert configs
    assert configs <= imported
    assert {choice["key"] for choice in vendor} == {config.key.hex() for config in configs}


def test_both_vendor_kernels_of_addmm_are_told_apart() -> None:
    """Torch 2.11 times bias_addmm beside addmm."""
    names = [
        choice["name"]
        for choice in facts_of("2.11", ROW_IDS.index("addmm-fp16-1x512x128x256-nt"))["events"][0]["vendor"]
    ]
    assert names == ["bias_addmm", "addmm"]


def test_keys_are_what_they_have_always_been() -> None:
    """Keys are in databases; nobody may change them by accident."""
    kernels = facts_of("2.11", ROW_IDS.index("mm-bf16-1x64x128x128-nn"))["kernels"]
    assert [kernels[0]["key"], kernels[-1]["key"]] == [MM_KEY, TMA_KEY]


@pytest.mark.quick(2)
@pytest.mark.parametrize("row", range(len(ROWS)), ids=ROW_IDS)
def test_live_choices_are_what_the_files_hold(row: int) -> None:
    """The torch that runs this still says the same, and its real choices get the same keys."""
    facts = capture(ROWS[row])
    assert [config.key.hex() for config in triton_configs(ROWS[row])] == [kernel["key"] for kernel in facts["kernels"]]
    assert measured(ROWS[row]).problem.key.hex() == facts["problem"]["key"] == facts["events"][0]["key"]
    if golden_file().exists():
        assert json.loads(golden_file().read_text())["rows"][row] == facts
