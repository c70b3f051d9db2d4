"""Predictions for measured problems as the hook makes them, which does not know how a measurement was routed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_trainer.routing import predict_unrouted, unrouted

if TYPE_CHECKING:
    from diode_trainer.artifact import TimingModel
    from diode_trainer.data.dataset import Examples
    from diode_trainer.scoring import Prediction, Scorer


def predict_as_compiled(model: Scorer | TimingModel, example: Examples, *, exact: bool = False) -> Prediction:
    """Predict a problem's configs without the skew of the measurement.

    Args:
        model: model to ask.
        example: problem.
        exact: let all members score every config.
    """
    hardware, columns = example.hardware, example.columns
    how = {"exact": True} if exact else {}
    return predict_unrouted(lambda shape: model.predict(shape, hardware, columns, **how), unrouted(example.shape))
