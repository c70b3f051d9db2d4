"""Families held out whole."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic import MM, examples

from diode_store.errors import DatasetError
from diode_trainer.data.dataset import Examples, ExampleSet
from diode_trainer.data.held_out import Split
from diode_trainer.data.splits import Fold, family_folds, holding_out, split_up


def problem(family: str | None, m: int, environment: str = "one") -> Examples:
    """Return a problem of a family."""
    return replace(examples([1.0, 2.0], replace(MM, m=m)), family=family, environment=environment)


def families_of(dataset: ExampleSet, part: object) -> list[str | None]:
    """Return the families of the problems at some indices."""
    return sorted({dataset.examples[i].family for i in part}, key=str)  # type: ignore[attr-defined]


OF_FAMILIES = st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 9)), min_size=6, max_size=40)


@given(problems=OF_FAMILIES.filter(lambda problems: len({family for family, _ in problems}) >= 3))
def test_no_family_and_no_shape_is_on_both_sides(problems: list[tuple[str, int]]) -> None:
    """However families share shapes, a fold learns from none of what judges it, and each problem is judged once."""
    dataset = ExampleSet(tuple(problem(name, m, str(i)) for i, (name, m) in enumerate(problems)))
    splits = family_folds(dataset, 3)
    for split in splits:
        assert not set(families_of(dataset, split.train)) & set(families_of(dataset, split.test))
        assert not {dataset.examples[i].shape for i in split.train} & {dataset.examples[i].shape for i in split.test}
    assert sorted(i for split in splits for i in split.test) == list(range(len(problems)))


def test_as_many_folds_as_families_leave_one_out() -> None:
    """Three folds of three families hold out one each, the largest first."""
    dataset = ExampleSet(tuple(problem(name, m) for m, name in enumerate("abbccc", 1)))
    splits = family_folds(dataset, 3)
    assert [families_of(dataset, split.test) for split in splits] == [["c"], ["b"], ["a"]]
    assert [families_of(dataset, split.train) for split in splits] == [["a", "b"], ["a", "c"], ["b", "c"]]


def test_fewer_folds_than_families_are_of_equal_size() -> None:
    """Six problems of one family are as many as those of the three others together."""
    dataset = ExampleSet(tuple(problem(name, m) for m, name in enumerate("aaaaaabbbccd", 1)))
    assert [families_of(dataset, split.test) for split in family_folds(dataset, 2)] == [["a"], ["b", "c", "d"]]


def test_problems_without_a_family_are_learned_from() -> None:
    """Nothing can hold them out, so they are never judged; one that a held-out family shares is not learned from."""
    dataset = ExampleSet((problem("a", 1), problem("b", 2), problem(None, 3), problem(None, 1, "two")))
    splits = family_folds(dataset, 2)
    assert [split.test.tolist() for split in splits] == [[0], [1]]
    assert [split.train.tolist() for split in splits] == [[1, 2], [0, 2, 3]]


@pytest.mark.parametrize("name", ["drawn", "uniform", "log-normal", "drawn-unaligned"])
def test_drawn_problems_are_held_out_one_by_one(name: str) -> None:
    """They are no family: each fold is judged by some of them and learns from the others, never from the same shape."""
    drawn = [problem(name, m) for m in range(10, 19)]
    dataset = ExampleSet((problem("a", 1), problem("b", 2), problem("c", 18, "two"), *drawn))
    splits = family_folds(dataset, 3)
    assert sorted(i for split in splits for i in split.test) == list(range(12))
    for split in splits:
        of_drawn = [i for i in split.test if dataset.examples[i].family == name]
        assert len(of_drawn) == 3
        assert {dataset.examples[i].shape for i in split.train}.isdisjoint(
            dataset.examples[i].shape for i in split.test
        )
        assert sum(dataset.examples[i].family == name for i in split.train) >= 5


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("ab", r"2 families \(a, b\) cannot be split into 5 folds; use --folds 2 or measure another with"),
        (
            "a",
            (
                r"one family \(a\) cannot be split into 5 folds; measure another with"
                r" `diode-collect --family NAME`"
            ),
        ),
        ("", r"0 families cannot be split into 5 folds; measure another .*, or use --split problem"),
    ],
)
def test_too_few_families(names: str, expected: str) -> None:
    """What cannot be held out is refused with what there is and what to do."""
    dataset = ExampleSet((problem(None, 9), *(problem(name, m) for m, name in enumerate(names, 1))))
    with pytest.raises(DatasetError, match=expected):
        family_folds(dataset, 5)


def test_drawn_problems_are_no_family() -> None:
    """Where they leave too few families the refusal says why they do not count."""
    dataset = ExampleSet((problem("a", 1), problem("drawn", 2), problem("uniform", 3)))
    with pytest.raises(DatasetError, match=r"one family \(a; drawn problems are none\) cannot be split into 2 folds"):
        family_folds(dataset, 2)
    with pytest.raises(DatasetError, match=r"0 families \(drawn problems are none\) cannot be split into 2 folds"):
        family_folds(dataset.subset([1, 2]), 2)


def test_one_fold_is_the_first_of_five() -> None:
    """A single held-out fold is one part in five, of families as of problems."""
    dataset = ExampleSet(tuple(problem(name, m) for m, name in enumerate("aabbccddee", 1)))
    for split in Split:
        (only,) = split_up(dataset, split, 1)
        first = split_up(dataset, split, 5)[0]
        assert (only.train.tolist(), only.test.tolist()) == (first.train.tolist(), first.test.tolist())
        assert len(only.test) == 2
    assert split_up(dataset, Split.FAMILY, 0) == ()


def test_holding_out_families() -> None:
    """The named families are judged; what shares a shape with them is on neither side."""
    dataset = ExampleSet((problem("a", 1), problem("b", 2), problem("c", 1, "two"), problem("d", 3)))
    found: Fold = holding_out(dataset, ["a", "b"])
    assert (found.test.tolist(), found.train.tolist()) == ([0, 1], [3])
