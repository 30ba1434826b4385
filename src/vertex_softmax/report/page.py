"""The demo's HTML page: one file, no network, light and dark. Needs the extra `report`."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any

from vertex_softmax.errors import MissingDependencyError
from vertex_softmax.files import write_whole
from vertex_softmax.report import plots


def write_demo(data: dict[str, Any], out: Path, version: str) -> Path:
    """Write OUT/report.html and OUT/theorem.{svg,png}; return the path of the page.

    `data` is what `demo.run` returns; with "certification" in it, what `demo.certification` does, the page tells of
    both.
    """
    try:
        import jinja2
    except ImportError as error:
        raise MissingDependencyError(
            "the report needs jinja2, which is not installed: pip install 'vertex-softmax[report]'"
        ) from error
    picture = plots.save(plots.theorem(data), "svg")
    write_whole(out / "theorem.svg", picture)
    write_whole(out / "theorem.png", plots.save(plots.theorem(data), "png"))
    source = (resources.files("vertex_softmax.report") / "demo.html.j2").read_text(encoding="utf-8")
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.from_string(source).render(
        data=data,
        version=version,
        exact=next(method["bound"] for method in data["methods"] if method["name"] == "Vertex"),
        theorem=_inline(picture),
        phi=_inline(plots.save(plots.phi(data), "svg")),
        certification=data.get("certification"),
        rates=_inline(plots.save(plots.rates(data["certification"]), "svg")) if "certification" in data else "",
    )
    write_whole(out / "report.html", page.encode())
    return out / "report.html"


def _inline(svg: bytes) -> str:
    """The <svg> element alone, as it may stand in a page."""
    text = svg.decode()
    return text[text.index("<svg") :]
