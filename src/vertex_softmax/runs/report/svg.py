"""SVG pictures inside HTML pages: only elements that draw are kept, and ids get a prefix, so that they are unique.

Scripts, links, style sheets, metadata and everything that would be loaded from elsewhere are removed.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from vertex_softmax.foundation.errors import InvalidValueError

DRAWN = frozenset(
    {"svg", "g", "defs", "symbol", "use", "path", "rect", "circle", "ellipse", "line", "polyline", "polygon", "text"}
    | {"tspan", "image", "clipPath", "mask", "pattern", "marker", "linearGradient", "radialGradient", "stop"}
)
HREF = ("href", "{http://www.w3.org/1999/xlink}href")
LOCAL = re.compile(r"""url\(\s*(["']?)#([^)"']*)\1\s*\)""")


def inlined(picture: bytes, prefix: str, source: str = "the picture") -> str:
    """The picture as an <svg> element for an HTML page; its ids and the references to them get the prefix.

    `source` is the picture's name in errors. A style sheet for all elements, such as matplotlib's, would apply to the
    whole page: it is removed, and the page's own style sheet must replace it (.picture svg *).
    """
    try:
        root = ElementTree.fromstring(picture)  # noqa: S314 (expat bounds what entities expand to, and loads none)
        if _local(root.tag) != "svg":
            raise InvalidValueError(f"{source} is not an SVG: its root is <{_local(root.tag)}>")
        return ElementTree.tostring(_kept(root, prefix), encoding="unicode").strip()
    except (ElementTree.ParseError, RecursionError) as error:
        raise InvalidValueError(f"{source} is not a readable SVG: {error}") from error


def _kept(element: ElementTree.Element, prefix: str) -> ElementTree.Element:
    """A copy of the element without namespaces, which HTML supplies, with the children that draw something."""
    tag = _local(element.tag)
    copy = ElementTree.Element(tag)
    copy.text, copy.tail = element.text, element.tail
    for name, value in element.attrib.items():
        new = _value(tag, name, value, prefix)
        if new is not None:
            copy.set("href" if name in HREF else name, new)
    copy.extend([_kept(child, prefix) for child in element if _local(child.tag) in DRAWN])
    return copy


def _value(tag: str, name: str, value: str, prefix: str) -> str | None:
    """The new value of an attribute; None if it is removed."""
    if name == "id":
        return prefix + value
    if name in HREF:
        if value.startswith("#"):
            return f"#{prefix}{value[1:]}"
        return value if tag == "image" and value.startswith("data:image/") else None
    if name.startswith(("{", "on", "aria-")) or name in {"class", "role"}:
        return None
    rest = LOCAL.sub("", value)
    if "url(" in rest.lower() or "\\" in rest:
        return None  # it refers to something outside of the picture
    return LOCAL.sub(lambda found: f"url(#{prefix}{found[2]})", value)


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
