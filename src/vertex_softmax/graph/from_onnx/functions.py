"""Local functions of an ONNX model: expanded as the standard defines them, or refused.

Invariant: `inlined` returns a model without functions that computes the same as the given one, if the standard, onnx's
inliner and onnxruntime agree on what that is; otherwise it raises. They disagree on the following (onnx 1.23,
onnxruntime 1.31); each of these is refused, except defaults, which are written into the calls first:

- defaults of attributes (`attribute_proto`): onnx's inliner drops them;
- a function with the name of an operator: the inliner calls the function, onnxruntime the operator; in another domain
  and with another number of inputs, onnxruntime crashes;
- a function whose operators have another meaning in the version of the standard that the model imports: onnxruntime
  uses the model's version;
- a body that uses a name from outside the function: both accept it, the standard forbids it;
- an attribute without a value or a default, passed on to a function that has a default: the inliner drops both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NoReturn

from vertex_softmax.foundation.errors import InvalidValueError, UnsupportedModelError
from vertex_softmax.graph.from_onnx.file import packages, valid
from vertex_softmax.graph.from_onnx.ops import TRANSLATE
from vertex_softmax.graph.from_onnx.parts import Key, graphs, local_functions, nodes_within, standard

if TYPE_CHECKING:
    import onnx

RESERVED = ("ai.onnx", "com.microsoft", "com.ms.", "org.pytorch.aten")
"""Prefixes of domains whose operators onnx or onnxruntime define, or may define in a later version."""


def inlined(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The model with its functions expanded; the same object if it has none. `name` names it in errors."""
    _refuse_references(model.graph.node, frozenset(), f"{name} outside of functions")
    if not model.functions:
        return model
    library, _ = packages()
    _Check(model, name).run()
    written = type(model)()
    written.CopyFrom(model)
    _write_defaults(written)
    for function in written.functions:  # each of its operators is the same in both versions
        function.ClearField("opset_import")
        function.opset_import.extend(written.opset_import)
    try:
        expanded: onnx.ModelProto = library.inliner.inline_local_functions(written)
    except (library.checker.ValidationError, ValueError, RuntimeError) as error:
        raise InvalidValueError(f"{name} is not a valid ONNX model: its functions do not expand: {error}") from error
    functions = local_functions(model)
    left = next((node for node in nodes_within(expanded.graph.node) if Key.of(node) in functions), None)
    if expanded.functions or left is not None:
        called = expanded.functions[0].name if left is None else left.op_type
        raise UnsupportedModelError(f"{name}: onnx does not expand the function {called!r}: export without functions")
    valid(expanded, name)
    return expanded


def _write_defaults(model: onnx.ModelProto) -> None:
    """Add to every call of a function the default values of the attributes that it does not give."""
    functions = local_functions(model)
    for nodes in (model.graph.node, *(function.node for function in model.functions)):
        for node in nodes_within(nodes):
            function = functions.get(Key.of(node))
            if function is not None:
                given = {attribute.name for attribute in node.attribute}
                node.attribute.extend(a for a in function.attribute_proto if a.name not in given)


