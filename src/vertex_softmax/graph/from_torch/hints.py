"""What would help where a module cannot be read, by the name of the aten op.

Invariant: a hint is true of every model that has the op. Where nothing is known to help, none is given.
"""

from __future__ import annotations

HINTS = {
    "a branch on perturbed values: use relu, clamp or a constant mask": "gt lt ge le eq ne logical_not",
    "an index that depends on perturbed values; if it is the answer, return logits: the property compares them": (
        "argmax argmin topk sort"
    ),
    "only sines and cosines of constants can be read, such as those of positions": "sin cos",
    "it is not continuous": "floor ceil round sign trunc fmod remainder",
    "ids that are perturbed: use perturb='embedding'": "embedding",
    "a random number: the model has to be a function of its input": "rand rand_like randn randn_like bernoulli",
}
"""Hint → the names of the ops it is for."""
NO_HINT = "Vertex has no such op; docs/add-an-op.md tells how one is added"
BY_VALUES = ("data-dependent", "data dependent", "unbacked", "GuardOnDataDependent")
"""What torch.export's errors say where a size or a branch depends on the values of tensors."""


def why_not_traced(error: Exception) -> str:
    """What is said of an error of torch.export, with a remedy where the error is of a kind that has one."""
    reason = str(error).strip().partition("\n")[0]
    said = f"torch.export cannot trace the module: {type(error).__name__}: {reason}"
    if any(word in f"{type(error).__name__} {error}" for word in BY_VALUES):
        said += (
            "\nControl flow and shapes may not depend on the values of tensors: give sizes as Python numbers, and "
            "write branches with relu, clamp or a constant mask."
        )
    return said
