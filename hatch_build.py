"""Compiles the CPU kernel when a C compiler is at hand; without one the wheel is pure Python and still works."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = Path("src/vertex_softmax/softmax_box/native")
LIBRARY = SOURCE / "softmax_box.so"
FLAGS = ["-O3", "-fPIC", "-std=gnu11", "-fno-fast-math", "-fno-math-errno", "-ffp-contract=fast"]
X86 = {
    # variant: (flags, bytes in a vector); x86-64-v2 is every 64-bit processor since about 2009
    "generic": (["-march=x86-64-v2"], 16),
    "avx2": (["-march=x86-64-v3"], 32),
    "avx512": (["-march=x86-64-v4", "-mprefer-vector-width=512"], 64),
}
OTHER: dict[str, tuple[list[str], int]] = {"generic": ([], 16)}


def compile_kernel(root: Path) -> None:
    """Compile every variant of the kernel and link them into one shared library."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise FileNotFoundError("no C compiler (cc, gcc, clang) on the PATH, and CC is not set")
    variants = X86 if platform.machine().lower() in {"x86_64", "amd64"} else OTHER
    with tempfile.TemporaryDirectory() as scratch:
        objects = []
        for variant, (flags, width) in variants.items():
            objects.append(f"{scratch}/{variant}.o")
            define = [f"-DVARIANT={variant}", f"-DVECTOR_BYTES={width}"]
            _run([compiler, *FLAGS, *flags, *define, "-c", str(root / SOURCE / "softmax_box.c"), "-o", objects[-1]])
        objects.append(f"{scratch}/dispatch.o")
        have = [f"-DHAVE_{variant.upper()}" for variant in variants]
        _run([compiler, *FLAGS, *have, "-c", str(root / SOURCE / "dispatch.c"), "-o", objects[-1]])
        built = root / LIBRARY.with_suffix(".tmp")
        _run([compiler, "-shared", "-o", str(built), *objects])
        built.replace(root / LIBRARY)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=300)


def _platform() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


class KernelBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds softmax_box.so to the wheel, or says why it is not there."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Compile before the files are collected."""
        if self.target_name != "wheel" or os.environ.get("VERTEX_PURE_PYTHON") == "1":
            return
        root = Path(self.root)
        try:
            compile_kernel(root)
        except (OSError, subprocess.SubprocessError) as error:
            detail = getattr(error, "stderr", None) or str(error)
            print(
                f"vertex-softmax: the CPU kernel was not compiled ({detail}); the torch path is used", file=sys.stderr
            )
            (root / LIBRARY).unlink(missing_ok=True)
            return
        build_data["artifacts"].append(str(LIBRARY))
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_platform()}"  # loaded by ctypes: the same for every Python 3
