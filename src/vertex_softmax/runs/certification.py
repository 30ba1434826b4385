"""The result of `certify`: verdicts, bounds and reasons for a batch of inputs.

Invariant: an input is `verified` only if every bound of its margins is finite and > 0 and every bound on the way was
finite and uncrossed. It is `falsified` only if an input of the set is known that the network itself misclassifies.

    result.rows()        # one dict per input with Python's own types; None where there is no finite number
    result.to_json()     # everything as JSON
    result.to_pandas()   # the rows as a table
"""

from __future__ import annotations

import dataclasses
import html
import json
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict, TypeVar

import torch
from torch import Tensor

from vertex_softmax.bounds.aims import Outcome, rates
from vertex_softmax.foundation.errors import InvalidValueError, MissingDependencyError
from vertex_softmax.methods.verdict import WITHOUT_TIME, Verdict

if TYPE_CHECKING:
    import pandas
    from rich.table import Table

    from vertex_softmax.certificate.certificate import Certificate

Number = TypeVar("Number", int, float)
SHOWN = 20
"""The most inputs that a table shows."""
Column: TypeAlias = Literal["input", "verdict", "bound", "target", "clean", "reason"]
COLUMNS: tuple[Column, ...] = ("input", "verdict", "bound", "target", "clean", "reason")
"""The columns of such a table."""
Nested: TypeAlias = "float | list[Nested]"
"""The numbers of a point, in lists as deep as the point has dimensions."""


class InputRow(TypedDict):
    """One of `Certification.rows`, which says what the keys mean."""

    input: int
    verdict: str
    label: int | None
    bound: float | None
    target: int
    clean: float | None
    reason: str
    proof_margin: float | None
    method: str
    seconds: float | None


class CertificationDict(TypedDict):
    """`Certification.to_dict`: its fields in Python's own types, with None for a number that is not finite."""

    method: str
    verdict: str
    counts: dict[str, int]
    seconds: dict[str, float | None]
    peak_bytes: int | None
    effort: dict[str, float]
    inputs: list[InputRow]
    lower: list[list[float | None]]
    clean: list[list[float | None]]
    counterexamples: list[Nested | None]


RATES = ("parts_per_second", "bounds_per_second")
"""What of an effort is not added up over inputs."""
STYLES = {Verdict.VERIFIED: "green", Verdict.FALSIFIED: "red", Verdict.UNKNOWN: "yellow"}


