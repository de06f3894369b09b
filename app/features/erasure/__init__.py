"""Erasure of people on request, with a signed receipt. See docs/how-to/erase.md."""
