"""Settings of the hook: one frozen object that code, the environment and `diode doctor` share.

| variable | option |
|---|---|
| DIODE_MODE | ``mode`` |
| DIODE_TOP_K | ``top_k_configs`` |
| DIODE_UNKNOWN | ``unknown`` |
| DIODE_MODEL | ``model_path`` |
| DIODE_CLOCK | ``clock`` |
| DIODE_CORRECTIONS | ``corrections`` |
| DIODE_SPOOL | ``spool`` |
| DIODE_PICKS | ``picks`` |
| DIODE_PLAIN | ``plain`` |

A variable stands in for an option that code does not give. If code gives any option about how many candidates to
benchmark, neither DIODE_MODE nor DIODE_TOP_K is read.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diode_integration.decide.abstention import Unknown, parse_unknown
from diode_integration.decide.clock import Clock
from diode_integration.decide.models import KnownModel, ModelSet, known_files
from diode_integration.decide.notices import gpus_here
from diode_integration.decide.ranking import Model
from diode_store.devices.known import describe, find_device
from diode_store.errors import DiodeError, ModelError, NoHardwareError, PicksError, SettingsError
from diode_store.exchange.picks import Picks
from diode_store.exchange.picks_reading import read_picks
from diode_store.system.files import expanded
from diode_store.values import safely
from diode_trainer import artifact, catalogue
from diode_trainer.card import MATMUL_PURPOSE
from diode_trainer.corrections.corrections import Corrections, read_corrections
from diode_trainer.policy import Mode, Policy, make_policy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from diode_store.records import Hardware

log = logging.getLogger("diode_integration")

EXHAUSTIVE, DEFAULT, INHERIT = "EXHAUSTIVE", "DEFAULT", "inherit"
VARIABLES: Mapping[str, str] = {
    "mode": "DIODE_MODE",
    "top_k_configs": "DIODE_TOP_K",
    "unknown": "DIODE_UNKNOWN",
    "model_path": "DIODE_MODEL",
    "clock": "DIODE_CLOCK",
    "corrections": "DIODE_CORRECTIONS",
    "spool": "DIODE_SPOOL",
    "picks": "DIODE_PICKS",
    "plain": "DIODE_PLAIN",
}
"""Option → environment variable that stands in for it."""
_PLAIN: Mapping[bool | str | None, bool] = {None: True, True: True, False: False, "1": True, "0": False}
_HOW_MANY = ("mode", "top_k_configs", "performance_threshold", "kernel_price")


@dataclass(frozen=True)
class HookSettings:
    """Options of the hook.

    Raises:
        SettingsError: there is no such search space.
    """

    model_path: Path | str | None = None
    """Checkpoint or a model's name. None: for each product the first of the user's and the shipped models that knows
    the product and the device (`diode models list`)."""
    top_k_configs: int | str | None = None
    """Number of candidates left in "top_k" mode; None: 3. The environment gives text."""
    enable_fallback: bool = True
    """Without a usable model, leave everything to stock Inductor; if False, raise when the handler is made. Nothing is
    raised inside a compile in either case."""
    performance_threshold: float | None = None
    """Largest ratio to the best prediction that "top_k" mode leaves; None: 1.1."""
    mode: Mode | str | None = None
    """"adaptive": leave one candidate if the model is sure, else as many as are worth benchmarking. "top_k": leave a
    fixed number. "zero": leave exactly one and benchmark nothing. None: "adaptive", or "top_k" if one of its options is
    given or the model does not know how sure it is."""
    kernel_price: float | None = None
    """Relative gain for which "adaptive" mode benchmarks one more kernel: 0.01 is 1%. None: the price on the
    model's card."""
    search_space: str = EXHAUSTIVE
    """List of Triton kernels to rank: Inductor's "EXHAUSTIVE" or "DEFAULT" list, or ("inherit") the list that its
    configuration asks for."""
    hardware: Hardware | str | None = None
    """Rank as if on this device, by name or alias; None: the device that compiles."""
    unknown: Unknown | str | None = None
    """Who chooses when the model abstains, and for ops that no model ranks. "vendor": the hook keeps the vendor kernel
    alone. "stock": Inductor. "auto": the hook keeps the vendor kernel where tuning could gain little; Inductor tunes
    elsewhere and on unknown devices. None: "vendor" in zero mode, "auto" in the others."""
    observe: bool = False
    """Rank and record decisions, but let stock Inductor choose."""
    corrections: Path | str | None = None
    """File by `diode corrections` that corrects the model's predictions."""
    spool: Path | str | None = None
    """Folder that `diode-ingest` reads, for a record of each decision; "" for none."""
    picks: Picks | Path | str | None = None
    """File by `diode lock` or ``torch_diode.lock``, whose kernels are kept before the model is asked; "" for none.
    None: the file that `diode tune` made for a GPU of this machine, if there is one."""
    plain: bool | str | None = None
    """Let picks and models of flex attention, and picks of fused kernels, serve compiles without max-autotune as well;
    None: True. The environment gives text, "1" or "0"."""
    clock: Clock | str | None = None
    """"deployed": torch-diode's clock times the candidates that are left, on NVIDIA GPUs. "inductor": Inductor's
    benchmark does. None: "deployed"."""
    model: Model | Sequence[KnownModel] | None = None
    """Loaded model, or several in the order in which they are asked, instead of ``model_path``."""
    from_environment: frozenset[str] = frozenset()
    """Names of the options that environment variables set."""

    def __post_init__(self) -> None:
        """Check the search space."""
        if self.search_space not in {EXHAUSTIVE, DEFAULT, INHERIT}:
            known = f"{EXHAUSTIVE}, {DEFAULT} or {INHERIT}"
            raise SettingsError(f"search_space must be {known}, not {self.search_space!r}")
        if self.plain not in _PLAIN:
            name = VARIABLES["plain"] if "plain" in self.from_environment else "plain"
            raise SettingsError(f"{name} must be 1 or 0, not {self.plain!r}")

    @classmethod
    def of(cls, **options: Any) -> HookSettings:
        """Return the given options, completed from the environment."""
        given = cls(**options)
        found = {name: text for name, variable in VARIABLES.items() if (text := os.environ.get(variable))}
        if os.environ.get(VARIABLES["picks"]) == "":
            found["picks"] = ""
        if any(getattr(given, name) is not None for name in _HOW_MANY):
            found = {name: text for name, text in found.items() if name not in _HOW_MANY}
        if given.model is not None:
            found.pop("model_path", None)
        found = {name: text for name, text in found.items() if getattr(given, name) is None}
        changes: dict[str, Any] = {**found, "from_environment": frozenset(found)}
        return replace(given, **changes)

    def device(self) -> Hardware | None:
        """Return the named device; None for the device that compiles.

        Raises:
            HardwareError: no device has the name, or several devices have it and the models decide for none.
        """
        if not isinstance(self.hardware, str):
            return self.hardware
        try:
            return find_device(self.hardware, catalogue.covered_devices())
        except NoHardwareError:
            why = f"no device is known by the name {self.hardware!r}; pass a Hardware record instead"
            raise NoHardwareError(why, self.hardware) from None

    def policy_for(self, models: ModelSet | None) -> Policy:
        """Return the policy, and log it if the models cannot follow it.

        Raises:
            SettingsError: an option or a variable has a value that cannot be used.
        """
        is_sure = models is not None and models.know_their_spread
        top_k = self._top_k()
        try:
            policy = make_policy(
                self.mode, top_k, self.performance_threshold, self.kernel_price, knows_its_spread=is_sure
            )
        except SettingsError as error:
            raise SettingsError(f"{self._prefix('mode', 'top_k_configs')}{error}") from None
        if policy.mode is Mode.ADAPTIVE and models is not None and not is_sure:
            what = f"adaptive mode keeps {policy.top_k_configs} candidates like top_k mode"
            remedy = "train one of several members with `diode-train --folds 5`"
            safely.log(log, logging.WARNING, f"the model does not say how sure it is, so {what}; {remedy}")
        return policy

    def unknown_for(self, mode: Mode) -> Unknown:
        """Return who chooses when the model abstains.

        Raises:
            SettingsError: the option or the variable has a value that cannot be used.
        """
        try:
            return parse_unknown(self.unknown, mode)
        except SettingsError as error:
            raise SettingsError(f"{self._prefix('unknown')}{error}") from None

    @property
    def serves_plain(self) -> bool:
        """True if picks serve compiles without max-autotune as well."""
        return _PLAIN[self.plain]

    def clock_in_use(self) -> Clock:
        """Return the clock that times candidates.

        Raises:
            SettingsError: there is no such clock.
        """
        try:
            return Clock(self.clock or Clock.DEPLOYED)
        except ValueError:
            name = VARIABLES["clock"] if "clock" in self.from_environment else "clock"
            raise SettingsError(f"{name} must be one of {', '.join(Clock)}, not {self.clock!r}") from None

    def checkpoint(self) -> Path | None:
        """Return the checkpoint that a path or a model's name asks for; None if neither is given.

        Raises:
            ModelError: there is no such model.
        """
        named = self.model_path
        if named is None:
            return None
        try:
            if isinstance(named, Path) or os.sep in named:
                return expanded(named, ModelError)
            return catalogue.find_model(named)
        except ModelError as error:
            raise ModelError(f"{self._prefix('model_path')}{error}") from None

    def known_models(self, hardware: Hardware | None) -> Sequence[KnownModel]:
        """Return the models in the order in which they are asked.

        Raises:
            DiodeError: there is no such model, or it cannot be used.
        """
        if self.model is not None:
            return [KnownModel.loaded(self.model)] if isinstance(self.model, Model) else self.model
        path = self.checkpoint()
        if path is not None:
            named = artifact.load(path)
            if named.card.purpose != MATMUL_PURPOSE:
                what = f"a model of {', '.join(named.card.ops)}, which the hook finds by itself"
                raise ModelError(f"{self._prefix('model_path')}{path}: {what}; name one of matrix products")
            return [KnownModel.loaded(named)]
        return [KnownModel.of_file(file) for file in known_files(hardware)]

    def usable_models(self, hardware: Hardware | None) -> tuple[ModelSet | None, str]:
        """Return the models to ask; or, with ``enable_fallback``, None and the reason.

        Args:
            hardware: the device to rank for; None for the device that compiles.

        Raises:
            DiodeError: no model is usable, and ``enable_fallback`` is False.
        """
        note = _note_narrow if self.search_space == EXHAUSTIVE else lambda _model: None
        try:
            known = self.known_models(hardware)
            return ModelSet(known, self._usable_corrections(known), note), ""
        except DiodeError as error:
            if not self.enable_fallback:
                raise
            safely.log(log, logging.WARNING, f"no usable model: {error}")
            return None, str(error)

    def read_picks(self, hardware: Hardware | None) -> Picks | None:
        """Return the picks, which must be of ``hardware`` if that is given; None without any.

        Raises:
            PicksError: the picks cannot be used.
        """
        named = tuned_picks(hardware) if self.picks is None else self.picks
        if not named:
            return None
        try:
            found = named if isinstance(named, Picks) else read_picks(expanded(named, PicksError))
            if hardware is not None and hardware.key != found.device.key:
                where = found.file or "the given picks"
                raise PicksError(f"{where}: picks of {describe([found.device])}, not of {describe([hardware])}")
        except DiodeError as error:
            raise PicksError(f"{self._prefix('picks')}{error}") from None
        return found

    def usable_picks(self, hardware: Hardware | None) -> Picks | None:
        """Return the picks; with ``enable_fallback``, log why they cannot be used and return None.

        Raises:
            PicksError: the picks cannot be used, and ``enable_fallback`` is False.
        """
        try:
            return self.read_picks(hardware)
        except PicksError as error:
            if not self.enable_fallback:
                raise
            safely.log(log, logging.WARNING, f"no picks file is used: {error}")
            return None

    def _usable_corrections(self, models: Sequence[KnownModel]) -> Corrections | None:
        if not self.corrections:
            return None
        try:
            return _corrections_of_one(expanded(self.corrections, ModelError), models)
        except DiodeError as error:
            if not self.enable_fallback:
                raise
            safely.log(log, logging.WARNING, f"predictions are not corrected: {error}")
            return None

    def _top_k(self) -> int | None:
        text = self.top_k_configs
        if not isinstance(text, str):
            return text
        if not text.isdecimal():
            prefix = self._prefix("top_k_configs")
            raise SettingsError(f"{prefix}must be a whole number of at least 1, not {text!r}")
        return int(text)

    def _prefix(self, *options: str) -> str:
        """Return the names of the variables that set some of the options, in front of a message."""
        names = [VARIABLES[option] for option in options if option in self.from_environment]
        return f"{' and '.join(names)}: " if names else ""


