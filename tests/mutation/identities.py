"""Faults in the names that answers are kept and certified under: stale answers, certificates of other networks."""

from __future__ import annotations

from .mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "verdicts",
        "graph/identity.py",
        "graph/test_identity.py",
        {
            "edges do not count": (
                "_write(found, tuple(number[i] for i in node.inputs))",
                "_write(found, len(node.inputs))",
            ),
            "their order does not count": (
                "_write(found, tuple(number[i] for i in node.inputs))",
                "_write(found, tuple(sorted(number[i] for i in node.inputs)))",
            ),
            "shapes do not count": ("        _write(found, tuple(node.shape))\n", ""),
            "the output does not count": (
                "_write(found, (number[graph.input], number[graph.output]))",
                "_write(found, number[graph.input])",
            ),
            "the sign of zero does not count": (
                '_bytes(sink, "float", struct.pack("<d", value))',
                '_bytes(sink, "float", struct.pack("<d", value + 0.0))',
            ),
            "types of tensors do not count": (
                '_parts(sink, "tensor", (str(value.dtype), tuple(value.shape)))',
                '_parts(sink, "tensor", (tuple(value.shape),))',
            ),
            "what cannot be written is left out": (
                'raise _NotExactError(f"a {_name(type(value))} cannot be written down exactly")',
                "return",
            ),
            "a user's code does not count": ("            _class(sink, base)\n", "            pass\n"),
        },
        only="not process",
    ),
    *mutants(
        "verdicts",
        "runs/evaluate.py",
        "runs/test_evaluate.py",
        {
            "the model is not in the key": ('        "model": subject.sha256,\n', ""),
            "the inputs are not in the key": ('        "data": inputs.sha256,\n', ""),
            "a line is believed against the network": (
                'return above or (answer.verdict == "verified" and clean < 0)',
                "return False",
            ),
        },
        only="hangs_on or contradicts",
    ),
    *mutants(
        "verdicts",
        "sources.py",
        "test_sources.py",
        {
            "the compiled kernel does not count": (
                "if path.suffix in SUFFIXES or (built and path.suffix in BUILT):",
                "if path.suffix in SUFFIXES:",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "sweep.py",
        "test_cli_sweep.py",
        {
            "a file is put back": (
                "if stamps(instance) != task.stamps or digests(instance) != task.files:",
                "if digests(instance) != task.files:",
            ),
        },
        only="put_back",
    ),
    *mutants(
        "proofs",
        "certificate/prove.py",
        "certificate/test_depth.py",
        {
            "a leaf without a bound is overlooked": (
                "worst = min(worst, -math.inf if math.isnan(bound) else bound)",
                "worst = min(worst, bound)",
            ),
        },
    ),
]
