"""The features of each kind of op: matrix products, attention and convolutions. A model knows ops of one kind alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np

from diode_store.ops import OPS
from diode_trainer import attention_features, convolution_features, features
from diode_trainer.card import ATTENTION_PURPOSE, CONVOLUTION_PURPOSE, MATMUL_PURPOSE

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from diode_store.candidates.columns import ConfigColumns
    from diode_store.records import Hardware, ProblemShape

    Floats = NDArray[np.float32]


class FeatureKind(NamedTuple):
    """Names of the features of a kind of op."""

    purpose: str
    """Purpose of the models."""
    version: int
    """Raised with any change to a formula."""
    problem: tuple[str, ...]
    config: tuple[str, ...]


PRODUCTS = FeatureKind(MATMUL_PURPOSE, features.FEATURE_VERSION, features.PROBLEM_FEATURES, features.CONFIG_FEATURES)
ATTENTION = FeatureKind(
    ATTENTION_PURPOSE,
    attention_features.ATTENTION_VERSION,
    attention_features.PROBLEM_FEATURES,
    attention_features.CONFIG_FEATURES,
)
CONVOLUTIONS = FeatureKind(
    CONVOLUTION_PURPOSE,
    convolution_features.CONVOLUTION_VERSION,
    convolution_features.PROBLEM_FEATURES,
    convolution_features.CONFIG_FEATURES,
)


class ListInputs(Protocol):
    """Features of one problem of an op that is learned alone, and of n configs."""

    roofline_us: float
    problem: Floats
    """Shape (P,)."""
    configs: Floats
    """Shape (C, n)."""
    possible: NDArray[np.bool_]
    """Shape (n,): False for configs that are certain to fail."""


def kind_of(ops: Collection[str]) -> FeatureKind:
    """Return the features of ops of one kind; of several kinds, or without ops, those of matrix products."""
    kinds = {_kind(op) for op in ops}
    return kinds.pop() if len(kinds) == 1 else PRODUCTS


def can_learn(ops: Collection[str], op: str) -> bool:
    """Return whether a model of ``ops`` has features of ``op``: of any product, else of its own op."""
    if kind_of(ops) is PRODUCTS:
        return op in OPS and OPS[op].has_matrices
    return op in ops


def is_alone(op: str) -> bool:
    """Return whether an op has models of its own: attention and convolutions."""
    return _kind(op) is not PRODUCTS


def alone_inputs(shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> ListInputs:
    """Return the features of a problem of an op that is learned alone, and of its configs."""
    if OPS[shape.op].is_attention:
        return attention_features.AttentionInputs(shape, hardware, columns)
    return convolution_features.ConvolutionInputs(shape, hardware, columns)


def rows(inputs: ListInputs, some: NDArray[np.intp]) -> Floats:
    """Return the features of some configs, followed by those of the problem and ones, shape (C + P + 1, s)."""
    alike = np.repeat(np.append(inputs.problem, np.float32(1))[:, None], len(some), 1)
    return np.concatenate((inputs.configs[:, some], alike))


def problem_features(shape: ProblemShape, hardware: Hardware) -> Floats:
    """Return the features of a problem alone, shape (P,), in the order of its kind."""
    kind = _kind(shape.op)
    if kind is ATTENTION:
        return attention_features.attention_problem_features(shape, hardware)
    if kind is CONVOLUTIONS:
        return convolution_features.convolution_problem_features(shape, hardware)
    return features.problem_features(shape, hardware)


def config_features(shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> Floats:
    """Return the features of each config on a problem and device, shape (n, C), in the order of its kind."""
    if is_alone(shape.op):
        return alone_inputs(shape, hardware, columns).configs.T
    return features.config_features(shape, hardware, columns)


def _kind(op: str) -> FeatureKind:
    entry = OPS.get(op)
    if entry is None or entry.has_matrices:
        return PRODUCTS
    return ATTENTION if entry.is_attention else CONVOLUTIONS
