"""The service."""

import os

# ONNX Runtime's own wheels report to its maker over the network, and keep an identifier in the home folder, unless this
# is set before they are loaded: so it stands where everything of `app` begins, which `training` uses too.
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
