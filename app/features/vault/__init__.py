"""Encryption at rest, changed: to another key, or to none. See docs/how-to/encrypt.md."""
