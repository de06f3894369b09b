"""How fast Likeness is here: `likeness bench`. Every figure is a ratio of things that ran in turn in one go."""
