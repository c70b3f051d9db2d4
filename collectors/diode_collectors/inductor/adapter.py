"""Read Inductor's inputs and choices as records.

Collectors and the hook both use this module, so a recorded problem and a question to a model cannot differ. The code
tests for attributes, never for torch's version. ``torch._inductor`` is imported only when used.
"""

from __future__ import annotations

import ast
import re
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_collectors.inductor.device import detect_environment, detect_hardware
from diode_store.candidates.columns import INT_COLUMNS, ConfigColumns
from diode_store.candidates.names import kernel_config, template_uid
from diode_store.errors import RecordError
from diode_store.ops import OPS
from diode_store.records import KernelConfig, Problem, Scalar, TensorSpec, is_vendor_template

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "POLICY_ANNOTATION",
    "columns_of_choices",
    "config_of_choice",
    "config_of_ktc",
    "detect_environment",
    "detect_hardware",
    "problem_of_inputs",
    "problem_of_nodes",
]

POLICY_ANNOTATION = "diode_choice_policy"
"""Key in a choice's ``annotations`` under which a hook that filtered the list leaves its name."""

TRANSPOSED = "transposed_convolution"
"""Op of transposed convolutions, which this version stores whole and knows no sizes of."""
_NUMBERS = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "GROUP_M", "num_stages", "num_warps")
_get_numbers = itemgetter(*_NUMBERS)
_ARGUMENT = re.compile(r"(\w+)=('[^']*'|[^,\s]+)")
_TILE_ORDER = ("BLOCK_M", "BLOCK_K", "BLOCK_N")
_COUNTER = re.compile(r"_\d+$")
_FLOAT32 = "float32"
# Keys of a choice's info_dict that are not parameters.
_NOT_PARAMETERS = frozenset({"backend", "name", "op_type", "kernel_call_name"})


