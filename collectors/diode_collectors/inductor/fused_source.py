"""Read the source of a fused kernel, as Inductor generates it, and change how it is tuned.

The source is Python text: helper functions, then one function below a call such as
``@triton_heuristics.pointwise(size_hints=…, triton_meta=…, inductor_meta=…)``. Compile workers get the same text, so a
change of the call reaches them in every version of torch. This module never imports torch.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from diode_store.candidates.names import kernel_config
from diode_store.errors import RecordError
from diode_store.kernels import BLOCK
from diode_store.ops import FUSED_OPS
from diode_store.ops.fused import fused_problem, fused_template
from diode_store.values.keys import content_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from diode_store.records import KernelConfig, Problem

_CALL = re.compile(r"^@triton_heuristics\.(\w+)\(.*?^\)$", re.MULTILINE | re.DOTALL)
_FUNCTION = re.compile(r"^@triton\.jit\ndef ([\w.]+)(\(.*\n(?:(?:[ \t].*)?\n)*)", re.MULTILINE)
_HELPERS = re.compile(r"^@triton\.jit\ndef .*\n(?:(?:[ \t].*)?\n)*", re.MULTILINE)
_META, _INDUCTOR, _SIZES, _HINT = "triton_meta", "inductor_meta", "size_hints", "reduction_hint"
_DEVICE = "device"
_TUNED = "max_autotune"
_TUNING = ("max_autotune", "max_autotune_pointwise", "coordinate_descent_tuning")
_LEFT_TO_STOCK = ("RSPLIT_SIZE", "combo_grid_meta")
"""Entries of ``inductor_meta`` of kernels whose buffers or grids depend on more than the config."""
_SAME_RESULTS = ("deterministic", "batch_invariant", "are_deterministic_algorithms_enabled")
"""Entries that are true where a config must not change the order in which a kernel adds up."""
PERSISTENT = "persistent_reduction"
_MUTATED = "mutated_arg_names"
_NAME = "kernel_name"
_FACTS = ("num_load", "num_store", "num_reduction", "atomic_add_found", _NAME)
_DTYPES = {
    "*i1": "bool",
    "*bf16": "bfloat16",
    **{f"*fp{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"*i{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"*u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "*fp8e4nv": "float8_e4m3fn",
    "*fp8e5": "float8_e5m2",
    "*fp8e4b8": "float8_e4m3fnuz",
    "*fp8e5b16": "float8_e5m2fnuz",
}
"""Type of a pointer in a kernel's signature → dtype of torch."""
_STAGES, _WARPS, _CTAS, _REGISTERS = "num_stages", "num_warps", "num_ctas", "maxnreg"


