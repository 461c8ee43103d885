"""What all tests share: isolated processes, the built variants, the real models, and how hypothesis runs."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import fucina
from fucina.runtime import isa

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"

# The same examples in every run. Kernels under test may be plain Python, so no example has a deadline.
settings.register_profile(
    "ci", derandomize=True, deadline=None, max_examples=60, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.register_profile("thorough", parent=settings.get_profile("ci"), max_examples=2000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def _clean_environment(env: dict[str, str]) -> dict[str, str]:
    """This process's environment without what would steer fucina, then ``env``; the same package is importable."""
    steering = ("FUCINA_", "OMP_", "OPENBLAS_", "GOMP_", "MKL_")
    clean = {name: text for name, text in os.environ.items() if not name.startswith(steering)}
    package_home = str(Path(fucina.__file__).resolve().parent.parent)
    clean["PYTHONPATH"] = os.pathsep.join(filter(None, [package_home, os.environ.get("PYTHONPATH")]))
    clean["PYTHONIOENCODING"] = "utf-8"
    return clean | env


@pytest.fixture
def run_isolated():
    """``run_isolated(code, env={}, timeout=60) -> CompletedProcess`` runs Python code in a fresh interpreter.

    ``code`` may also be a list: the arguments of the interpreter, such as ``["-m", "fucina", "info"]``.
    """

    def run(code, env=None, timeout=60, **options):
        arguments = ["-c", code] if isinstance(code, str) else list(code)
        options = {"capture_output": True, "text": True, "encoding": "utf-8", "timeout": timeout} | options
        return subprocess.run([sys.executable, *arguments], env=_clean_environment(env or {}), **options)

    return run


@pytest.fixture
def start_isolated():
    """Like ``run_isolated``, but returns the running ``Popen``; it is ended when the test is over."""
    started = []

    def start(arguments, env=None, **options):
        if os.name == "posix":
            # A shell that runs the tests in the background has them ignore interrupts; children must not inherit that.
            options.setdefault("preexec_fn", lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        process = subprocess.Popen([sys.executable, *arguments], env=_clean_environment(env or {}), **options)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream:
                stream.close()


class Variant:
    """One built variant: ``variant.name`` and ``variant.kernel(stem)``, the compiled module."""

    def __init__(self, name: str):
        self.name = name

    def kernel(self, stem: str):
        return importlib.import_module(f"fucina._kernels.{self.name}.{stem}")


@pytest.fixture(params=isa.runnable_variants())
def variant(request) -> Variant:
    """Every variant that is built and that this machine can run; they can live in one process."""
    return Variant(request.param)


@pytest.fixture
def threads():
    """``threads(n)`` sets the number of threads; the automatic choice comes back at the end of the test."""
    yield fucina.set_num_threads
    fucina.set_num_threads(None)


@pytest.fixture(scope="session")
def real_model():
    """``real_model("smollm2")`` is the path of a real model; the test is skipped where it was never fetched."""
    from fucina.models import locate

    def find(name: str) -> Path:
        path = locate(name)
        if path is None:
            pytest.skip(f"the model {name} is neither in FUCINA_TEST_MODELS nor in the cache (make demo fetches it)")
        return path

    return find


@pytest.fixture(scope="session")
def text_model(tmp_path_factory) -> Path:
    """A model that takes and gives text, small enough for the plain-Python backend: the tiny llama of the golden
    data with a chat template and a byte-level vocabulary: every byte of UTF-8, and the one pair "he"."""
    import gguf

    source = gguf.GGUFReader(GOLDEN / "tiny" / "llama-f16.gguf")
    path = tmp_path_factory.mktemp("model") / "text.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for field in source.fields.values():
        if not field.name.startswith(("GGUF.", "tokenizer.")) and field.name != "general.architecture":
            writer.add_key_value(field.name, field.contents(), field.types[0])
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([alphabet[byte] for byte in range(255)] + ["he"])  # UTF-8 has no byte 255
    writer.add_token_types([1] * 256)
    writer.add_token_merges(["h e"])
    writer.add_chat_template("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}")
    for tensor in source.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
