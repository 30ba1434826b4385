"""What would help where an operator of an ONNX file cannot be read.

Invariant: a hint is true of every model that has the operator. Where nothing is known to help, none is given.
"""

from __future__ import annotations

from vertex_softmax.graph.problems import hint_for

HINTS = {
    "an index that depends on the input; if it is the answer, export the scores: the property compares them": (
        "ArgMax ArgMin TopK NonMaxSuppression"
    ),
    "control flow: export the model with fixed sizes and without branches": "If Loop Scan",
    "it quantises by what its input happens to be, which cannot be bounded: quantise statically, in the form QDQ": (
        "DynamicQuantizeLinear"
    ),
    "arithmetic of integers: quantise the model in the form QDQ (QuantizeLinear and DequantizeLinear)": (
        "QLinearMatMul QLinearConv MatMulInteger ConvInteger QLinearAdd QLinearMul QGemm QLinearSigmoid "
        "QLinearGlobalAveragePool QLinearLeakyRelu QLinearSoftmax QLinearConcat QAttention DynamicQuantizeMatMul"
    ),
    "recurrent networks are not supported": "LSTM GRU RNN",
    "a random number: the model has to be a function of its input": (
        "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial"
    ),
}
"""Hint → the operators it is for."""
NO_HINT = "the operator is not supported; docs/add-an-op.md tells how one is added"
FUSED = "a fused operator of onnxruntime: save the model before onnxruntime optimises it"


def why_unknown(domain: str, kind: str) -> str:
    """Why an operator that has no translation cannot be read."""
    return hint_for(kind, HINTS, FUSED if domain == "com.microsoft" else NO_HINT)
