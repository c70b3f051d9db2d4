from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import H200, MM, TRITON_ROWS, VENDOR_ROW, columns

from diode_store.candidates.columns import ConfigColumns
from diode_store.devices.descriptor import ARCHITECTURES, describe
from diode_store.devices.known import KNOWN_DEVICES
from diode_store.records import Hardware, ProblemShape
from diode_trainer.features import (
    CONFIG_FEATURES,
    PROBLEM_FEATURES,
    VENDOR_FLAGS,
    config_features,
    model_inputs,
    problem_features,
    roofline_us,
)
from diode_trainer.launch import ListTerms
from diode_trainer.work import Work, widest_access

SIZES = st.integers(1, 2**20)
SHAPES = st.builds(
    ProblemShape,
    op=st.sampled_from(["mm", "addmm", "bmm", "baddbmm", "scaled_mm"]),
    dtype=st.sampled_from(["bfloat16", "float16", "float32", "float8_e4m3fn", "int8", "float64", "complex64"]),
    b=st.integers(1, 4096),
    m=SIZES,
    n=SIZES,
    k=SIZES,
    layout=st.sampled_from(["nn", "nt", "tn", "tt", "sn", "ns"]),
)
BLOCKS = st.sampled_from([16, 32, 64, 128, 256])
CONFIG_ROWS = st.one_of(
    st.just(VENDOR_ROW),
    st.just(("aten::bias_addmm", 0, 0, 0, 0, 0, 0, False)),
    st.tuples(
        st.sampled_from(["triton::mm", "triton::bmm", "triton::mm_persistent_tma", "cpp::CppMicroGemmFP32Vec"]),
        BLOCKS,
        BLOCKS,
        BLOCKS,
        st.sampled_from([0, 1, 8]),
        st.integers(0, 6),
        st.sampled_from([0, 1, 2, 4, 8, 16]),
        st.booleans(),
    ),
)
DEVICES = st.one_of(
    st.sampled_from(KNOWN_DEVICES),
    st.builds(
        Hardware,
        vendor=st.just("someone"),
        name=st.just("A new device"),
        arch=st.sampled_from(["sm_80", "sm_120", "gfx1100", "x86_64-avx512"]),
        multiprocessors=st.integers(1, 1000),
        l2_bytes=st.none() | st.integers(2**16, 2**30),
        shared_memory_per_block_bytes=st.none() | st.integers(2**12, 2**20),
        memory_bandwidth_bytes_per_s=st.none() | st.integers(10**9, 10**14),
    ),
)


def feature(name: str, *rows: tuple[object, ...], shape: ProblemShape = MM) -> list[float]:
    """Return one feature of each config."""
    values = config_features(shape, H200, columns(*rows))[:, CONFIG_FEATURES.index(name)]
    return [round(float(value), 4) for value in values]


def terms(hardware: Hardware, *rows: tuple[object, ...]) -> ListTerms:
    """Return how configs run products like ``MM``."""
    listed = columns(*rows)
    return ListTerms(listed, Work(MM, describe(hardware)).kind(listed))


def triton(block_m: int, block_n: int, block_k: int, stages: int = 3, warps: int = 4) -> tuple[object, ...]:
    """Return a config's row."""
    return ("triton::mm", block_m, block_n, block_k, 8, stages, warps, False)


@given(shape=SHAPES, hardware=DEVICES, rows=st.lists(CONFIG_ROWS, min_size=1, max_size=6))
def test_features_are_finite(shape: ProblemShape, hardware: Hardware, rows: list[tuple[object, ...]]) -> None:
    """Every shape, device and config has finite features of the declared dimensions, and a positive roofline."""
    chosen = ConfigColumns.from_rows(rows)
    of_problem, of_configs = problem_features(shape, hardware), config_features(shape, hardware, chosen)
    assert (of_problem.shape, of_problem.dtype) == ((len(PROBLEM_FEATURES),), np.float32)
    assert (of_configs.shape, of_configs.dtype) == ((len(rows), len(CONFIG_FEATURES)), np.float32)
    assert np.isfinite(of_problem).all()
    assert np.isfinite(of_configs).all()
    assert roofline_us(shape, hardware) > 0