class _Check:
    """The check that the standard, the inliner and onnxruntime agree on all functions of a model and their calls."""

    def __init__(self, model: onnx.ModelProto, name: str) -> None:
        self.model, self.name = model, name
        self.functions = local_functions(model)
        self.versions = {standard(entry.domain): entry.version for entry in model.opset_import}
        self.types = {key: dict(_references(function.node)) for key, function in self.functions.items()}

    def run(self) -> None:
        """Raise if they disagree on anything."""
        if len(self.functions) < len(self.model.functions):
            raise InvalidValueError(f"{self.name} has two functions of the same name: export it again")
        library, _ = packages()
        taken = {standard(schema.domain) for schema in library.defs.get_all_schemas_with_history()}
        taken |= {domain for domain, _ in TRANSLATE}
        operators = {schema.name: schema for schema in library.defs.get_all_schemas() if not standard(schema.domain)}
        for key, function in self.functions.items():
            if key.domain in taken or key.domain.startswith(RESERVED):
                raise UnsupportedModelError(
                    f"{self.name} has a function {function.name!r} in the domain {function.domain!r}, whose operators "
                    "are the standard's or onnxruntime's: programs differ in which of the two a node means. Move the "
                    "function to a domain of your own"
                )
            schema = operators.get(function.name)
            if schema is not None and not schema.min_input <= len(function.input) <= schema.max_input:
                raise UnsupportedModelError(
                    f"{self.name} has a function {function.name!r} with {len(function.input)} inputs; the operator of "
                    "this name has others, and onnxruntime takes one for the other and ends the process. Give the "
                    "function another name"
                )
        for key, function in self.functions.items():
            self._body(key, function)
            self._calls(function.node, f"in function {function.name!r}")
        self._calls(self.model.graph.node, "in the graph")

    def _refuse(self, function: onnx.FunctionProto, reason: str) -> NoReturn:
        raise UnsupportedModelError(
            f"{self.name}: the function {function.name[:200]!r} {reason}; programs differ in what that means. Export "
            "the model without functions (onnx.inliner), or mend the function"
        )

    def _body(self, key: Key, function: onnx.FunctionProto) -> None:
        """Check the names, operator versions and attributes in one function."""
        if len(set(function.input)) < len(function.input) or len(set(function.output)) < len(function.output):
            self._refuse(function, "has two inputs or two outputs of the same name")
        declared = [*function.attribute, *(a.name for a in function.attribute_proto)]
        if len(set(declared)) < len(declared):
            self._refuse(function, "declares an attribute twice")
        _refuse_references(function.node, frozenset(declared), f"{self.name}: function {function.name!r}")
        for attribute in function.attribute_proto:
            if attribute.ref_attr_name or self.types[key].get(attribute.name, attribute.type) != attribute.type:
                self._refuse(function, f"has a default of another type for its attribute {attribute.name!r}")
        computed = {name for node in function.node for name in node.output}
        if not computed.issuperset(function.output) or computed.intersection(function.input):
            self._refuse(function, "has an output that none of its nodes makes, or makes an input of its own")
        self._names(function, function.node, set(function.input))
        theirs = {standard(entry.domain): entry.version for entry in function.opset_import}
        for node in nodes_within(function.node):
            domain = standard(node.domain)
            if Key.of(node) in self.functions:
                if domain not in theirs:
                    self._refuse(function, f"does not import the domain {node.domain!r} that it uses")
            elif not _same_operator(node, theirs.get(domain), self.versions.get(domain)):
                self._refuse(
                    function,
                    f"uses version {theirs.get(domain)} of {node.op_type}, and the model version "
                    f"{self.versions.get(domain)}",
                )

    def _names(self, function: onnx.FunctionProto, nodes: Iterable[onnx.NodeProto], known: set[str]) -> None:
        """Check that every name in a function is defined before it is used, inside the function, and only once."""
        known = set(known)
        for node in nodes:
            for graph in graphs(node):
                inner = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
                self._names(function, graph.node, known | inner)
            for name in node.input:
                if name and name not in known:
                    self._refuse(function, f"uses {name[:200]!r}, which is not made before that inside it")
            for name in node.output:
                if name in known:
                    self._refuse(function, f"makes {name[:200]!r} twice")
            known.update(name for name in node.output if name)

    def _calls(self, nodes: Iterable[onnx.NodeProto], where: str) -> None:
        """Check that the inputs, outputs and attributes of calls are declared by their functions."""
        for node in nodes_within(nodes):
            key = Key.of(node)
            function = self.functions.get(key)
            if function is None:
                if any(other[:2] == key[:2] for other in self.functions):
                    raise UnsupportedModelError(
                        f"{self.name}: a node {where} calls the overload {node.overload!r} of the function "
                        f"{node.op_type!r}, which the model does not define"
                    )
                continue
            if standard(node.domain) not in self.versions:
                self._refuse(function, f"is of the domain {function.domain!r}, which the model does not import")
            if len(node.input) > len(function.input) or len(node.output) > len(function.output):
                self._refuse(function, f"is called {where} with more inputs or outputs than it has")
            self._attributes(key, function, node, where)

    def _attributes(self, key: Key, function: onnx.FunctionProto, node: onnx.NodeProto, where: str) -> None:
        """Check the attributes of one call."""
        library, _ = packages()
        kinds = library.AttributeProto
        defaults = {a.name: a.type for a in function.attribute_proto}
        given = {a.name: a for a in node.attribute}
        if len(given) < len(node.attribute):
            self._refuse(function, f"is called {where} with an attribute that is given twice")
        for name, attribute in given.items():
            if name not in defaults and name not in function.attribute:
                self._refuse(function, f"is called {where} with an attribute {name[:200]!r} that it does not declare")
            if attribute.type in (kinds.GRAPH, kinds.GRAPHS):
                self._refuse(function, f"is called {where} with a graph as its attribute {name[:200]!r}")
            expected = self.types[key].get(name, defaults.get(name, attribute.type))
            if attribute.type != expected:
                self._refuse(function, f"is called {where} with an attribute {name[:200]!r} of another type")
        for name in function.attribute:
            if name not in given:
                self._refuse(function, f"is called {where} without its attribute {name[:200]!r}, which has no default")


def _same_operator(node: onnx.NodeProto, one: int | None, other: int | None) -> bool:
    """Whether the node's operator is the same in these two versions of its domain."""
    if one is None or other is None or one == other:
        return one == other is not None
    library, _ = packages()
    try:
        since = {library.defs.get_schema(node.op_type, v, standard(node.domain)).since_version for v in (one, other)}
    except (library.defs.SchemaError, OverflowError):
        return False
    return len(since) == 1


def _references(nodes: Iterable[onnx.NodeProto]) -> Iterator[tuple[str, int]]:
    """(name, type) of every reference to an attribute of the enclosing function, with the type it is used as."""
    for node in nodes_within(nodes):
        for attribute in node.attribute:
            if attribute.ref_attr_name:
                yield attribute.ref_attr_name, attribute.type


def _refuse_references(nodes: Iterable[onnx.NodeProto], declared: frozenset[str], where: str) -> None:
    """Raise if an attribute refers to one that the function does not declare or uses as two types, or occurs twice."""
    seen: dict[str, int] = {}
    for name, kind in _references(nodes):
        if name not in declared or seen.setdefault(name, kind) != kind:
            raise UnsupportedModelError(
                f"{where}: a node refers to the attribute {name[:200]!r}, which is not declared there, or is used as "
                "two types: export the model again"
            )
    for node in nodes_within(nodes):
        names = [attribute.name for attribute in node.attribute]
        if len(set(names)) < len(names):
            raise UnsupportedModelError(
                f"{where}: a node {node.op_type!r} has an attribute twice: export the model again"
            )
