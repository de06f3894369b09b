"""Prepare a set for training: align and check it, find its overlap with another set, blend crops."""
