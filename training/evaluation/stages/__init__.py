"""Measure the stages beside the embedder: liveness, and photos under poor conditions or turned."""