@dataclass(frozen=True)
class FusedSource:
    """Source of a fused kernel."""

    text: str
    """The whole source."""
    op: str
    """One of ``FUSED_OPS``."""
    call: ast.Call = field(repr=False)
    """Call of Inductor's heuristics."""
    begins_at: int
    """Offset of the call in the text."""
    helpers: str
    """Functions that the kernel calls; mostly none."""
    function: str
    """The kernel without its decorators and its name: parameters and body."""

    @cached_property
    def problem(self) -> Problem:
        """The problem of the kernel.

        Raises:
            RecordError: a source that does not describe itself well enough.
        """
        meta = self._literals(_META)
        signature: Mapping[str, str] = meta.get("signature", {})
        pointers = [_DTYPES.get(kind, kind[1:]) for kind in signature.values() if kind.startswith("*")]
        about = {name: value for name, value in meta.items() if name != _DEVICE}
        source = content_key("fused source", 1, [self.helpers, self.function, repr(sorted(about.items()))])
        return fused_problem(self.op, pointers, source.hex(), self.size_hints, self._facts())

    @property
    def size_hints(self) -> dict[str, int]:
        """Hint of each range in elements, in the source's order.

        Raises:
            RecordError: the source has none.
        """
        sizes = ast.literal_eval(self._keyword(_SIZES))
        if not isinstance(sizes, dict):
            raise RecordError(f"{self.op}: {_SIZES} is no dictionary")
        return sizes

    @property
    def is_tuned(self) -> bool:
        """True if the source asks for max-autotune, as those of ``mode="max-autotune"`` do."""
        return self._literals(_INDUCTOR).get(_TUNED) is True

    @property
    def is_left_to_stock(self) -> bool:
        """True for a kernel whose buffers or grid depend on more than its config, or whose results must not change."""
        meta = self._literals(_INDUCTOR)
        return any(name in meta for name in _LEFT_TO_STOCK) or any(meta.get(name) is True for name in _SAME_RESULTS)

    @property
    def is_timed_with_copies(self) -> bool:
        """True if the kernel writes over its inputs, which Inductor then copies before each timed run."""
        return bool(self._literals(_INDUCTOR).get(_MUTATED))

    @property
    def has_loops(self) -> bool:
        """True if the kernel reduces block by block, and False if a block holds a whole reduction."""
        return self.op != PERSISTENT

    @property
    def blocks(self) -> frozenset[str]:
        """Names of the block sizes that the kernel takes."""
        signature = self._literals(_META).get("signature", {})
        return frozenset(name for name, kind in signature.items() if kind == "constexpr" and name.endswith(BLOCK))

    def with_config(self, config: KernelConfig) -> str:
        """Return the source with this config alone, which Inductor neither times nor tunes."""
        meta, inductor = (ast.get_source_segment(self._call_text, self._keyword(name)) for name in (_META, _INDUCTOR))
        call = (
            f"triton_heuristics.fixed_config(\n    config={arguments_of(config)!r},\n    filename=__file__,\n"
            f"    {_META}={meta},\n    {_INDUCTOR}={inductor}\n)"
        )
        return self._with_call(call)

    def without_tuning(self) -> str:
        """Return the source as a plain ``torch.compile`` generates it: with the short list of configs alone."""
        return self._with_call(self.untuned_call)

    @property
    def untuned_call(self) -> str:
        """The call without max-autotune and coordinate descent."""
        lines = self._call_text.splitlines(keepends=True)
        starts = [sum(map(len, lines[:number])) for number in range(len(lines))]
        edited = self._call_text
        # From the last to the first, so that earlier offsets stay. The columns of ``ast`` count bytes.
        for node in sorted(self._flags(), key=lambda node: (node.lineno, node.col_offset), reverse=True):
            line = lines[node.lineno - 1].encode()
            begin = starts[node.lineno - 1] + len(line[: node.col_offset].decode())
            end = begin + len(line[node.col_offset : node.end_col_offset].decode())
            edited = f"{edited[:begin]}False{edited[end:]}"
        return edited

    @property
    def _call_text(self) -> str:
        found = _CALL.search(self.text, self.begins_at)
        return found.group()[1:] if found else ""

    def _with_call(self, call: str) -> str:
        begin = self.begins_at + 1
        return f"{self.text[:begin]}{call}{self.text[begin + len(self._call_text) :]}"

    def _flags(self) -> Iterator[ast.Constant]:
        """Yield the values in ``inductor_meta`` that ask for tuning."""
        meta = self._keyword(_INDUCTOR)
        pairs = zip(meta.keys, meta.values, strict=True) if isinstance(meta, ast.Dict) else ()
        for key, value in pairs:
            if isinstance(key, ast.Constant) and key.value in _TUNING and isinstance(value, ast.Constant):
                yield value

    def _facts(self) -> dict[str, Any]:
        literals = self._literals(_INDUCTOR)
        facts = {name: literals[name] for name in _FACTS if name in literals}
        if not str(facts.get(_NAME, "")).isidentifier():  # while Inductor generates the source, it has no name yet
            facts.pop(_NAME, None)
        hint = next((each.value for each in self.call.keywords if each.arg == _HINT), None)
        return {**facts, **({_HINT: hint.attr} if isinstance(hint, ast.Attribute) else {})}

    def _keyword(self, name: str) -> ast.expr:
        found = next((each.value for each in self.call.keywords if each.arg == name), None)
        if found is None:
            raise RecordError(f"{self.op}: the source has no {name}")
        return found

    def _literals(self, name: str) -> dict[str, Any]:
        """Return the entries of a dictionary in the call that are literals, the others as text."""
        node = self._keyword(name)
        if not isinstance(node, ast.Dict):
            raise RecordError(f"{self.op}: {name} is no dictionary")
        return {
            str(key.value): _literal(value)
            for key, value in zip(node.keys, node.values, strict=True)
            if isinstance(key, ast.Constant)
        }


def read_source(text: str) -> FusedSource | None:
    """Return what a kernel's source says; None for a kernel of another kind, such as a template or a combination."""
    call = _CALL.search(text)
    if call is None or call.group(1) not in FUSED_OPS:
        return None
    function = _FUNCTION.match(text, call.end() + 1)
    if function is None:
        return None
    try:
        parsed = ast.parse(call.group()[1:], mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        return None
    if not isinstance(parsed, ast.Call):
        return None
    helpers = "".join(_HELPERS.findall(text[: call.start()]))
    return FusedSource(text, call.group(1), parsed, call.start(), helpers, function.group(2).rstrip())


def config_of_triton(op: str, config: Any) -> KernelConfig:
    """Return one of Triton's own ``Config`` of a fused kernel.

    Raises:
        RecordError: a parameter that no config can hold.
    """
    others = {_CTAS: getattr(config, _CTAS, 1), _REGISTERS: getattr(config, _REGISTERS, None)}
    unusual = {name: value for name, value in others.items() if value not in {None, 1}}
    arguments = {**config.kwargs, **unusual, _STAGES: config.num_stages, _WARPS: config.num_warps}
    return kernel_config(fused_template(op), arguments)


def arguments_of(config: KernelConfig) -> dict[str, Any]:
    """Return the arguments of a config, as Inductor's heuristics take them."""
    return {**dict(config.kwargs), _STAGES: config.num_stages, _WARPS: config.num_warps}


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except ValueError:
        return ast.unparse(node)