@given(shape=SHAPES, rows=st.lists(CONFIG_ROWS, min_size=1, max_size=8))
def test_batch_equals_single(shape: ProblemShape, rows: list[tuple[object, ...]]) -> None:
    """A config's features and fit do not depend on which others it is asked about with."""
    together = model_inputs(shape, H200, ConfigColumns.from_rows(rows))
    for i, row in enumerate(rows):
        alone = model_inputs(shape, H200, ConfigColumns.from_rows([row]))
        np.testing.assert_allclose(together.config()[:, i], alone.config()[:, 0], rtol=1e-5, atol=1e-5)
        assert together.listed.possible[i] == alone.listed.possible[0]


def test_names_are_unique() -> None:
    """No feature is computed twice under one name."""
    names = (*PROBLEM_FEATURES, *CONFIG_FEATURES)
    assert len(set(names)) == len(names)


def test_inputs_are_what_is_asked_for_one_by_one() -> None:
    """``model_inputs`` holds the features, the roofline and the vendor's kernels, without a second formula."""
    inputs = model_inputs(MM, H200, columns())
    np.testing.assert_array_equal(inputs.problem, problem_features(MM, H200))
    np.testing.assert_array_equal(inputs.config().T, config_features(MM, H200, columns()))
    assert inputs.roofline_us == roofline_us(MM, H200)
    assert inputs.vendor.tolist() == [True] + [False] * (len(columns()) - 1)


def test_roofline_of_a_large_product_is_arithmetic() -> None:
    """8192 cubed in bf16 takes 2 * 8192^3 / 989 TFLOP/s, plus the floor."""
    shape = replace(MM, m=8192, n=8192, k=8192)
    assert roofline_us(shape, H200) == pytest.approx(2 * 8192**3 / (7.49e12 * 132) * 1e6 + 2.0)


def test_roofline_of_a_thin_product_is_memory() -> None:
    """One row by 8192 square in bf16 reads 134 MB at 4.8 TB/s."""
    shape = replace(MM, m=1, n=8192, k=8192)
    moved = 2 * (8192 + 8192 * 8192 + 8192)
    assert roofline_us(shape, H200) == pytest.approx(moved / 4.8e12 * 1e6 + 2.0)


def test_problem_features_of_a_known_problem() -> None:
    """Sizes are base-2 logarithms; flags say dtype, op and layout."""
    shape = ProblemShape("addmm", "float16", 1, 64, 256, 1024, "nt")
    named = dict(zip(PROBLEM_FEATURES, problem_features(shape, H200).tolist(), strict=True))
    assert [named[f"log_{letter}"] for letter in "bmnk"] == [0.0, 6.0, 8.0, 10.0]
    assert (named["is_fp16"], named["is_bf16"], named["is_fp32"]) == (1.0, 0.0, 0.0)
    assert (named["is_addmm"], named["is_bmm"], named["a_transposed"], named["b_transposed"]) == (1.0, 0.0, 0.0, 1.0)
    assert named["log_m_over_n"] == -2.0
    assert named["log_k_over_mn"] == pytest.approx(10 - 7)
    assert named["log_waves_64x64"] == pytest.approx(np.log2(4 / 132))


@pytest.mark.parametrize(
    ("extent", "itemsize", "expected"), [(1024, 2, 16), (7, 2, 2), (6, 2, 4), (4, 4, 16), (1, 1, 1)]
)
def test_widest_access(extent: int, itemsize: int, expected: int) -> None:
    """A row's stride allows the largest power of two that divides it, up to 16 bytes."""
    assert widest_access(extent, itemsize) == expected


def test_access_follows_the_layout() -> None:
    """A transposed operand's rows run along its other dimension."""
    shape = replace(MM, m=7, n=6, k=1024)
    row_major, transposed = (Work(replace(shape, layout=layout), describe(H200)) for layout in ("nn", "tt"))
    assert (row_major.access_a, row_major.access_b) == (16, 4)
    assert (transposed.access_a, transposed.access_b) == (2, 16)


