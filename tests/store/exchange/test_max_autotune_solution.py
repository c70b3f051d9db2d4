"""Max-autotune solutions: four layouts are read, one is made from the warehouse, and upstream's tool reads that too."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from torch_diode_files import CONFIG, SLOW, dataset

from diode_store.errors import ImportFileError
from diode_store.exchange.foreign.max_autotune_solution import Choice, read_solution
from diode_store.exchange.foreign.torch_diode_types import Dataset, Solution, solution_of
from diode_store.records import Outcome, ProblemShape
from samples import matmul, measurement, timings_of, triton_config

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import CommandResult, RunCommand
    from diode_store.records import KernelConfig
    from diode_store.warehouse.store import Store

NUMBERS = {"block_m": 64, "block_n": 16, "block_k": 32, "group_m": 8, "num_stages": 3, "num_warps": 4}
"""Of upstream's ``CONFIG``."""
MM = ProblemShape("mm", "float16", 1, 64, 32, 48, "nn")
"""The problem of ``dataset``."""
LISTED = {"config": [CONFIG, SLOW], "version": 1}
STATED = {"M": 1376, "N": 80, "K": 216, "block_m": 128, "block_n": 16, "block_k": 128}
"""As in upstream's announcement."""


def read(folder: Path, content: object) -> tuple[Choice, ...]:
    """Write a solution as JSON and read it."""
    path = folder / "solution.json"
    path.write_text(json.dumps(content))
    return read_solution(str(path)).choices


# --- what is read


def test_a_list_for_all_ops(tmp_path: Path) -> None:
    """Upstream's ``Solution``: each config is meant on any problem."""
    first, second = read(tmp_path, LISTED)
    assert (first.numbers, first.name, first.problem) == (NUMBERS, "triton_mm", {})
    assert second.numbers == {**NUMBERS, "num_warps": 8}


def test_lists_by_op(tmp_path: Path) -> None:
    """What upstream's script makes of a CSV file; other entries of the object are not ops."""
    first, *others = read(tmp_path, {"mm": {"config": [CONFIG]}, "bmm": LISTED, "name": "mine", "note": {}})
    assert first.problem == {"op": "mm"}
    assert [choice.problem for choice in others] == [{"op": "bmm"}] * 2


def test_problems_with_their_configs(tmp_path: Path) -> None:
    """The announcement's file: a problem beside each config, and what is not said may be anything."""
    whole = {**STATED, "op": "mm", "dtype": "bf16", "B": 1, "layout": "nt", "tf32": False, "num_warps": 4}
    first, second = read(tmp_path, {"name": "tutorial_max_autotune", "configs": [STATED, whole]})
    assert first.numbers == {"block_m": 128, "block_n": 16, "block_k": 128}
    assert (first.problem, first.name) == ({"m": 1376, "n": 80, "k": 216}, None)
    assert second.numbers == {**first.numbers, "num_warps": 4}
    said = {"op": "mm", "dtype": "bfloat16", "b": 1, "layout": "nt", "tf32": False}
    assert second.problem == {**first.problem, **said}


def test_a_table(tmp_path: Path) -> None:
    """Of a table of upstream's collector the first config of each problem is what max-autotune took."""
    table = Dataset.from_dict(dataset()).to_table()
    (choice,) = read(tmp_path, table.to_dict())
    assert choice.numbers == NUMBERS
    assert choice.problem == {"op": "mm", "dtype": "float16", "b": 1, "m": 64, "n": 32, "k": 48}


def test_a_compressed_file(tmp_path: Path) -> None:
    """As other files of measurements."""
    path = tmp_path / "solution.json.gz"
    path.write_bytes(gzip.compress(json.dumps(LISTED).encode()))
    assert len(read_solution(str(path)).choices) == 2


def test_which_choices_are_for_a_problem(tmp_path: Path) -> None:
    """Those that say nothing else of it."""
    path = tmp_path / "solution.json"
    path.write_text(json.dumps({"configs": [STATED, {**STATED, "op": "bmm"}, {**STATED, "N": 81}]}))
    solution = read_solution(str(path))
    shape = replace(MM, m=1376, n=80, k=216)
    assert solution.of(shape) == [solution.choices[0]]
    assert solution.of(replace(shape, op="bmm")) == [*solution.choices[:2]]
    assert solution.of(MM) == []


