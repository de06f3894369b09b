"""Packages trained further without labels: adapted to poor photos, or narrowed and distilled."""
