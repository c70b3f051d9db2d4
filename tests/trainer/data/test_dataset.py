"""Datasets: how they are split, counted and ordered, and what they cover."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import H200, MM, contents, examples, learnable

from diode_store.errors import DatasetError
from diode_trainer.data.dataset import ExampleSet, canonical
from diode_trainer.data.splits import folds

# --- splits


@given(seed=st.integers(0, 100), count=st.integers(2, 6), repeats=st.integers(1, 3))
def test_split_never_leaks(seed: int, count: int, repeats: int) -> None:
    """No problem is on both sides of a fold, however often and wherever it was measured; each is judged once."""
    found = learnable(12, seed=seed).examples
    dataset = ExampleSet(
        tuple(
            replace(e, environment=str(r), hardware=replace(e.hardware, name=f"d{r}"))
            for r in range(repeats)
            for e in found
        )
    )
    splits = folds(dataset, count, seed)
    for split in splits:
        train, test = ({dataset.examples[i].shape for i in part} for part in (split.train, split.test))
        assert not train & test
        assert len(split.train) + len(split.test) == len(dataset)
    judged = np.concatenate([split.test for split in splits])
    assert sorted(judged.tolist()) == list(range(len(dataset)))


def test_split_keeps_regimes_of_a_problem_together() -> None:
    """A problem that was timed in two regimes is on one side of every fold with both."""
    dataset = ExampleSet(tuple(replace(e, regime=r) for r in ("graph", None) for e in learnable(12).examples))
    for split in folds(dataset, 4):
        judged = [dataset.examples[i] for i in split.test]
        assert {e.shape for e in judged if e.regime} == {e.shape for e in judged if e.regime is None}
        assert not {e.shape for e in judged} & {dataset.examples[i].shape for i in split.train}


def test_split_follows_from_the_problems() -> None:
    """The same problems in another order are split the same way."""
    dataset = learnable(20)
    shuffled = ExampleSet(tuple(dataset.examples[i] for i in np.random.default_rng(5).permutation(20)))
    splits = [
        [frozenset(d.examples[i].shape for i in split.test) for split in folds(d, 5)] for d in (dataset, shuffled)
    ]
    assert splits[0] == splits[1]


def test_split_follows_the_seed() -> None:
    """Another seed splits differently."""
    dataset = learnable(20)
    assert folds(dataset, 5, 0)[0].test.tolist() != folds(dataset, 5, 1)[0].test.tolist()


def test_too_few_problems_to_split() -> None:
    """Fewer problems than folds are refused with what to do."""
    with pytest.raises(DatasetError, match=r"2 distinct problems cannot be split into 5 folds; .*--bundled"):
        folds(learnable(2), 5)


# --- datasets


def test_counts_and_domain() -> None:
    """A dataset knows its size, its failures and what it covers."""
    tall = replace(MM, m=8192, op="addmm", dtype="float16", layout="nt")
    dataset = ExampleSet((examples([1.0, 2.0, float("inf")]), examples([1.0, float("inf")], tall)))
    domain = dataset.domain()
    assert (len(dataset), dataset.timings, dataset.failures) == (2, 5, 2)
    assert (domain.ops, domain.dtypes, domain.layouts) == (("addmm", "mm"), ("bfloat16", "float16"), ("nn", "nt"))
    assert domain.shapes == {"b": (1, 1), "m": (1024, 8192), "n": (1024, 1024), "k": (1024, 1024)}
    assert [(d.name, d.arch, d.multiprocessors) for d in domain.hardware] == [("NVIDIA H200", "sm_90", 132)]


def test_the_vendors_kernels_alone_widen_no_domain() -> None:
    """Where no template was tried the hook is not to rank them; a set of nothing else covers what it has."""
    usual, alone = examples([1.0, 2.0]), examples([1.0, 2.0], replace(MM, m=65536, layout="tn"))
    alone = replace(alone, is_vendor=np.ones(2, dtype=bool))
    domain = ExampleSet((usual, alone)).domain()
    assert (domain.layouts, domain.shapes["m"]) == (("nn",), (1024, 1024))
    assert ExampleSet((alone,)).domain().shapes["m"] == (65536, 65536)


def test_domain_leaves_out_what_hardly_any_problem_had() -> None:
    """A dtype of few problems among many is not covered: the hook then abstains."""
    common = [examples([1.0, 2.0], replace(MM, m=64 * size)) for size in range(1, 100)]
    rare = [examples([1.0, 2.0], replace(MM, m=64 * size, dtype="float32")) for size in range(1, 4)]
    assert ExampleSet((*common, *rare)).domain().dtypes == ("bfloat16",)
    enough = [examples([1.0, 2.0], replace(MM, m=64 * size, dtype="float32")) for size in range(1, 6)]
    assert ExampleSet((*common, *enough)).domain().dtypes == ("bfloat16", "float32")


def test_domain_tells_tf32_from_the_rest_of_float32() -> None:
    """A model that learned from TF32 does not claim IEEE float32, and the other way round."""
    exact, tf32 = replace(MM, dtype="float32"), replace(MM, dtype="float32", tf32=True)
    for learned, other, name in ((tf32, exact, "tf32"), (exact, tf32, "float32")):
        domain = ExampleSet((examples([1.0, 2.0], learned),)).domain()
        assert domain.dtypes == (name,)
        assert list(domain.misses(learned, H200)) == []
        assert [miss.reason for miss in domain.misses(other, H200)] == ["dtype"]


def test_domain_leaves_out_templates_that_never_ran() -> None:
    """A template that always failed is not one that the model knows."""
    assert ExampleSet((examples([1.0, float("inf")]),)).domain().templates == ("aten::mm",)


def test_canonical_order_tells_regimes_apart() -> None:
    """The regimes of one problem come in one order, whichever was measured first; an unknown one first."""
    (example,) = learnable(1).examples
    for regimes in ((None, "graph", "write_flush"), ("write_flush", None, "graph")):
        found = canonical(replace(example, regime=regime) for regime in regimes)
        assert [e.regime for e in found] == [None, "graph", "write_flush"]


def test_canonical_order_follows_from_content() -> None:
    """Problems and configs in any order come out in one."""
    dataset = learnable(6)
    generator = np.random.default_rng(1)
    mixed = []
    for i in generator.permutation(6):
        e = dataset.examples[i]
        order = generator.permutation(len(e))
        arrays = {name: getattr(e, name)[order] for name in ("runtime_us", "is_vendor", "is_estimate")}
        mixed.append(replace(e, columns=e.columns.take(order), **arrays))
    assert contents(ExampleSet(canonical(mixed))) == contents(dataset)