@pytest.mark.parametrize(
    ("name", "op", "template"),
    [
        ("triton_mm", "mm", "triton::mm"),
        ("triton_mm", "bmm", "triton::bmm"),
        ("mm_config", "addmm", "triton::mm"),
        (None, "baddbmm", "triton::bmm"),
        ("triton_mm_persistent_tma", "mm", "triton::mm_persistent_tma"),
    ],
)
def test_templates(name: str | None, op: str, template: str) -> None:
    """Upstream names the configs of every op alike, so that name means the op's own template."""
    assert Choice(NUMBERS, name).template(op) == template


def test_configs_are_fitted_to_small_problems() -> None:
    """As Inductor fits them; one without all of its numbers stays as it is."""
    shape = replace(MM, m=20, n=2048, k=48)
    assert Choice(NUMBERS).variants(shape) == [NUMBERS, {**NUMBERS, "block_m": 32, "num_warps": 2}]
    assert Choice({"block_m": 64}).variants(shape) == [{"block_m": 64}]


# --- what is refused


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ([], "it is no max-autotune solution; `diode export --format max-autotune-solution` makes one"),
        ({"a": 1}, "it is no max-autotune solution"),
        ({"config": []}, "it names no config"),
        ({"config": [{**CONFIG, "block_m": "wide"}]}, "config 1: block_m must be a whole number, not 'wide'"),
        ({"mm": {"config": [CONFIG, {}]}}, "op 'mm', config 2: no "),
        ({"mmm": {"config": [CONFIG]}}, "op 'mmm': unknown op 'mmm'; known ops: addmm, baddbmm"),
        ({"configs": [1]}, "config 1: expected an object, not 1"),
        ({"configs": [STATED, {"M": 1}]}, "config 2: no N, K, block_m, block_n, block_k"),
        ({"configs": [{**STATED, "M": 0}]}, "config 1: M must be a positive whole number, not 0"),
        ({"configs": [{**STATED, "num_warps": True}]}, "config 1: num_warps must be a positive whole number, not True"),
        ({"configs": [{**STATED, "op": 3}]}, "config 1: op must be text, not 3"),
        ({"configs": [{**STATED, "op": "conv"}]}, "config 1: unknown op 'conv'"),
        ({"configs": [{**STATED, "tf32": "no"}]}, "config 1: tf32 must be true or false, not 'no'"),
        ({"hardware": {"NVIDIA H200": 3}}, "hardware 'NVIDIA H200': expected an object"),
    ],
    ids=str,
)
def test_bad_solutions(tmp_path: Path, content: object, expected: str) -> None:
    """One line that names the file, the place and the remedy."""
    with pytest.raises(ImportFileError) as caught:
        read(tmp_path, content)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'solution.json'}: ")
    assert (expected in message, "\n" in message) == (True, False)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """One that is not there, is no JSON, or breaks off."""
    with pytest.raises(ImportFileError, match=r"none\.json: No such file or directory"):
        read_solution(str(tmp_path / "none.json"))
    (tmp_path / "half.json").write_text("{")
    with pytest.raises(ImportFileError, match=r"half\.json: it is not JSON"):
        read_solution(str(tmp_path / "half.json"))
    (tmp_path / "half.json.gz").write_bytes(gzip.compress(b"{}" * 999)[:-9])
    with pytest.raises(ImportFileError, match=r"half\.json\.gz: it cannot be read"):
        read_solution(str(tmp_path / "half.json.gz"))


# --- what is made

LISTED_ONE = triton_config(64, BLOCK_N=64, BLOCK_K=32, num_stages=2, num_warps=4)
"""Of Inductor's DEFAULT list."""
LISTED_TWO = triton_config(64, BLOCK_N=128, BLOCK_K=32, num_stages=3, num_warps=4)
BEYOND = triton_config(64, BLOCK_N=256, BLOCK_K=32, num_stages=3, num_warps=4)
"""Of its EXHAUSTIVE list alone."""


class Exports:
    """Measures what a test says and exports solutions."""

    def __init__(self, store: Store, diode: RunCommand, folder: Path) -> None:
        self._store, self._diode = store, diode
        self.path = folder / "solution.json"
        self._number = 0

    def measure(self, times: dict[KernelConfig, Any], m: int = 2048, **overrides: Any) -> None:
        """Write one measurement: config → microseconds, or how it failed."""
        self._number += 1
        fields = {"problem": matmul(m, 256, 128), "timings": timings_of(times), **overrides}
        self._store.write([measurement(self._number, **fields)])

    def export(self, *options: str) -> CommandResult:
        """Run the command."""
        return self._diode("export", "--format", "max-autotune-solution", "-o", str(self.path), *options)

    def configs(self, *options: str) -> list[tuple[int, int]]:
        """Export and return M and BLOCK_N of each choice."""
        result = self.export("--force", *options)
        assert result.code == 0, result.err
        choices = json.loads(self.path.read_text())["configs"]
        return [(choice["M"], choice["block_n"]) for choice in choices]


