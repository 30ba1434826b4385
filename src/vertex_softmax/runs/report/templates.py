"""The templates of the pages beside this file: what a page shows is escaped, and a missing value is an error."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

from vertex_softmax.foundation.errors import MissingDependencyError

if TYPE_CHECKING:
    import jinja2


def named(name: str) -> jinja2.Template:
    """The template in the file `name`; needs the extra `report`."""
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
        loader=jinja2.FunctionLoader(text),
    )
    return environment.get_template(name)


def text(name: str) -> str:
    """The file `name` beside this one, as it is."""
    return (resources.files("vertex_softmax.runs.report") / name).read_text(encoding="utf-8")
