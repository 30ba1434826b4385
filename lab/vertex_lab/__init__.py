"""The laboratory: experiments, baselines, fuzzer and soundness bench. It imports the product, never the reverse."""
