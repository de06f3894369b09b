"""Keys: their operations and commands. `app.access.keys` keeps and checks them."""
