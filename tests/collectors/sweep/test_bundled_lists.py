"""The lists of problems beside the measurements that ship: they name what was measured, and by which command."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from bundled_sets import DEPLOYED, FIRST, SETS, BundledSet

from diode_collectors.problems.shapesets import read_shapeset
from diode_store.system.resources import bundled_data_dir

LISTS = [pytest.param(data, name, id=f"{data.name}-{name}") for data in SETS for name in data.lists]


@pytest.mark.parametrize(("data", "name"), LISTS)
def test_the_lists_are_what_was_measured(data: BundledSet, name: str) -> None:
    """A list holds the problems of its measurements, each once, and nothing else."""
    listed = [problem.problem().key for problem in read_shapeset(data.list_of(name))]
    assert len(listed) == len(set(listed))
    assert Counter(m.problem.key for m in data.of_list(name)) == dict.fromkeys(listed, 1)


@pytest.mark.parametrize(("data", "name"), LISTS)
def test_a_record_says_the_family_that_its_list_does(data: BundledSet, name: str) -> None:
    """The family is what the problem's name in the list begins with."""
    families = {problem.problem().key: problem.family for problem in read_shapeset(data.list_of(name))}
    assert {m.problem.key: m.family for m in data.of_list(name)} == families
    assert None not in families.values()


@pytest.mark.parametrize(("data", "name"), LISTS)
def test_the_commands_are_documented(data: BundledSet, name: str) -> None:
    """The README has each list's command, with the options that the list's first line names."""
    path, (search_space, seed) = data.list_of(name), data.lists[name]
    heading = path.read_text().splitlines()[0]
    found = re.search(r"(--search-space .*)\.$", heading)
    assert found is not None
    assert f"\ndiode-collect --shapeset {path.name} {found[1]} --spool SPOOL" in data.told()
    assert f"--search-space {search_space.partition(' ')[0]}" in found[1]
    assert ("--no-include-tma" in found[1]) == search_space.endswith("without TMA")
    assert ("--seed" in found[1]) == (seed != 0)
    assert seed == 0 or f"--seed {seed}" in found[1]


@pytest.mark.parametrize(("data", "name"), LISTS)
def test_the_table_of_lists(data: BundledSet, name: str) -> None:
    """The README says how many problems of each list were measured on each machine, and how many timings that gave."""
    rows = re.findall(rf"^\| `{name}`[^|]*\| ([\d,]+) \| ([\d,]+) \|", data.told(), re.MULTILINE)
    measured = data.of_list(name)
    problems, timings = (sum(int(row[i].replace(",", "")) for row in rows) for i in (0, 1))
    assert (problems, timings) == (len(measured), sum(len(m.timings) for m in measured))


@pytest.mark.parametrize("data", SETS, ids=lambda data: data.name)
def test_no_measurement_is_of_no_list(data: BundledSet) -> None:
    """Search spaces and seeds are those of the lists, or the one of a set without lists."""
    expected = {data.sampled} if data.sampled else set(data.lists.values())
    assert {(m.search_space, m.sample_seed) for m in data.found()} == expected


def test_there_is_no_other_list() -> None:
    """Each list is of one of the data sets, and each segment too."""
    assert set(bundled_data_dir().glob("*.txt")) == {data.list_of(name) for data in SETS for name in data.lists}
    assert set(bundled_data_dir().glob("*.seg")) == {data.segment for data in SETS}


def test_the_first_sets_families_are_counted() -> None:
    """The README says how many problems of the first set are layers, of TorchBench and log-normal."""
    names = [problem.name for name in FIRST.lists for problem in read_shapeset(FIRST.list_of(name))]
    first = Counter(name.partition("/")[0] for name in names if name.endswith("/first set"))
    assert first.total() == 457
    assert (first.pop("torchbench"), first.pop("log-normal"), first.total()) == (131, 146, 180)
    assert "180 are layers" in FIRST.told()
    assert "131 count as TorchBench" in FIRST.told()
    assert "146, whose sizes" in FIRST.told()


def test_what_was_measured_twice() -> None:
    """The README says how many problems of a list are in the first set, and in two lists."""
    first = {m.problem.key for m in FIRST.found()}
    sampled, again = ({m.problem.key for m in DEPLOYED.of_list(name)} for name in ("sample-42", "again"))
    assert again <= first
    told = DEPLOYED.told_in_words()
    assert f"`again` and {len(sampled & first)} problems of `sample-42` are in the first set" in told
    assert f"{len(sampled & again)} of them are in both lists, and so were measured twice" in told
