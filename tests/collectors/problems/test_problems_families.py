"""Families of problems, and shape sets from files."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from diode_collectors.problems.families import families, family_problems, read_families
from diode_collectors.problems.problem import SweepProblem
from diode_collectors.problems.shapesets import read_shapeset
from diode_store.errors import SettingsError
from diode_store.ops import standard_ops, swept_ops

if TYPE_CHECKING:
    from pathlib import Path

HEADER = "name,B,M,K,N,Transposed,\n"


def layers_of(name: str, m: int) -> dict[str, tuple[str, int, int, str]]:
    """Return op, N, K and layout of each layer of a family, for one number of tokens."""
    return {p.name.partition("/")[2]: (p.op, p.n, p.k, p.layout) for p in family_problems(name) if p.m == m}


def test_llama_has_the_layers_of_its_config() -> None:
    """32 heads of 128 and 8 for keys and values, 14336 wide in between, 128256 words."""
    assert layers_of("llama3-8b", 2048) == {
        "qkv": ("mm", 6144, 4096, "nt"),
        "o": ("mm", 4096, 4096, "nt"),
        "gate_up": ("mm", 28672, 4096, "nt"),
        "down": ("mm", 4096, 14336, "nt"),
        "lm_head": ("mm", 128256, 4096, "nt"),
    }
    assert {p.m for p in family_problems("llama3-8b")} >= {2**power for power in range(1, 15)} | {7, 333}


def test_models_differ_in_bias_and_layout() -> None:
    """Qwen adds a bias to q, k and v; GPT-2 keeps its weights the other way round."""
    assert layers_of("qwen2.5-7b", 16)["qkv"] == ("addmm", 4608, 3584, "nt")
    assert layers_of("qwen2.5-7b", 16)["o"] == ("mm", 3584, 3584, "nt")
    assert layers_of("gpt2-xl", 16)["up"] == ("addmm", 6400, 1600, "nn")


def test_convolutions_unfold_their_patches() -> None:
    """ResNet's first convolution of one image: 112 x 112 positions of 3 x 7 x 7 values."""
    problems = {p.name: p for p in family_problems("resnet50") if p.m == 112 * 112}
    assert problems["resnet50/stem"] == SweepProblem("mm", 12544, 64, 147, layout="nt")


def test_attention_has_scores_and_values() -> None:
    """Queries by keys, then weights by values, one of each head in a batch."""
    problems = {p.name: p for p in family_problems("attention") if p.b == 32}
    assert problems["attention/d128-333x333/qk"] == SweepProblem("bmm", 333, 333, 128, 32, layout="nt")
    assert problems["attention/d128-333x333/pv"] == SweepProblem("bmm", 333, 128, 333, 32)


@pytest.mark.parametrize(
    ("name", "m", "layer", "expected"),
    [
        ("starcoder2-3b", 16, "qkv", ("addmm", 28 * 128, 3072, "nt")),  # 24 heads, 2 for keys and for values
        ("danube3-4b", 16, "qkv", ("mm", 48 * 120, 3840, "nt")),
        ("mt5-small", 16, "gate_up", ("mm", 2048, 512, "nt")),
        ("rwkv4-169m", 16, "head", ("mm", 50277, 768, "nt")),
        ("gpt2-medium", 16, "up", ("addmm", 4096, 1024, "nn")),
        ("mlp-mixer-b16", 768, "token_up", ("addmm", 384, 196, "nt")),
        ("sam-vit-h", 196, "d80-196x196/qk", ("bmm", 196, 80, "nt")),
        ("dcn-v2", 128, "cross", ("addmm", 429, 429, "nt")),
        ("mobilenet-v2", 3136, "56px-24-144", ("mm", 144, 24, "nt")),
        ("graphsage", 512, "reddit1", ("addmm", 256, 602, "nt")),
    ],
)
def test_layers_of_further_models(name: str, m: int, layer: str, expected: tuple[str, int, int, str]) -> None:
    """Heads, gates, vocabularies, windows and channels as their papers and configs have them."""
    assert layers_of(name, m)[layer] == expected


def test_every_family_names_its_source_and_gives_problems() -> None:
    """At least twenty families, a thousand problems; every source is a page one can open."""
    known = families()
    assert len({family.name for family in known}) == len(known) >= 20
    assert {family.source.partition("//")[0] for family in known} == {"https:"}
    problems = {problem for family in known for problem in family_problems(family.name)}
    assert len(problems) > 1000
    assert {problem.op for problem in problems} == {*swept_ops()} - {"baddbmm"}


def test_the_ops_beside_plain_products_have_enough_problems() -> None:
    """A model of each needs hundreds to learn from, of equal groups and of skewed ones."""
    problems = {problem.problem().key: problem for family in families() for problem in family_problems(family.name)}
    counts = Counter(problem.op for problem in problems.values())
    assert min(counts["scaled_mm"], counts["grouped_mm"]) >= 450
    assert min(counts["int_mm"], counts["mm_plus_mm"]) >= 100
    skews = Counter(p.shape.dimension("skew", 0) for p in problems.values() if p.op == "grouped_mm")
    assert min(skews[0], skews[1]) >= 200


