"""Move faces to another subject of their gallery, and merge two subjects."""
