"""The order of the regimes in ``diode_store.records`` as a DuckDB macro, for the views."""

from __future__ import annotations

from diode_store.records import REGIMES, regime_rank


def regime_macro() -> str:
    """Return the SQL that makes ``regime_rank(regime)``: how far a regime is from deployment, from 0."""
    ranks = " ".join(f"WHEN '{regime}' THEN {regime_rank(regime)}" for regime in REGIMES)
    return f"CREATE MACRO regime_rank(regime) AS CASE regime {ranks} ELSE {regime_rank(None)} END;"
