"""A model's predictions for a problem's configs, beside the measured times."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from diode_explorer.judging.models import Load, model_asked, model_named, names_sql
from diode_explorer.pages.page import NotThereError, Parameter
from diode_explorer.pages.problem.picture import config_text
from diode_store.candidates.columns import INT_COLUMNS, ConfigColumns, kwargs_of_text
from diode_store.candidates.operands import has_whole_rows
from diode_store.command_line.render import counted
from diode_store.records import WRITE_FLUSH
from diode_trainer.data.regimes import IN_WRITE_FLUSH, in_regime
from diode_trainer.feature_kinds import kind_of
from diode_trainer.judging.metrics import KS, regrets
from diode_trainer.report.parts import Fact, Facts, Note
from diode_trainer.report.questions import Answer, Extended
from diode_trainer.uncertainty import FEWEST_MEMBERS, Outlook

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from diode_explorer.judging.models import KnownModel, LoadedModel
    from diode_explorer.pages.page import Asked
    from diode_store.records import Hardware, ProblemShape
    from diode_trainer.report.questions import Question
    from diode_trainer.scoring import Prediction, Scorer

_NONE = "(none)"
MODEL = Parameter("model", "model", options=lambda _filters: names_sql(_NONE), unset="the hook's")
COLUMNS = ("predicted_us", "model_place")
"""Columns that a ranking adds to a problem's times."""


@dataclass(frozen=True)
class Ranking:
    """A model, and a problem to rank."""

    model: KnownModel
    loaded: LoadedModel
    scorer: Scorer
    shape: ProblemShape
    hardware: Hardware
    regime: str | None
    """Regime of the measured times and of the predictions."""

    def predict(self, times: Answer) -> Prediction:
        """Return predictions for measured configs, in their regime."""
        rows = times.dicts()
        columns = ConfigColumns.from_rows(
            [(row["template"], *(row[name] or 0 for name in INT_COLUMNS), bool(row["allow_tf32"])) for row in rows],
            [kwargs_of_text(row.get("kwargs")) for row in rows],
        )
        found = self.scorer.predict(self.shape, self.hardware, columns, exact=True)
        return replace(found, runtime_us=in_regime(found.runtime_us, self.regime))

    def beside(self, question: Question, times: Answer, prediction: Prediction) -> Extended:
        """Return the query, with predictions for the configs that it finds; those for ``times`` are known."""
        return Extended(
            question, lambda found: _with_columns(found, prediction if found is times else self.predict(found))
        )

    def facts(self, asked: Asked, times: Answer, prediction: Prediction) -> Facts | Note:
        """Return the model's statements about the measured configs, and the cost of following them."""
        rows, name, predicted = times.dicts(), self.model.name, prediction.runtime_us
        if not np.isfinite(predicted).any():
            return Note(f"{name} knows none of the measured kernels.")
        measured = np.array([row["runtime_us"] for row in rows])
        lost = dict(zip(KS, regrets(measured, prediction.turns(np.arange(len(measured)))), strict=True))
        first = int(predicted.argmin())
        values = {"model": name, "device": self.hardware.name}
        how = "chosen above" if "model" in asked.filters else "the hook's choice"
        facts = [
            Fact("model", name, how, asked.address("model", values)),
            Fact("its first pick", config_text(rows[first]), _times_text(predicted[first], measured[first])),
            Fact("lost by its first pick", _lost_text(lost[1]), f"regret@1 {lost[1]:.4f}"),
            Fact("lost by the best of 5", _lost_text(lost[5]), f"regret@5 {lost[5]:.4f}, tried together"),
            self._best(predicted, measured),
        ]
        facts += self._vendor(rows, predicted, measured)
        facts += self._certainty(prediction, rows)
        return Facts("ranking", "The model's ranking", tuple(facts))

    def _best(self, predicted: NDArray[np.float64], measured: NDArray[np.float64]) -> Fact:
        best = int(measured.argmin())
        place = int((predicted < predicted[best]).sum()) + 1
        text = f"{place:,}" if np.isfinite(predicted[best]) else "never chosen"
        return Fact("place of the best", text, f"of {counted(len(measured), 'config')}")

    def _vendor(
        self, rows: Sequence[dict[str, Any]], predicted: NDArray[np.float64], measured: NDArray[np.float64]
    ) -> list[Fact]:
        vendors = [place for place, row in enumerate(rows) if row["is_vendor"] and np.isfinite(predicted[place])]
        if not vendors:
            return []
        best = min(vendors, key=lambda place: predicted[place])
        return [Fact("vendor kernel", f"{predicted[best]:,.2f} us predicted", f"{measured[best]:,.2f} us measured")]

    def _certainty(self, prediction: Prediction, rows: Sequence[dict[str, Any]]) -> list[Fact]:
        distinct = prediction.without_repeats()
        card, logs = self.model.card, distinct.member_logs
        calibration = None if card is None else card.calibration_on(self.hardware, self.shape.op)
        if calibration is None or len(logs) < FEWEST_MEMBERS:
            return []
        is_vendor = np.array([rows[place]["is_vendor"] for place in distinct.finalists], dtype=bool)
        length = int(np.isfinite(distinct.runtime_us).sum())
        fitted = calibration.at(is_odd=not has_whole_rows(self.shape), length=length)
        likely = Outlook(logs, is_vendor, fitted).p_within_2pct
        return [Fact("within 2%", f"{100 * likely:.0f}% likely", "the model's own estimate")]


