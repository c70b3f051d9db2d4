"""An evaluation as one HTML page, and its pictures as Vega-Lite specifications."""
