"""Create, list, rotate and revoke API keys, over REST and by command. `app.access.keys` stores and checks them."""
