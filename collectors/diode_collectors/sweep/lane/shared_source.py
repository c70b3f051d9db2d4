"""Makes of Inductor's kernel for one problem one for all problems of its kind: some of its sizes become arguments.

Inductor writes sizes and strides into a kernel's source as numbers, so that each problem has kernels of its own; but
compiling one takes a hundred times as long as timing it. Here the sizes that are no stride in the loop over K become
arguments: M where A's rows are contiguous, N where B's columns are as well, and the batch. K stays a number, since the
loop over it may be unrolled. What the compiler makes of the others' numbers it is told: which power of two divides N,
and that an index is not negative and less than a bound, without which it computes addresses by other instructions.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any, TypeVar

_JIT = "triton.jit"
_WORKSPACE = "ws_ptr"
_ACCESS_BYTES = 16
_ITEM_BYTES = {"*fp32": 4, "*fp64": 8}
_HALF_BYTES = 2
_BITS = (16, 12, 18)
"""Of the bound of an index, in the order in which they are tried."""
_MOST = 2**31
"""Of what is computed in 32 bits."""
_SUFFIX = "_size"
_BATCH_STRIDES = frozenset({"stride_aq", "stride_bq"})
_Node = TypeVar("_Node", bound=ast.expr)


@dataclass(frozen=True)
class SharedSource:
    """The source of a kernel, and the values of the arguments that it has beside Inductor's, none if it has none."""

    code: str
    sizes: tuple[int, ...] = ()


def shared_source(code: str) -> SharedSource:
    """Return a source that serves all problems which differ only in sizes that become arguments.

    Args:
        code: a module with one ``triton.jit`` function, as Inductor writes it for a matrix product.

    Raises:
        ValueError: it is not as Inductor writes it.
    """
    module = ast.parse(code)
    kernel = _kernel(module)
    known = _constants(kernel.body)
    free = _free(known)
    if not free:
        return SharedSource(code)
    item_bytes = _ITEM_BYTES.get(ast.literal_eval(_signature(kernel).values[0]), _HALF_BYTES)
    sizes = _Sizes(known, free, _ACCESS_BYTES // item_bytes)
    kernel.body = sizes.of(kernel.body)
    _add_arguments(kernel, [name + _SUFFIX for name in sizes.values])
    return SharedSource(ast.unparse(ast.fix_missing_locations(module)), tuple(sizes.values.values()))


def _kernel(module: ast.Module) -> ast.FunctionDef:
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef)]
    found = [node for node in functions if any(ast.unparse(each) == _JIT for each in node.decorator_list)]
    if len(found) != 1:
        raise ValueError(f"{len(found)} kernels in a module of Inductor's")
    return found[0]


def _constants(body: list[ast.stmt]) -> dict[str, Any]:
    """Return the numbers and other constants that names of a function's body begin with."""
    found: dict[str, Any] = {}
    for node in body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                found.setdefault(target.id, node.value.value)
    return found


@dataclass(frozen=True)
class _Free:
    """A size that becomes an argument."""

    value: int
    block: int
    """Of its dimension; 1 of the batch."""
    bits: int
    """It is at most 2 to the power of these, and so is an index along it times K at most what 32 bits hold."""


def _free(known: dict[str, Any]) -> dict[str, _Free]:
    """Return the sizes that become arguments, by name.

    Raises:
        ValueError: there are no sizes.
    """
    try:
        m, n, k = (int(known[name]) for name in "MNK")
    except (KeyError, TypeError) as error:
        raise ValueError(f"a kernel of Inductor's without a number for {error}") from None
    if max(m * k, k * n, m * n) >= _MOST:
        return {}
    has_descriptors = _has_descriptors(known)
    sizes = {"M": m} if has_descriptors or known.get("stride_ak") == 1 else {}
    sizes |= {"N": n} if has_descriptors or ("M" in sizes and known.get("stride_bk") == 1) else {}
    sizes |= {"BATCH": known["BATCH"]} if "BATCH" in known else {}
    found: dict[str, _Free] = {}
    for name, value in sizes.items():
        block = int(known.get(f"BLOCK_{name}", 1))
        bits = next((bits for bits in _BITS if value <= 2**bits and k * 2**bits <= _MOST), None)
        has_remainder = has_descriptors or value >= block or value.bit_count() == 1
        if value > 1 and bits is not None and has_remainder:
            found[name] = _Free(value, block, bits)
    return found


def _has_descriptors(known: dict[str, Any]) -> bool:
    """Whether a kernel loads through tensor descriptors, to which sizes and strides are arguments anyway."""
    return "A_ROW_MAJOR" in known


