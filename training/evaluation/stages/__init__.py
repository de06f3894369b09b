"""How well the stages beside the embedder do: quality and liveness."""