def tuned_picks(hardware: Hardware | None) -> Path | None:
    """Return the picks file that `diode tune` made for a device; None without one.

    Args:
        hardware: the device; None for the GPUs of this machine. If their names are unknown, an only file counts.
    """
    with contextlib.suppress(ImportError, OSError):  # platformdirs may be missing in a compiling process
        files = sorted(catalogue.user_picks_dir().glob("*.json"))
        names = {hardware.name} if hardware is not None else gpus_here() if files else set()
        if names is None:
            return files[0] if len(files) == 1 else None
        wanted = set(map(catalogue.user_picks, names))
        return next((file for file in files if file in wanted), None)
    return None


def _corrections_of_one(path: Path, models: Sequence[KnownModel]) -> Corrections:
    """Return the corrections in a file, which must be of one of ``models``."""
    corrections = read_corrections(path)
    if corrections.model_sha256 not in {model.sha256 for model in models}:
        ours = ", ".join(f"{model.card.name} {model.sha256[:12]}…" for model in models)
        raise ModelError(
            f"{path}: these are corrections of {corrections.model_name or 'a model'} {corrections.model_sha256[:12]}…,"
            f" not of {ours}; make them again with `diode corrections`"
        )
    return corrections


def _note_narrow(model: Model) -> None:
    if model.card.narrow_note is not None:
        safely.log(log, logging.WARNING, f"the model {model.card.name}: {model.card.narrow_note}")