def test_the_problems_of_all_families_stay() -> None:
    """Lists of measured problems and the draws of `diode tune` depend on each problem and on their order."""
    ranked = [family for family in families() if {layer.op for layer in family.layers} <= set(standard_ops())]
    assert families()[: len(ranked)] == tuple(ranked)
    problems = [problem for family in ranked for problem in family_problems(family.name)]
    text = "".join(f"{problem} {problem.name}\n" for problem in problems)
    assert (len(ranked), len(problems)) == (116, 9_715)
    assert (
        hashlib.sha256(text.encode()).hexdigest() == "1058246b96e84fe1a23ad1e41e70fabcf25bce85acd2c58cd829e55cc587b8e4"
    )


def test_a_list_stands_for_each_number_in_turn(tmp_path: Path) -> None:
    """Blocks take a prefix, a layout and sizes of M besides their own arguments."""
    path = tmp_path / "families.toml"
    path.write_text(
        '[a]\nsource = "https://a"\nm = [1]\nlayers = [\n  { name = "up", n = [8, 16], k = 4 },\n'
        '  { block = "gated_mlp", prefix = "x_", hidden = 4, intermediate = 8, layout = "nn", m = [2, 3] },\n]\n'
    )
    (family,) = read_families(path)
    assert [(layer.name, layer.n, layer.k, layer.layout, layer.m) for layer in family.layers] == [
        ("up", 8, 4, "nt", ()),
        ("up", 16, 4, "nt", ()),
        ("x_gate_up", 16, 4, "nn", (2, 3)),
        ("x_down", 4, 8, "nn", (2, 3)),
    ]
    assert (family.name, family.source, family.m) == ("a", "https://a", (1,))


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ('[{ block = "conv" }]', "family a: layer 1: unknown block 'conv'; known blocks: linear, "),
        ('[{ name = "x", n = 1, k = 1 }, { name = "x", n = 1 }]', "family a: layer 2: linear needs k"),
        ('[{ name = "x", n = 1, k = 1, heads = 2 }]', "layer 1: linear takes no heads; known: name, n, k, bias, "),
        ('[{ name = "x", n = 0, k = 1 }]', "layer 1: n = [0]: whole numbers from 1 are expected"),
        ('[{ name = "x", n = 1, k = 1, bias = 1 }]', "layer 1: bias = 1: true or false is expected"),
        ("[{ name = 7, n = 1, k = 1 }]", "layer 1: name = 7: text is expected"),
        ("[]\nm = []", "family a: m = []: whole numbers from 1 are expected"),
        ("[]\ntokens = 1", "family a: a table with source, layers and perhaps m is expected"),
        ("7", "family a: source is text, and layers a list of tables"),
        ("[", "cannot read the families: "),
    ],
)
def test_damaged_families_are_refused(tmp_path: Path, layers: str, message: str) -> None:
    """The message names the file, the family and the layer."""
    path = tmp_path / "families.toml"
    path.write_text(f'[a]\nsource = "https://a"\nlayers = {layers}\n')
    with pytest.raises(SettingsError) as error:
        read_families(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


def test_a_family_comes_in_every_dtype_asked_for() -> None:
    """Twice as many problems in two dtypes."""
    once = family_problems("vit-b16")
    twice = family_problems("vit-b16", (("bfloat16", False), ("float32", True)))
    assert twice[: len(once)] == once
    assert {(p.dtype, p.allow_tf32) for p in twice[len(once) :]} == {("float32", True)}
    assert len(twice) == 2 * len(once)


def test_unknown_families_are_refused() -> None:
    """The message gives the closest one first, then all."""
    with pytest.raises(SettingsError, match=r"unknown family 'llama3-8'; did you mean llama3-8b\? known families: lla"):
        family_problems("llama3-8")


def shape(**changed: Any) -> dict[str, Any]:
    """Return a shape as the JSON writes it."""
    size = {"version": 1, "B": 1, "M": 64, "M_dtype": "float16", "N": 96, "K": 32, "K_dtype": "float16"}
    return {**size, "out_dtype": "float16", "out_size": [1, 64, 96], "out_stride": [6144, 96, 1], **changed}


def write(path: Path, **operations: list[Any]) -> Path:
    """Write a shape set."""
    path.write_text(json.dumps({"operations": {op: {"shapes": shapes} for op, shapes in operations.items()}}))
    return path


def test_json_shape_sets_are_read(tmp_path: Path) -> None:
    """An output of (B, N, M) says that the second matrix is transposed; what stands twice is taken once."""
    path = write(
        tmp_path / "set.json",
        mm=[shape(), shape(out_size=[1, 96, 64], out_stride=[6144, 64, 1]), shape()],
        bmm=[shape(B=8, M_dtype="bfloat16", K_dtype="bfloat16", out_dtype="bfloat16")],
    )
    problems = read_shapeset(path)
    assert problems == [
        SweepProblem("mm", 64, 96, 32, dtype="float16"),
        SweepProblem("mm", 64, 96, 32, dtype="float16", layout="nt"),
        SweepProblem("bmm", 64, 96, 32, 8),
    ]
    assert problems[1].name == "set/mm entry 2"
    assert {p.dtype for p in read_shapeset(path, (("float32", False),))} == {"float32"}


def test_csv_shape_sets_are_read(tmp_path: Path) -> None:
    """Columns are B, M, K, N; a comma at a line's end and an empty line do no harm."""
    path = tmp_path / "shapes.txt"
    path.write_text(HEADER + "addmm,1,256,512,1024,True,\n\nbmm,16,64,50,32,False,\n")
    assert read_shapeset(path) == [
        SweepProblem("addmm", 256, 1024, 512, dtype="float16", layout="nt"),
        SweepProblem("bmm", 64, 32, 50, 16, "float16"),
    ]


def test_a_text_file_holds_a_problem_a_line(tmp_path: Path) -> None:
    """Comments name problems, blank lines are nothing, and what a line says goes before the defaults."""
    path = tmp_path / "mine.txt"
    path.write_text("# layers\n\nmm:8x16x32/nt/fp16  # qkv\nbmm:8x16x32:4\n")
    found = read_shapeset(path)
    assert found == [
        SweepProblem("mm", 8, 16, 32, dtype="float16", layout="nt"),
        SweepProblem("bmm", 8, 16, 32, 4),
    ]
    assert [problem.name for problem in found] == ["qkv", "mine/line 4"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            "",
            "not a shape set: expected JSON, CSV whose first line is name,B,M,K,N,Transposed, or a problem such as mm:",
        ),
        ("mm:1x2x3\nmm:4x5\n", "1 entry is unreadable: line 2: 'mm:4x5' is not a shape; write OP:MxNxK"),
        ("mm:1x2x3/nn/int3 # odd\n", "line 1: 'mm:1x2x3/nn/int3': 'int3' is neither a layout nor a dtype"),
        ("{", "not valid JSON"),
        ("[]", 'not a shape set: expected {"operations"'),
        ('{"operations": {"mm": []}}', 'mm: expected {"shapes": [...]}'),
        ('{"operations": {}}', "the shape set is empty"),
        (HEADER, "the shape set is empty"),
        (HEADER + "mm,1,2,3,4,True,\nmm,1,2,x,4,True,\n", "1 entry is unreadable: line 3: K must be a positive whole"),
        (HEADER + "mm,1,2,3,4,maybe,\n", "line 2: Transposed must be True or False, not 'maybe'"),
        (HEADER + "mm,1,2,3\n", "line 2: expected 6 values (name,B,M,K,N,Transposed), not 4"),
        (HEADER + "conv,1,2,3,4,True\n", "line 2: unknown op 'conv'; known ops: mm, addmm, bmm, baddbmm"),
        (HEADER + "mm,5,2,3,4,True\n", "line 2: mm has no batch, so not one of 5"),
    ],
)
def test_unreadable_shape_sets_are_refused(tmp_path: Path, content: str, message: str) -> None:
    """The message names the file, the line and what is wrong there."""
    path = tmp_path / "shapes.txt"
    path.write_text(content)
    with pytest.raises(SettingsError) as error:
        read_shapeset(path)
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (7, "mm entry 2: expected an object with B, M, N and K, not int"),
        ({"B": 1, "M": 2, "N": 3}, "mm entry 2: K is missing"),
        (shape(M="many"), "mm entry 2: M must be a positive whole number, not 'many'"),
        (shape(N=True), "mm entry 2: N must be a positive whole number, not True"),
        (shape(M_dtype="int4"), "mm entry 2: unknown dtype 'int4'"),
        (shape(out_dtype="float32"), "mm entry 2: out_dtype float32 is not M_dtype float16; mixed dtypes cannot"),
    ],
)
def test_unreadable_entries_are_named(tmp_path: Path, entry: Any, message: str) -> None:
    """A bad entry costs the whole file, so that nobody takes a part for all of it."""
    path = write(tmp_path / "set.json", mm=[shape(), entry])
    with pytest.raises(SettingsError) as error:
        read_shapeset(path)
    assert f"{path}: 1 entry is unreadable: {message}" in str(error.value)


def test_many_unreadable_entries_are_counted(tmp_path: Path) -> None:
    """Five are named."""
    path = write(tmp_path / "set.json", mm=[shape(), *[{}] * 7])
    with pytest.raises(SettingsError, match=r"7 entries are unreadable: mm entry 2: .*mm entry 6: B .*; and 2 more$"):
        read_shapeset(path)


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """One that is not there, a folder, and one that is no text."""
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00\x80")
    for name, message in (("missing", "No such file"), (".", "not a regular file"), ("binary", "it is not text")):
        with pytest.raises(SettingsError, match=message):
            read_shapeset(tmp_path / name)
