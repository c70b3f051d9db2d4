"""Options of `diode-train`; the default recipes are in ``diode_trainer.commands.recipes``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path  # noqa: TC003 - Typer reads it
from typing import TYPE_CHECKING, Annotated

import typer

from diode_trainer.catalogue import MODEL_SUFFIX
from diode_trainer.commands.reporting import PicturesOption, ReportOption, check_history_picture, destination
from diode_trainer.data.held_out import Split

if TYPE_CHECKING:
    from diode_trainer.report.evaluation.output import Destination

MOST_LEARNING_RATE = 1.0
MOST_WEIGHT_DECAY = 100.0


class ModelType(StrEnum):
    """Types of network to train."""

    DEEP = "deep"
    BASE = "base"


FoldsOption = Annotated[
    int,
    typer.Option(
        "--folds",
        min=0,
        max=50,
        help="5: evaluate on five folds. 1: hold out one fifth. 0: no evaluation.",
    ),
]
ModelTypeOption = Annotated[ModelType, typer.Option("--model-type", help="Network to train.")]


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options for what to train, how to evaluate it, and where the results go."""

    folds: FoldsOption = 5
    split: Annotated[
        Split,
        typer.Option(
            "--split",
            help="Unit that folds hold out: single problems, or families of problems. With as many folds as families, "
            "each fold holds out one family.",
        ),
    ] = Split.PROBLEM
    quick_baselines: Annotated[
        bool, typer.Option("--quick-baselines", help="Compare with the baselines that take seconds, and no others.")
    ] = False
    name: Annotated[
        str | None,
        typer.Option("--name", help="Name of the model.", show_default="the output file's, else the hardware's"),
    ] = None
    output: Annotated[
        Path | None,
        typer.Option("--output", "--model", "-o", help="File (.pt) or folder to write; your models folder by default."),
    ] = None
    force: Annotated[bool, typer.Option("--force", help="Replace an existing model.")] = False
    model_type: ModelTypeOption = ModelType.DEEP
    warm_start: Annotated[
        str,
        typer.Option(
            "--warm-start",
            metavar="MODEL",
            help="Start from this model of other devices, and train on some of its problems again. none: start from "
            "random weights. auto: start from the shipped model if the device is new to it and of the same vendor; "
            "not with --hidden-dim, --num-layers or --members.",
        ),
    ] = "auto"
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**63 - 1, help="Equal seeds give equal models.")] = 42
    device: Annotated[str, typer.Option("--device", help="cpu, cuda, or auto.")] = "cpu"
    resume: Annotated[
        bool,
        typer.Option("--resume/--restart", help="Continue an interrupted run, or start from the beginning."),
    ] = True
    tensorboard: Annotated[
        Path | None,
        typer.Option("--tensorboard", "--log-dir", help="Folder for TensorBoard event files; needs its package."),
    ] = None
    history_picture: Annotated[
        Path | None,
        typer.Option("--history-picture", metavar="FILE", help="Draw the losses of each fit: .png or .svg."),
    ] = None
    report: ReportOption = None
    report_pictures: PicturesOption = None

    def check(self) -> Destination:
        """Check the options before any work is done, and return the destination of the report.

        Raises:
            BadParameter: two options contradict each other, or a file has the wrong suffix.
            ReportError: a picture or the report cannot be written.
        """
        if self.output is not None and self.output.suffix not in {"", MODEL_SUFFIX} and not self.output.is_dir():
            raise typer.BadParameter(
                f"{self.output} ends in {self.output.suffix}; give a file that ends in {MODEL_SUFFIX}, or a folder",
                param_hint="--output",
            )
        to = destination(self.report, self.report_pictures)
        if self.history_picture is not None:
            check_history_picture(self.history_picture)
        if to and not self.folds:
            raise typer.BadParameter("a report needs an evaluation; --folds 0 has none", param_hint="--report")
        return to


@dataclass(frozen=True, kw_only=True)
class RecipeOptions:
    """Changes to a recipe; None keeps its default."""

    epochs: Annotated[int | None, typer.Option("--num-epochs", min=1, max=100_000, help="Most epochs of a fit.")] = None
    batch_size: Annotated[int | None, typer.Option("--batch-size", min=1, max=100_000, help="Problems per step.")] = (
        None
    )
    learning_rate: Annotated[
        float | None, typer.Option("--learning-rate", min=0, max=MOST_LEARNING_RATE, help="Peak learning rate.")
    ] = None
    weight_decay: Annotated[
        float | None, typer.Option("--weight-decay", min=0, max=MOST_WEIGHT_DECAY, help="Weight decay of AdamW.")
    ] = None
    patience: Annotated[
        int | None,
        typer.Option("--patience", min=0, max=100_000, help="Epochs without improvement before a stop; 0: never stop."),
    ] = None
    hidden_dim: Annotated[
        int | None, typer.Option("--hidden-dim", min=1, max=1024, help="Width of each hidden layer.")
    ] = None
    num_layers: Annotated[int | None, typer.Option("--num-layers", min=1, max=16, help="Number of hidden layers.")] = (
        None
    )
    members: Annotated[
        int | None,
        typer.Option("--members", min=1, max=64, help="Networks that a deep model averages; 6 by default."),
    ] = None

    @property
    def gives_dimensions(self) -> bool:
        """True if the options give the network a size, which a warm start takes from its model."""
        return any(given is not None for given in (self.hidden_dim, self.num_layers, self.members))


_WHERE = frozenset(
    {
        "database",
        "output",
        "force",
        "device",
        "resume",
        "tensorboard",
        "history_picture",
        "quick_baselines",
        "report",
        "report_pictures",
        "as_json",
    }
)
"""Options that do not change the model itself."""


def what_was_asked(context: typer.Context) -> dict[str, object]:
    """Return the options that determine the model, for the command line that reproduces it."""
    options = (parameter for parameter in context.command.params if parameter.name not in _WHERE)
    return {option.opts[0]: context.params[option.name] for option in options if option.name in context.params}
