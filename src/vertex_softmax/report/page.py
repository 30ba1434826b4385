"""The demo's HTML page: one file, no network, light and dark. Needs the extra `report`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from vertex_softmax.files import write_whole
from vertex_softmax.report import plots, svg, templates


def write_demo(data: dict[str, Any], out: Path, version: str) -> Path:
    """Write OUT/report.html and OUT/theorem.{svg,png}; return the path of the page.

    `data` is what `demo.run` returns; with "certification" in it, what `demo.certification` does, the page tells of
    both.
    """
    template = templates.named("demo.html.j2")
    picture = plots.save(plots.theorem(data), "svg")
    write_whole(out / "theorem.svg", picture)
    write_whole(out / "theorem.png", plots.save(plots.theorem(data), "png"))
    page = template.render(
        data=data,
        version=version,
        exact=next(method["bound"] for method in data["methods"] if method["name"] == "Vertex"),
        theorem=svg.inlined(picture, "theorem-"),
        phi=svg.inlined(plots.save(plots.phi(data), "svg"), "phi-"),
        certification=data.get("certification"),
        rates=_rates(data["certification"]) if "certification" in data else "",
    )
    write_whole(out / "report.html", page.encode())
    return out / "report.html"


def _rates(certification: dict[str, Any]) -> str:
    return svg.inlined(plots.save(plots.rates(certification), "svg"), "rates-")
