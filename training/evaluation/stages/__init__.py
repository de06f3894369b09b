"""How well the stages beside the embedder do: liveness, and any photo under poor conditions."""
