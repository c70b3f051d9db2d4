from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic import H200, MM, examples, learnable

import samples
from diode_store.errors import DatasetError, HardwareError, SchemaError
from diode_store.records import KernelConfig, Measurement, Outcome, Timing
from diode_trainer.dataset import Dataset, canonical, folds
from diode_trainer.from_file import load_file, load_measurements
from diode_trainer.from_warehouse import Selection, load_warehouse
from diode_trainer.sources import load

if TYPE_CHECKING:
    from pathlib import Path

    from diode_store.store import Store
    from samples import MakeMeasurement

FAST, SLOW = samples.triton_config(16), samples.triton_config(32)


def contents(dataset: Dataset) -> list[tuple[object, ...]]:
    """Return everything of a dataset but how its environments are called."""
    return [
        (
            e.hardware.key,
            e.shape,
            [e.columns.templates[i] for i in e.columns.template_index],
            np.stack([e.columns.block_m, e.columns.num_warps, e.columns.num_stages]).tolist(),
            e.runtime_us.tolist(),
            e.is_vendor.tolist(),
            e.is_estimate.tolist(),
        )
        for e in dataset
    ]


def timed(number: int, *timings: Timing, make: MakeMeasurement, problem: int = 0, **fields: object) -> Measurement:
    """Return a measurement of problem ``problem`` with these timings."""
    return make(number, problem=samples.matmul(64 + problem, 256, 128), timings=timings, **fields)


