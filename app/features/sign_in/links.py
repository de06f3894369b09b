"""The form of links that sign a browser in."""

SIGN_IN_LINK = "{url}/#code={code}"
"""The address that signs a browser in. Browsers don't send what follows the `#`, but keep it in their history."""
