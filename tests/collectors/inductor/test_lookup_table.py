"""Tables of ``inductor_lut`` in Inductor's own ``LookupTableChoices``, for every op and template.

Runs under every supported torch: texts, entries and what differs between versions are held against Inductor's.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from torch._inductor import config as inductor_config
from torch._inductor.lookup_table import LookupTableChoices
from torch._inductor.virtualized import V

from diode_collectors.inductor.adapter import config_of_ktc, problem_of_inputs
from diode_store.exchange.foreign.inductor_lut import Ranked, build, key_of, torch_version
from inductor_harness import compile_and_run, cuda_choices, heuristic_modules, triton_choices_on_cpu

if TYPE_CHECKING:
    from collections.abc import Callable

    from diode_store.records import KernelConfig, Problem

VERSION = torch_version(torch.__version__)
DEVICE = "NVIDIA H200"
BF16 = torch.bfloat16


class Listening(LookupTableChoices):
    """Inductor's handler, where the CPU passes for a device; a Triton kernel cannot run here, so ATen's is taken."""

    def __init__(self, look: Callable[[Any, str, list[str]], None] = lambda *_: None) -> None:
        """Call ``look`` with each call's inputs, op and template uids."""
        super().__init__()
        self.look = look
        self.chosen: list[list[tuple[str, dict[str, Any]]]] = []
        """For each call that had a hit, the templates and parameters that were chosen."""

    def _get_lookup_table(self) -> dict[str, list[dict[str, Any]]]:
        with mock.patch.object(torch.cuda, "is_available", return_value=True):
            return dict(super()._get_lookup_table())

    @staticmethod
    def _get_device_key(device: torch.device) -> str | None:
        return DEVICE if device.type == "cpu" else None

    def _finalize_template_configs(
        self, template_choices: Any, kernel_inputs: Any, templates: Any, op_name: str, kwarg_overrides: Any = None
    ) -> list[Any]:
        self.look(kernel_inputs, op_name, [template.uid for template in templates])
        self.is_hit = True
        found = super()._finalize_template_configs(template_choices, kernel_inputs, templates, op_name, kwarg_overrides)
        if self.is_hit:
            self.chosen.append([(ktc.template.uid, ktc.params.to_kwargs()) for ktc in found])
        aten = [template for template in templates if template.uid.startswith("aten::")]
        return list(self.get_ktc(kernel_inputs, aten[0], op_name)) if aten else []

    def _fallback(self, *args: Any) -> list[Any]:
        self.is_hit = False
        return list(super()._fallback(*args))