# --- splits


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 100), count=st.integers(2, 6), repeats=st.integers(1, 3))
def test_split_never_leaks(seed: int, count: int, repeats: int) -> None:
    """No problem is on both sides of a fold, however often and wherever it was measured; each is judged once."""
    found = learnable(12, seed=seed).examples
    dataset = Dataset(
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


def test_split_follows_from_the_problems() -> None:
    """The same problems in another order are split the same way."""
    dataset = learnable(20)
    shuffled = Dataset(tuple(dataset.examples[i] for i in np.random.default_rng(5).permutation(20)))
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
    dataset = Dataset((examples([1.0, 2.0, float("inf")]), examples([1.0, float("inf")], tall)))
    domain = dataset.domain()
    assert (len(dataset), dataset.timings, dataset.failures) == (2, 5, 2)
    assert (domain.ops, domain.dtypes, domain.layouts) == (("addmm", "mm"), ("bfloat16", "float16"), ("nn", "nt"))
    assert domain.shapes == {"b": (1, 1), "m": (1024, 8192), "n": (1024, 1024), "k": (1024, 1024)}
    assert [(d.name, d.arch, d.multiprocessors) for d in domain.hardware] == [("NVIDIA H200", "sm_90", 132)]


def test_domain_leaves_out_what_hardly_any_problem_had() -> None:
    """A dtype of few problems among many is not covered: the hook then abstains."""
    common = [examples([1.0, 2.0], replace(MM, m=64 * size)) for size in range(1, 100)]
    rare = [examples([1.0, 2.0], replace(MM, m=64 * size, dtype="float32")) for size in range(1, 4)]
    assert Dataset((*common, *rare)).domain().dtypes == ("bfloat16",)
    enough = [examples([1.0, 2.0], replace(MM, m=64 * size, dtype="float32")) for size in range(1, 6)]
    assert Dataset((*common, *enough)).domain().dtypes == ("bfloat16", "float32")


def test_domain_leaves_out_templates_that_never_ran() -> None:
    """A template that always failed is not one that the model knows."""
    assert Dataset((examples([1.0, float("inf")]),)).domain().templates == ("aten::mm",)


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
    assert contents(Dataset(canonical(mixed))) == contents(dataset)


# --- files


def test_real_file(jsonl_path: Path) -> None:
    """Six real problems: their ops, layouts, failures and vendor choices."""
    dataset = load_file(jsonl_path, hardware=H200)
    assert len(dataset) == 6
    assert {e.shape.op for e in dataset} == {"mm", "addmm", "bmm"}
    assert {e.shape.layout for e in dataset} == {"nn", "nt", "tn"}
    assert all(e.is_vendor.any() and not e.is_vendor.all() for e in dataset)
    assert dataset.lineage["measurements"] == 6


def test_gzip_file(jsonl_path: Path, tmp_path: Path) -> None:
    """A compressed file is read like a plain one."""
    packed = tmp_path / "rows.jsonl.gz"
    with jsonl_path.open("rb") as plain, gzip.open(packed, "wb") as target:
        shutil.copyfileobj(plain, target)
    assert contents(load_file(packed, hardware=H200)) == contents(load_file(jsonl_path, hardware=H200))


def test_missing_file(tmp_path: Path) -> None:
    """A file that is not there is named."""
    with pytest.raises(DatasetError, match=r"none\.jsonl: No such file or directory; check the file's name"):
        load_file(tmp_path / "none.jsonl")


def test_file_without_hardware(jsonl_path: Path) -> None:
    """A file that names no hardware needs the option; the line is named."""
    with pytest.raises(DatasetError, match=r"h200_excerpt\.jsonl:1: .*--hardware"):
        load_file(jsonl_path)


def test_bad_line_is_named(jsonl_path: Path) -> None:
    """A malformed line is reported with its number."""
    with jsonl_path.open("a") as file:
        file.write('{"op": "mm"\n')
    with pytest.raises(DatasetError, match=r"h200_excerpt\.jsonl:7: "):
        load_file(jsonl_path, hardware=H200)


def test_empty_file(tmp_path: Path) -> None:
    """A file without measurements is nothing to learn from."""
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(DatasetError, match=r"empty\.jsonl: holds no measurement to learn from"):
        load_file(tmp_path / "empty.jsonl", hardware=H200)


# --- merging, in a file and in the warehouse alike


def test_repeats_are_merged(make_measurement: MakeMeasurement) -> None:
    """Of three measurements of one problem, a config's time is the median of its medians."""
    repeats = [
        timed(i, Timing(FAST, us), Timing(SLOW, 9.0), make=make_measurement) for i, us in enumerate((5.0, 1.0, 2.0))
    ]
    (example,) = load_measurements(repeats, "here")
    assert example.runtime_us.tolist() == [2.0, 9.0]


def test_estimates_yield_to_medians(make_measurement: MakeMeasurement) -> None:
    """An estimate counts only where nobody finished; a failure only where nothing ran."""
    failed = Timing(SLOW, None, Outcome.OUT_OF_RESOURCES)
    repeats = [
        timed(0, Timing(FAST, 30.0, is_estimate=True), failed, make=make_measurement),
        timed(1, Timing(FAST, 10.0), Timing(SLOW, 40.0, is_estimate=True), make=make_measurement),
    ]
    (example,) = load_measurements(repeats, "here")
    assert (example.runtime_us.tolist(), example.is_estimate.tolist()) == ([10.0, 40.0], [False, True])


def test_what_always_failed_is_infinite(make_measurement: MakeMeasurement) -> None:
    """A config that never ran is there, as a failure."""
    failed = Timing(SLOW, None, Outcome.COMPILE_ERROR)
    (example,) = load_measurements([timed(0, Timing(FAST, 10.0), failed, make=make_measurement)], "here")
    assert (example.runtime_us.tolist(), example.ran.tolist()) == ([10.0, float("inf")], [True, False])


@pytest.mark.parametrize(
    "fields",
    [{"is_replay": True}, {"flags": ("throttled",)}, {"choice_policy": "hook:abc"}, {"superseded_by": bytes(16)}],
    ids=lambda fields: next(iter(fields)),
)
def test_untrusted_measurements_do_not_count(
    make_measurement: MakeMeasurement, store: Store, database_url: str, fields: dict[str, object]
) -> None:
    """Replays, flagged, superseded and hook-filtered measurements teach nothing, from a file or the warehouse."""
    bad = make_measurement(1, **fields)
    with pytest.raises(DatasetError, match="holds no measurement to learn from"):
        load_measurements([bad], "here")
    store.write([make_measurement(2), bad])
    assert len(load_warehouse(database_url, Selection("h200")).dataset) == 1


def test_warehouse_and_records_agree(make_measurement: MakeMeasurement, store: Store, database_url: str) -> None:
    """The view and the merge of records at hand give the same examples, in the same order."""
    vendor = KernelConfig("aten::mm")
    measurements = [
        timed(0, Timing(FAST, 3.0), Timing(vendor, 4.0), make=make_measurement),
        timed(1, Timing(FAST, 5.0), Timing(SLOW, 9.0, is_estimate=True), make=make_measurement),
        timed(2, Timing(SLOW, None, Outcome.TIMEOUT), Timing(vendor, 2.0), make=make_measurement, problem=5),
    ]
    store.write(reversed(measurements))
    dataset = load_warehouse(database_url, Selection("h200")).dataset
    assert contents(dataset) == contents(load_measurements(measurements, "here"))
    assert [e.runtime_us.tolist() for e in dataset] == [[4.0, 4.0, 9.0], [2.0, float("inf")]]


def test_warehouse_and_file_agree(jsonl_path: Path, store: Store, database_url: str) -> None:
    """Real rows give the same examples whether they went through the warehouse or not."""
    from diode_store.exchange import jsonl
    from diode_store.exchange.context import ImportContext

    with jsonl_path.open("rb") as file:
        rows = [row for row in jsonl.read(file, ImportContext(hardware=H200)) if isinstance(row, Measurement)]
    store.write(rows)
    assert contents(load_warehouse(database_url, Selection("h200")).dataset) == contents(
        load_file(jsonl_path, hardware=H200)
    )


# --- the warehouse


def test_empty_warehouse(database_url: str) -> None:
    """Without measurements the remedy is named."""
    with pytest.raises(DatasetError, match=r"the warehouse holds no measurements; .*diode-ingest --once --bundled"):
        load_warehouse(database_url, Selection("h200"))


def test_no_warehouse(tmp_path: Path) -> None:
    """Without a warehouse the remedy is to make one."""
    with pytest.raises(SchemaError, match="diode db upgrade"):
        load_warehouse(f"sqlite:///{tmp_path / 'none.db'}", Selection("h200"))


def test_other_hardware(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """A name that matches nothing gets a list of what there is."""
    store.write([make_measurement(0)])
    with pytest.raises(HardwareError, match="NVIDIA H200"):
        load_warehouse(database_url, Selection("NVIDIA A100"))


def test_different_devices_need_a_word(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """Devices that differ are taken together only on request."""
    store.write([make_measurement(0, hardware=samples.H100), make_measurement(1, hardware=samples.H100_PCIE)])
    with pytest.raises(HardwareError, match="--all-matches"):
        load_warehouse(database_url, Selection("NVIDIA H100"))
    loaded = load_warehouse(database_url, Selection("NVIDIA H100", all_matches=True))
    assert [row.multiprocessors for row in loaded.matched] == [132, 114]
    assert {e.hardware.multiprocessors for e in loaded.dataset} == {132, 114}


def test_one_problem_in_two_environments(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """Times of different environments are not mixed."""
    other = replace(samples.ENVIRONMENT, torch="2.13.0")
    store.write(
        [
            timed(0, Timing(FAST, 1.0), make=make_measurement),
            timed(1, Timing(FAST, 3.0), make=make_measurement, environment=other),
        ]
    )
    dataset = load_warehouse(database_url, Selection("h200")).dataset
    assert sorted(e.runtime_us.tolist() for e in dataset) == [[1.0], [3.0]]
    assert len({e.environment for e in dataset}) == 2


@pytest.mark.parametrize(("selection", "expected"), [({"op": "mm"}, 1), ({"dtype": "fp16"}, 1), ({}, 2)])
def test_selection(
    store: Store, database_url: str, make_measurement: MakeMeasurement, selection: dict[str, str], expected: int
) -> None:
    """An op or dtype, by either name, narrows the data down."""
    bmm = samples.Problem.create(
        "bmm", tuple(samples.TensorSpec("float16", (4, 64, 64), (4096, 64, 1)) for _ in range(2))
    )
    store.write([make_measurement(0), make_measurement(1, problem=bmm)])
    assert len(load_warehouse(database_url, Selection("h200", **selection)).dataset) == expected


def test_selection_of_nothing(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """An op that nobody measured is named with the hardware."""
    store.write([make_measurement(0)])
    with pytest.raises(DatasetError, match="no examples of op addmm on NVIDIA H200; there is: op mm; dtype bfloat16"):
        load_warehouse(database_url, Selection("h200", op="addmm"))


def test_lineage(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """The card learns where the data is from, and what did not count is left out."""
    store.write([make_measurement(0, dataset="one"), make_measurement(1, dataset="two", is_replay=True)])
    lineage = load_warehouse(database_url, Selection("h200")).dataset.lineage
    assert (lineage["measurements"], lineage["timings"], lineage["datasets"]) == (1, 3, ["one"])
    assert lineage["measured_from"] == "2026-11-20T12:30:00+00:00"
    assert lineage["environments"][0]["torch"] == "2.11.0+cu130"
    assert lineage["schema_revision"]


def test_committed_rows_are_seen_at_once(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """Each reading syncs the lake first."""
    for number in range(3):
        store.write([make_measurement(number)])
        assert len(load_warehouse(database_url, Selection("h200")).dataset) == number + 1


# --- what a command was pointed at


def test_source_says_what_was_matched(store: Store, database_url: str, make_measurement: MakeMeasurement) -> None:
    """The notes name the hardware and the amount of data."""
    store.write([make_measurement(0)])
    found = load(database_url, None, Selection("h200"))
    assert found.notes == (
        "hardware: NVIDIA H200 (sm_90, 132 multiprocessors)",
        "data: 1 problem, 3 timings (1 failed), mm, bfloat16",
    )


def test_source_from_a_file(jsonl_path: Path) -> None:
    """A file is filtered like the warehouse; its hardware comes from the option."""
    found = load("sqlite:///none.db", jsonl_path, Selection("h200", op="addmm"))
    assert {e.shape.op for e in found.dataset} == {"addmm"}
    with pytest.raises(DatasetError, match=r"no examples of op int_mm; there is: op addmm, bmm, mm; dtype "):
        load("sqlite:///none.db", jsonl_path, Selection("h200", op="int_mm"))
    with pytest.raises(HardwareError, match="no hardware matches 'abacus'"):
        load("sqlite:///none.db", jsonl_path, Selection("abacus"))


@pytest.fixture
def two_devices(jsonl_path: Path) -> Path:
    """Return a file of three problems on an H200 and three on an H100."""
    lines = [json.loads(line) for line in jsonl_path.read_text().splitlines()]
    for number, line in enumerate(lines):
        line["hardware"] = "NVIDIA H200" if number < 3 else "NVIDIA H100 PCIe"
    jsonl_path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return jsonl_path


def test_a_file_is_filtered_by_hardware(two_devices: Path) -> None:
    """Only the named device's lines are read, and the lineage counts only those."""
    found = load("sqlite:///none.db", two_devices, Selection("h200"))
    assert [e.hardware.name for e in found.dataset] == ["NVIDIA H200"] * 3
    assert found.dataset.lineage["measurements"] == 3
    assert found.notes[0] == "hardware: NVIDIA H200 (sm_90, 132 multiprocessors)"


def test_a_file_without_the_named_hardware(two_devices: Path) -> None:
    """A device that the file lacks gets the list of those it holds."""
    with pytest.raises(HardwareError, match=r"jsonl: no hardware matches 'a100'; there is: NVIDIA H100 PCIe .*H200"):
        load("sqlite:///none.db", two_devices, Selection("a100"))


@pytest.mark.parametrize("name", [None, "nvidia"])
def test_devices_of_a_file_that_differ(two_devices: Path, name: str | None) -> None:
    """Devices that differ are mixed only when that is asked for."""
    with pytest.raises(HardwareError, match=r"different devices: NVIDIA H100 PCIe .*--all-matches"):
        load("sqlite:///none.db", two_devices, Selection(name))
    assert len(load("sqlite:///none.db", two_devices, Selection(name, all_matches=True)).dataset) == 6


def test_summary_names_rare_dtypes(database_url: str, store: Store, make_measurement: MakeMeasurement) -> None:
    """A dtype too rare for a model's domain is still part of the data, with its number of problems."""
    rare = make_measurement(99, problem=samples.matmul(64, 64, 64, "float32"))
    usual = [make_measurement(n, problem=samples.matmul(64 + n, 64, 64)) for n in range(30)]
    store.write([rare, *usual])
    assert load(database_url, None, Selection("h200")).notes[1].endswith("mm, bfloat16, float32 (1 problem)")