@pytest.fixture
def exports(store: Store, diode: RunCommand, tmp_path: Path, default_database: str) -> Exports:
    """Return them, of an empty warehouse."""
    return Exports(store, diode, tmp_path)


def test_the_fastest_of_the_search_space(exports: Exports) -> None:
    """DEFAULT is what max-autotune tries unless told otherwise; EXHAUSTIVE is everything that was timed."""
    exports.measure({LISTED_ONE: 3.0, LISTED_TWO: 2.0, BEYOND: 1.0})
    exports.measure({LISTED_ONE: 3.0, LISTED_TWO: Outcome.OUT_OF_RESOURCES, BEYOND: 1.0}, m=4096)
    assert exports.configs() == [(2048, 128), (4096, 64)]
    assert exports.configs("--search-space", "EXHAUSTIVE") == [(2048, 256), (4096, 256)]


def test_what_is_written_is_read(exports: Exports) -> None:
    """Every number of the kernel and of the problem comes back."""
    exports.measure({LISTED_ONE: 3.0, LISTED_TWO: 2.0})
    exports.export()
    found = read_solution(str(exports.path)).of(matmul(2048, 256, 128).shape)
    numbers = {"block_m": 64, "block_n": 128, "block_k": 32, "group_m": 8, "num_stages": 3, "num_warps": 4}
    assert [(choice.numbers, choice.name) for choice in found] == [(numbers, "triton_mm")]


def test_upstream_reads_the_part_by_op(exports: Exports) -> None:
    """Upstream takes the entries that hold a ``config``; the config that won most often comes first."""
    for m in (1024, 2048):
        exports.measure({LISTED_ONE: 3.0, LISTED_TWO: 2.0}, m=m)
    exports.measure({LISTED_ONE: 1.0, LISTED_TWO: 2.0}, m=512)
    exports.export()
    written = json.loads(exports.path.read_text())
    by_op = {op: part for op, part in written.items() if isinstance(part, dict) and "config" in part}
    assert by_op.keys() == {"mm"}
    assert [config.block_n for config in solution_of(by_op["mm"], Solution).config] == [128, 64]
    assert by_op["mm"]["config"][0].keys() == {*CONFIG}


def test_what_a_solution_does_not_hold_is_told(exports: Exports) -> None:
    """Vendor kernels that were faster, problems without a kernel of the list, and what is no measurement of its own."""
    vendor = replace(LISTED_ONE, template="aten::mm", **dict.fromkeys(NUMBERS), allow_tf32=None)
    exports.measure({vendor: 1.0, LISTED_ONE: 3.0})
    exports.measure({vendor: 9.0, LISTED_ONE: 3.0}, m=1024)
    exports.measure({BEYOND: 1.0}, m=512)
    exports.measure({LISTED_ONE: 3.0}, m=256, is_replay=True)
    result = exports.export("--json")
    assert json.loads(result.out) == {
        "file": str(exports.path),
        "measurements": 2,
        "configs": 1,
        "not_held": [
            "1 measurement left out: no kernel of the search space DEFAULT was timed",
            "1 measurement left out: replays, flagged and superseded measurements",
            "the vendor's kernel was faster in 1 measurement; a solution is of Triton's alone",
        ],
    }


def test_nothing_for_a_solution(exports: Exports) -> None:
    """Nothing is written, and why is told."""
    exports.measure({BEYOND: 1.0})
    result = exports.export()
    assert (result.code, exports.path.exists()) == (1, False)
    assert result.err == (
        "error: nothing fits into a max-autotune solution; 1 measurement left out: no kernel of the search space"
        " DEFAULT was timed\n"
    )


def test_search_space_of_another_format(diode: RunCommand, tmp_path: Path) -> None:
    """The option means nothing elsewhere."""
    result = diode("export", "--format", "jsonl", "--search-space", "DEFAULT", "-o", str(tmp_path / "x.jsonl"))
    assert result.code == 2
    assert "--search-space is for --format max-autotune-solution" in result.err