def test_vendor_has_only_its_flags() -> None:
    """A vendor's kernel is two flags and zeros, whatever its columns hold."""
    rows = config_features(MM, H200, columns(VENDOR_ROW, ("aten::bias_addmm", 64, 64, 32, 8, 3, 4, True)))
    assert rows[:, : len(VENDOR_FLAGS)].tolist() == [[1.0, 0.0], [1.0, 1.0]]
    assert not rows[:, len(VENDOR_FLAGS) :].any()


def test_tiles_and_waves() -> None:
    """1024 x 1024 in tiles of 128 x 256 are 8 x 4 tiles of the 132 multiprocessors' first wave."""
    row = triton(128, 256, 64)
    assert feature("log_tiles_m", row) == [3.0]
    assert feature("log_tiles_n", row) == [2.0]
    assert feature("log_k_iterations", row) == [4.0]
    assert feature("log_block_waves", row) == [round(float(np.log2(32 / 132)), 4)]
    assert feature("busy_multiprocessors", row) == [round(32 / 132, 4)]


def test_padding_is_what_tiles_stick_out() -> None:
    """100 rows in tiles of 64 waste 28%."""
    shape = replace(MM, m=100)
    assert feature("log_padding_m", triton(64, 64, 32), shape=shape) == [round(float(np.log2(1.28)), 4)]
    assert feature("log_padding_n", triton(64, 64, 32), shape=shape) == [0.0]


def test_even_k_and_single_iteration() -> None:
    """EVEN_K and a loop of one iteration follow from K and BLOCK_K."""
    shape = replace(MM, k=96)
    rows = (triton(64, 64, 32), triton(64, 64, 64), triton(64, 64, 128))
    assert feature("even_k", *rows, shape=shape) == [1.0, 0.0, 0.0]
    assert feature("one_k_iteration", *rows, shape=shape) == [0.0, 0.0, 1.0]


def test_tensor_core_generation() -> None:
    """Hopper's wgmma needs 64 rows, four warps, half precision or TF32, and Hopper."""
    rows = (triton(64, 64, 32), triton(32, 64, 32), triton(64, 64, 32, warps=2))
    assert feature("uses_wgmma", *rows) == [1.0, 0.0, 0.0]
    tf32 = [(*row[:-1], True) for row in rows]
    assert feature("uses_wgmma", *rows, shape=replace(MM, dtype="float32")) == [0.0, 0.0, 0.0]
    assert feature("uses_wgmma", *tf32, shape=replace(MM, dtype="float32", tf32=True)) == [1.0, 0.0, 0.0]
    assert feature("uses_wgmma", *tf32, shape=replace(MM, dtype="float64")) == [0.0, 0.0, 0.0]
    ampere = terms(Hardware("nvidia", "an A100", "sm_80", 108), *rows)
    assert not ampere.wgmma.any()


@pytest.mark.parametrize(("layout", "expected"), [("nt", 0.0), ("nn", 1.0), ("tn", 1.0), ("tt", 1.0)])
def test_wgmma_of_tf32_wants_k_contiguous(layout: str, expected: float) -> None:
    """Operands of any other layout are turned over, which half precision does not need."""
    row = triton(64, 64, 32)
    tf32 = replace(MM, dtype="float32", tf32=True, layout=layout)
    assert feature("turns_over", (*row[:-1], True), shape=tf32) == [expected]
    assert feature("turns_over", row, shape=replace(MM, layout=layout)) == [0.0]


def test_tf32_changes_the_roofline() -> None:
    """The same float32 problem can be done several times faster as TF32, and the model is told which it is."""
    exact = replace(MM, dtype="float32", m=8192, n=8192, k=8192)
    tf32 = replace(exact, tf32=True)
    assert (roofline_us(exact, H200) - 2) / (roofline_us(tf32, H200) - 2) == pytest.approx(3.74 / 0.51, rel=0.01)
    is_tf32 = PROBLEM_FEATURES.index("is_tf32")
    assert [problem_features(shape, H200)[is_tf32] for shape in (exact, tf32)] == [0.0, 1.0]


def test_shared_memory_counts_buffers() -> None:
    """With wgmma every stage is a buffer, without it one less."""
    launch = terms(H200, triton(64, 64, 32, stages=3), triton(32, 96, 32, stages=3))
    assert launch.shared_memory.tolist() == [3 * 2 * 128 * 32, 2 * 2 * 128 * 32]


