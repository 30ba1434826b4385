"""auto_LiRPA's CROWN on the files of the suite: its answers beside ours in verdicts.json.

python lab/benchmarks/suite_peer.py SUITE VERDICTS --peer CHECKOUT [--families max_of_k ...] [--seconds 120]
    [--networks max-of-2 ...] [--jobs 1]

SUITE is what `vertex suite make` wrote, VERDICTS what `vertex suite verdicts` wrote; rows get `auto_LiRPA complex` and
`auto_LiRPA lse`, its two rules for the softmax: unsat if every margin's bound is above 0, else unknown (a bound alone
finds no counterexample), or the first words of its error and the line that raised it. float64, one thread, one process
for each network with a limit in seconds of processor time, so that a busy machine changes little. The ONNX file is read
by onnx2pytorch, as α,β-CROWN does. CHECKOUT is a clone of auto_LiRPA; what it needs besides, without touching our
environment:
  pip install --no-deps --target /tmp/deps appdirs graphviz tqdm pyyaml packaging onnx2pytorch==0.4.1
  PYTHONPATH=/tmp/deps python lab/benchmarks/suite_peer.py ...
It has no rule for Erf, but one for GELU: the five ops of a GELU are given to it as one. onnx2pytorch cannot add to a
constant and knows no shared weights: it is given x + c in place of c + x, and copies.
Every bound is compared with the margins at 200 points of the box: one above them would be `wrong`, and is written so.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import resource
import subprocess
import sys
import time
import traceback
import types
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from vertex_lab.suite.verdicts import contradictions, counts
from vertex_softmax.foundation.files import write_whole
from vertex_softmax.specs.vnnlib import read_vnnlib

RULES = ("complex", "lse")
POINTS = 200
SLACK = 1e-5
"""By how much a bound may be above a sampled margin: the file's float32 constants are read in two ways."""


