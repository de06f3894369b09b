"""Search on a GPU, in copies of large indexes' vectors in its memory."""