def _with_columns(times: Answer, prediction: Prediction) -> Answer:
    """Return measured configs with their predictions and predicted places."""
    predicted = prediction.runtime_us
    places = np.empty(len(predicted), dtype=int)
    places[np.argsort(predicted, kind="stable")] = np.arange(1, len(predicted) + 1)
    said = [
        (float(us), int(place)) if np.isfinite(us) else (None, None)
        for us, place in zip(predicted, places, strict=True)
    ]
    rows = tuple((*row, *more) for row, more in zip(times.rows, said, strict=True))
    return Answer((*times.names, *COLUMNS), rows, times.is_cut)


def ranking_of(asked: Asked, shape: ProblemShape, hardware: Hardware, regime: str | None) -> Ranking | Note | None:
    """Return the model that ranks a problem's configs: the address's, or else the one that the hook would ask.

    A note says why there is none. None means that the visitor wants no ranking.

    Raises:
        NotThereError: there is no model of that name.
    """
    name = asked.filters.get(MODEL.name)
    if name == _NONE:
        return None
    model = model_asked(shape, hardware) if name is None else model_named(name)
    if model is None and name is not None:
        raise NotThereError(f"there is no model {name!r}; `diode models list` shows all models")
    if model is None:
        return Note("No model covers this problem on this device. Choose one above to rank the configs anyway.")
    if model.card is None or kind_of({shape.op}) is not kind_of(model.card.ops):
        return _unusable(model, shape)
    progress = asked.work_out(Load(model.path, model.card.sha256))
    if progress.result is None:
        return _without(model, is_loading=progress.is_under_way, error=progress.error)
    if progress.result.scorer is None:
        return Note(
            f"{model.name} is a model of another kind, which cannot rank single problems. Its own page evaluates it."
        )
    return Ranking(model, progress.result, progress.result.scorer, shape, hardware, regime)


def _unusable(model: KnownModel, shape: ProblemShape) -> Note:
    if model.card is None:
        return Note(f"{model.name} cannot be loaded: {model.error}", is_alarm=True)
    return Note(f"{model.name} knows {', '.join(model.card.ops)}, and ranks no kernels of {shape.op}.")


def cautions(ranking: Ranking) -> Iterator[Note]:
    """Yield warnings about a ranking."""
    if ranking.regime == WRITE_FLUSH:
        yield Note(f"{IN_WRITE_FLUSH.capitalize()}.")
    card = ranking.model.card
    misses = [] if card is None else [miss.detail for miss in card.domain.misses(ranking.shape, ranking.hardware)]
    if misses:
        yield Note(f"This problem is outside the training data of {ranking.model.name}: {'; '.join(misses)}.")
    elif ranking.loaded.has_learned_from(ranking.shape):
        yield Note(f"{ranking.model.name} was trained on this problem, which flatters its ranking.")


def _without(model: KnownModel, *, is_loading: bool, error: str) -> Note | None:
    if is_loading:
        return Note(f"{model.name} is loading. Its ranking will appear here.", is_passing=True)
    return Note(f"{model.name} cannot be loaded: {error}", is_alarm=True) if error else None


def _times_text(predicted_us: float, measured_us: float) -> str:
    return f"{predicted_us:,.2f} us predicted, {measured_us:,.2f} us measured"


def _lost_text(regret: float) -> str:
    return f"{100 * (regret - 1):,.1f}%"
