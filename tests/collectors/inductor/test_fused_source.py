"""The source of a fused kernel says what it is, and can be told to be tuned otherwise."""

from __future__ import annotations

import re

import pytest
import torch

from diode_collectors.inductor.fused_source import FusedSource, arguments_of, config_of_triton, read_source
from diode_store.candidates.names import kernel_config
from diode_store.command_line.render import problem_text
from diode_store.errors import RecordError
from diode_store.kernels import KernelConfig
from fused_kernels import CASES, sources_of

SIZES = {
    "persistent_reduction": {"x": 64, "r0_": 512},
    "pointwise": {"x": 64, "y": 64},
    "reduction": {"x": 1024, "r0_": 8192},
}


def source_of(op: str) -> FusedSource:
    """Return the source of a case."""
    function, inputs = CASES[op]
    found = read_source(sources_of(function, *inputs)[0])
    assert found is not None
    return found


@pytest.mark.parametrize("op", CASES)
def test_a_source_says_what_it_is(op: str) -> None:
    """Inductor's own text of each kind: the op, the hints, the pointers, and what max-autotune asks for."""
    source = source_of(op)
    problem = source.problem
    scalars = dict(problem.scalars)
    key = str(scalars.pop("source"))
    sizes = scalars if op != "reduction" else {**scalars, "x": 1024}  # a long reduction may be split over more rows
    assert (problem.op, set(sizes)) == (op, set(SIZES[op]))
    if op != "reduction":
        assert sizes == SIZES[op]
    assert {spec.dtype for spec in problem.inputs} == {"float32"}
    assert source.is_tuned
    assert not source.is_left_to_stock
    assert problem_text(problem).startswith(f"{op} fp32 ")
    assert problem_text(problem).endswith(key[:8])
    assert problem.extra["num_load"] >= 1
    assert ("reduction_hint" in problem.extra) == (op != "pointwise")


def test_the_key_does_not_depend_on_the_name() -> None:
    """A kernel of another name is the same problem; another body, dtype or size is another."""
    source = source_of("pointwise")
    text = source.text
    begin = text.index("\ndef ") + 5
    end = text.index("(", begin)
    renamed = read_source(f"{text[:begin]}another_name{text[end:]}")
    assert renamed is not None
    assert renamed.problem == source.problem

    def key(function: object, *inputs: torch.Tensor) -> bytes:
        found = read_source(sources_of(function, *inputs)[0])  # type: ignore[arg-type]
        assert found is not None
        return found.problem.key

    x = torch.randn(48, 64)
    function = CASES["pointwise"][0]
    assert key(function, x) == source.problem.key
    others = [
        key(lambda x: x.t().contiguous() * 3, x),
        key(function, x.double()),
        key(function, torch.randn(48, 32)),
    ]
    assert len({source.problem.key, *others}) == 4


def test_what_it_is_does_not_depend_on_how_it_is_tuned() -> None:
    """The source that a compile runs without tuning is the same problem, and asks for no tuning."""
    source = source_of("reduction")
    untuned = read_source(source.without_tuning())
    assert untuned is not None
    assert (untuned.problem, untuned.is_tuned) == (source.problem, False)
    assert "'coordinate_descent_tuning': True" in source.text
    assert "'coordinate_descent_tuning': True" not in untuned.text
    assert untuned.text.partition("@triton.jit")[2] == source.text.partition("@triton.jit")[2]


def test_a_single_config() -> None:
    """The heuristics make way for the config; nothing else of the source changes."""
    source = source_of("persistent_reduction")
    config = kernel_config("triton::persistent_reduction", {"XBLOCK": 8, "num_stages": 1, "num_warps": 4})
    text = source.with_config(config)
    assert read_source(text) is None
    assert "@triton_heuristics.fixed_config(\n    config={'XBLOCK': 8, 'num_stages': 1, 'num_warps': 4}," in text
    assert text.partition("@triton.jit")[2] == source.text.partition("@triton.jit")[2]
    assert text.partition("@triton_heuristics")[0] == source.text.partition("@triton_heuristics")[0]
    compile(text.replace("Placeholder.KERNEL_NAME", "kernel"), "kernel.py", "exec")


