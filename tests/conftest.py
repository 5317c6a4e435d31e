"""Fixtures that many rooms share."""
