"""Faults where an ONNX file is read, expanded, named and replayed: an answer about another model than the file."""

from __future__ import annotations

from .mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "importers",
        "graph/onnx_functions.py",
        "graph/test_onnx_functions.py",
        {
            "defaults are dropped": (
                "node.attribute.extend(a for a in function.attribute_proto if a.name not in given)",
                "node.attribute.extend(a for a in function.attribute_proto if a.name in ())",
            ),
            "functions named as operators": (
                "if key.domain in taken or key.domain.startswith(RESERVED):",
                "if key.domain.startswith('none of them'):",
            ),
            "names from outside": ("if name and name not in known:", "if name and name in ():"),
        },
    ),
    *mutants(
        "importers",
        "graph/onnx_replay.py",
        "graph/test_onnx_functions.py",
        {
            "the expansion decides": (
                "self.names, self.output, self.least = [*names, ITSELF, OPTIMISED], output, least",
                "self.names, self.output, self.least = [*names], output, least",
            ),
        },
        only="itself_decides",
    ),
    *mutants(
        "importers",
        "graph/onnx_replay.py",
        "graph/test_onnx_original.py",
        {
            "one point for all": ("        for i in range(len(x)):", "        for i in range(1):"),
            "no rounding where there is no number": (
                "gap = (exact - rough).abs().nan_to_num(torch.inf, torch.inf)",
                "gap = (exact - rough).abs()",
            ),
        },
    ),
    *mutants(
        "importers",
        "graph/onnx_ops.py",
        "graph/test_onnx_defaults.py",
        {
            "defaults in double precision": (
                "return self.attributes.get(name, single(default) if isinstance(default, float) else default)",
                "return self.attributes.get(name, default)",
            ),
        },
    ),
    *mutants(
        "importers",
        "graph/onnx_parts.py",
        "graph/test_onnx_functions.py",
        {
            "outputs of functions move": (
                "left = [name for i, name in enumerate(node.output) if i not in gone]",
                "left = list(node.output)[: len(node.output) - len(gone)]",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "certificate/checker/model.py",
        "certificate/checker/test_model.py",
        {
            "the files beside it do not count": (
                "    if not names:\n        return own",
                "    if names or not names:\n        return own",
            ),
            "functions keep no numbers elsewhere": (
                '20: "TrainingInfoProto", 25: "FunctionProto"',
                '20: "TrainingInfoProto"',
            ),
            "the first key counts": ("if number in entry:", "if number in entry and not entry[number]:"),
        },
    ),
    *mutants(
        "verdicts",
        "search/verify_files.py",
        "search/test_verify_files.py",
        {
            "only the first boxes are replayed": ("else [middle]", "else []"),
            "the graph of the verdict is not replayed": (
                "        require_same(original, graph, points, clock=clock)",
                "        require_same(original, made.final, points, clock=clock)",
            ),
        },
    ),
    *mutants(
        "search",
        "search/replay.py",
        "search/test_verify_files.py",
        {
            "one of two runs is enough": (
                "(self._again is None or _broken(case, self._again(inside)) is not None)",
                "(self._again is None or self._again(inside) is not None)",
            ),
        },
        only="counterexample",
    ),
]  # fmt: skip