def problem_of_inputs(
    kernel_inputs: Any,
    op_name: str,
    sizes: Mapping[Any, int] | None = None,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> Problem:
    """Return the problem that Inductor's ``KernelInputs`` describe.

    Args:
        kernel_inputs: as the choices hook gets them; symbolic sizes count as their hints.
        op_name: as the hook gets it, such as ``mm`` or ``mm-ah``.
        sizes: symbol → value to use instead of its hint.
        overrides: arguments that the op sets for its templates, by their uids.

    Raises:
        RecordError: an op or inputs that are not a known matrix product.
    """
    scalars = {**(getattr(kernel_inputs, "_scalars", None) or {}), **fast_accum_of((overrides or {}).values())}
    nodes, out_dtype = kernel_inputs.nodes(), kernel_inputs.out_dtype()
    return problem_of_nodes(op_name, nodes, scalars=scalars, out_dtype=out_dtype, sizes=sizes)


def problem_of_nodes(
    op_name: str,
    input_nodes: Sequence[Any],
    *,
    scalars: Mapping[str, Any] | None = None,
    out_dtype: Any = None,
    hint_override: int | None = None,
    sizes: Mapping[Any, int] | None = None,
) -> Problem:
    """Return the problem of an op over Inductor's input nodes.

    Args:
        op_name: Inductor's name of the op; AutoHeuristic asks for an ``mm`` as ``mm-ah``.
        input_nodes: IR nodes in Inductor's order (bias first).
        scalars: ``alpha`` and ``beta``; only values other than 1 make another problem.
        out_dtype: torch dtype of the output; it makes another problem only if it is not the dtype of the inputs.
        hint_override: size of every symbolic dimension when Inductor compiles for several sizes.
        sizes: symbol → value to use instead of its hint.

    Raises:
        RecordError: an op or inputs that are not a known matrix product.
    """
    inputs = tuple(_tensor_spec(node, hint_override, sizes or {}) for node in input_nodes)
    words = {name: value for name, value in (scalars or {}).items() if isinstance(value, str)}
    numbers = {name: value for name, value in (scalars or {}).items() if name not in words}
    found = {**words, **{name: plain for name, value in numbers.items() if (plain := _number(value)) is not None}}
    op = op_name.partition("-")[0]
    is_convolution = op in OPS and OPS[op].is_convolution
    if found.pop("transposed", False) and is_convolution:
        op = TRANSPOSED
    dtypes = {spec.dtype for spec in inputs}
    # A scale has the dtype of some outputs, so only A's dtype tells whether the output has another.
    usual = {inputs[0].dtype} if op in OPS and OPS[op].is_scaled and inputs else dtypes
    if out_dtype is not None and dtype_name(out_dtype) not in usual:
        found["out_dtype"] = dtype_name(out_dtype)
    if _FLOAT32 in usual and tf32_is_asked(is_convolution=is_convolution):
        found["ALLOW_TF32"] = True
    return Problem.create(op, inputs, found)


def fast_accum_of(arguments: Iterable[Mapping[str, Any]]) -> dict[str, bool]:
    """Return the scalar ``use_fast_accum`` if a kernel's arguments, vendor's or Triton's, ask for it."""
    asked = any(each.get("use_fast_accum") is True or each.get("USE_FAST_ACCUM") is True for each in arguments)
    return {"use_fast_accum": True} if asked else {}


def config_of_ktc(ktc: Any) -> KernelConfig:
    """Return the config of a ``KernelTemplateChoice`` without building its choice.

    Raises:
        RecordError: a template or parameter that no config can hold.
    """
    uid = template_uid(ktc.template.uid)
    if is_vendor_template(uid):
        return KernelConfig(uid)
    arguments = {**_scalars_of(ktc.extra_kwargs), **_parameters(ktc)}
    if not _is_float32(ktc.inputs):
        arguments.update(_without_tf32(arguments))
    return kernel_config(uid, arguments)


def columns_of_choices(ktcs: Sequence[Any]) -> ConfigColumns:
    """Return the columns of many ``KernelTemplateChoice``, in their order.

    The values equal those of ``config_of_ktc``. Vectorized, because every hooked compile calls this.
    """
    groups = [(template, list(group)) for template, group in groupby(ktcs, key=attrgetter("template"))]
    uids = [template_uid(template.uid) for template, _ in groups]
    templates = tuple(dict.fromkeys(uids))
    index = [templates.index(uid) for uid in uids]
    sizes = [len(group) for _, group in groups]
    numbers = [_numbers_of(uid, group) for uid, (_, group) in zip(uids, groups, strict=True)]
    tf32 = [_tf32_of(uid, group) for uid, (_, group) in zip(uids, groups, strict=True)]
    table = np.concatenate(numbers) if numbers else np.empty((0, len(_NUMBERS)), np.int32)
    return ConfigColumns(
        templates,
        np.repeat(np.array(index, dtype=np.int32), sizes),
        allow_tf32=np.concatenate(tf32) if tf32 else np.empty(0, np.bool_),
        **dict(zip(INT_COLUMNS, np.ascontiguousarray(table.T), strict=True)),
    )


def config_of_choice(choice: Any) -> KernelConfig:
    """Return the config of a ``ChoiceCaller`` that was timed.

    A choice from the choices hook carries its ``KernelTemplateChoice``. Other choices (C++, CUTLASS, subgraphs,
    lowerings with lists of their own) are read from their printed form.

    Raises:
        RecordError: a choice that does not describe itself well enough.
    """
    ktc = annotations_of(choice).get("ktc")
    if ktc is not None:
        return config_of_ktc(ktc)
    info = choice.info_dict()
    backend = str(info.get("backend", "")).lower().replace("cuda", "cutlass")
    if backend == "extern":
        return KernelConfig(f"aten::{choice.name}")
    if backend == "triton":
        arguments = described(choice.description) or _arguments_of_info(info)
        if dtype_name(choice.input_nodes[0].get_dtype()) != _FLOAT32:
            arguments.update(_without_tf32(arguments))
        return kernel_config(choice.name, arguments)
    if backend in {"subgraph", "cpp"}:
        return kernel_config(choice.name, described(choice.description) if backend == "subgraph" else {})
    if not backend:
        raise RecordError(f"the choice {choice.name!r} does not say which backend made it")
    kind = str(info.get("op_type") or _COUNTER.sub("", choice.name))
    kept = {name: value for name, value in info.items() if name not in _NOT_PARAMETERS}
    return kernel_config(f"{backend}::{kind}", _scalars_of(kept))


def annotations_of(choice: Any) -> Mapping[str, Any]:
    """Return the annotations of a choice; empty if this version of torch has none, or if they are garbage."""
    try:
        found = getattr(choice, "annotations", None)
    except Exception:  # noqa: BLE001 - a feedback saver gets objects of any kind
        return {}
    return found if isinstance(found, dict) else {}


def dtype_name(dtype: Any) -> str:
    """Return a torch dtype as records name it: ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def hinted(expressions: Iterable[Any], hint_override: int | None = None) -> tuple[int, ...]:
    """Return sizes or strides as numbers, with Inductor's hints for symbols."""
    expressions = tuple(expressions)
    found = static(expressions)
    if found is not None:
        return found
    from torch._inductor.virtualized import V

    sizevars = V.graph.sizevars
    if hasattr(sizevars, "optimization_hints_with_override"):
        hints = sizevars.optimization_hints_with_override(expressions, hint_override)
    else:  # torch 2.10
        from torch._inductor import config

        fallback = config.unbacked_symint_fallback
        hints = sizevars.size_hints(expressions, fallback=fallback, hint_override=hint_override)
    return tuple(int(hint) for hint in hints)


def static(expressions: Iterable[Any]) -> tuple[int, ...] | None:
    """Return sizes or strides as numbers; None if one is symbolic."""
    try:
        return tuple(int(expression) for expression in expressions)
    except TypeError:
        return None


def _tensor_spec(node: Any, hint_override: int | None, sizes: Mapping[Any, int]) -> TensorSpec:
    size, stride = (
        [_with_sizes(e, sizes) for e in expressions] for expressions in (node.get_size(), node.get_stride())
    )
    return TensorSpec(dtype_name(node.get_dtype()), hinted(size, hint_override), hinted(stride, hint_override))


def _with_sizes(expression: Any, sizes: Mapping[Any, int]) -> Any:
    symbols = getattr(expression, "free_symbols", None)
    return expression.subs({symbol: sizes[symbol] for symbol in symbols & sizes.keys()}) if symbols else expression


def tf32_is_asked(*, is_convolution: bool) -> bool:
    """Return whether float32 products, or convolutions, may be computed in TF32 in this process."""
    import torch

    if not is_convolution:
        return getattr(torch.backends.cuda.matmul, "fp32_precision", None) == "tf32"
    # By default cuDNN may use TF32, and matrix products may not.
    precision = getattr(getattr(torch.backends.cudnn, "conv", None), "fp32_precision", None)
    return bool(torch.backends.cudnn.allow_tf32) if precision is None else precision == "tf32"


def _number(value: object) -> Scalar | None:
    if isinstance(value, (bool, int, float)):
        return value
    try:
        return float(value)  # type: ignore[arg-type]  # sympy numbers convert, symbols raise
    except (TypeError, ValueError):
        return None


def _parameters(ktc: Any) -> dict[str, Any]:
    found = getattr(ktc.params, "kwargs", None)
    return found if isinstance(found, dict) else dict(ktc.params.to_kwargs())


def _scalars_of(arguments: Mapping[str, Any]) -> dict[str, Scalar]:
    return {name: value for name, value in arguments.items() if isinstance(value, (bool, int, float, str))}


def _is_float32(kernel_inputs: Any) -> bool:
    """Return True if TF32 means anything for these inputs; Triton ignores the flag for other dtypes."""
    operands = kernel_inputs.mat1mat2() if hasattr(kernel_inputs, "mat1mat2") else kernel_inputs.nodes()
    return dtype_name(operands[0].get_dtype()) == _FLOAT32


def _without_tf32(arguments: Mapping[str, Any]) -> dict[str, bool]:
    return {"ALLOW_TF32": False} if "ALLOW_TF32" in arguments else {}


def _numbers_of(uid: str, group: list[Any]) -> NDArray[np.int32]:
    """Return shape (n, 6): the ``INT_COLUMNS`` of one template's choices."""
    shape = (len(group), len(INT_COLUMNS))
    if is_vendor_template(uid):
        return np.zeros(shape, np.int32)
    arguments = [_parameters(ktc) for ktc in group]
    try:
        flat = chain.from_iterable(map(_get_numbers, arguments))
        return np.fromiter(flat, np.int32, count=shape[0] * shape[1]).reshape(shape)
    except (KeyError, TypeError):  # a template without some of the numbers
        rows = [[found.get(name) or 0 for name in _NUMBERS] for found in arguments]
        return np.array(rows, dtype=np.int32).reshape(shape)


def _tf32_of(uid: str, group: list[Any]) -> NDArray[np.bool_]:
    """Return which choices of one template may use TF32, shape (n,)."""
    if is_vendor_template(uid) or not _is_float32(group[0].inputs):
        return np.zeros(len(group), np.bool_)
    values = [_parameters(ktc).get("ALLOW_TF32", ktc.extra_kwargs.get("ALLOW_TF32", False)) for ktc in group]
    return np.array([value in {True, "True"} for value in values], dtype=np.bool_)


def described(description: str) -> dict[str, Any]:
    """Parse ``ACC_TYPE='tl.float32', BLOCK_K=16, num_warps=1``, as Triton choices print their arguments."""
    return {name: _literal(text) for name, text in _ARGUMENT.findall(description)}


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _arguments_of_info(info: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments in a Triton choice's ``info_dict``, for a choice without a description."""
    tile = ast.literal_eval(info["tile_shape"])
    arguments = dict(zip(_TILE_ORDER, tile, strict=True))
    names = {"GROUP_M": "GROUP_M", "num_stages": "num_stages", "num_warps": "num_warps", "allow_tf32": "ALLOW_TF32"}
    arguments.update({ours: info[theirs] for theirs, ours in {**names, "acc_type": "ACC_TYPE"}.items()})
    return {name: value for name, value in arguments.items() if value not in {-1, "None"}}
