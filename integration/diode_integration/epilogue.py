"""What a vendor's kernel costs beyond itself, where a template would take in what follows the matrix product.

Inductor fuses pointwise operations on a product into a Triton template, but leaves a vendor's kernel a kernel of their
own. It weighs the two by benchmarks; with one choice left there is nothing to weigh. So what the fused kernel saves is
added to the vendor's time before the candidates are ranked: the product is not written to memory and read again, and
one kernel less is launched.

This holds for arithmetic that hides behind memory. What computes more (an exponential, a division) takes a template's
multiprocessors about as long as a kernel of its own takes, and nothing is added for it. Nor is it where a reduction
follows: Inductor makes that a kernel in either case, and its pointwise inputs a part of it. ``docs/fusion.md`` has
what was measured, ``benchmarks/bench_fusion_gpu.py`` measures it.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from torch._inductor import config as inductor_config

from diode_trainer.descriptor import describe

if TYPE_CHECKING:
    from torch.fx import Node

    from diode_store.records import Hardware, Problem

_LAUNCH_US = 1.5
"""What one more kernel costs beyond its traffic: 1.2 to 1.8 us behind products of 16 x 4096, on an H200 with CUDA
graphs."""
_CHEAP = frozenset(
    f"aten.{name}"
    for name in (
        *("abs", "add", "addcmul", "clamp", "clamp_max", "clamp_min", "maximum", "minimum", "mul", "neg", "relu"),
        *("eq", "ge", "gt", "le", "lt", "ne", "hardtanh", "leaky_relu", "rsub", "square", "sub", "where", "_to_copy"),
    )
) | {"prims.convert_element_type"}
_SQUARE = ("aten.pow", 2)
_PRODUCTS = frozenset({"aten.mm", "aten.addmm", "aten.bmm", "aten.baddbmm"})
_KERNELS = _PRODUCTS | {"aten.convolution"}
"""What reads from memory and writes to it, whatever is around."""
_CONSTANTS = frozenset({"aten.full", "aten.scalar_tensor"})
_MOST_NODES = 1000
"""Of a larger neighbourhood nothing is counted, as to look at it would take longer than it could save."""


def unfused_us(problem: Problem, hardware: Hardware) -> float:
    """Return what a vendor's kernel costs beyond its own time for the product that Inductor is lowering, microseconds.

    Args:
        problem: the product.
        hardware: the device; traffic is counted at its memory's bandwidth.
    """
    product = _current_node()
    if product is None or not inductor_config.epilogue_fusion or not _is_followed_cheaply(product):
        return 0.0
    elements = problem.shape.b * problem.shape.m * problem.shape.n
    written_and_read: int = 2 * elements * product.meta["val"].dtype.itemsize
    return _LAUNCH_US + 1e6 * written_and_read / describe(hardware).memory_bandwidth


def _current_node() -> Node | None:
    from torch._inductor.virtualized import V

    return getattr(V.graph, "current_node", None)


def _is_followed_cheaply(product: Node) -> bool:
    """Whether a template would take in everything that is done with a product, at little cost."""
    size = _size(product)
    behind, waiting = {product}, [product]
    bare = {product}  # the product itself, and views of it
    beside: set[Node] = set()
    while waiting and len(behind) + len(beside) < _MOST_NODES:
        node = waiting.pop()
        for user in node.users:
            if user in behind:
                continue
            is_view = _is_view(user)
            if size is not None and _size(user) == size and (is_view or _is_cheap(user)):
                behind.add(user)
                waiting.append(user)
                if is_view and node in bare:
                    bare.add(user)
                elif not is_view and not _is_cheap_beside(user, product, behind, beside):
                    return False
            elif node in bare or not (user.op == "output" or _name(user) in _KERNELS):
                return False
    return not waiting and len(behind) > len(bare)


def _is_cheap_beside(user: Node, product: Node, behind: set[Node], beside: set[Node]) -> bool:
    """Whether all else that a node behind the product needs is read from memory, or cheap as well.

    Inductor makes pointwise inputs a part of the same kernel; and where one of them is a reduction, it prefers to fuse
    the node with that. What follows two products is fused into the one that is computed last.

    Args:
        user: the node.
        product: what is lowered.
        behind: what is known to follow the product.
        beside: what is known to be cheap; gets what is found to be.
    """
    waiting = [user]
    while waiting:
        for needed in waiting.pop().all_input_nodes:
            if needed in behind or needed in beside:
                continue
            name = _name(needed)
            if name in _PRODUCTS and product < needed:
                return False
            beside.add(needed)
            if _is_view(needed) or _is_cheap(needed):
                waiting.append(needed)
            elif needed.op not in {"placeholder", "get_attr"} and name not in _KERNELS | _CONSTANTS:
                return False
    return True


def _name(node: Node) -> str:
    """Return such as ``aten.add``, whatever the overload."""
    return ".".join(str(node.target).split(".")[:2])


def _is_view(node: Node) -> bool:
    return bool(getattr(node.target, "is_view", False)) or _name(node) in {"aten.reshape", "aten._unsafe_view"}


def _is_cheap(node: Node) -> bool:
    return _name(node) in _CHEAP or (_name(node), *node.args[1:2]) == _SQUARE


def _size(node: Node) -> Any:
    """Return the number of elements, as an expression where sizes are symbols; None where it is not known.

    Two that are equal by value may differ as expressions; asking torch could leave a guard in the user's program.
    """
    value = node.meta.get("val")
    shape = getattr(value, "shape", None)
    if shape is None:
        return None
    return math.prod(size if isinstance(size, int) else size.node.expr for size in shape)
