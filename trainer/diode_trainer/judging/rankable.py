"""Restrict a dataset to the problems that a model was made for: ops of its kind, of upstream's model one op."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diode_store.command_line.render import counted
from diode_store.errors import DatasetError

if TYPE_CHECKING:
    from diode_trainer.artifact import TimingModel
    from diode_trainer.data.dataset import ExampleSet


def rankable(model: TimingModel, dataset: ExampleSet) -> tuple[ExampleSet, str | None]:
    """Return the problems that ``model`` can rank, and a note if there are others.

    Raises:
        DatasetError: the model can rank none of them.
    """
    kept = [i for i, example in enumerate(dataset) if model.can_rank(example.shape)]
    domain = model.card.domain
    knows = f"{model.path.stem} ranks {', '.join(domain.templates)} on {', '.join(domain.ops)}"
    if not kept:
        raise DatasetError(f"{knows} only; of {counted(len(dataset), 'problem')} here none is of these")
    left_out = len(dataset) - len(kept)
    subset = dataset.subset(kept) if left_out else dataset
    if not model.ranks_some:
        return subset, None
    never = {template for example in subset for template in example.templates_that_ran()} - {*domain.templates}
    remarks = [f"{counted(left_out, 'problem')} of {len(dataset):,} left out"] if left_out else []
    remarks += [f"it never chooses {', '.join(sorted(never))}"] if never else []
    return subset, f"note: {knows} only{': ' if remarks else ''}{'; '.join(remarks)}"
