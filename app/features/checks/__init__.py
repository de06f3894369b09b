"""Checks of what is enrolled: the index against the database, and faces whose crops show no upright face."""
