"""Writes down what this torch's Inductor says of the kernels in ``h200-rows.jsonl``: ``torch-MAJOR.MINOR.json``.

Those rows were measured on an H200 with torch 2.11; each problem is compiled here, on a CPU, and each of its
kernels is looked up in Inductor's own list for CUDA and built, so that the same kernel can be compared between
versions and with the file. Run it with each torch that the golden vectors shall hold, from the repository::

    PYTHONPATH=.:collectors:tests TORCH_PYTHON tests/golden/capture.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch._inductor.choices import InductorChoices
from torch._inductor.select_algorithm import add_feedback_saver, get_algorithm_selector_cache
from torch._inductor.virtualized import V

from diode_collectors.inductor.adapter import config_of_choice, config_of_ktc, problem_of_inputs, problem_of_nodes
from inductor_harness import compile_and_run, cuda_choices, triton_choices_on_cpu

FOLDER = Path(__file__).parent
ROWS = FOLDER / "h200-rows.jsonl"
SCALAR = (bool, int, float, str)
# What tells one config of a template from another, whatever else a version lists.
IDENTITY = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_stages", "num_warps")
FUNCTIONS = {"mm": torch.mm, "addmm": torch.addmm, "bmm": torch.bmm}


class Capture(InductorChoices):
    """A choices handler that looks up the kernels of one row among those that Inductor lists for CUDA."""

    def __init__(self, row: dict[str, Any]) -> None:
        """Prepare to look for the kernels of ``row``."""
        super().__init__()
        self.row = row
        self.problem: dict[str, Any] = {}
        self.kernels: list[dict[str, Any]] = []

    def _finalize_template_configs(  # the signature is Inductor's
        self, template_choices: Any, kernel_inputs: Any, templates: Any, op_name: str, *args: Any, **kwargs: Any
    ) -> list[Any]:
        stock = super()._finalize_template_configs(template_choices, kernel_inputs, templates, op_name, *args, **kwargs)
        if any(template.uid.startswith("triton::") for template in templates):
            self.problem = problem_facts(op_name, kernel_inputs)
            self.kernels = [self._look_up(choice, kernel_inputs, op_name) for choice in self._triton_rows()]
        return stock

    def _triton_rows(self) -> list[dict[str, Any]]:
        return [choice for choice in self.row["choices"] if choice["template"].startswith("triton_")]

    def _look_up(self, choice: dict[str, Any], kernel_inputs: Any, op_name: str) -> dict[str, Any]:
        uid = choice["template"].replace("triton_", "triton::")
        wanted = [choice["kwargs"][name] for name in IDENTITY]
        listed = cuda_choices(kernel_inputs, uid, op_name)
        ktc = next(ktc for ktc in listed if [ktc.params.to_kwargs()[name] for name in IDENTITY] == wanted)
        ktc.layout = kernel_inputs.output_layout(flexible=False)
        return kernel_facts(ktc)


def problem_facts(op_name: str, kernel_inputs: Any) -> dict[str, Any]:
    """Return what a hook is told of a problem, and the key we give it."""
    nodes = kernel_inputs.nodes()
    return {
        "op_name": op_name,
        "nodes": [node_facts(node) for node in nodes],
        "scalars": dict(kernel_inputs._scalars),
        "out_dtype": str(kernel_inputs.out_dtype()),
        "key": problem_of_inputs(kernel_inputs, op_name).key.hex(),
    }


def node_facts(node: Any) -> dict[str, Any]:
    """Return dtype, sizes and strides of an IR node."""
    sizes, strides = ([int(number) for number in numbers] for numbers in (node.get_size(), node.get_stride()))
    return {"dtype": str(node.get_dtype()), "size": sizes, "stride": strides}


def kernel_facts(ktc: Any) -> dict[str, Any]:
    """Return what Inductor says of one Triton kernel, before and after it is built, and the key we give it."""
    choice = ktc.choice
    key = config_of_ktc(ktc).key.hex()
    if config_of_choice(choice).key.hex() != key:
        raise AssertionError(f"{choice.name}: the built choice has another key than its KernelTemplateChoice")
    return {
        "template_uid": ktc.template.uid,
        "src_hash": ktc.template.src_hash,
        "params": ktc.params.to_kwargs(),
        "extra_kwargs": {name: value for name, value in ktc.extra_kwargs.items() if isinstance(value, SCALAR)},
        "choice": choice_facts(choice),
        "key": key,
    }


def choice_facts(choice: Any) -> dict[str, Any]:
    """Return what a built choice says of itself; its name without the counter of this process."""
    info = {name: value for name, value in choice.info_dict().items() if isinstance(value, SCALAR)}
    named = {"type": type(choice).__name__, "name": choice.name, "description": choice.description}
    if named["type"] == "TritonTemplateCaller":
        named["name"] = choice.name.rpartition("_")[0] + "_0"
    return {**named, "info_dict": info}


def event_facts(name: str, nodes: Any, timings: Any) -> dict[str, Any]:
    """Return what a feedback saver is told of the problem and of the vendor kernels, and the keys we give them."""
    vendor = [choice for choice in timings if choice.info_dict()["backend"] == "extern"]
    return {
        "op_name": name,
        "nodes": [node_facts(node) for node in nodes],
        "key": problem_of_nodes(name, nodes).key.hex(),
        "vendor": [{**choice_facts(choice), "key": config_of_choice(choice).key.hex()} for choice in vendor],
    }


def tensor(spec: dict[str, Any]) -> torch.Tensor:
    """Return zeros with the sizes and strides of one of a row's inputs; a broadcast bias as it was passed."""
    size, stride = spec["size"], spec["stride"]
    kept = [i for i in range(len(size)) if stride[i] != 0]
    strided = torch.empty_strided(
        [size[i] for i in kept], [stride[i] for i in kept], dtype=getattr(torch, spec["dtype"])
    )
    return strided.zero_()


def capture(row: dict[str, Any]) -> dict[str, Any]:
    """Compile the problem of ``row`` and return what Inductor said of it and of its kernels."""
    inputs = [tensor(spec) for spec in row["inputs"]]
    op = "mm" if len(row["inputs"][-1]["size"]) == 2 and row["op"] == "bmm" else row["op"]
    events: list[dict[str, Any]] = []
    handler = Capture(row)

    def saver(timings: Any, name: str, nodes: Any, *_: Any) -> None:
        events.append(event_facts(name, nodes, timings))

    with triton_choices_on_cpu(), V.set_choices_handler(handler):
        add_feedback_saver(saver)
        try:
            compile_and_run(FUNCTIONS[op], *inputs)
        finally:
            cache = get_algorithm_selector_cache()
            cache.feedback_saver_fns = [known for known in cache.feedback_saver_fns if known is not saver]
    return {"problem": handler.problem, "kernels": handler.kernels, "events": events}


def rows() -> list[dict[str, Any]]:
    """Return the measured rows."""
    return [json.loads(line) for line in ROWS.read_text().splitlines()]


def golden_file() -> Path:
    """Return where the facts of this torch are kept."""
    major, minor, *_ = torch.__version__.split(".")
    return FOLDER / f"torch-{major}.{minor}.json"


if __name__ == "__main__":
    facts = {"torch": torch.__version__, "rows": [capture(row) for row in rows()]}
    golden_file().write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
