"""Measuring: the same work for our engine and for others, in turn, against what the machine allows.

Doors: `compare.run` (all peers), `neighbours.run` (beside busy processes), `report.render` (a record as a table).
"""
