"""Rewrite an Inductor kernel so that all problems of one kind share it: some of its sizes become arguments.

Inductor writes sizes and strides as numbers, so each problem has kernels of its own, and compiling a kernel takes far
longer than timing it. Here M, N and the batch become arguments. So does K, unless the loop over K has so few turns that
it may be unrolled. The compiler is told what it would see in the numbers: the power of two that divides a row's length.
It is also told that an index is not negative and below a bound. Without the bound it computes addresses by other
instructions.
"""

from __future__ import annotations

import ast
import math
import operator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from diode_collectors.inductor.indexing import MOST_INDEXED
from diode_collectors.problems.kinds import index_bits, k_bits, told_divisor

if TYPE_CHECKING:
    from collections.abc import Callable

_JIT = "triton.jit"
_WORKSPACE = "ws_ptr"
_ITEM_BYTES = {"*fp32": 4, "*fp64": 8}
_HALF_BYTES = 2
_SUFFIX = "_size"
_OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Mult: operator.mul,
}
_STRIDES = {
    "stride_am": "K",
    "stride_ak": "M",
    "stride_bk": "N",
    "stride_bn": "K",
    "stride_aq": "M * K",
    "stride_bq": "N * K",
}
"""Strides of A and B, where they are not 1."""
_OPERANDS = {"A": ("stride_am", "stride_ak"), "B": ("stride_bk", "stride_bn")}
"""Operands in the order in which the loop over K loads them, with the strides of their rows and columns."""
_FEWEST_TURNS = 4
"""Fewest turns of the loop over K for which K becomes an argument."""
_Node = TypeVar("_Node", bound=ast.expr)


@dataclass(frozen=True)
class SharedSource:
    """Source of a kernel, and the values of its arguments beyond Inductor's."""

    code: str
    sizes: tuple[int, ...] = ()


def shared_source(code: str) -> SharedSource:
    """Return a source for all problems that differ only in sizes that become arguments.

    Args:
        code: Module with one ``triton.jit`` function, as Inductor writes it for a matrix product.

    Raises:
        ValueError: the code has another form.
    """
    module = ast.parse(code)
    kernel = _kernel(module)
    known = _constants(kernel.body)
    item_bytes = _ITEM_BYTES.get(ast.literal_eval(_signature(kernel).values[0]), _HALF_BYTES)
    free = _free(known, item_bytes, is_pipelined=ast.literal_eval(_keyword(kernel, "num_stages", ast.Constant)) > 1)
    if not free:
        return SharedSource(code)
    sizes = _Sizes(known, free)
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
    """Return the constants that a function's body assigns to names."""
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
    """Block of the size's dimension; 1 for the batch."""
    bits: int
    """Bits of an index along this dimension (for K: of the size)."""
    told: int = 1
    """Divisor that the compiler is told."""

    @property
    def reaches_twice(self) -> bool:
        """True if the last block reaches no further than twice the size."""
        return 2 * self.value >= self.block


def _free(known: dict[str, Any], item_bytes: int, *, is_pipelined: bool) -> dict[str, _Free]:
    """Return the sizes that become arguments, by name.

    K stays a number without pipelining: TF32 kernels of one stage with K as an argument can give wrong results (triton
    3.6).

    Raises:
        ValueError: there are no sizes.
    """
    try:
        m, n, k = (int(known[name]) for name in "MNK")
    except (KeyError, TypeError) as error:
        raise ValueError(f"a kernel of Inductor's without a number for {error}") from None
    batch = int(known.get("BATCH", 1))
    if batch * max(m * k, k * n, m * n) >= MOST_INDEXED:
        return {}
    is_looped = k >= _FEWEST_TURNS * int(known.get("BLOCK_K", 1))
    bits_of_k = k_bits(m, n, k) if is_looped and is_pipelined else None
    most_k = k if bits_of_k is None else 2**bits_of_k
    is_a_row_major, is_b_row_major = known.get("stride_ak") == 1, known.get("stride_bk") != 1
    # Rows of the output begin at multiples of N. The batch is no stride of what lies in one row.
    is_row_length = {"M": not is_a_row_major, "N": True, "K": is_a_row_major or not is_b_row_major}
    found: dict[str, _Free] = {}
    for name, value in {"M": m, "N": n, "K": k, "BATCH": batch}.items():
        bits = bits_of_k if name == "K" else index_bits(value, most_k)
        if value > 1 and bits is not None:
            told = told_divisor(value, item_bytes) if is_row_length.get(name) else 1
            size = _Free(value, int(known.get(f"BLOCK_{name}", 1)), bits, told)
            if size.reaches_twice or value.bit_count() == 1:
                found[name] = size
    return found


