"""Optional packages: a missing one is an error that names the extra, before anything is computed for nothing."""

from __future__ import annotations

from vertex_softmax.foundation.errors import MissingDependencyError


def require_proof_extra() -> None:
    """Raise if certificates can be neither made nor checked here, because python-flint is not installed."""
    try:
        import flint  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "certificates need python-flint, which is not installed: pip install 'vertex-softmax[proof]'"
        ) from error
