"""Faults in the names that answers are kept and certified under: stale answers, certificates of other networks."""

from __future__ import annotations

from tests.mutation.mutant import Mutant, mutants

MUTANTS: list[Mutant] = [
    *mutants(
        "verdicts",
        "graph/identity.py",
        "graph/test_identity.py",
        {
            "edges do not count": (
                "graph_identity",
                "_write(digest, tuple((number[i] for i in node.inputs)))",
                "_write(digest, len(node.inputs))",
            ),
            "their order does not count": (
                "graph_identity",
                "_write(digest, tuple((number[i] for i in node.inputs)))",
                "_write(digest, tuple(sorted((number[i] for i in node.inputs))))",
            ),
            "shapes do not count": ("graph_identity", "_write(digest, tuple(node.shape))", ""),
            "the output does not count": (
                "graph_identity",
                "_write(digest, (number[graph.input], number[graph.output]))",
                "_write(digest, number[graph.input])",
            ),
            "the sign of zero does not count": ("_write", 'struct.pack("<d", value)', 'struct.pack("<d", value + 0.0)'),
            "types of tensors do not count": (
                "_tensor",
                "(str(value.dtype), tuple(value.shape))",
                "(tuple(value.shape),)",
            ),
            "what cannot be written is left out": (
                "_compound",
                'raise _NotExactError(f"a {_name(type(value))} cannot be written down exactly")',
                "return",
            ),
            "a user's code does not count": ("_object", "_class(sink, base)", "pass"),
        },
        only="not process",
    ),
    *mutants(
        "verdicts",
        "runs/evaluate.py",
        "runs/test_evaluate.py",
        {
            "the model is not in the key": ("asked_of", "subject.sha256", '"any"'),
            "the inputs are not in the key": ("asked_of", "inputs.sha256", '"any"'),
            "a line is believed against the network": (
                "_impossible",
                'above or (answer.verdict == "verified" and clean < 0)',
                "False",
            ),
        },
        only="hangs_on or contradicts",
    ),
    *mutants(
        "verdicts",
        "runs/subject.py",
        "cli/test_asking.py",
        {
            "weights do not count": ("subject", "[weights] if weights else []", "[]"),
            "balls around words are boxes": (
                "Inputs.ball",
                "TokenBall(self.x, eps, tokens, self.ids, p=self.norm)",
                "TokenBall(self.x, eps, tokens, self.ids)",
            ),
        },
        only="another_sentence or balls_around",
    ),
    *mutants(
        "verdicts",
        "runs/subject.py",
        "runs/test_part_radii.py",
        {
            "a patch does not move": ("Inputs.ball", "torch.where(self.moving, each, 0.0)", "0.0 * each * self.moving"),
            "another patch moves": ("Inputs.ball", "torch.where(self.moving, each, 0.0)", "each * self.moving.flip(0)"),
            "what moves does not count": (
                "Inputs.sha256",
                "(self.ids, self.moving)",
                "(self.ids, )",
            ),
        },
        only="alone or counts",
    ),
    *mutants(
        "verdicts",
        "runs/part_radii.py",
        "runs/test_part_radii.py",
        {
            "radii are of the next word": ("_part", "radius.input % parts", "(radius.input + 1) % parts"),
            "words that move are forgotten": (
                "each_alone",
                "mask[torch.arange(len(parts)), torch.tensor(parts.places)] = True",
                "mask[torch.arange(len(parts)), torch.tensor(parts.places)] = False",
            ),
        },
        only="certified_itself or alone",
    ),
    *mutants(
        "verdicts",
        "runs/attention_rows.py",
        "runs/test_attention_rows.py",
        {
            "weights do not move": (
                "_layer",
                "op.score_box(boxes[scores])",
                "Interval(*2 * (op.masked(values[scores]),))",
            ),
            "the least weight is the greatest": (
                "_ranges",
                "torch.where(fine, low, 0.0)",
                "torch.where(fine, high, 0.0)",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "runs/decisions.py",
        "runs/test_decisions.py",
        {
            "the table of words does not count": ("_AskedSentence.about", "self.weights", '"any"'),
            "what the network gets right is a counterexample": (
                "_AskedSentence._require_possible",
                "self.margin(logits) > 0",
                "False",
            ),
        },
        only="another_row or correct_sentence",
    ),
    *mutants(
        "verdicts",
        "runs/sentences.py",
        "runs/test_sentences.py",
        {"the second of two lists counts": ("_once", "len(found) < len(pairs)", "False")},
        only="twice",
    ),
    *mutants(
        "verdicts",
        "runs/python_models.py",
        "runs/test_python_models.py",
        {
            "weights are rounded": ("_copy", "not _same(own, value)", "False"),
            "weights are missing": ("load_weights", "name not in given and _memory(value) not in there", "False"),
        },
        only="have_to_fit",
    ),
    *mutants(
        "verdicts",
        "runs/code_names.py",
        "runs/test_python_models.py",
        {"a file is code": ("is_python_model", "_is_there(text)", "False")},
        only="never_code",
    ),
    *mutants(
        "verdicts",
        "runs/sources.py",
        "runs/test_sources.py",
        {
            "the compiled kernel does not count": (
                "fingerprint",
                "path.suffix in SUFFIXES or (built and path.suffix in BUILT)",
                "path.suffix in SUFFIXES",
            ),
        },
    ),
    *mutants(
        "verdicts",
        "runs/sweep/sweep.py",
        "cli/test_sweep.py",
        {
            "a file is put back": (
                "_recorded",
                "stamps(instance) != task.stamps or digests(instance) != task.files",
                "digests(instance) != task.files",
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
                "Prover.leaf_bounds",
                "-math.inf if math.isnan(bound) else float(bound)",
                "1e9 if math.isnan(bound) else float(bound)",
            ),
        },
    ),
]