@dataclasses.dataclass(frozen=True)
class Certification:
    """The answer for each input of a batch."""

    lower: Tensor
    """Lower bounds of the margin of the label to each class, (batch, classes); inf at the label, and at classes that do
    not count (`targets`)."""
    verdicts: tuple[Verdict, ...]
    reasons: tuple[str, ...]
    """For each input, why the verdict is not `verified`, and what may help; empty if it is."""
    method: str
    clean: Tensor
    """The margins at the centre of the set, (batch, classes); inf where `lower` is by definition."""
    seconds: dict[str, float]
    """The time of each stage, and `total`."""
    certificates: tuple[Certificate | None, ...] = ()
    """For each input its certificate, or None if it is not verified; empty if no certificates were requested."""
    labels: Tensor | None = None
    """The label of each input, (batch,); None: the class at which `lower` and `clean` are inf."""
    counterexamples: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))
    """For each falsified input a point of its set that the model itself misclassifies, NaN for the others;
    (batch, *input shape) in float64."""
    effort: dict[str, float] = dataclasses.field(default_factory=dict)
    """What `bab` has done: how many `parts` were bounded, by how many `bounds` (trials of splits and steps of ascents,
    too), in how many `tree_seconds`, `parts_per_second` and `bounds_per_second`; on words how many combinations were
    `evaluated`, without times."""
    peak_bytes: int | None = None
    """The peak memory: of tensors on a CUDA device, else of the process; None where it is not known."""

    def at(self, which: Sequence[int]) -> Certification:
        """The answers for some of the inputs, by their positions in the batch; times and memory are the batch's."""
        index = torch.tensor(list(which), dtype=torch.long, device=self.lower.device)
        points = self.counterexamples
        return dataclasses.replace(
            self,
            lower=self.lower[index],
            verdicts=tuple(self.verdicts[i] for i in which),
            reasons=tuple(self.reasons[i] for i in which),
            clean=self.clean[index],
            certificates=tuple(self.certificates[i] for i in which) if self.certificates else (),
            labels=None if self.labels is None else self.labels[index],
            counterexamples=points[index.to(points.device)] if len(points) else points,
        )

    @property
    def verdict(self) -> Verdict:
        """The verdict of the whole batch: falsified if one input is, verified if all are, else unknown."""
        if Verdict.FALSIFIED in self.verdicts:
            return Verdict.FALSIFIED
        return Verdict.VERIFIED if all(v is Verdict.VERIFIED for v in self.verdicts) else Verdict.UNKNOWN

    @property
    def certified(self) -> Tensor:
        """Which inputs are verified, (batch,) bool."""
        return self.lower.new_tensor([v is Verdict.VERIFIED for v in self.verdicts]).bool()

    @property
    def worst(self) -> Tensor:
        """The least margin bound of each input, (batch,)."""
        return self.lower.amin(-1)

    @property
    def counts(self) -> dict[str, int]:
        """How many inputs have each verdict."""
        return {str(verdict): self.verdicts.count(verdict) for verdict in WITHOUT_TIME}

    def rows(self) -> list[InputRow]:
        """One dict per input, with Python's own types; None stands for a number that is not finite.

        `input`: its position in the batch; `verdict`; `label`; `bound`: the least margin bound, and `target`: the class
        of that margin; `clean`: the least margin at the centre; `reason`; `proof_margin`: the margin of its
        certificate; `method`; `seconds`: its share of the batch's time.
        """
        lower, clean = self.lower.detach().cpu(), self.clean.detach().cpu()
        own = (lower == math.inf) & (clean == math.inf)  # the margin of the label to itself
        labels = [
            label if count == 1 else None
            for label, count in zip(own.int().argmax(-1).tolist(), own.sum(-1).tolist(), strict=True)
        ]
        labels = labels if self.labels is None else self.labels.tolist()
        bounds, targets, cleans = lower.amin(-1).tolist(), lower.argmin(-1).tolist(), clean.amin(-1).tolist()
        proofs = self.certificates or [None] * len(lower)
        each = zip(self.verdicts, labels, bounds, targets, cleans, self.reasons, proofs, strict=True)
        seconds = _finite(self.seconds.get("total", math.nan) / max(1, len(lower)))
        return [
            {
                "input": i,
                "verdict": str(verdict),
                "label": label,
                "bound": _finite(bound),
                "target": target,
                "clean": _finite(margin),
                "reason": reason,
                "proof_margin": None if proof is None else _finite(proof.margin),
                "method": self.method,
                "seconds": seconds,
            }
            for i, (verdict, label, bound, target, margin, reason, proof) in enumerate(each)
        ]

    def to_dict(self) -> CertificationDict:
        """Everything but the certificates, in Python's own types: ready for JSON."""
        return {
            "method": self.method,
            "verdict": str(self.verdict),
            "counts": self.counts,
            "seconds": {stage: _finite(spent) for stage, spent in self.seconds.items()},
            "peak_bytes": self.peak_bytes,
            "effort": dict(self.effort),
            "inputs": self.rows(),
            "lower": _table(self.lower),
            "clean": _table(self.clean),
            "counterexamples": [
                None if bool(point.isnan().any()) else point.tolist() for point in self.counterexamples.detach().cpu()
            ],
        }

    def to_json(self, indent: int | None = None) -> str:
        """`to_dict` as JSON; a number that is not finite is null."""
        return json.dumps(self.to_dict(), indent=indent, ensure_ascii=False, allow_nan=False)

    def to_pandas(self) -> pandas.DataFrame:
        """`rows` as a table with one line per input. Needs pandas."""
        try:
            import pandas
        except ImportError as error:
            raise MissingDependencyError(
                "pandas is missing: pip install pandas; rows() gives the same without it"
            ) from error
        return pandas.DataFrame(self.rows(), columns=[*COLUMNS, "label", "proof_margin", "method", "seconds"])

    def __repr__(self) -> str:
        said = ", ".join(f"{n} {verdict}" for verdict, n in self.counts.items() if n) or "no inputs"
        least = f"; least bound {float(self.worst.amin()):.4g}" if self.lower.numel() else ""
        return f"Certification({self.method}: {said}{least}; {self.seconds.get('total', math.nan):.2f} s)"

    def __rich__(self) -> Table:
        """The inputs as a table, for rich's print."""
        from rich.table import Table
        from rich.text import Text

        table = Table(title=Text(repr(self)), caption=self._more())
        for name in COLUMNS:
            table.add_column(name, justify="left" if name in {"verdict", "reason"} else "right")
        for row in self.rows()[:SHOWN]:
            cells = [Text(_cell(row[name])) for name in COLUMNS]
            cells[1].stylize(STYLES[Verdict(row["verdict"])])
            table.add_row(*cells)
        return table

    def _repr_html_(self) -> str:
        """The inputs as an HTML table, for notebooks; all texts are escaped."""
        head = "".join(f"<th>{name}</th>" for name in COLUMNS)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(_cell(row[name]))}</td>" for name in COLUMNS) + "</tr>"
            for row in self.rows()[:SHOWN]
        )
        title, more = html.escape(repr(self)), html.escape(self._more() or "")
        return f"<table><caption>{title}</caption><tr>{head}</tr>{body}</table><p>{more}</p>"

    def _more(self) -> str | None:
        left = len(self.verdicts) - SHOWN
        return f"and {left} more inputs, see rows()" if left > 0 else None


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _table(numbers: Tensor) -> list[list[float | None]]:
    return [[_finite(x) for x in row] for row in numbers.detach().cpu().tolist()]


