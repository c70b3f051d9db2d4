"""SQL that reads the column ``metrics`` of a published table.

The column is JSON, such as ``{"spills": {"value": 0.0, "unit": "B"}}``.
"""

from __future__ import annotations

_TYPE = '"MAP(VARCHAR, STRUCT(value DOUBLE, unit VARCHAR))"'
_ENTRIES = f"unnest(map_entries(from_json(metrics, '{_TYPE}')))"

NEW_METRICS = f"""
    INSERT INTO metrics
    SELECT row_number() OVER (ORDER BY name, unit) + (SELECT coalesce(max(id), 0) FROM metrics), name, unit
    FROM (
        SELECT DISTINCT entry.key AS name, entry.value.unit AS unit
        FROM (SELECT {_ENTRIES} AS entry FROM (SELECT DISTINCT metrics FROM rows WHERE metrics IS NOT NULL))
    )
    ANTI JOIN (SELECT name, unit FROM metrics) USING (name, unit)
"""  # noqa: S608 - of constants alone
"""Give ids to metrics of the table ``rows`` that the table ``metrics`` lacks."""
METRIC_VALUES = f"""
    SELECT v.measurement_id, v.config_id, m.id AS metric_id, v.entry.value.value AS value
    FROM (SELECT measurement_id, config_id, {_ENTRIES} AS entry FROM timings WHERE metrics IS NOT NULL) AS v
    JOIN metrics AS m ON m.name = v.entry.key AND m.unit = v.entry.value.unit
"""  # noqa: S608 - of constants alone
"""Select the rows of ``metric_values`` from the view ``timings``, which has the column."""
