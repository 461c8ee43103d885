"""Build the compiled kernels: each ``.pyx`` is translated to C once and compiled once per variant.

``FUCINA_VARIANTS``  comma list of variants, or ``all`` for every variant of this machine type; by default the
                     portable one and the best one that this machine can run.
``FUCINA_DEBUG=1``   bounds checks on, little optimization.
"""

import importlib.util
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

ROOT = Path(__file__).resolve().parent
KERNELS = ROOT / "fucina" / "_kernels"
DEBUG = os.environ.get("FUCINA_DEBUG", "0") == "1"

# Directives are stated here and nowhere else.
DIRECTIVES = {
    "language_level": 3,
    "boundscheck": DEBUG,
    "initializedcheck": DEBUG,
    "wraparound": False,
    "nonecheck": False,
    "cdivision": True,
    "embedsignature": True,
    "binding": True,
}

# No -ffast-math and no contraction: results must not depend on the compiler's taste. Every fused multiply-add
# is written out. Without -fno-tree-reassoc GCC reorders the 16-bit sums of the quantized tiles and spills:
# 20-30 % slower there (GCC 12.2, AMD Zen 3, 2026-11).
CFLAGS = ["-O1", "-g"] if DEBUG else ["-O3", "-g0", "-DNDEBUG"]
CFLAGS += [
    "-std=gnu11", "-ffp-contract=off", "-fno-tree-reassoc", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi",
    "-Wno-unused-function", "-Wno-unreachable-code", "-Wno-discarded-qualifiers",
    "-Werror=implicit-function-declaration",     # or a module with a symbol that nobody has would be built
]


def load_variants():
    """The variant table, read by path because the package cannot be imported before it is built."""
    spec = importlib.util.spec_from_file_location("variants", ROOT / "fucina" / "runtime" / "variants.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["variants"] = module
    spec.loader.exec_module(module)
    return module


def openmp_flags():
    """Flags for OpenMP, or none (and a clear message) when the compiler cannot link a program that uses it."""
    source = "#include <omp.h>\nint main(void) { return omp_get_max_threads() < 1; }\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "probe.c"
        path.write_text(source)
        command = [*os.environ.get("CC", "cc").split(), str(path), "-fopenmp", "-o", str(path.with_suffix(""))]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode == 0:
                return ["-fopenmp"]
            reason = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "unknown"
        except OSError as error:
            reason = str(error)
    print(
        "\nfucina: this C compiler has no OpenMP; the kernels will be built single-threaded.\n"
        "        Install a compiler with OpenMP (GCC with libgomp, or Clang with libomp) and build again.\n"
        f"        The compiler said: {reason}\n",
        file=sys.stderr,
    )
    return []


def cpu_features():
    """What this machine offers, from the kernel's list; only used to choose what to build."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return set()
    words = set()
    for line in text.splitlines():
        if line.lower().startswith(("flags", "features")):
            words |= set(line.split(":", 1)[1].split())
    renamed = {"avx_vnni": "avxvnni", "avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16"}
    return {renamed.get(word, word) for word in words}


def chosen_variants():
    table = load_variants()
    machine = platform.machine().lower()
    available = table.for_machine(machine)
    wanted = os.environ.get("FUCINA_VARIANTS", "").strip()
    if wanted == "all":
        return available
    if wanted:
        by_name = {v.name: v for v in available}
        unknown = [name for name in wanted.split(",") if name not in by_name]
        if unknown:
            raise SystemExit(f"FUCINA_VARIANTS: unknown {unknown}; this machine type has {sorted(by_name)}")
        names = dict.fromkeys(["generic", *wanted.split(",")])
        return [by_name[name] for name in names]
    best = table.best(machine, cpu_features())
    return [v for v in available if v.name in ("generic", best.name)]


def extensions():
    """One extension per (kernel, variant), plus the two modules that are compiled for the baseline only."""
    openmp = openmp_flags()
    baseline = {"_probe", "_openmp"}
    stems = sorted(p.stem for p in KERNELS.glob("*.pyx"))
    sources = [
        Extension(f"fucina._kernels.{stem}", [f"fucina/_kernels/{stem}.pyx"], include_dirs=["fucina/_kernels/include"])
        for stem in stems
    ]
    translated = cythonize(
        sources, build_dir="build/cython", compiler_directives=DIRECTIVES, nthreads=0, quiet=True,
        include_path=["fucina/_kernels"],
    )
    headers = [str(p.relative_to(ROOT)) for p in sorted((KERNELS / "include").glob("*.h"))]
    variants = chosen_variants()
    result = []
    for ext in translated:
        stem = ext.name.rsplit(".", 1)[1]
        targets = [("", ())] if stem in baseline else [(f"{v.name}.", v.cflags) for v in variants]
        for prefix, flags in targets:
            result.append(
                Extension(
                    f"fucina._kernels.{prefix}{stem}",
                    ext.sources,
                    include_dirs=["fucina/_kernels/include"],
                    depends=headers,
                    extra_compile_args=[*CFLAGS, *flags, *openmp],
                    extra_link_args=openmp,
                )
            )
    return result


class Build(build_ext):
    """Compile in parallel, each variant into its own object folder, and make the variants importable."""

    def initialize_options(self):
        super().initialize_options()
        self.parallel = os.cpu_count()

    def run(self):
        if self.inplace:
            for ext in self.extensions:
                (ROOT / Path(*ext.name.split("."))).parent.mkdir(exist_ok=True)
            self.forget_others()
        super().run()

    def forget_others(self):
        """Delete compiled modules that this build does not make: kernels of other variants would be stale."""
        wanted = {ROOT / self.get_ext_filename(ext.name) for ext in self.extensions}
        for path in KERNELS.rglob("*.so"):
            if path not in wanted:
                path.unlink()

    def build_extension(self, ext):
        # Objects of different variants come from the same C file: keep them apart.
        one = self.__class__.__new__(self.__class__)
        one.__dict__.update(self.__dict__)
        one.build_temp = os.path.join(self.build_temp, ext.name)
        build_ext.build_extension(one, ext)


setup(ext_modules=extensions(), cmdclass={"build_ext": Build})
