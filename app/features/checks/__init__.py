"""Check what is enrolled: compare the index with the database, and find faces whose crops show no upright face."""
