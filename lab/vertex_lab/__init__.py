"""The laboratory: experiments, baselines, fuzzer and soundness bench. It imports the product, never the reverse."""

import os

os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")  # as the product does before it imports onnxruntime
