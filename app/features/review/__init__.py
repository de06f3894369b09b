"""Reviews of galleries: what in them is probably wrong, and how well they tell people apart."""