@dataclass
class _Sizes(ast.NodeTransformer):
    """Replacement of numbers in a function's body by arguments."""

    known: dict[str, Any]
    free: dict[str, _Free]
    values: dict[str, int] = field(default_factory=dict)
    """Values of the arguments, by the name of the size."""
    _is_behind_loop: bool = False
    _compared: list[str] = field(default_factory=lambda: ["M", "N"])
    """Sizes to which the code behind the loop compares indices of the output, in this order."""

    def of(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements that replace ``body``."""
        found: list[ast.stmt] = []
        for statement in body:
            replaced = self.visit(statement)
            found += replaced if isinstance(replaced, list) else [replaced]
        return found

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """Keep the kernel's own constants."""
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """Replace the number of a size by its argument, and that of a stride by sizes."""
        target = node.targets[0]
        if not isinstance(target, ast.Name) or not isinstance(node.value, ast.Constant):
            return self.generic_visit(node)
        if target.id in self.free:
            node.value = self._argument(target.id)
        elif target.id in _STRIDES:
            node.value = self._stride(target.id, node.value)
        return node

    def _argument(self, name: str) -> ast.expr:
        size = self.free[name]
        self.values[name] = size.value // size.told
        argument = name + _SUFFIX
        if name == "K":  # the mask bounds the indices that are products with K
            argument = f"({argument} & {2**size.bits // size.told - 1})"
        return _expression(f"{size.told} * {argument}" if size.told > 1 else argument)

    def _stride(self, name: str, number: ast.Constant) -> ast.expr:
        """Return a stride in terms of sizes that are arguments, or its number."""
        sizes = _STRIDES[name].split(" * ")
        value = math.prod(self.known[size] for size in sizes)
        is_theirs = number.value == value and value > 1 and not self.free.keys().isdisjoint(sizes)
        return _expression(_STRIDES[name]) if is_theirs else number

    def visit_For(self, node: ast.For) -> ast.AST:
        """Note the end of the loop over K, behind which numbers are strides of the output."""
        is_inner = not any(isinstance(inner, ast.For) for inner in node.body)
        if is_inner:
            self._name_strides(node.body)
        for index, following in zip(node.body, node.body[1:], strict=False):
            # Only the shape of a column-major operand's index is read.
            if isinstance(index, ast.Assign) and f"{ast.unparse(index.targets[0])}.shape" in ast.unparse(following):
                index.value = _expression("idx_n + idx_m")
        node.body = self.of(node.body)
        self._is_behind_loop = self._is_behind_loop or is_inner
        return node

    def _name_strides(self, body: list[ast.stmt]) -> None:
        """Replace the numbers of A's and of B's stride where a loop computes what it loads by them."""
        start = 0
        for operand, (row, column) in _OPERANDS.items():
            loads = [f"tl.load({operand} + " in ast.unparse(statement) for statement in body]
            if True not in loads:
                return
            end = loads.index(True) + 1
            name = row if self.known.get(column) == 1 else column
            number = self.known.get(name)
            if not isinstance(number, int):
                return
            stride = self._stride(name, ast.Constant(number))
            for statement in body[start:end]:
                _Coefficient(number, stride).visit(statement)
            start = end

    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """Take the branch that the numbers select."""
        try:
            taken = _value(node.test, self.known)
        except KeyError:
            return self.generic_visit(node)
        return self.of(node.body if taken else node.orelse)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Replace the remainder by a size, which is slow for an argument, by an equivalent."""
        if not (isinstance(node.op, ast.Mod) and isinstance(node.right, ast.Name) and node.right.id in self.free):
            return self.generic_visit(node)
        x, name, size = ast.unparse(node.left), node.right.id, self.free[node.right.id]
        if size.reaches_twice:
            return _expression(f"tl.where({x} < {name}, {x}, {x} - {name}) & {2**size.bits - 1}")
        return _expression(f"{x} & ({name} - 1) & {size.block - 1}")  # the size is a power of two

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Keep the numbers of a range, which are those of a block."""
        return node if ast.unparse(node.func) == "tl.arange" else self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Replace the bound of an output index in a kernel that has numbers there."""
        number = node.comparators[0]
        if self._is_behind_loop and isinstance(number, ast.Constant) and self._compared:
            name = self._compared.pop(0)
            if name in self.free and number.value == self.free[name].value:
                node.comparators = [ast.Name(name, ast.Load())]
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        """Replace the strides of the output, and of what is added to it."""
        if not self._is_behind_loop or type(node.value) is not int or node.value <= 1:
            return node
        if "N" in self.free and node.value == self.known["N"]:
            return ast.Name("N", ast.Load())
        if "BATCH" in self.known and "M" in self.free and node.value == self.known["M"] * self.known["N"]:
            return _expression("M * N")
        return node


@dataclass
class _Coefficient(ast.NodeTransformer):
    """Replacement of a number that multiplies an expression."""

    number: int
    replacement: ast.expr

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Replace the left factor, where Inductor writes the number."""
        if isinstance(node.op, ast.Mult) and isinstance(node.left, ast.Constant) and node.left.value == self.number:
            node.left = self.replacement
        return self.generic_visit(node)


def _value(node: ast.expr, known: dict[str, Any]) -> Any:
    """Return the value of a condition.

    Raises:
        KeyError: the condition holds more than known names, numbers, products, comparisons and conjunctions.
    """
    match node:
        case ast.Constant():
            return node.value
        case ast.Name():
            return known[node.id]
        case ast.BoolOp():
            values = [_value(each, known) for each in node.values]
            return all(values) if isinstance(node.op, ast.And) else any(values)
        case ast.BinOp():
            return _OPERATORS[type(node.op)](_value(node.left, known), _value(node.right, known))
        case ast.Compare(ops=[only], comparators=[right]):
            return _OPERATORS[type(only)](_value(node.left, known), _value(right, known))
    raise KeyError(ast.unparse(node))


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _add_arguments(kernel: ast.FunctionDef, names: list[str]) -> None:
    """Add arguments where Inductor puts those of dynamic sizes: behind the tensors, before a workspace."""
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


def _triton_meta(kernel: ast.FunctionDef) -> ast.Dict:
    return _keyword(kernel, "triton_meta", ast.Dict)


def _keyword(kernel: ast.FunctionDef, name: str, kind: type[_Node]) -> _Node:
    for decorator in kernel.decorator_list:
        for keyword in decorator.keywords if isinstance(decorator, ast.Call) else ():
            if keyword.arg == name and isinstance(keyword.value, kind):
                return keyword.value
    raise ValueError(f"no {name} in a kernel of Inductor's")


def _entry(dictionary: ast.expr, name: str, kind: type[_Node]) -> _Node:
    if isinstance(dictionary, ast.Dict):
        for key, value in zip(dictionary.keys, dictionary.values, strict=True):
            if isinstance(key, ast.Constant) and key.value == name and isinstance(value, kind):
                return value
    raise ValueError(f"no {name} in the triton_meta of a kernel of Inductor's")
