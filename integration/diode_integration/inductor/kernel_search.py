"""Find one named kernel among Inductor's candidates, here or as if on another device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from torch._inductor import config as inductor_config

from diode_collectors.inductor.adapter import columns_of_choices, config_of_ktc
from diode_integration.inductor.as_if_cuda import template_of
from diode_integration.inductor.listing import EXHAUSTIVE, uid_of
from diode_store.candidates.columns import INT_COLUMNS
from diode_store.kernels import agrees

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch._inductor.kernel_template_choice import KernelTemplateChoice

    from diode_integration.inductor.listing import CandidateOffer, Lister
    from diode_store.candidates.columns import ConfigColumns
    from diode_store.kernels import KernelConfig


def find(lister: Lister, config: KernelConfig) -> KernelTemplateChoice | None:
    """Return the candidate of a call that is ``config``, or None if Inductor lists none, not even when EXHAUSTIVE.

    Parameters that ``config`` does not name may have any value, since not every source of timings names all of them.
    """
    offer = lister.offer
    for uid in offer.generators:
        if uid_of(uid) != config.template:
            continue
        if config.is_vendor:
            return next(iter(offer.stock(uid)), None)
        stock = offer.stock(uid)
        found = _among(stock, columns_of_choices(stock), config)
        if found is None:
            expanded = lister.expanded(uid, EXHAUSTIVE)
            found = _among(expanded, expanded.columns, config)
        if found is not None:
            return found
    return None


def is_listed_elsewhere(lister: Lister, config: KernelConfig) -> bool:
    """Return whether the device to choose for would list ``config``, while another device compiles.

    If that cannot be told, the answer is yes: the kernel was timed on that device for this very problem.
    """
    offer = lister.offer
    if any(uid_of(uid) == config.template for uid in offer.generators):
        return find(lister, config) is not None
    if config.template == template_of(lister.problem, lister.device):
        listed = lister.as_if_on_cuda(config.template, EXHAUSTIVE)
        return _among(listed, listed.columns, config) is not None
    return not is_switched_off(config.template)


def is_switched_off(template: str) -> bool:
    """Return whether Inductor's configuration keeps a template from being listed, as with TMA templates by default."""
    return "_tma" in template and not inductor_config.triton.enable_persistent_tma_matmul


def source_of(offer: CandidateOffer, template: str) -> str | None:
    """Return the hash of a template's source in this torch; None for C++ and vendor kernels, which have none."""
    from torch._inductor.select_algorithm import TritonTemplate  # circular at module level

    known: list[Any] = [*offer.templates, *TritonTemplate.all_templates.values()]
    return next((getattr(each, "src_hash", None) for each in known if uid_of(each.uid) == template), None)


def _among(
    ktcs: Sequence[KernelTemplateChoice], columns: ConfigColumns, config: KernelConfig
) -> KernelTemplateChoice | None:
    """Return the candidate that is ``config``, else the first that agrees with all parameters ``config`` names."""
    close = np.ones(len(ktcs), np.bool_)
    for name in INT_COLUMNS:
        wanted = getattr(config, name)
        if wanted is not None:
            close &= getattr(columns, name) == wanted
    found = [(ktcs[index], config_of_ktc(ktcs[index])) for index in np.flatnonzero(close).tolist()]
    exact = (ktc for ktc, each in found if each == config)
    return next(exact, next((ktc for ktc, each in found if agrees(each, config)), None))
