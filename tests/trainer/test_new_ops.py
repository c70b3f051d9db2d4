"""A model ranks kernels of scaled, grouped, summed and int8 products, and abstains outside what it learned of each."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from synthetic import H200, MM, QUICK, VENDOR_ROW, columns, learnable
from synthetic_ops import NEW_OPS, TMA, columns_of, learnable_ops, shape_of

from diode_store.candidates.columns import ConfigColumns
from diode_store.devices.descriptor import describe
from diode_store.devices.known import require_device
from diode_store.ops import OPS
from diode_store.ops.grouping import alignment_of, group_sizes
from diode_trainer import artifact
from diode_trainer.card import MATMUL_PURPOSE, Calibration, Card, Domain, shape_digest
from diode_trainer.covered import NEAR_MARGIN
from diode_trainer.data.dataset import ExampleSet
from diode_trainer.data.tensors import pack
from diode_trainer.features import CONFIG_FEATURES, FEATURE_VERSION, config_features, model_inputs
from diode_trainer.judging.judgement import judge_problems, summarise
from diode_trainer.judging.standing import predict
from diode_trainer.judging.verify import verify
from diode_trainer.launch import ListTerms
from diode_trainer.scoring import Scorer
from diode_trainer.training.train import fit, op_repeats
from diode_trainer.work import Work

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.records import ProblemShape

DATA = learnable_ops(40)
OLD = learnable(40)
BOTH = ExampleSet(DATA.examples + OLD.examples, DATA.lineage)
DOMAIN = BOTH.domain()
H100 = require_device("NVIDIA H100 80GB HBM3")
CALIBRATION = Calibration(0.7, 2.5, 0.4, 0.6, 0.006, 1208)
SCALED = shape_of("scaled_mm", 512, 512, 512)
LOOP = "triton::scaled_mm_device_tma_main_loop_scaling"


def feature(name: str, shape: ProblemShape, *rows: tuple[object, ...]) -> list[float]:
    """Return one feature of each config."""
    values = config_features(shape, H200, columns(*rows))[:, CONFIG_FEATURES.index(name)]
    return [round(float(value), 4) for value in values]


def terms(shape: ProblemShape, *rows: tuple[object, ...]) -> ListTerms:
    """Return how configs run a product."""
    listed = columns(*rows)
    return ListTerms(listed, Work(shape, describe(H200)).kind(listed))


def test_a_model_ranks_the_new_ops() -> None:
    """A short fit finds the fastest kernels of unseen problems of each op, where chance loses a multiple of that."""
    recipe = replace(QUICK, epochs=40)
    scorer = Scorer(fit(pack(DATA), recipe, seed=0).network)
    for op in NEW_OPS:
        tested = learnable_ops(12, seed=1, ops=(op,)).examples
        judged = summarise(judge_problems(tested, predict(scorer, tested)))
        assert judged.regret[1].geomean < 1.25, op
        assert judged.regret[5].geomean < 1.08, op


def test_problems_of_the_new_ops_count_twice() -> None:
    """In an epoch of a network that learns plain products as well."""
    assert op_repeats(BOTH).tolist() == [2] * len(DATA) + [1] * len(OLD)


def test_a_domain_lists_the_dimensions_of_each_op() -> None:
    """Recipes, forms, fast accumulation, dtypes and ranges; the plain fields are of the ops without dimensions."""
    assert set(DOMAIN.ops) == {"mm", *NEW_OPS}
    assert set(DOMAIN.of_ops) == set(NEW_OPS)
    assert (DOMAIN.dtypes, DOMAIN.layouts) == (("bfloat16",), ("nn",))
    assert DOMAIN.all_dtypes == ("bfloat16", "float8_e4m3fn", "int8")
    scaled = DOMAIN.of_ops["scaled_mm"]
    assert dict(scaled.values) == {
        "scaling": ("row", "tensor"),
        "fast_accum": (True,),
        "bias": (False,),
        "b_dtype": ("that of A",),
        "out_dtype": ("bfloat16",),
    }
    assert DOMAIN.of_ops["grouped_mm"].values["form"] == ("2d3d",)
    assert DOMAIN.of_ops["grouped_mm"].shapes["b"] == (16, 16)


def test_a_device_is_known_for_the_ops_that_it_measured() -> None:
    """An op that one of two devices measured is near on the other, and its calibration is wider there."""
    there = ExampleSet(tuple(replace(example, hardware=H100) for example in OLD))
    domain = ExampleSet(BOTH.examples + there.examples, DATA.lineage).domain()
    assert [device.name for device in domain.hardware] == [H100.name, H200.name]
    assert [device.name for device in domain.of_ops["scaled_mm"].hardware] == [H200.name]
    assert domain.covers(H100)
    assert domain.covers(H100, "mm")
    assert domain.covers(H200, "scaled_mm")
    assert domain.standing(H100, "scaled_mm").is_near
    assert [miss.reason for miss in domain.misses(SCALED, H100)] == ["hardware"]
    assert not [*domain.misses(SCALED, H100, near=True)]
    assert not [*domain.misses(MM, H100)]
    card = Card("both", MATMUL_PURPOSE, "deep", FEATURE_VERSION, domain, calibration=CALIBRATION)
    assert card.calibration_on(H100, "mm") == card.calibration_on(H200, "scaled_mm") == CALIBRATION
    assert card.calibration_on(H100, "scaled_mm") == CALIBRATION.widened(NEAR_MARGIN)


def test_a_domain_survives_its_card(tmp_path: Path) -> None:
    """Card and checkpoint agree, and an older card has no domains of ops."""
    plain = json.loads(json.dumps(asdict(DOMAIN)))
    assert Domain.from_plain(plain) == DOMAIN
    del plain["of_ops"]
    assert Domain.from_plain(plain) == replace(DOMAIN, of_ops={})
    path = tmp_path / "both.pt"
    artifact.save(
        path, fit(pack(OLD), QUICK, seed=0).network, Card("both", MATMUL_PURPOSE, "deep", FEATURE_VERSION, DOMAIN)
    )
    assert artifact.load(path).card.domain == DOMAIN
    assert verify(path) is None


@pytest.mark.parametrize(
    ("shape", "reason", "detail"),
    [
        (
            shape_of("scaled_mm", 512, 512, 512, scaling="1x128"),
            "dimension",
            "of scaled_mm the model knows the scaling row, tensor, not 1x128",
        ),
        (
            shape_of("scaled_mm", 512, 512, 512, fast_accum=False),
            "dimension",
            "of scaled_mm the model knows the fast accumulation yes, not no",
        ),
        (
            shape_of("scaled_mm", 512, 512, 512, out_dtype="float32"),
            "dimension",
            "of scaled_mm the model knows the output dtype bfloat16, not float32",
        ),
        (
            replace(shape_of("grouped_mm", 512, 512, 512, form="3d2d"), m=512),
            "dimension",
            "of grouped_mm the model knows the form 2d3d, not 3d2d",
        ),
        (
            shape_of("grouped_mm", 512, 512, 512, groups=256),
            "shape",
            "groups=256 is outside 16 to 16, which the model knows of grouped_mm",
        ),
        (replace(SCALED, dtype="float8_e5m2"), "dtype", "of scaled_mm the model knows float8_e4m3fn, not float8_e5m2"),
        (replace(SCALED, layout="nn"), "layout", "of scaled_mm the model knows nt, not nn"),
        (replace(MM, dtype="int8"), "dtype", "the model knows bfloat16, not int8"),
    ],
)
def test_a_problem_outside_says_why(shape: ProblemShape, reason: str, detail: str) -> None:
    """One line for a person, and one word for the statistics."""
    missed = [*DOMAIN.misses(shape, H200)]
    assert [(miss.reason, miss.detail) for miss in missed] == [(reason, detail)]


def test_the_skew_is_no_part_of_a_domain() -> None:
    """A compile does not know it."""
    assert not [*DOMAIN.misses(shape_of("grouped_mm", 512, 512, 512, skew=3.0), H200)]


def test_dimensions_tell_training_problems_apart() -> None:
    """But the digest of a problem without any is that of older models."""
    assert shape_digest(SCALED) != shape_digest(replace(SCALED, dimensions=()))
    assert shape_digest(MM) == -4349530755167251238


def test_float8_tiles_take_a_byte_an_element() -> None:
    """A config that would not fit as half precision may fit; the rule is BLOCK sizes times stages."""
    fits, too_large = ("triton::mm", 128, 256, 128, 8, 4, 8, False), ("triton::mm", 256, 256, 128, 8, 4, 8, False)
    assert terms(replace(SCALED, k=4096), fits, too_large).possible.tolist() == [True, False]
    assert terms(replace(MM, k=4096), fits).possible.tolist() == [False]


def test_float8_multiplies_on_tensor_cores() -> None:
    """Wgmma needs 64 rows and four warps, and K contiguous, else tiles are turned over."""
    row = ("triton::mm", 64, 64, 64, 8, 3, 4, False)
    for layout, expected in (("nt", 0.0), ("nn", 1.0)):
        shape = replace(SCALED, layout=layout)
        assert feature("uses_wgmma", shape, row) == [1.0]
        assert feature("turns_over", shape, row) == [expected]
    assert feature("uses_wgmma", SCALED, ("triton::mm", 32, 64, 64, 8, 3, 4, False)) == [0.0]


def test_sums_apart_take_registers() -> None:
    """Without fast accumulation a kernel has two sets of accumulators."""
    row = ("triton::mm", 128, 128, 128, 8, 4, 4, False)
    precise = shape_of("scaled_mm", 512, 512, 512, fast_accum=False)
    assert terms(precise, row).demand[0] - terms(SCALED, row).demand[0] == pytest.approx(128)
    assert feature("sums_apart", precise, VENDOR_ROW, row) == [0.0, 1.0]


def test_scales_in_the_loop_take_shared_memory() -> None:
    """The tile of B is scaled into a float32 copy; 64 x 256 x 128 with 4 stages fits only without the copy."""
    blocks = shape_of("scaled_mm", 512, 512, 4096, scaling="1x128")
    row = (64, 256, 128, 8, 4, 4, False)
    assert terms(blocks, (LOOP, *row)).possible.tolist() == [False]
    assert terms(blocks, (TMA, *row)).possible.tolist() == [True]
    assert feature("scales_in_loop", blocks, VENDOR_ROW, (LOOP, *row)) == [0.0, 1.0]


@pytest.mark.parametrize(("form", "divided"), [("2d3d", "m"), ("3d2d", "n"), ("2d2d", "k")])
@pytest.mark.parametrize("skew", [0.0, 1.0])
def test_tiles_of_groups_are_counted_one_by_one(form: str, divided: str, skew: float) -> None:
    """Waves and padding are those of the sizes that a sweep times."""
    sizes = {"m": 200, "n": 200, "k": 200}
    groups, total = 7, 1400
    shape = shape_of("grouped_mm", 200, 200, 200, groups=groups, form=form, total=total, skew=skew)
    lengths = group_sizes(groups, total, skew, alignment_of(form, 2))
    block = {"m": 64, "n": 128, "k": 64}
    blocks = {name: [-(-sizes[name] // block[name])] * groups for name in sizes}
    blocks[divided] = [-(-length // block[divided]) for length in lengths]
    tiles = sum(m * n for m, n in zip(blocks["m"], blocks["n"], strict=True))
    row = ("triton::grouped_mm", block["m"], block["n"], block["k"], 0, 3, 4, False)
    assert 2 ** feature("log_block_waves", shape, row)[0] == pytest.approx(tiles / 132, rel=1e-3)
    padding = sum(blocks[divided]) * block[divided] / total
    assert 2 ** feature(f"log_padding_{divided}", shape, row)[0] == pytest.approx(padding, rel=1e-3)
    assert feature("is_tma", shape, row) == [1.0]


def test_empty_groups_read_no_weights() -> None:
    """Three rows in sixteen groups read at most three weights, and fewer if one group has several of them."""
    device = describe(H200)
    few = [Work(shape_of("grouped_mm", 1, 4096, 4096, total=3, skew=skew), device) for skew in (0.0, 8.0)]
    assert [work.groups.used for work in few if work.groups] == [3, 2]
    weights = 4096 * 4096 * 2
    assert few[0].bytes_moved - few[1].bytes_moved == pytest.approx(weights)
    assert few[0].roofline_us == few[1].roofline_us


def test_two_products_take_twice_the_iterations() -> None:
    """The loop over K runs for each product; an even K stays even."""
    row = ("triton::mm_plus_mm", 64, 64, 32, 8, 3, 4, False)
    one, two = replace(MM, m=512, n=512, k=512, layout="nt"), shape_of("mm_plus_mm", 512, 512, 512)
    assert feature("log_k_iterations", two, row)[0] == feature("log_k_iterations", one, row)[0] + 1
    assert feature("log_padding_k", two, row) == [0.0]
    assert feature("even_k", two, row) == [1.0]


@pytest.mark.parametrize("op", NEW_OPS)
def test_inputs_of_new_ops_are_finite(op: str) -> None:
    """No form or recipe gives an infinite feature, nor does a single row."""
    entry = OPS[op]
    recipes = ("tensor", "row", "1x128/128x128", "128x128")
    named = [{"scaling": recipe} for recipe in recipes] if entry.is_scaled else [{}]
    forms = [{"form": form, "total": 33} for form in ("2d3d", "3d2d", "2d2d")] if entry.is_grouped else [{}]
    for given in [{**name, **form} for name in named for form in forms]:
        inputs = model_inputs(shape_of(op, 1, 24, 100, **given), H200, columns_of(op))
        assert np.isfinite(inputs.problem).all()
        assert np.isfinite(inputs.config()).all()


def test_a_known_list_serves_all_problems_of_a_kind() -> None:
    """The terms of a list are cached by kind, which tells outputs, recipes' kernels and accumulation apart."""
    listed = ConfigColumns.from_rows([VENDOR_ROW])
    device = describe(H200)
    kinds = {
        Work(shape, device).kind(listed)
        for shape in (SCALED, replace(SCALED, m=256), shape_of("scaled_mm", 512, 512, 512, out_dtype="float32"))
    }
    assert len(kinds) == 2
