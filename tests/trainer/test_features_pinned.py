"""The features stay what the shipped models were trained on; ``python tests/trainer/test_features_pinned.py`` pins.

Compared with a tolerance, not by a digest, since logarithms differ in their last bits between machines.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from diode_store.candidates.columns import ConfigColumns
from diode_store.devices.known import known_device
from diode_store.records import Hardware, ProblemShape
from diode_trainer.features import (
    CONFIG_FEATURES,
    FEATURE_VERSION,
    PROBLEM_FEATURES,
    config_features,
    model_inputs,
    problem_features,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

DATA = Path(__file__).parents[1] / "data"
PINNED = DATA / f"features_v{FEATURE_VERSION}.json"
REMEDY = "a feature changed: raise FEATURE_VERSION, run this file to pin the new values and re-train what ships"

# Written out in full, so that a change to the table of known devices does not count as one of the features.
H200 = Hardware("nvidia", "NVIDIA H200", "sm_90", 132, 60 * 2**20, 232448, 141 * 10**9, 4800 * 10**9, 1980)
A100 = Hardware("nvidia", "NVIDIA A100-SXM4-80GB", "sm_80", 108, 40 * 2**20, 166912, 80 * 10**9, 2039 * 10**9, 1410)
VENDOR_NUMBERS = (0, 0, 0, 0, 0, 0, False)
TILES = (
    (64, 64, 32, 8, 3, 4, False),
    (128, 256, 64, 8, 4, 8, False),
    (16, 32, 128, 1, 1, 2, True),
    (64, 64, 64, 8, 3, 4, True),
)
FLOAT8_ROWS = (("fast_accum", True), ("out_dtype", "bfloat16"), ("scaling", "row"))
OLD_CASES: dict[str, tuple[ProblemShape, Hardware, tuple[str, ...]]] = {
    "square mm with TMA": (
        ProblemShape("mm", "bfloat16", 1, 1024, 1024, 1024, "nt"),
        H200,
        ("aten::mm", "triton::mm", "triton::mm_persistent_tma"),
    ),
    "addmm with a bias, odd sizes": (
        ProblemShape("addmm", "float16", 1, 333, 768, 3072, "nn"),
        H200,
        ("aten::addmm", "aten::bias_addmm", "triton::mm"),
    ),
    "bmm, few rows": (ProblemShape("bmm", "bfloat16", 48, 7, 65, 128, "tn"), H200, ("aten::bmm", "triton::bmm")),
    "TF32, K not contiguous": (
        ProblemShape("mm", "float32", 1, 2048, 512, 4096, "nn", tf32=True),
        H200,
        ("aten::mm", "triton::mm"),
    ),
    "float32 on an A100": (ProblemShape("mm", "float32", 1, 4096, 50304, 64, "tt"), A100, ("aten::mm", "triton::mm")),
}
"""Cases of ``features_v3.json``, whose values may not change."""
CASES: dict[str, tuple[ProblemShape, Hardware, tuple[str, ...]]] = {
    **OLD_CASES,
    "float8 with a scale for each row": (
        ProblemShape("scaled_mm", "float8_e4m3fn", 1, 4096, 1024, 7168, "nt", dimensions=FLOAT8_ROWS),
        H200,
        ("aten::_scaled_mm", "triton::mm", "triton::scaled_mm_device_tma_epilogue_scaling"),
    ),
    "float8 with scales of blocks, summed apart": (
        ProblemShape(
            *("scaled_mm", "float8_e4m3fn", 1, 384, 512, 4096, "nt"),
            dimensions=(("bias", True), ("out_dtype", "bfloat16"), ("scaling", "1x128/128x128")),
        ),
        H200,
        ("aten::_scaled_mm", "triton::scaled_mm_device_tma_main_loop_scaling"),
    ),
    "int8 into int32": (
        ProblemShape("int_mm", "int8", 1, 512, 1024, 2048, "nn"),
        H200,
        ("aten::_int_mm", "triton::mm"),
    ),
    "two products": (
        ProblemShape("mm_plus_mm", "bfloat16", 1, 512, 768, 96, "nn"),
        H200,
        ("aten::_mm_plus_mm", "triton::mm_plus_mm"),
    ),
    "rows in groups": (
        ProblemShape(
            *("grouped_mm", "bfloat16", 64, 8, 2048, 1024, "nt"),
            dimensions=(("form", "2d3d"), ("skew", 1.0), ("total", 500)),
        ),
        H200,
        ("aten::_grouped_mm", "triton::grouped_mm"),
    ),
    "depth in groups of float8": (
        ProblemShape(
            *("scaled_grouped_mm", "float8_e4m3fn", 8, 512, 1024, 300, "nt"),
            dimensions=(
                ("form", "2d2d"),
                ("out_dtype", "bfloat16"),
                ("scaling", "row"),
                ("skew", 2.0),
                ("total", 2400),
            ),
        ),
        H200,
        ("aten::_scaled_grouped_mm", "triton::scaled_grouped_mm"),
    ),
    "columns in groups": (
        ProblemShape("grouped_mm", "float16", 16, 256, 96, 512, "nn", dimensions=(("form", "3d2d"), ("total", 1536))),
        H200,
        ("aten::_grouped_mm", "triton::grouped_mm"),
    ),
}


def columns(templates: tuple[str, ...]) -> ConfigColumns:
    """Return one config of a vendor's template, and one for each of ``TILES`` of another."""
    rows = [
        (name, *numbers)
        for name in templates
        for numbers in ((VENDOR_NUMBERS,) if name.startswith("aten::") else TILES)
    ]
    return ConfigColumns.from_rows(rows)


