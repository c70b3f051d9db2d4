"""The features of each kind of op: of matrix products, and of attention. A model knows ops of one kind alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from diode_store.ops import OPS
from diode_trainer import attention_features, features
from diode_trainer.card import ATTENTION_PURPOSE, MATMUL_PURPOSE

if TYPE_CHECKING:
    from collections.abc import Collection

    import numpy as np
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


def kind_of(ops: Collection[str]) -> FeatureKind:
    """Return the features of ops of one kind; without ops those of matrix products."""
    return ATTENTION if ops and all(is_attention(op) for op in ops) else PRODUCTS


def can_learn(ops: Collection[str], op: str) -> bool:
    """Return whether a model of ``ops`` has features of ``op``: of any product, or of attention its own op."""
    if kind_of(ops) is ATTENTION:
        return op in ops
    return op in OPS and OPS[op].has_matrices


def is_attention(op: str) -> bool:
    """Return whether an op is attention."""
    return op in OPS and OPS[op].is_attention


def problem_features(shape: ProblemShape, hardware: Hardware) -> Floats:
    """Return the features of a problem alone, shape (P,), in the order of its kind."""
    if is_attention(shape.op):
        return attention_features.attention_problem_features(shape, hardware)
    return features.problem_features(shape, hardware)


def config_features(shape: ProblemShape, hardware: Hardware, columns: ConfigColumns) -> Floats:
    """Return the features of each config on a problem and device, shape (n, C), in the order of its kind."""
    if is_attention(shape.op):
        return attention_features.AttentionInputs(shape, hardware, columns).configs.T
    return features.config_features(shape, hardware, columns)
