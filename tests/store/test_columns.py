from __future__ import annotations

from dataclasses import replace

import numpy as np

import samples
from diode_store.candidates.columns import INT_COLUMNS, ConfigColumns
from diode_store.records import KernelConfig

VENDOR = KernelConfig("aten::mm")
CONFIGS = [VENDOR, samples.triton_config(64), samples.triton_config(128, ALLOW_TF32=True), VENDOR]


def test_columns_hold_what_the_configs_do() -> None:
    """Every column is in the configs' order; what a config does not have is 0."""
    columns = ConfigColumns.from_configs(CONFIGS)
    assert len(columns) == 4
    assert columns.templates == ("aten::mm", "triton::mm")
    assert columns.template_index.tolist() == [0, 1, 1, 0]
    assert columns.block_m.tolist() == [0, 64, 128, 0]
    assert columns.num_stages.tolist() == [0, 3, 3, 0]
    assert columns.allow_tf32.tolist() == [False, False, True, False]
    assert {getattr(columns, name).dtype for name in INT_COLUMNS} == {np.dtype(np.int32)}


def test_rows_and_configs_agree() -> None:
    """The fast path for whoever has no records gives the same columns."""
    rows = [("aten::mm", 0, 0, 0, 0, 0, 0, False), ("triton::mm", 64, 64, 32, 8, 3, 4, False)]
    by_rows, by_configs = ConfigColumns.from_rows(rows), ConfigColumns.from_configs(CONFIGS[:2])
    for name in ("template_index", *INT_COLUMNS, "allow_tf32"):
        assert getattr(by_rows, name).tolist() == getattr(by_configs, name).tolist()


def test_a_config_comes_back() -> None:
    """What the columns hold of a config makes one again; its name tells kernels apart."""
    columns = ConfigColumns.from_configs(CONFIGS)
    assert columns.config(0) == VENDOR
    assert columns.config(2) == replace(CONFIGS[2], acc_type=None)
    assert columns.config(2).describe() == "triton::mm 128x64x32 s3 w4"


def test_take_by_mask_and_by_index() -> None:
    """A selection keeps the templates' numbering."""
    columns = ConfigColumns.from_configs(CONFIGS)
    kept = columns.take(np.array([False, True, True, False]))
    assert kept.block_m.tolist() == [64, 128]
    assert kept.templates == columns.templates
    assert columns.take(np.array([2, 0])).block_m.tolist() == [128, 0]


def test_template_mask() -> None:
    """A question about templates is answered for each config."""
    columns = ConfigColumns.from_configs(CONFIGS)
    assert columns.template_mask(lambda uid: uid.startswith("aten::")).tolist() == [True, False, False, True]


def test_no_configs() -> None:
    """No configs are columns of length 0, not an error."""
    columns = ConfigColumns.from_configs([])
    assert len(columns) == 0
    assert columns.template_mask(lambda _uid: True).tolist() == []


def test_lists_are_equal_that_have_the_same_configs_in_the_same_order() -> None:
    """What is kept for a list is found again, whichever object holds the list, and for no other list."""
    columns = ConfigColumns.from_configs(CONFIGS)
    assert {columns: "kept"}[ConfigColumns.from_configs(CONFIGS)] == "kept"
    assert columns != ConfigColumns.from_configs(CONFIGS[::-1])
    assert columns != replace(columns, allow_tf32=~columns.allow_tf32)
    assert columns != columns.take(np.arange(3))
    assert len(columns.digest) == 16
