"""What a fit minimises: how well runtimes are predicted, and how well the fastest configs are ranked.

Shapes: E members, b problems, n configs of each, padded. Masks say which configs count.
"""

from __future__ import annotations

import torch
from torch import Tensor

_FAR = -1e4
"""A logit that softmax turns into nothing."""


def listwise(predicted: Tensor, target: Tensor, counted: Tensor, temperature: float) -> Tensor:
    """Return the cross entropy of which config is fastest, in units of log runtime.

    ListNet (Cao et al., "Learning to Rank", 2007) on softmin: the target gives each config a probability that
    falls by e for every ``temperature`` of log runtime it is behind, and so does the prediction.

    Args:
        predicted: (E, b, n) log(runtime / roofline).
        target: (b, n) likewise, measured.
        counted: (b, n) which configs exist and ran.
        temperature: how far behind still counts, in log runtime.

    Returns:
        (E, b)
    """
    goal = torch.softmax((-target / temperature).masked_fill(~counted, _FAR), -1)
    log_predicted = torch.log_softmax((-predicted / temperature).masked_fill(~counted, _FAR), -1)
    return -(goal * log_predicted.masked_fill(~counted, 0)).sum(-1) * temperature


def regression(predicted: Tensor, target: Tensor, weight: Tensor, delta: float) -> Tensor:
    """Return the weighted mean Huber loss of log runtimes, in units of log runtime.

    Args:
        predicted: (E, b, n) log(runtime / roofline).
        target: (b, n) likewise, measured.
        weight: (b, n) how much each config counts; 0 for padding and failures, little for estimates.
        delta: from what error on, in log runtime, the loss grows linearly.

    Returns:
        (E, b)
    """
    loss = torch.nn.functional.huber_loss(predicted, target.expand_as(predicted), reduction="none", delta=delta)
    share = weight / weight.sum(-1, keepdim=True).clamp(min=1e-12)
    return (loss * share).sum(-1) / delta
