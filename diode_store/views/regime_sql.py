"""The regimes of ``diode_store.records`` as DuckDB macros, for the views and for queries."""

from __future__ import annotations

from diode_store.records import DEPLOYED, REGIMES, UNKNOWN_REGIME, regime_group, regime_rank


def regime_macros() -> str:
    """Return the SQL that makes the macros.

    - ``regime_rank(regime)``: distance of a regime from deployment, from 0.
    - ``is_regime(regime, wanted)``: true if the name ``wanted`` covers the regime; NULL covers all regimes.
    """
    ranks = " ".join(f"WHEN '{regime}' THEN {regime_rank(regime)}" for regime in REGIMES)
    deployed = ", ".join(f"'{regime}'" for regime in REGIMES if regime_group(regime) == DEPLOYED)
    return f"""
        CREATE MACRO regime_rank(regime) AS CASE regime {ranks} ELSE {regime_rank(None)} END;
        CREATE MACRO is_regime(regime, wanted) AS CASE
            WHEN wanted IS NULL THEN true
            WHEN wanted = '{DEPLOYED}' THEN coalesce(regime IN ({deployed}), false)
            ELSE coalesce(regime, '{UNKNOWN_REGIME}') = wanted
        END;
    """