def test_persistent_kernels_start_one_block() -> None:
    """A persistent kernel's occupancy is one, however little it needs."""
    rows = (("triton::mm_persistent_tma", 64, 64, 32, 8, 2, 4, False), triton(64, 64, 32, stages=2))
    persistent, plain = feature("log_occupancy", *rows)
    assert persistent == 0.0
    assert plain > 1.0


def test_fits_shared_memory_at_the_limit() -> None:
    """Five stages of 256 x 256 x 64 need 327,680 bytes of the 232,448 there are; three of them fit."""
    rows = (triton(256, 256, 64, stages=5, warps=8), triton(256, 256, 64, stages=3, warps=8), VENDOR_ROW)
    assert model_inputs(MM, H200, columns(*rows)).listed.possible.tolist() == [False, True, True]


def test_fits_shared_memory_when_nothing_is_pipelined() -> None:
    """A loop of one iteration, or loads too narrow for cp.async, need no buffers for later stages."""
    row = triton(256, 256, 64, stages=5, warps=8)
    assert model_inputs(replace(MM, k=64), H200, columns(row)).listed.possible.tolist() == [True]
    assert model_inputs(replace(MM, k=1023, n=1023), H200, columns(row)).listed.possible.tolist() == [True]
    persistent = ("triton::mm_persistent_tma", *row[1:])
    assert model_inputs(replace(MM, k=64), H200, columns(persistent)).listed.possible.tolist() == [False]


def test_tf32_is_faster_than_fp32() -> None:
    """A config that may use TF32 is expected to compute faster, and only that one."""
    shape = replace(MM, dtype="float32", m=8192, n=8192)
    exact, tf32 = (("triton::mm", 32, 64, 32, 8, 3, 4, allowed) for allowed in (False, True))
    together = feature("log_compute_time", exact, tf32, shape=shape)
    assert together[0] - together[1] == pytest.approx(np.log2(3.74 * 0.5 / (0.51 * 0.7)), abs=0.01)


def test_descriptor_prefers_published_figures() -> None:
    """However an H200 was described, the features see the same device."""
    bare = Hardware("nvidia", "NVIDIA H200", "sm_90", 132)
    odd = replace(bare, l2_bytes=1, memory_bandwidth_bytes_per_s=7)
    assert describe(bare) == describe(odd) == describe(H200)
    assert describe(bare).memory_bandwidth == 4.8e12


def test_descriptor_of_an_unknown_device() -> None:
    """What an unknown device says of itself counts; its architecture gives the rest."""
    device = Hardware("nvidia", "NVIDIA X", "sm_90", 100, l2_bytes=2**20)
    found = describe(device)
    assert (found.multiprocessors, found.l2_bytes) == (100, 2**20)
    assert found.memory_bandwidth == ARCHITECTURES["sm_90"].memory_bandwidth
    assert found.architecture.has_wgmma
    assert not describe(replace(device, arch="sm_999")).architecture.has_wgmma


def test_peak_flops_by_dtype() -> None:
    """Half precision, TF32 and float32 have their own peaks; the H100's published ones, to 1%."""
    device = describe(H200)
    assert device.peak_flops(2) == pytest.approx(989e12, rel=0.01)
    assert device.peak_flops(4, tf32=True) == pytest.approx(494e12, rel=0.01)
    assert device.peak_flops(4) == pytest.approx(67e12, rel=0.01)


def test_all_triton_rows_differ() -> None:
    """Configs that differ in a parameter differ in their features."""
    rows = config_features(MM, H200, columns(*TRITON_ROWS))
    assert len(np.unique(rows, axis=0)) == len(TRITON_ROWS)


def test_tma_kernels_of_a_single_row_are_impossible() -> None:
    """With one row of A their results are wrong, so that no model may choose them; with two rows they may be."""
    chosen = columns(
        ("triton::mm_persistent_tma", 64, 64, 64, 8, 3, 4, False), ("triton::mm", 64, 64, 64, 8, 3, 4, False)
    )
    found = [model_inputs(replace(MM, m=m), H200, chosen).listed.possible.tolist() for m in (1, 2)]
    assert found == [[False, True], [True, True]]
