"""The service."""

import os

# Without this, ONNX Runtime's wheels report to their maker, and keep an identifier in the home folder. It must be set
# before they are loaded, so it is here, where every import of `app` begins (`training` imports `app`, too).
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