def randn(*size: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Return a tensor of random numbers."""
    return torch.randn(*size).to(dtype)


CASES: dict[str, tuple[Callable[..., Any], list[torch.Tensor]]] = {
    "mm": (torch.mm, [randn(128, 512), randn(512, 256)]),
    "mm of a transposed weight": (lambda a, w: a @ w.t(), [randn(128, 512), randn(256, 512)]),
    "mm whose K no block divides": (torch.mm, [randn(64, 136), randn(136, 72)]),
    "mm in float32": (torch.mm, [randn(128, 512, dtype=torch.float32), randn(512, 256, dtype=torch.float32)]),
    "addmm": (torch.addmm, [randn(256), randn(128, 512), randn(512, 256)]),
    "addmm with scalars": (
        lambda c, a, b: torch.addmm(c, a, b, alpha=0.5, beta=2),
        [randn(256), randn(128, 512), randn(512, 256)],
    ),
    "bmm": (torch.bmm, [randn(4, 128, 512), randn(4, 512, 256)]),
    "baddbmm": (torch.baddbmm, [randn(4, 128, 256), randn(4, 128, 512), randn(4, 512, 256)]),
    "int_mm": (torch._int_mm, [torch.ones(128, 512, dtype=torch.int8), torch.ones(512, 256, dtype=torch.int8)]),
    "mm_plus_mm": (
        lambda a, b, c, d: a @ b + c @ d,
        [randn(128, 512), randn(512, 256), randn(128, 512), randn(512, 256)],
    ),
}
cases = pytest.mark.parametrize("name", CASES)


def compile_with(handler: Listening, name: str, table: dict[str, list[dict[str, Any]]] | None = None) -> None:
    """Compile a case under ``handler`` with a table, which has been through a JSON file."""
    function, inputs = CASES[name]
    given = None if table is None else json.loads(json.dumps(table))
    with (
        triton_choices_on_cpu(),
        inductor_config.patch({"lookup_table.table": given}),
        V.set_choices_handler(handler),
    ):
        compile_and_run(function, *inputs)


def template_of(op: str) -> str:
    """Return the Triton template that solves an op."""
    return {"bmm": "triton::bmm", "baddbmm": "triton::bmm", "mm_plus_mm": "triton::mm_plus_mm"}.get(op, "triton::mm")


def table_of(problem: Problem, *configs: KernelConfig, top: int = 1, **hashes: str) -> dict[str, list[dict[str, Any]]]:
    """Return the table of one problem."""
    made = build([Ranked(problem, configs)], VERSION, DEVICE, template_hashes=hashes, top=top)
    assert made.lines() == []
    return made.table


def problems_of(name: str) -> list[tuple[str, Problem, list[str]]]:
    """Return (Inductor's text, our problem, template uids) of each call of the hook for a case."""
    seen: list[tuple[str, Problem, list[str]]] = []

    def look(kernel_inputs: Any, op: str, uids: list[str]) -> None:
        text = handler.make_lookup_key(kernel_inputs, op, include_device=True)
        seen.append((str(text), problem_of_inputs(kernel_inputs, op), uids))

    handler = Listening(look)
    compile_with(handler, name)
    return seen


@cases
def test_texts_are_inductors(name: str) -> None:
    """Where the Triton templates are listed, our text of the problem is what Inductor looks up."""
    with_triton = [(text, p) for text, p, uids in problems_of(name) if any(uid.startswith("triton::") for uid in uids)]
    assert len(with_triton) == 1
    ((text, problem),) = with_triton
    assert key_of(problem, DEVICE) == text
    assert text.startswith(f"{DEVICE}+(")
    assert key_of(problem, "") == text.removeprefix(f"{DEVICE}+")


@pytest.mark.parametrize("name", ["mm", "mm whose K no block divides", "mm in float32", "addmm", "bmm", "int_mm"])
def test_entries_name_every_parameter(name: str) -> None:
    """Of every CUDA kernel of the EXHAUSTIVE space, the entry holds what Inductor itself would pass."""
    found: list[tuple[Problem, KernelConfig, dict[str, Any]]] = []

    def look(kernel_inputs: Any, op: str, uids: list[str]) -> None:
        for uid in uids if op != "mm" else [*uids, "triton::mm_persistent_tma"]:
            if uid in {"triton::mm", "triton::bmm", "triton::mm_persistent_tma"}:
                problem = problem_of_inputs(kernel_inputs, op)
                ktcs = cuda_choices(kernel_inputs, uid, op)
                found.extend((problem, config_of_ktc(ktc), ktc.params.to_kwargs()) for ktc in ktcs)

    compile_with(Listening(look), name)
    assert len(found) > 10
    for problem, config, kwargs in found:
        ((entry,),) = table_of(problem, config).values()
        told = {name: value for name, value in kwargs.items() if name not in {"OUT_DTYPE", "ALLOW_TF32"}}
        told.pop("tma_load_for_template_epilogue", None)  # since 2.12, where entries are laid over Inductor's own
        assert entry == {"template_id": config.template, **told}


@pytest.mark.quick(2)
@pytest.mark.parametrize("name", ["mm", "addmm", "addmm with scalars", "bmm", "baddbmm"])
def test_inductor_takes_the_kernel_of_the_table(name: str) -> None:
    """The table's kernels with all their parameters, in its order, and no others."""
    offered: list[tuple[Problem, list[KernelConfig]]] = []

    def look(kernel_inputs: Any, op: str, uids: list[str]) -> None:
        if template_of(op) in uids:
            ktcs = cuda_choices(kernel_inputs, template_of(op), op)
            offered.append((problem_of_inputs(kernel_inputs, op), [config_of_ktc(ktc) for ktc in ktcs[5:200:60]]))

    compile_with(Listening(look), name)
    ((problem, configs),) = offered
    handler = Listening()
    compile_with(handler, name, table_of(problem, *configs, top=3))
    ((*chosen,),) = handler.chosen
    assert [uid for uid, _ in chosen] == [template_of(problem.op)] * 3
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps", "GROUP_M")
    expected = [(c.block_m, c.block_n, c.block_k, c.num_stages, c.num_warps, c.group_m) for c in configs[:3]]
    assert [tuple(kwargs[name] for name in names) for _, kwargs in chosen] == expected
    assert all(kwargs["EVEN_K"] is (problem.shape.k % kwargs["BLOCK_K"] == 0) for _, kwargs in chosen)


@pytest.mark.parametrize("name", ["mm", "bmm", "baddbmm", "int_mm", "mm_plus_mm"])
def test_inductor_takes_the_vendors_kernel_alone(name: str) -> None:
    """Where it is fastest no Triton kernel is left."""
    from diode_store.candidates.names import kernel_config

    ((_, problem, uids),) = problems_of(name)
    vendor = kernel_config(next(uid for uid in uids if uid.startswith("aten::")), {})
    handler = Listening()
    compile_with(handler, name, table_of(problem, vendor))
    assert handler.chosen == [[(vendor.template, {})]]


def test_an_addmm_whose_vendor_kernel_is_fastest() -> None:
    """Can be said while there is one call for all kernels; later versions leave it out and say so."""
    from diode_store.candidates.names import kernel_config

    calls = problems_of("addmm")
    problem = next(problem for _, problem, uids in calls if "triton::mm" in uids)
    made = build([Ranked(problem, (kernel_config("addmm", {}),))], VERSION, DEVICE, template_hashes={})
    if len(calls) == 1:
        assert list(made.table.values()) == [[{"template_id": "aten::addmm"}]]
    else:
        said = f"no table of torch {VERSION[0]}.{VERSION[1]} can choose an addmm's vendor kernel alone"
        assert (made.table, made.lines()) == ({}, [f"1 problems left out: {said}"])


def test_hashes_of_templates() -> None:
    """A kernel timed with this template's source is taken; one of another source is not."""
    offered: list[tuple[Problem, KernelConfig, str]] = []

    def look(kernel_inputs: Any, op: str, _uids: list[str]) -> None:
        ktc = cuda_choices(kernel_inputs, "triton::mm", op)[7]
        offered.append((problem_of_inputs(kernel_inputs, op), config_of_ktc(ktc), ktc.template.src_hash))

    compile_with(Listening(look), "mm")
    ((problem, config, sha),) = offered
    for said, is_taken in ((sha, True), ("0" * 64, False)):
        handler = Listening()
        compile_with(handler, "mm", table_of(problem, config, **{"triton::mm": said}))
        assert bool(handler.chosen) is is_taken


def test_mm_plus_mm_kernels() -> None:
    """Its own template's kernels have the same parameters."""
    seen: list[dict[str, Any]] = []
    entries: list[dict[str, Any]] = []

    def look(kernel_inputs: Any, op: str, _uids: list[str]) -> None:
        registry, _ = heuristic_modules()
        heuristic = registry.get_template_heuristic("triton::mm_plus_mm", "cuda", op)
        from diode_store.candidates.names import kernel_config

        for params in heuristic.get_template_configs(kernel_inputs, op):
            kwargs = params if isinstance(params, dict) else params.to_kwargs()
            seen.append({name: value for name, value in kwargs.items() if name not in {"OUT_DTYPE", "ALLOW_TF32"}})
            config = kernel_config("triton::mm_plus_mm", {**kwargs, "ALLOW_TF32": False})
            ((entry,),) = table_of(problem_of_inputs(kernel_inputs, op), config).values()
            entries.append({name: value for name, value in entry.items() if name != "template_id"})

    compile_with(Listening(look), "mm_plus_mm")
    assert len(seen) > 3
    assert entries == seen


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")
def test_on_a_gpu(tmp_path: Any) -> None:
    """Nothing is searched for: the one kernel of the table is compiled, and its result is right."""
    from torch._dynamo.utils import counters
    from torch._inductor.utils import fresh_cache

    from diode_store.candidates.names import kernel_config
    from diode_store.records import Problem, TensorSpec

    device = torch.cuda.get_device_properties(0)
    assert device.gcnArchName == device.name
    assert LookupTableChoices._get_device_key(torch.device("cuda", 0)) == device.name
    inputs = (TensorSpec("bfloat16", (128, 512), (512, 1)), TensorSpec("bfloat16", (512, 256), (256, 1)))
    blocks = {"BLOCK_M": 64, "BLOCK_N": 32, "BLOCK_K": 64, "GROUP_M": 8, "num_stages": 3, "num_warps": 4}
    config = kernel_config("triton::mm", {**blocks, "ACC_TYPE": "tl.float32"})
    made = build([Ranked(Problem.create("mm", inputs), (config,))], VERSION, device.name, template_hashes={})
    path = tmp_path / "table.json"
    path.write_text(json.dumps(made.table))
    a, b = randn(128, 512).cuda(), randn(512, 256).cuda()
    counters.clear()
    with (
        fresh_cache(),
        inductor_config.patch({"lookup_table.table": json.loads(path.read_text()), "fx_graph_cache": False}),
        V.set_choices_handler(LookupTableChoices()),
    ):
        torch._dynamo.reset()
        found, (code,) = torch._inductor.utils.run_and_get_code(torch.compile(torch.mm, mode="max-autotune"), a, b)
    assert "BLOCK_M : tl.constexpr = 64" in code
    assert "BLOCK_N : tl.constexpr = 32" in code
    assert counters["inductor"]["select_algorithm_autotune"] == 0
    torch.testing.assert_close(found, a @ b)
