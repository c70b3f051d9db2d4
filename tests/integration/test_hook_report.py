"""What the hook says it did."""

from __future__ import annotations

import json

import pytest
import torch
from hooked import compile_op, hooked

from diode_collectors.problems.problem import parse_problem
from diode_integration.decide.decision import DecidedBy, Decision, PredictedConfig
from diode_integration.record.report import make_report, report_of
from diode_store.kernels import KernelConfig
from stand_ins import TileModel

TEMPLATE = KernelConfig("triton::mm", block_m=16, block_n=128, block_k=256, group_m=8, num_stages=3, num_warps=4)


def decisions() -> list[Decision]:
    """Return what may come of a small model: two products that the model decides, and what it does not know."""
    qkv, head = (parse_problem(text).problem() for text in ("mm:16x4096x4096/nt", "addmm:16x1000x4096/nt"))
    picked = (PredictedConfig(TEMPLATE, 13.72), PredictedConfig(KernelConfig("aten::mm"), 15.0))
    by_model = Decision("mm", qkv, "NVIDIA H200", 1401, picked, 15.0, "a template is predicted fastest")
    vendors = Decision("addmm", head, "NVIDIA H200", 1401, picked[1:], 15.0, "the vendor's kernel is kept alone")
    unknown = Decision("convolution", None, "cuda", 0, (), None, "op: …", decided_by=DecidedBy.VENDOR)
    return [by_model, vendors, by_model, unknown, by_model]


METRICS = {
    "_compile.compile_inner": [4.0, 3.0],
    "backward._backward_impl": [2.0],
    "mm_template_autotuning": [0.5],
    "addmm_template_autotuning": [0.25],
    "mm_template_precompiling": [1.5],
    "CachingAutotuner.benchmark_all_configs": [1.0],
    "CachingAutotuner.coordinate_descent_tuning": [30.0, 8.0],
    "gc": [0.1],
}


def test_distinct_ops_are_counted_once_with_their_calls() -> None:
    """The op of most calls comes first."""
    report = report_of(decisions(), {}, {})
    assert [(line.op, line.calls, line.decided_by) for line in report.ops] == [
        ("mm bf16 16x4096x4096 nt", 3, "model"),
        ("addmm bf16 16x1000x4096 nt", 1, "model"),
        ("convolution", 1, "vendor"),
    ]
    assert report.ops[0].picked == ("triton::mm 16x128x256 s3 w4", "aten::mm")
    assert (report.ops[0].predicted_us, report.ops[0].vendor_us) == (13.72, 15.0)


def test_seconds_are_told_apart() -> None:
    """Each part is the sum of its metrics; what first calls tune behind a compile counts into the whole."""
    report = report_of([], {"seconds": 0.5, "seconds_listing": 0.4}, METRICS)
    assert report.total_s == 4 + 3 + 2 + 1 + 38
    assert {part.name: pytest.approx(part.seconds) for part in report.parts} == {
        "listing candidates": 0.4,
        "ranking them": 0.1,
        "compiling templates of GEMMs": 1.5,
        "benchmarking GEMMs": 0.75,
        "tuning pointwise and reduction kernels": 1.0,
        "coordinate descent": 38.0,
    }


def test_fused_kernels_are_counted_by_what_the_hook_did() -> None:
    """A line of the page, without what there is none of; no line without any."""
    report = report_of([], {"fused_picked": 3, "fused_untuned": 1000, "fused_stock": 0}, {})
    expected = "1,003 fused kernels: 3 with a measured config, 1,000 left to Inductor's heuristics"
    assert expected in str(report).splitlines()
    assert report.to_plain()["fused"] == {"with a measured config": 3, "left to Inductor's heuristics": 1000}
    assert "fused" not in str(report_of([], {}, {}))


def test_coordinate_descent_is_remarked_on_where_it_is_most_of_it() -> None:
    """The remark names what leaves it out."""
    assert report_of([], {}, METRICS).remark == (
        '38 s of 48 are coordinate descent; `options={"max_autotune_gemm": True}` leaves it out'
    )
    little = {**METRICS, "CachingAutotuner.coordinate_descent_tuning": [1.0]}
    assert report_of([], {}, little).remark is None
    assert report_of([], {}, {}).remark is None


def test_it_reads_as_text() -> None:
    """A head line, a table of ops and one of seconds."""
    text = str(report_of(decisions(), {}, METRICS))
    head, columns, first, *_ = text.splitlines()
    assert "compiled again" not in head
    assert "; 2 graphs compiled again with the vendor's kernels\n" in str(report_of([], {"failed_graphs": 2}, {}))
    assert head == "torch-diode: 5 ops decided (4 by the model, 1 by keeping the vendor's kernel)"
    assert columns.split() == ["op", "calls", "by", "kept", "predicted", "us", "vendor", "us", "why"]
    assert first.startswith(
        "mm bf16 16x4096x4096 nt         3  model   triton::mm 16x128x256 s3 w4 and 1 more         13.70 "
    )
    assert text.splitlines()[-1].startswith("38 s of 48 are coordinate descent")
    assert "48.0 s of compiling, of that:" in text


def test_it_is_json() -> None:
    """Every field, by name."""
    plain = json.loads(json.dumps(report_of(decisions(), {}, METRICS).to_plain()))
    assert plain["ops"][0]["picked"] == ["triton::mm 16x128x256 s3 w4", "aten::mm"]
    assert plain["ops"][2]["decided_by"] == "vendor"
    assert plain["total_s"] == 48


def test_of_a_real_compile() -> None:
    """What a handler decided is in it, and the seconds that PyTorch measured since it last forgot them."""
    handler = hooked(TileModel(vendor_us=5.0), mode="zero")
    compile_op("mm", handler)
    torch.compile(lambda a: a @ a)(torch.eye(16))
    report = make_report(handler)
    assert [(line.op, line.calls, line.picked) for line in report.ops] == [("mm fp32 128x256x512 nn", 1, ("aten::mm",))]
    assert report.total_s > 0
    assert {"listing candidates", "ranking them"} <= {part.name for part in report.parts}


def test_a_graph_from_the_compile_cache_is_told() -> None:
    """The second of two processes compiles nothing, so that no op is decided."""
    report = report_of([], {}, {}, 2)
    assert report.cached_graphs == 2
    head, cached, *_ = str(report).splitlines()
    assert head == "torch-diode: 0 ops decided"
    assert cached.startswith("2 graphs from the compile cache, with the kernels chosen before; ")
    assert "cache" not in str(report_of([], {}, {}))


def test_of_nothing() -> None:
    """Without a handler there is no op."""
    assert make_report(None).ops == ()
    assert str(make_report(None)).startswith("torch-diode: 0 ops decided\n")
