"""What `vertex certify` and `vertex radius` are asked about: the model and the inputs that their options name.

Invariant: options that do not belong together are an error that says so, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vertex_softmax.cli import values
from vertex_softmax.cli.names import DATA_SETS
from vertex_softmax.foundation.errors import InvalidValueError

if TYPE_CHECKING:
    from torch import nn

    from vertex_softmax.runs.subject import Inputs, Subject


@dataclass(frozen=True, kw_only=True)
class Asking:
    """The options that name a model and inputs, as they were given; None where an option was not."""

    model: str
    weights: Path | None
    data: str | None
    tokens: str | None
    norm: str | None
    clip: str | None
    out: Path
    vocabulary: Path | None = None
    classes: str | None = None

    @property
    def files(self) -> list[Path]:
        """The files that are read, as far as they are known; no run may overwrite one of them."""
        from vertex_softmax.runs.code_names import is_python_model, source_file
        from vertex_softmax.runs.sweep.runner import external

        found = [file for file in (self.weights, self.vocabulary) if file is not None]
        if is_python_model(self.model):
            source = source_file(self.model)
            found += [] if source is None or not source.is_file() else [source]
        else:
            path = self._path
            stems = {path.name, path.stem}
            beside = [path.with_name(f"{stem}.{ending}") for stem in stems for ending in ("json", "safetensors")]
            found += [path, *beside, *external(path)]
        return found + ([] if self.data is None or self.data in DATA_SETS else [Path(self.data)])

    @property
    def _path(self) -> Path:
        path = values.path("MODEL", self.model)
        if not path.name:
            raise InvalidValueError(
                f"{path} is not a model: give an ONNX file, a model that `vertex demo` wrote, or "
                "package.module:function"
            )
        return path

    def read(self, data_dir: Path, first: int, count: int | None) -> tuple[Subject, Inputs]:
        """The model and the inputs that --data, --first and --count select, with balls of --norm around them."""
        from vertex_softmax.runs.code_names import is_python_model
        from vertex_softmax.runs.python_models import weights_identity
        from vertex_softmax.runs.run import claimed
        from vertex_softmax.runs.sentences import read_sentences
        from vertex_softmax.runs.subject import read_inputs, read_model, subject
        from vertex_softmax.sets.loading import read

        norm = values.norm("--norm", self.norm)
        claimed(self.out, self.files)  # before anything is read, which may take long
        if self.tokens is None:
            if self.vocabulary is not None:
                raise InvalidValueError("--vocabulary is for sentences: give --tokens or --choices too")
            inputs = read_inputs(
                self.data or "digits", data_dir=data_dir, clip=self._ends(), first=first, count=count, norm=norm
            )
            inputs = replace(inputs, classes=self.names)
            if not is_python_model(self.model):
                self._refuse_weights()
                return read_model(self._path, inputs), inputs
            module = self.module("")
            return subject(module, inputs, self.model, weights_identity(module)), inputs
        tokens = values.positions("--tokens", self.tokens)
        if self.data is None or self.data in DATA_SETS:
            raise InvalidValueError(
                f"--data is {self.data or 'digits'}, which are images; --tokens is for sentences: give a file .json, "
                ".npz or .safetensors with `ids` and `labels`"
            )
        refuse("--tokens", {"--clip": self.clip})
        module = self.module("--tokens")
        sentences = read_sentences(Path(self.data), first=first, count=count)
        original = read(module)
        inputs = replace(sentences.inputs(original, tokens, norm), words=self.words, classes=self.names)
        return subject(original, inputs, self.model, weights_identity(module)), inputs

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of the classes in --classes; None if it is not given."""
        return None if self.classes is None else tuple(name.strip() for name in self.classes.split(","))

    @property
    def words(self) -> dict[int, str] | None:
        """The texts of token ids in --vocabulary; None if it is not given."""
        from vertex_softmax.runs.vocabulary import read_vocabulary

        return None if self.vocabulary is None else read_vocabulary(self.vocabulary)

    def module(self, option: str) -> nn.Module:
        """The Python model; an error if the model is a file, for an option that needs one."""
        from vertex_softmax.runs.code_names import is_python_model
        from vertex_softmax.runs.python_models import python_model

        if not is_python_model(self.model):
            raise InvalidValueError(
                f"{option} needs a model that takes token ids: package.module:function or FILE.py:function, which "
                f"returns a torch.nn.Module; {self.model} is none"
            )
        return python_model(self.model, self.weights)

    def _refuse_weights(self) -> None:
        if self.weights is not None:
            raise InvalidValueError(
                f"--weights is for Python models, package.module:function; {self.model} has weights of its own"
            )

    def _ends(self) -> tuple[float, float] | None:
        ends = None if self.clip is None else numbers("--clip", self.clip)
        if ends is not None and len(ends) != 2:
            raise InvalidValueError(f"--clip is {self.clip!r}; give two numbers, such as 0,1")
        return None if ends is None else (ends[0], ends[1])


def refuse(option: str, others: Mapping[str, object]) -> None:
    """Raise if one of the other options, which do not go with this one, was given (is not None)."""
    for name, value in others.items():
        if value is not None:
            raise InvalidValueError(f"{name} does not go with {option}: leave one of them out")


def numbers(name: str, text: str) -> list[float]:
    """The numbers in the comma-separated value of an option, each as a decimal number or as a fraction of two."""
    try:
        return [_number(part) for part in text.split(",") if part.strip()]
    except (ValueError, ZeroDivisionError) as error:
        raise InvalidValueError(
            f"{name} is {text!r}; give numbers with commas between them, such as 0.01,0.02 or 2/255"
        ) from error


def _number(text: str) -> float:
    """The float of a decimal number, or of the quotient of two."""
    over, slash, under = text.partition("/")
    return float(over) / float(under) if slash else float(text)


def set_threads(threads: int | None) -> None:
    """Set torch's number of threads, if --threads is given."""
    import torch

    if values.threads("--threads", threads) is not None:
        torch.set_num_threads(threads or 1)
