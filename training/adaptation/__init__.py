"""Train packages further without labels: adapt them to poor photos, or narrow and distil them."""
