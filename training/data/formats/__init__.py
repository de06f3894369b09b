"""Readers of the formats that sets of crops come in."""
