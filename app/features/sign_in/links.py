"""Links that sign a browser in."""

SIGN_IN_LINK = "{url}/#code={code}"
"""The address that signs a browser in. Browsers send nothing behind the `#`, but keep it in their history."""
