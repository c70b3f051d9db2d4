"""Derive the problem and the templates of an op from its choices."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

from diode_collectors.inductor.adapter import annotations_of, described, fast_accum_of, problem_of_nodes
from diode_collectors.inductor.attention import problem_of_attention
from diode_store.errors import RecordError
from diode_store.ops import OPS
from diode_store.ops.convolving import GROUPS, PADDING, STRIDE, USUAL, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from diode_store.records import Problem

_BLOCK = "SPARSE_KV_BLOCK_SIZE"


def problem_of_choices(name: str, input_nodes: Sequence[Any], choices: Sequence[Any]) -> Problem:
    """Return the problem of an op from its choices.

    Args:
        name: Inductor's name of the op.
        input_nodes: its inputs, the bias first.
        choices: the choices, which know the op's scalars and the dtype of its output.

    Raises:
        RecordError: an op or inputs that are not a known matrix product.
    """
    if name in OPS and OPS[name].is_attention:
        return problem_of_attention(name, input_nodes, _block_of(choices))
    layouts = (getattr(choice, "layout", None) for choice in choices)
    out_dtype = next((layout.dtype for layout in layouts if layout is not None), None)
    overrides = (getattr(choice, "hint_override", None) for choice in choices)
    hint_override = next((override for override in overrides if override is not None), None)
    scalars = convolution_scalars(choices) if name in OPS and OPS[name].is_convolution else _scalars(choices)
    return problem_of_nodes(name, input_nodes, scalars=scalars, out_dtype=out_dtype, hint_override=hint_override)


def template_hashes_of(choices: Iterable[Any]) -> dict[str, str]:
    """Return template uid → SHA-256 of its source, for the templates that have a source."""
    templates = (getattr(annotations_of(choice).get("ktc"), "template", None) for choice in choices)
    found = {template.uid: getattr(template, "src_hash", None) for template in templates if template is not None}
    return {uid: digest for uid, digest in found.items() if digest}


def _scalars(choices: Sequence[Any]) -> dict[str, Any]:
    """Return alpha, beta and the accumulation, which the choices' inputs, parameters and ATen calls know."""
    fast_accum = fast_accum_of(chain.from_iterable(map(_arguments_of, choices)))
    for choice in choices:
        ktc = annotations_of(choice).get("ktc")
        if ktc is not None:
            return {**(getattr(ktc.inputs, "_scalars", None) or {}), **fast_accum}
    calls = (getattr(choice, "kwargs", None) for choice in choices)
    arguments = next((call for call in calls if isinstance(call, dict) and "alpha" in call), {})
    return {**{name: arguments[name] for name in ("alpha", "beta") if name in arguments}, **fast_accum}


def convolution_scalars(choices: Sequence[Any]) -> dict[str, Any]:
    """Return the stride, padding, dilation and groups of a convolution, and ``transposed`` if it is that.

    The vendor's choice has them as the call's arguments, a template's choice prints those that templates support.

    Raises:
        RecordError: no choice says them.
    """
    for choice in choices:
        call = getattr(choice, "kwargs", None)
        if isinstance(call, dict) and STRIDE in call:
            listed = {name: joined([int(each) for each in call[name]]) for name in USUAL}
            transposed = {"transposed": True} if call.get("transposed") else {}
            return {**listed, GROUPS: int(call[GROUPS]), **transposed}
    for choice in choices:
        told = described(getattr(choice, "description", "") or "")
        axes = [axis for axis in "DHW" if f"KERNEL_{axis}" in told]
        if axes:
            named = {name: joined([told[f"{name.upper()}_{axis}"] for axis in axes]) for name in (STRIDE, PADDING)}
            return {**named, GROUPS: told.get("GROUPS", 1)}
    raise RecordError("no choice of the convolution says its stride and padding")


def _block_of(choices: Sequence[Any]) -> int | None:
    """Return the queries of a block of attention's mask, which a choice prints; None if none does."""
    printed = (described(getattr(choice, "description", "") or "") for choice in choices)
    return next((int(told[_BLOCK]) for told in printed if _BLOCK in told), None)


def _arguments_of(choice: Any) -> list[Mapping[str, Any]]:
    """Return the arguments of a choice's kernel, wherever this version of torch keeps them."""
    ktc = annotations_of(choice).get("ktc")
    holders = (getattr(choice, "kwargs", None), getattr(ktc, "extra_kwargs", None), getattr(ktc, "params", None))
    found = (getattr(each, "to_kwargs", lambda each=each: each)() for each in holders)
    return [each for each in found if isinstance(each, dict)]