def _cell(value: float | str | None) -> str:
    return "–" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def together(parts: Sequence[Certification], order: Sequence[Sequence[int]]) -> Certification:
    """The results of groups of a batch as one result; order[i] lists the inputs of the batch that parts[i] is about."""
    if len(parts) == 1:
        return parts[0]
    positions = {n: (i, j) for i, which in enumerate(order) for j, n in enumerate(which)}
    where = [positions[n] for n in range(len(positions))]
    return Certification(
        lower=in_order([part.lower for part in parts], order),
        verdicts=tuple(parts[i].verdicts[j] for i, j in where),
        reasons=tuple(parts[i].reasons[j] for i, j in where),
        method=parts[0].method,
        clean=in_order([part.clean for part in parts], order),
        labels=None if parts[0].labels is None else in_order([_labels_of(part) for part in parts], order),
        counterexamples=in_order([part.counterexamples for part in parts], order),
        seconds=summed([part.seconds for part in parts]),
        effort=summed_effort([part.effort for part in parts]),
        certificates=tuple(parts[i].certificates[j] for i, j in where) if parts[0].certificates else (),
    )


def summed(tables: Sequence[dict[str, Number]]) -> dict[str, Number]:
    """The sums of what several tables have under each name."""
    found: dict[str, Number] = {}
    for table in tables:
        for name, value in table.items():
            found[name] = found[name] + value if name in found else value
    return found


def summed_effort(tables: Sequence[dict[str, float]]) -> dict[str, float]:
    """The effort of several computations: what they have done in all, and how fast that was."""
    return _with_rates(summed([{name: x for name, x in table.items() if name not in RATES} for table in tables]))


def effort_of(branched: Outcome) -> dict[str, float]:
    """What branch and bound has done for one input."""
    return _with_rates({"parts": branched.domains, "bounds": branched.passes or 0, "tree_seconds": branched.seconds})


def _with_rates(effort: dict[str, float]) -> dict[str, float]:
    return {**effort, **rates(effort.get("parts", 0), effort.get("bounds"), effort.get("tree_seconds", 0.0))}


def _labels_of(part: Certification) -> Tensor:
    return part.clean.isposinf().long().argmax(-1) if part.labels is None else part.labels


def in_order(parts: Sequence[Tensor], order: Sequence[Sequence[int]]) -> Tensor:
    """The rows of groups of a batch in the batch's order; order[i] lists the inputs that parts[i] is about."""
    if len(parts) == 1:
        return parts[0]
    if len({tuple(part.shape[1:]) for part in parts}) != 1:
        raise InvalidValueError(
            "the outputs of the inputs have different shapes; certify inputs with outputs of one shape together"
        )
    index = torch.tensor([n for which in order for n in which])
    return torch.cat(list(parts))[index.argsort()]
