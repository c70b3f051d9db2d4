"""Flex attention: one config for a call, in every compile.

Inductor asks a choices handler for lists of configs, with the head size and the dtype alone. So the hook looks at the
call when Inductor lowers it, and puts a handler of its own in place for that time. With ``mode="max-autotune"``
Inductor times its list with a mask of its own, and in a plain compile it takes one fixed config.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._inductor import config as inductor_config

from diode_integration.inductor.after_import import once_inductor_is_there, put_in_place
from diode_integration.inductor.listing import patched
from diode_store.devices.capability import capability_of
from diode_store.kernels import KernelConfig
from diode_store.ops import OPS
from diode_store.ops.attending import BACKWARD, DECODING, FORWARD

if TYPE_CHECKING:
    from collections.abc import Sequence

    from diode_store.records import Hardware, ProblemShape

_LOWERING = "torch._inductor.lowering"
LOWERED = ("flex_attention", "flex_attention_backward")
"""Names of the higher-order operators that Inductor lowers."""


class Owner(Protocol):
    """Part of a handler that is asked about attention."""

    def attention(self, op: str, arguments: Sequence[Any], offered: Offered) -> KernelConfig | None:
        """Return the config for a call; None for Inductor's own list. Must not raise.

        Args:
            op: the op whose configs Inductor asks for.
            arguments: the arguments of the lowering.
            offered: returns the configs to choose from.
        """


Offered = Callable[[], "list[KernelConfig]"]
"""Returns the config of a plain compile, then those of Inductor's exhaustive list."""


def has_attention(module: Any) -> bool:
    """Return whether a graph calls flex attention, itself or in a submodule."""
    graphs = (each.graph for each in module.modules() if hasattr(each, "graph"))
    return any(getattr(node.target, "__name__", "") in LOWERED for graph in graphs for node in graph.nodes)


def guard(installed: Callable[[], Owner | None], undo: ExitStack) -> None:
    """Have the installed handler choose the configs of flex attention."""
    once_inductor_is_there(lambda: _wrap(installed, undo), undo)


def is_listed() -> bool:
    """Return whether Inductor lists several configs of attention to time; products have a setting more."""
    return bool(inductor_config.max_autotune)


def why_not(config: KernelConfig, op: str, query_block: int, key_block: int) -> str | None:
    """Return why a call cannot have a config; None if it can.

    Args:
        config: the config.
        op: the op whose configs Inductor asks for.
        query_block: queries of a block of the mask, which a kernel's blocks must divide.
        key_block: keys of a block.
    """
    blocks = _blocks(config, op)
    for name, value in blocks.items():
        whole = query_block if name.startswith("block_m") else key_block
        if type(value) is not int or value < 1 or value & (value - 1):
            return f"{name} must be a power of 2, not {value}"
        if whole % value and not (op == DECODING and value > whole):
            return f"{name} {value} does not divide the {whole} of the mask's blocks"
    return None if config.num_stages and config.num_warps else "num_stages and num_warps must be positive"


def with_config(listed: Any, config: KernelConfig, op: str) -> Any:
    """Return an entry of Inductor's list with another config."""
    values = {**_blocks(config, op), "num_stages": config.num_stages, "num_warps": config.num_warps}
    known = {each.name for each in fields(listed)}
    return replace(listed, **{name: value for name, value in values.items() if name in known})


def _blocks(config: KernelConfig, op: str) -> dict[str, Any]:
    """Return the block sizes by the names of Inductor's fields."""
    if op == BACKWARD:
        named = dict(config.kwargs)
        return {f"block_{name}": named.get(f"BLOCK_{name.upper()}") for name in ("m1", "n1", "m2", "n2")}
    return ({"block_m": config.block_m} if op == FORWARD else {}) | {"block_n": config.block_n}