def main() -> None:
    """Ask about every network in a process of its own, and keep the answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", type=Path)
    parser.add_argument("verdicts", type=Path)
    parser.add_argument("--peer", type=Path, required=True, metavar="CHECKOUT")
    parser.add_argument("--families", nargs="+")
    parser.add_argument("--networks", nargs="+", help="only these")
    parser.add_argument(
        "--seconds",
        type=float,
        default=120.0,
        help="of processor time, for all questions about one network by one rule",
    )
    parser.add_argument("--jobs", type=int, default=1, help="networks that are asked about at a time")
    parser.add_argument("--ask", nargs=3, metavar=("FAMILY", "NETWORK", "RULE"), help="one network: print its answers")
    options = parser.parse_args()
    record = json.loads(options.verdicts.read_text())
    if options.ask is not None:
        asked(options, record)
        return
    asks = [
        (family, network, rule)
        for family, rows in record["rows"].items()
        for network in dict.fromkeys(row["network"] for row in rows.values())
        for rule in RULES
        if (options.families is None or family in options.families)
        and (options.networks is None or network in options.networks)
    ]
    with ThreadPoolExecutor(options.jobs) as pool:
        for (family, network, rule), found in zip(asks, pool.map(partial(answers, options), asks), strict=True):
            for name, row in record["rows"][family].items():
                if row["network"] == network:
                    answer = found.get(name, {"status": "not finished"})
                    row[f"auto_LiRPA {rule}"] = answer["status"]
                    if "seconds" in answer:
                        row[f"auto_LiRPA {rule} seconds"] = answer["seconds"]
            write_whole(options.verdicts, (json.dumps(record, indent=1) + "\n").encode())
    record["peers"] = {f"auto_LiRPA {rule}": counts(record["rows"], f"auto_LiRPA {rule}") for rule in RULES}
    write_whole(options.verdicts, (json.dumps(record, indent=1) + "\n").encode())
    for rule in RULES:
        print(rule, json.dumps(record["peers"][f"auto_LiRPA {rule}"]))
        print(*contradictions(record, f"auto_LiRPA {rule}"), sep="\n")


def answers(options: argparse.Namespace, ask: tuple[str, str, str]) -> dict[str, dict[str, Any]]:
    """The answers of one process; a process that is ended or dies leaves those it had printed."""
    family, network, rule = ask
    command = [sys.executable, __file__, str(options.suite), str(options.verdicts), "--peer", str(options.peer)]
    command += ["--seconds", str(options.seconds), "--ask", family, network, rule]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line.removeprefix("answer ") for line in done.stdout.splitlines() if line.startswith("answer ")]
    found = dict(json.loads(line) for line in lines)
    print(family, network, rule, *(f"{name}: {answer}" for name, answer in found.items()), sep="\n  ", flush=True)
    return found


def asked(options: argparse.Namespace, record: dict[str, Any]) -> None:
    """Print a line for every instance of one network."""
    family, network, rule = options.ask
    limit = math.ceil(options.seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
    for name, row in record["rows"][family].items():
        if row["network"] == network:
            begin = time.process_time()
            try:
                status = status_of(options, options.suite / family, network, name, rule)
            except (RuntimeError, ValueError, TypeError, AttributeError, LookupError, AssertionError) as error:
                status = told(error)
            seconds = round(time.process_time() - begin, 2)
            print("answer", json.dumps([name, {"status": status, "seconds": seconds}]), flush=True)


def told(error: Exception) -> str:
    """An error in one line: its kind, its first words, and the line of the peer that raised it."""
    words = str(error).splitlines()[0][:120] if str(error) else ""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"error: {type(error).__name__}{': ' * bool(words)}{words} ({Path(last.filename).name}: {last.line})"


def status_of(options: argparse.Namespace, folder: Path, network: str, name: str, rule: str) -> str:
    """unsat, unknown, or wrong, by the library's bound of every margin over the property's box."""
    sys.path.append(str(options.peer))
    sys.modules.setdefault("torchvision", types.ModuleType("torchvision"))  # onnx2pytorch imports it for ops not used
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    library, converter = importlib.import_module("auto_LiRPA"), importlib.import_module("onnx2pytorch")
    onnx = importlib.import_module("onnx")
    proto = onnx.load(folder / "onnx" / f"{network}.onnx")
    constants_last(proto)
    gelus = fused(proto)
    net = converter.ConvertModel(proto, experimental=True)
    for output in gelus:
        setattr(net, net.mapping[output], Gelu())
    net = net.double().eval()
    shape = [dim.dim_value for dim in proto.graph.input[0].type.tensor_type.shape.dim]
    (case,) = read_vnnlib(folder / "vnnlib" / f"{name}.vnnlib").cases
    lower, upper = (torch.from_numpy(end).reshape(shape) for end in (case.lower, case.upper))
    x = (lower + upper) / 2
    with torch.no_grad():
        margins = torch.zeros(len(case.conjunctions), net(x).shape[1])
    for i, conjunction in enumerate(case.conjunctions):
        (inequality,) = conjunction.inequalities
        for k, value in inequality.coefficients.items():
            margins[i, k] = float(value)
    how = {"softmax": rule, "fixed_reducemax_index": True}
    bounded = library.BoundedModule(net, x, bound_opts=how, device="cpu", verbose=False)
    inside = library.PerturbationLpNorm(norm=math.inf, x_L=lower, x_U=upper)
    with torch.no_grad():
        found, _ = bounded.compute_bounds(
            x=(library.BoundedTensor(x, inside),), C=margins[None], method="CROWN", bound_upper=False
        )
        if bool((found[0] > sampled(net, lower, upper, margins) + SLACK).any()):
            return "wrong"
    return "unsat" if bool((found > 0).all()) else "unknown"


class _Gelu(torch.autograd.Function):
    """GELU by the name under which the library has a rule for it."""

    @staticmethod
    def symbolic(g: Any, x: Any) -> Any:
        return g.op("custom::Gelu", x)

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return functional.gelu(x)


class Gelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return _Gelu.apply(x)  # type: ignore[no-any-return]


def constants_last(proto: Any) -> None:
    """Write c + x as x + c, and shared weights as copies: onnx2pytorch adds in place, and cannot share weights."""
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in list(proto.graph.node):
        if node.op_type == "Identity" and node.input[0] in weights:
            copy = proto.graph.initializer.add()
            copy.CopyFrom(weights[node.input[0]])
            copy.name = node.output[0]
            weights[copy.name] = copy
            proto.graph.node.remove(node)
    for node in proto.graph.node:
        if node.op_type == "Add" and node.input[0] in weights:
            node.input[0], node.input[1] = node.input[1], node.input[0]


def fused(proto: Any) -> list[str]:
    """Make one node of every x · (1 + erf(x / √2)) · ½, called Erf, and return their outputs' names."""
    nodes, found = list(proto.graph.node), []
    users = {name: node for node in nodes for name in node.input}
    makers = {name: node for node in nodes for name in node.output}
    for node in nodes:
        if node.op_type == "Erf":
            div, add = makers[node.input[0]], users[node.output[0]]
            by_x, half = users[add.output[0]], users[users[add.output[0]].output[0]]
            if [n.op_type for n in (div, add, by_x, half)] != ["Div", "Add", "Mul", "Mul"]:
                raise ValueError("an Erf that is not part of a GELU")
            node.input[0], node.output[0] = div.input[0], half.output[0]
            for gone in (div, add, by_x, half):
                proto.graph.node.remove(gone)
            found.append(node.output[0])
    return found


def sampled(net: Any, lower: Tensor, upper: Tensor, margins: Tensor) -> Tensor:
    """The least of every margin at corners and inner points of the box."""
    random = torch.Generator().manual_seed(0)
    least = torch.full((len(margins),), math.inf)
    for i in range(POINTS):
        share = torch.rand(lower.shape, generator=random)
        point = lower + (upper - lower) * (share if i % 2 else share.round())
        least = torch.minimum(least, (margins @ net(point)[0]))
    return least


if __name__ == "__main__":
    main()
