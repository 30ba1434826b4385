"""The templates of the pages, in this or another package: values are escaped, and a missing value is an error."""

from __future__ import annotations

from functools import partial
from importlib import resources
from typing import TYPE_CHECKING

from vertex_softmax.foundation.errors import MissingDependencyError

if TYPE_CHECKING:
    import jinja2


HERE = "vertex_softmax.runs.report"


def named(name: str, package: str = HERE) -> jinja2.Template:
    """The template in the file `name` of that package; needs the extra `report`."""
    try:
        import jinja2
    except ImportError as error:
        raise MissingDependencyError(
            "the report needs jinja2, which is not installed: pip install 'vertex-softmax[report]'"
        ) from error
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(partial(text, package=package)),
    )
    return environment.get_template(name)


def text(name: str, package: str = HERE) -> str:
    """The text of the file `name` of a package."""
    return (resources.files(package) / name).read_text(encoding="utf-8")