class _OneConfig:
    """Choices handler for the time of one call; everything but attention is the other handler's."""

    def __init__(self, others: Any, find: Callable[[str, Offered], KernelConfig | None]) -> None:
        self._others = others
        self._find = find

    def __getattr__(self, name: str) -> Any:
        return getattr(self._others, name)

    def get_flex_attention_fwd_configs(self, *arguments: Any, **named: Any) -> list[Any]:
        return self._picked(FORWARD, partial(self._others.get_flex_attention_fwd_configs, *arguments, **named))

    def get_flex_decode_configs(self, *arguments: Any, **named: Any) -> list[Any]:
        return self._picked(DECODING, partial(self._others.get_flex_decode_configs, *arguments, **named))

    def get_flex_attention_bwd_configs(self, *arguments: Any, **named: Any) -> list[Any]:
        return self._picked(BACKWARD, partial(self._others.get_flex_attention_bwd_configs, *arguments, **named))

    def _picked(self, op: str, asked: Callable[[], list[Any]]) -> list[Any]:
        listed = asked()
        config = self._find(op, partial(_offered, op, asked)) if listed else None
        return listed if config is None else [with_config(listed[0], config, op)]


_METHODS = {
    FORWARD: "get_flex_attention_fwd_configs",
    DECODING: "get_flex_decode_configs",
    BACKWARD: "get_flex_attention_bwd_configs",
}
"""Methods of Inductor's choices handlers, by op."""


def as_if_cuda(shape: ProblemShape, hardware: Hardware) -> list[KernelConfig]:
    """Return what ``Offered`` does for a problem on a CUDA device, which need not be here."""
    from torch._inductor.choices import InductorChoices

    method = getattr(InductorChoices(), _METHODS[shape.op])
    given = {"head_dim": shape.k, "dtype": getattr(torch, shape.dtype), "device_type": "cuda", "seq_len": shape.m}
    takes = inspect.signature(method).parameters  # torch 2.14 asks for the length, too
    with ExitStack() as stack:
        capability = divmod(capability_of(hardware), 10)
        put_in_place(vars(torch.cuda), "get_device_capability", lambda *_: capability, stack)
        return _offered(shape.op, partial(method, **{name: given[name] for name in takes if name in given}))


def _offered(op: str, asked: Callable[[], list[Any]]) -> list[KernelConfig]:
    with patched(max_autotune=False):
        default = asked()
    with patched(max_autotune=True, max_autotune_flex_search_space="EXHAUSTIVE"):
        return [_config_of(each, op) for each in (*default[:1], *asked())]


def _config_of(listed: Any, op: str) -> KernelConfig:
    """Return an entry of Inductor's list as a config."""
    template = OPS[op].template
    if op == BACKWARD:
        kwargs = tuple((f"BLOCK_{name.upper()}", getattr(listed, f"block_{name}")) for name in ("m1", "m2", "n1", "n2"))
        return KernelConfig(template, num_stages=listed.num_stages, num_warps=listed.num_warps, kwargs=kwargs)
    block_m = listed.block_m if op == FORWARD else None
    return KernelConfig(
        template, block_m=block_m, block_n=listed.block_n, num_stages=listed.num_stages, num_warps=listed.num_warps
    )


def _wrap(installed: Callable[[], Owner | None], undo: ExitStack) -> bool:
    """Wrap the lowerings; return False if they are not registered yet."""
    lowerings = getattr(sys.modules.get(_LOWERING), "lowerings", {})
    operators = [getattr(torch.ops.higher_order, name, None) for name in LOWERED]
    if not all(each in lowerings for each in operators):
        return False
    for operator in operators:
        put_in_place(lowerings, operator, _lowered(lowerings[operator], installed), undo)
    return True


def _lowered(stock: Callable[..., Any], installed: Callable[[], Owner | None]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def lower(*args: Any, **kwargs: Any) -> Any:
        from torch._inductor.virtualized import V

        owner = installed()
        if owner is None:
            return stock(*args, **kwargs)
        with V.set_choices_handler(_OneConfig(V.choices, lambda op, offered: owner.attention(op, args, offered))):
            return stock(*args, **kwargs)

    return lower
