"""Ways of doing the same work that the service is measured against: the raw limit, the plain way, other libraries."""
