"""Links that sign a browser in."""

SIGN_IN_LINK = "{url}/#code={code}"
"""Signs a browser in. Browsers send nothing behind the `#`, but keep it in their history."""