@dataclass
class _Sizes(ast.NodeTransformer):
    """Replaces numbers of a function's body by arguments."""

    known: dict[str, Any]
    free: dict[str, _Free]
    most_told: int
    """The largest power of two that the compiler is told to divide a size: no load is wider."""
    values: dict[str, int] = field(default_factory=dict)
    """Of the arguments, by the name of what they are sizes of."""
    _is_behind_loop: bool = False

    def of(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements that take the place of ``body``."""
        found: list[ast.stmt] = []
        for statement in body:
            replaced = self.visit(statement)
            found += replaced if isinstance(replaced, list) else [replaced]
        return found

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Leave the kernel's own constants."""
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Replace the number of a size by its argument, and that of a batch's stride by a product of sizes."""
        target = node.targets[0]
        if not isinstance(target, ast.Name) or not isinstance(node.value, ast.Constant):
            return self.generic_visit(node)
        if target.id in self.free:
            node.value = self._argument(target.id)
        elif target.id in _BATCH_STRIDES:
            node.value = self._product(node.value)
        return node

    def _argument(self, name: str) -> ast.expr:
        value = self.free[name].value
        # Rows of the output begin at multiples of N; M and the batch are no stride of what lies in one row.
        told = min(value & -value, self.most_told) if name == "N" else 1
        self.values[name] = value // told
        return _expression(f"{told} * {name}{_SUFFIX}" if told > 1 else name + _SUFFIX)

    def _product(self, number: ast.Constant) -> ast.expr:
        for one, other in ("MK", "KN", "MN"):
            if number.value == self.known[one] * self.known[other] and self.free.keys() & {one, other}:
                return _expression(f"{one} * {other}")
        return number

    def visit_For(self, node: ast.For) -> ast.AST:
        """Note the end of the loop over K, behind which numbers are strides of the output."""
        for index, following in zip(node.body, node.body[1:], strict=False):
            # A column-major operand's index is not read, but for its shape.
            if isinstance(index, ast.Assign) and f"{ast.unparse(index.targets[0])}.shape" in ast.unparse(following):
                index.value = _expression("idx_n + idx_m")
        node.body = self.of(node.body)
        self._is_behind_loop = self._is_behind_loop or not any(isinstance(inner, ast.For) for inner in node.body)
        return node

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """Take the branch that the numbers take."""
        names = {name.id for name in ast.walk(node.test) if isinstance(name, ast.Name)}
        if not names <= self.known.keys() or any(isinstance(part, ast.Call) for part in ast.walk(node.test)):
            return self.generic_visit(node)
        code = compile(ast.Expression(node.test), "<condition>", "eval")
        taken = eval(code, {"__builtins__": {}}, self.known)  # noqa: S307 - of Inductor's own source
        return self.of(node.body if taken else node.orelse)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Replace the remainder by a size, which costs more where that is no number, by what comes to the same."""
        if not (isinstance(node.op, ast.Mod) and isinstance(node.right, ast.Name) and node.right.id in self.free):
            return self.generic_visit(node)
        x, name, size = ast.unparse(node.left), node.right.id, self.free[node.right.id]
        if size.value >= size.block:  # the last block reaches no further than twice the size
            return _expression(f"tl.where({x} < {name}, {x}, {x} - {name}) & {2**size.bits - 1}")
        return _expression(f"{x} & ({name} - 1) & {size.block - 1}")  # a power of two

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Replace the strides of the output, and of what is added to it."""
        if not self._is_behind_loop or type(node.value) is not int or node.value <= 1:
            return node
        if "BATCH" in self.known and node.value == self.known["M"] * self.known["N"]:
            return self._product(node)
        # A kernel with descriptors masks the output by M there.
        for name in ("N", "M") if _has_descriptors(self.known) else ("N",):
            if name in self.free and node.value == self.free[name].value:
                return ast.Name(name, ast.Load())
        return node


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _add_arguments(kernel: ast.FunctionDef, names: list[str]) -> None:
    """Add arguments where Inductor has those of its own sizes: behind the tensors, before a workspace."""
    there = [argument.arg for argument in kernel.args.args]
    at = there.index(_WORKSPACE) if _WORKSPACE in there else len(there)
    kernel.args.args[at:at] = [ast.arg(name) for name in names]
    signature = _signature(kernel)
    signature.keys[at:at] = [ast.Constant(name) for name in names]
    signature.values[at:at] = [ast.Constant("i32")] * len(names)
    for attributes in _entry(_triton_meta(kernel), "configs", ast.List).elts:
        for key in attributes.keys if isinstance(attributes, ast.Dict) else ():
            position = key.elts[0] if isinstance(key, ast.Tuple) else None
            if isinstance(position, ast.Constant) and isinstance(position.value, int) and position.value >= at:
                position.value += len(names)


def _signature(kernel: ast.FunctionDef) -> ast.Dict:
    return _entry(_triton_meta(kernel), "signature", ast.Dict)


def _triton_meta(kernel: ast.FunctionDef) -> ast.expr:
    for decorator in kernel.decorator_list:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if keyword.arg == "triton_meta":
                return keyword.value
    raise ValueError("no triton_meta in a kernel of Inductor's")


def _entry(dictionary: ast.expr, name: str, kind: type[_Node]) -> _Node:
    if isinstance(dictionary, ast.Dict):
        for key, value in zip(dictionary.keys, dictionary.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == name and isinstance(value, kind):
                return value
    raise ValueError(f"no {name} in the triton_meta of a kernel of Inductor's")
