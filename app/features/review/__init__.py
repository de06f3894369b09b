"""Reviews of galleries: find what is probably wrong in them, and measure how well they tell people apart."""
