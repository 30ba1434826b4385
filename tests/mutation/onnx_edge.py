"""Faults where an ONNX file is read, expanded, named and replayed: an answer about another model than the file."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "importers",
        "graph/from_onnx/functions.py",
        "graph/test_onnx_functions.py",
        {
            "defaults are dropped": (
                "_write_defaults",
                "(a for a in function.attribute_proto if a.name not in given)",
                "(a for a in function.attribute_proto if a.name in ())",
            ),
            "functions named as operators": (
                "_Check.run",
                "key.domain in taken or key.domain.startswith(RESERVED)",
                "key.domain.startswith('none of them')",
            ),
            "names from outside": ("_Check._names", "name not in known", "name in ()"),
        },
    ),
    *mutants(
        "importers",
        "graph/from_onnx/replay.py",
        "graph/test_onnx_functions.py",
        {
            "the expansion decides": ("_Ratios.__init__", "[*names, ITSELF, OPTIMISED]", "[*names]"),
        },
        only="itself_decides",
    ),
    *mutants(
        "importers",
        "graph/from_onnx/replay.py",
        "graph/test_onnx_original.py",
        {
            "one point for all": ("require_same", "range(len(x))", "range(1)"),
            "no rounding where there is no number": (
                "_Judge._measured",
                "gap = (exact - rough).abs().nan_to_num(torch.inf, torch.inf)",
                "gap = (exact - rough).abs()",
            ),
        },
    ),
    *mutants(
        "importers",
        "graph/from_onnx/ops.py",
        "graph/test_onnx_defaults.py",
        {
            "defaults in double precision": (
                "OnnxCall.get",
                "single(default) if isinstance(default, float) else default",
                "default",
            ),
        },
    ),
    *mutants(
        "importers",
        "graph/from_onnx/parts.py",
        "graph/test_onnx_functions.py",
        {
            "outputs of functions move": (
                "_calls_of",
                "changed.output.extend(name for i, name in enumerate(node.output) if i not in removed)",
                "changed.output.extend(list(node.output)[: len(node.output) - len(removed)])",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "certificate/checker/model.py",
        "certificate/checker/test_model.py",
        {
            "the files beside it do not count": (
                "identity",
                "if not names: return own",
                "if names or not names: return own",
            ),
            "functions keep no numbers elsewhere": (
                "",
                '{7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"}',
                '{7: "GraphProto", 20: "TrainingInfoProto"}',
            ),
            "the first key counts": (
                "locations",
                ("if number in entry:\n    entry[number] = data[begin:stop]"),
                ("if number in entry and (not entry[number]):\n    entry[number] = data[begin:stop]"),
            ),
        },
    ),
    *mutants(
        "verdicts",
        "search/verify_files.py",
        "search/test_verify_files.py",
        {
            "only the first boxes are replayed": (
                "_points",
                "[lower, middle, upper] if len(seen) <= ENDS else [middle]",
                "[lower, middle, upper] if len(seen) <= ENDS else []",
            ),
            "the graph of the verdict is not replayed": (
                "load_instance",
                "require_same(original, graph, points, clock=clock)",
                "require_same(original, made.final, points, clock=clock)",
            ),
        },
    ),
    *mutants(
        "search",
        "search/replay.py",
        "search/test_verify_files.py",
        {
            "one of two runs is enough": (
                "Replay.confirms",
                "_satisfied(case, self._again(inside)) is not None",
                "self._again(inside) is not None",
            ),
        },
        only="counterexample",
    ),
]
