"""Search on a GPU: copies of large indexes' vectors in its memory."""