def test_characters_of_several_bytes_do_not_shift_the_changes() -> None:
    """A name in another script: the offsets of Python's parser count bytes."""
    source = source_of("reduction")
    named = read_source(source.text.replace("'kernel_name': '", "'kernel_name': 'größe_", 1))
    assert named is not None
    assert "größe_" in named.text
    changed = read_source(named.without_tuning())
    assert changed is not None
    assert not changed.is_tuned
    assert "größe_" in changed.text


def test_blocks() -> None:
    """The names of a kernel's blocks come from its signature."""
    assert {op: source_of(op).blocks for op in CASES} == {
        "persistent_reduction": {"XBLOCK"},
        "pointwise": {"XBLOCK", "YBLOCK"},
        "reduction": {"XBLOCK", "R0_BLOCK"},
    }


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _text: "",
        lambda _text: "import triton",
        lambda text: text.replace("@triton_heuristics.reduction(", "@triton_heuristics.template("),
        lambda text: text.replace("@triton_heuristics.reduction(", "@triton_heuristics.cooperative_reduction("),
        lambda text: text.replace("@triton.jit\ndef ", "@triton.jit\nclass "),
        lambda text: text.replace("reduction_hint=", "reduction_hint=="),
    ],
)
def test_other_texts_are_no_fused_kernels(spoil: object) -> None:
    """Templates, cooperative reductions, and what is no source at all."""
    assert read_source(spoil(source_of("reduction").text)) is None  # type: ignore[operator]


@pytest.mark.parametrize("name", ["size_hints", "triton_meta"])
def test_a_source_that_says_too_little(name: str) -> None:
    """A missing argument has an error that names it."""
    source = read_source(source_of("reduction").text.replace(f"    {name}=", "    other=", 1))
    assert source is not None
    with pytest.raises(RecordError, match=name):
        source.problem  # noqa: B018 - raises


@pytest.mark.parametrize(
    "entry",
    [
        "'RSPLIT_SIZE': 64",
        "'combo_grid_meta': {}",
        "'deterministic': True",
        "'batch_invariant': True",
        "'are_deterministic_algorithms_enabled': True",
    ],
)
def test_kernels_that_take_no_config_are_stocks(entry: str) -> None:
    """Those with buffers or a grid of their own, and those whose results must not change."""
    meta = re.sub(
        r"'(deterministic|batch_invariant|are_deterministic_algorithms_enabled)': False, ",
        "",
        source_of("reduction").text,
    )
    source = read_source(meta.replace("'num_load':", f"{entry}, 'num_load':", 1))
    assert source is not None
    assert source.is_left_to_stock


def test_tritons_configs() -> None:
    """A config of Triton and back; what is usual is left out, and a limit of registers is kept."""
    from triton import Config

    plain = config_of_triton("reduction", Config({"XBLOCK": 1, "R0_BLOCK": 2048}, num_warps=16, num_stages=1))
    assert plain == KernelConfig(
        "triton::reduction", num_stages=1, num_warps=16, kwargs=(("R0_BLOCK", 2048), ("XBLOCK", 1))
    )
    assert plain.describe() == "triton::reduction R0_BLOCK=2048 XBLOCK=1 s1 w16"
    assert arguments_of(plain) == {"XBLOCK": 1, "R0_BLOCK": 2048, "num_warps": 16, "num_stages": 1}
    limited = config_of_triton("pointwise", Config({"XBLOCK": 256}, num_warps=4, num_stages=1, maxnreg=64))
    assert arguments_of(limited) == {"XBLOCK": 256, "maxnreg": 64, "num_warps": 4, "num_stages": 1}