def values(case: str) -> dict[str, NDArray[Any]]:
    """Return everything that a model is told of a case."""
    shape, hardware, templates = CASES[case]
    asked = columns(templates)
    return {
        "problem": problem_features(shape, hardware),
        "configs": config_features(shape, hardware, asked),
        "fits": model_inputs(shape, hardware, asked).listed.possible,
    }


def pinned() -> dict[str, Any]:
    """Return the content of the file of pinned values."""
    assert PINNED.exists(), f"no values are pinned for FEATURE_VERSION {FEATURE_VERSION}: run {Path(__file__).name}"
    content = json.loads(PINNED.read_text())
    assert isinstance(content, dict)
    return content


def test_features_have_the_pinned_names() -> None:
    """The features' names and order are those of this FEATURE_VERSION."""
    assert list(PROBLEM_FEATURES) == pinned()["problem_features"], REMEDY
    assert list(CONFIG_FEATURES) == pinned()["config_features"], REMEDY


@pytest.mark.parametrize("case", CASES)
def test_features_have_the_pinned_values(case: str) -> None:
    """No formula has changed since this FEATURE_VERSION was set."""
    expected = pinned()["cases"][case]
    for name, value in values(case).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=REMEDY)


@pytest.mark.parametrize("case", OLD_CASES)
def test_version_4_appended_features_that_are_0_for_the_older_ops(case: str) -> None:
    """A model of version 3 can be read on: its features are the first ones, with the values of then."""
    expected = json.loads((DATA / "features_v3.json").read_text())["cases"][case]
    for name, value in values(case).items():
        old = np.array(expected[name])
        size = old.shape[-1] if name != "fits" else len(old)
        np.testing.assert_allclose(value[..., :size], old, rtol=1e-4, atol=1e-5, err_msg=f"{name} of version 3 changed")
        assert not value[..., size:].any(), f"{name} is new, and not 0"


def test_pinned_devices_are_known_ones() -> None:
    """What the table of devices says of those that models were trained on has not changed either."""
    assert [known_device(device.name) for device in (H200, A100)] == [H200, A100]


def test_every_config_feature_is_seen() -> None:
    """Each config feature is other than 0 somewhere in the pinned cases, so that losing it is noticed."""
    seen = np.concatenate([np.array(case["configs"]) for case in pinned()["cases"].values()])
    unseen = [name for name, used in zip(CONFIG_FEATURES, (seen != 0).any(axis=0), strict=True) if not used]
    assert unseen == []


def pin() -> None:
    """Write the values of now, to 6 significant digits; those of older versions stay what they are."""
    cases = {case: {name: [_plain(row) for row in value] for name, value in values(case).items()} for case in CASES}
    content = {"problem_features": PROBLEM_FEATURES, "config_features": CONFIG_FEATURES, "cases": cases}
    PINNED.write_text(json.dumps(content, indent=1) + "\n")


def _plain(value: NDArray[Any]) -> Any:
    if value.ndim:
        return [_plain(part) for part in value]
    return bool(value) if value.dtype == np.bool_ else float(f"{value:.6g}")


if __name__ == "__main__":
    pin()
