"""Variant choice, threads, knobs, scratch memory, and what `import fucina` costs."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

import fucina
from fucina._kernels import _openmp, _probe
from fucina.runtime import info, isa, threads, tuning, variants, workspace

ROOT = Path(__file__).resolve().parent.parent
LINUX = sys.platform.startswith("linux")
needs_openmp = pytest.mark.skipif(not _openmp.runtime_version(), reason="built without OpenMP")


# ---- variants and the probe -----------------------------------------------------------------------------------

V3 = {"avx2", "fma", "f16c", "bmi2"}
V4 = V3 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}


@pytest.mark.parametrize(
    ("machine", "features", "expected"),
    [
        ("x86_64", set(), "generic"),
        ("x86_64", V3 - {"fma"}, "generic"),
        ("x86_64", V3, "x86_64_v3"),
        ("AMD64", V3 | {"avxvnni"}, "x86_64_v3_vnni"),
        ("x86_64", V4, "x86_64_v4"),
        ("x86_64", V4 | {"avx512vnni"}, "x86_64_v4"),
        ("x86_64", V4 | {"avx512vnni", "avx512bf16"}, "x86_64_v4_vnni"),
        ("aarch64", {"asimd"}, "aarch64"),
        ("arm64", {"asimd", "atomics", "asimddp"}, "aarch64_dotprod"),
        ("aarch64", {"asimd", "atomics", "asimddp", "i8mm"}, "aarch64_i8mm"),
        ("aarch64", V4, "generic"),
        ("riscv64", V4 | {"asimd"}, "generic"),
    ],
)
def test_best_variant(machine, features, expected):
    assert variants.best(machine, features).name == expected


def test_every_variant_is_a_valid_subpackage_name():
    names = [v.name for v in variants.VARIANTS]
    assert len(set(names)) == len(names)
    assert all(name.isidentifier() for name in names)
    assert all(m == m.lower() for v in variants.VARIANTS for m in v.machines)
    assert variants.VARIANTS[0] == variants.Variant("generic", (), (), ())
    assert variants.by_name("x86_64_v4").features and variants.by_name("nothing") is None


EVERYTHING = {"1.ecx": 0xFFFFFFFF, "7.ebx": 0xFFFFFFFF, "7.ecx": 0xFFFFFFFF, "7.1.eax": 0xFFFFFFFF}


def test_probe_believes_the_operating_system():
    """A processor with everything, under systems that save more and more of its registers."""
    nothing_saved = _probe.decode_x86(EVERYTHING, 0x1)
    assert nothing_saved == {"bmi1", "bmi2"}
    with_ymm = _probe.decode_x86(EVERYTHING, 0x7)
    assert with_ymm > V3 and not any(name.startswith("avx512") for name in with_ymm)
    assert variants.best("x86_64", with_ymm).name == "x86_64_v3_vnni"
    assert _probe.decode_x86(EVERYTHING, 0xE5) == nothing_saved  # the AVX-512 state without the AVX state
    assert variants.best("x86_64", _probe.decode_x86(EVERYTHING, 0xE7)).name == "x86_64_v4_vnni"


def test_probe_believes_the_processor():
    assert _probe.decode_x86({}, 0xE7) == frozenset()
    assert _probe.decode_x86({"7.ebx": 1 << 5}, 0xE7) == {"avx2"}
    assert _probe.decode_arm(0, 0) == frozenset()
    assert _probe.decode_arm(1 << 1 | 1 << 20, 1 << 13) == {"asimd", "asimddp", "i8mm"}


@pytest.mark.skipif(not LINUX, reason="compares with /proc/cpuinfo")
def test_probe_agrees_with_the_kernel():
    text = Path("/proc/cpuinfo").read_text()
    lines = re.findall(r"(?mi)^(?:flags|features)\s*:(.*)$", text)
    words = {word.replace("_", "") for line in lines for word in line.split()}
    if not words:
        pytest.skip("this kernel does not list the features of the processor")
    known = {row[0] for row in (*_probe._X86, *_probe._ARM)}
    assert isa.cpu_features() == words & known


# ---- isa ------------------------------------------------------------------------------------------------------


def test_active_variant_is_the_best_runnable_one(run_isolated):
    done = run_isolated("from fucina.runtime import isa; print(isa.backend(), isa.variant(), isa.why())")
    assert done.stdout == f"native {isa.runnable_variants()[-1]} best built variant for this machine\n"
    assert isa.runnable_variants()[0] == "generic"
    assert set(isa.runnable_variants()) <= set(isa.built_variants())


def test_every_built_variant_has_the_same_kernels():
    for name in isa.built_variants():
        assert isa.stems(name) == isa.stems("generic")


def test_isa_can_be_forced(run_isolated):
    code = """
from fucina.runtime import isa
stem = isa.stems("generic")[0]
module = isa.kernel(stem)
print(isa.variant(), module.__name__ == f"fucina._kernels.generic.{stem}", isa.kernel(stem) is module)
"""
    assert run_isolated(code, {"FUCINA_ISA": "generic"}).stdout == "generic True True\n"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("pentium", "no such variant; there are generic, x86_64_v3,"), ("Generic", "no such variant")],
)
def test_unknown_isa_is_refused(monkeypatch, name, reason):
    check_refused(monkeypatch, name, reason)


def test_isa_of_another_machine_is_refused(monkeypatch):
    monkeypatch.setattr(isa.platform, "machine", lambda: "x86_64")
    check_refused(monkeypatch, "aarch64_i8mm", "it is for aarch64, arm64 and this machine is x86_64")


def test_isa_beyond_this_processor_is_refused(monkeypatch):
    monkeypatch.setattr(isa.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(isa, "cpu_features", lambda: frozenset(V3))
    monkeypatch.setattr(isa, "built_variants", lambda: ("generic", "x86_64_v3", "x86_64_v4"))
    check_refused(monkeypatch, "x86_64_v4", "this machine lacks avx512f, avx512bw", "generic, x86_64_v3")


def test_isa_that_is_not_built_is_refused(monkeypatch):
    monkeypatch.setattr(isa.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(isa, "cpu_features", lambda: frozenset(V4))
    monkeypatch.setattr(isa, "built_variants", lambda: ("generic",))
    check_refused(monkeypatch, "x86_64_v4", "it is not built; build it with FUCINA_VARIANTS=x86_64_v4", "generic")


def test_nothing_runnable_is_refused(monkeypatch):
    monkeypatch.setattr(isa, "built_variants", lambda: ())
    with fresh_choice(), pytest.raises(ImportError, match=r"no kernel variant .*built: none.*make build"):
        isa.variant()


class fresh_choice:
    """Forget the decisions of this process, and forget again what the test decided."""

    def __enter__(self):
        for function in (isa.runnable_variants, isa.variant, isa._choose):
            function.cache_clear()

    __exit__ = lambda self, *_: self.__enter__()  # noqa: E731


def check_refused(monkeypatch, name, reason, available="generic"):
    monkeypatch.setenv("FUCINA_ISA", name)
    with fresh_choice(), pytest.raises(ImportError) as caught:
        isa.variant()
    message = str(caught.value)
    assert message.startswith(f"FUCINA_ISA={name}: ") and reason in message
    assert f"Available here: {available}" in message


def test_backend_takes_two_values(run_isolated):
    code = "from fucina.runtime import isa; print(isa.backend())"
    assert run_isolated(code, {"FUCINA_BACKEND": "scalar"}).stdout == "scalar\n"
    assert run_isolated(code, {"FUCINA_BACKEND": ""}).stdout == "native\n"
    wrong = run_isolated(code, {"FUCINA_BACKEND": "cuda"})
    assert "ValueError: FUCINA_BACKEND must be one of native, scalar, got 'cuda'" in wrong.stderr


def test_scalar_view_has_the_calling_convention_of_the_kernels():
    module = types.ModuleType("spec")
    module.sum_into = lambda x, out: ("sum", x, out)
    module.sum_into_unchecked = lambda x, out: ("unchecked", x, out)
    module.helper = lambda *args: args
    module.SIZE = 32
    view = isa._scalar_view(module)
    assert view.sum_into(1, 2, 8) == ("sum", 1, 2)
    assert view.sum_into_unchecked(1, 2, 8) == ("unchecked", 1, 2)
    assert view.helper(1, 2, 8) == (1, 2, 8)
    assert view.SIZE == 32 and view.__name__ == "spec"


def test_scalar_backend_hands_out_the_specification(run_isolated):
    stems = sorted(p.stem for p in (ROOT / "fucina" / "_scalar").glob("[a-z]*.py"))
    code = f"from fucina.runtime import isa\nfor stem in {stems}: print(isa.kernel(stem).__name__)"
    done = run_isolated(code, {"FUCINA_BACKEND": "scalar"})
    assert stems and done.stdout.split() == [f"fucina._scalar.{stem}" for stem in stems], done.stderr


# ---- threads --------------------------------------------------------------------------------------------------


@needs_openmp
def test_set_num_threads_returns_what_held_before():
    try:
        automatic = fucina.get_num_threads()
        assert fucina.set_num_threads(3) == automatic
        assert fucina.set_num_threads(np.int64(2)) == 3
        assert fucina.get_num_threads() == 2
        assert threads.explain_threads() == "2: set_num_threads"
        assert fucina.set_num_threads(None) == 2
        assert fucina.get_num_threads() == automatic
    finally:
        fucina.set_num_threads(None)


@pytest.mark.parametrize("wrong", [0, -1, 513, 10**20])
def test_set_num_threads_refuses_bad_numbers(wrong):
    with pytest.raises(ValueError, match=f"from 1 to 512, got {wrong}"):
        fucina.set_num_threads(wrong)


@pytest.mark.parametrize("wrong", [1.0, "2", True, [1]])
def test_set_num_threads_refuses_other_types(wrong):
    with pytest.raises(TypeError, match=f"takes an integer, got {type(wrong).__name__}"):
        fucina.set_num_threads(wrong)


EXPLAIN = "import fucina; from fucina.runtime.threads import explain_threads; "


@needs_openmp
@pytest.mark.parametrize(
    ("env", "code", "expected"),
    [
        ({"FUCINA_MAX_THREADS": "3"}, "", "3: FUCINA_MAX_THREADS"),
        ({"OMP_NUM_THREADS": "5"}, "", "5: OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "3,2"}, "", "3: OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "2"}, "import os; os.environ['OMP_NUM_THREADS'] = '9'", "2: OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "4444"}, "", "512: OMP_NUM_THREADS"),
        ({"OMP_NUM_THREADS": "5", "FUCINA_MAX_THREADS": "7"}, "", "7: FUCINA_MAX_THREADS"),
        ({"OMP_NUM_THREADS": "1", "FUCINA_MAX_THREADS": " 2 "}, "", "2: FUCINA_MAX_THREADS"),
        ({"FUCINA_MAX_THREADS": "7"}, "fucina.set_num_threads(4)", "4: set_num_threads"),
        ({"OMP_NUM_THREADS": "1"}, "fucina.set_num_threads(4)", "4: set_num_threads"),
    ],
)
def test_the_first_that_speaks_decides(run_isolated, env, code, expected):
    done = run_isolated(f"{EXPLAIN}\n{code}\nprint(explain_threads())", env)
    assert done.stdout.strip() == expected, done.stderr


@pytest.mark.parametrize("wrong", ["many", "0", "-2", "1.5", "513", "9" * 40])
def test_wrong_max_threads_names_the_variable(run_isolated, wrong):
    done = run_isolated("import fucina; print('imported'); fucina.get_num_threads()", {"FUCINA_MAX_THREADS": wrong})
    assert done.stdout == "imported\n"
    assert "ValueError: FUCINA_MAX_THREADS must be" in done.stderr and f"{wrong}" in done.stderr


@needs_openmp
def test_limits_of_threadpoolctl_hold_against_everything(run_isolated):
    code = """
import fucina, threadpoolctl
from fucina.runtime.threads import explain_threads
def limited(n):
    with threadpoolctl.threadpool_limits(n):
        return fucina.get_num_threads(), explain_threads()
print(limited(1))
fucina.set_num_threads(4)
print(limited(2))
print(fucina.get_num_threads(), limited(8)[0], fucina.get_num_threads())
fucina.set_num_threads(None)
print(fucina.get_num_threads(), limited(1)[0])
"""
    lines = run_isolated(code, {"OMP_NUM_THREADS": "3"}).stdout.splitlines()
    limit = "limit of the OpenMP runtime, as threadpoolctl sets it"
    assert lines == [
        str((1, f"1: {limit} (without it 3: OMP_NUM_THREADS)")),
        str((2, f"2: {limit} (without it 4: set_num_threads)")),
        "4 4 4",
        "3 1",
    ]


@needs_openmp
def test_import_inside_a_limit_is_not_for_ever(run_isolated):
    code = """
import ctypes, ctypes.util, threadpoolctl
gomp = ctypes.CDLL(ctypes.util.find_library("gomp") or "libgomp.so.1")
with threadpoolctl.threadpool_limits(1):
    import fucina
    print(fucina.get_num_threads())
print(fucina.get_num_threads())
"""
    done = run_isolated(code, {"OMP_NUM_THREADS": "4"})
    if "OSError" in done.stderr:
        pytest.skip("GNU OpenMP cannot be loaded by name here")
    assert done.stdout == "1\n4\n", done.stderr


def write(root, name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_physical_cores_count_hyperthreads_once(tmp_path):
    for cpu, siblings in enumerate(["0,4", "1,5", "2,6", "3,7"] * 2):
        write(tmp_path, f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", siblings + "\n")
    assert threads.physical_cores(set(range(8)), tmp_path) == 4
    assert threads.physical_cores({0, 4}, tmp_path) == 1
    assert threads.physical_cores({0, 1, 5}, tmp_path) == 2
    assert threads.physical_cores({0, 99}, tmp_path) == 2  # the system does not tell about one: count CPUs
    assert threads.physical_cores(set(), tmp_path) == 1


def test_quota_of_control_groups_version_2(tmp_path):
    assert threads.cpu_quota(tmp_path) is None
    write(tmp_path, "proc/self/cgroup", "0::/user.slice/job:1\n")
    assert threads.cpu_quota(tmp_path) is None
    write(tmp_path, "sys/fs/cgroup/user.slice/job:1/cpu.max", "max 100000\n")
    assert threads.cpu_quota(tmp_path) is None
    write(tmp_path, "sys/fs/cgroup/user.slice/job:1/cpu.max", "350000 100000\n")
    assert threads.cpu_quota(tmp_path) == 4
    write(tmp_path, "sys/fs/cgroup/user.slice/cpu.max", "50000 100000\n")  # the ancestor is stricter
    assert threads.cpu_quota(tmp_path) == 1
    write(tmp_path, "sys/fs/cgroup/user.slice/cpu.max", "garbage\n")
    assert threads.cpu_quota(tmp_path) == 4


def test_quota_of_control_groups_version_1(tmp_path):
    write(tmp_path, "proc/self/cgroup", "9:memory:/box\n4:cpu,cpuacct:/docker/abc\n0::/\n")
    assert threads.cpu_quota(tmp_path) is None
    # Inside the container its own group is mounted as the root, while /proc names the path of the host.
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n")
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n")
    assert threads.cpu_quota(tmp_path) is None
    write(tmp_path, "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n")
    assert threads.cpu_quota(tmp_path) == 3
    write(tmp_path, "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_quota_us", "100000\n")
    write(tmp_path, "sys/fs/cgroup/cpu/docker/abc/cpu.cfs_period_us", "100000\n")
    assert threads.cpu_quota(tmp_path) == 1


@needs_openmp
def test_quota_and_cores_decide_when_nobody_speaks(monkeypatch):
    monkeypatch.setattr(threads, "_asked", None)
    monkeypatch.setattr(threads, "_omp_count", None)
    monkeypatch.delenv("FUCINA_MAX_THREADS", raising=False)
    monkeypatch.setattr(threads, "_allowed_cpus", lambda: set(range(16)))
    monkeypatch.setattr(threads, "physical_cores", lambda cpus: len(cpus) // 2)
    for quota, expected in ((None, 8), (9, 8), (3, 3)):
        monkeypatch.setattr(threads, "cpu_quota", lambda quota=quota: quota)
        threads._default.cache_clear()
        number, reason = threads._default()
        assert number == expected
        assert "8 among the 16 CPUs" in reason and ("quota" in reason) == (quota == 3)
    threads._default.cache_clear()


@needs_openmp
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs CPU affinity")
def test_affinity_is_respected(run_isolated):
    code = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import fucina
print(fucina.get_num_threads())
"""
    assert run_isolated(code).stdout == "1\n"


@needs_openmp
def test_enter_gives_one_thread_below_the_gate_and_in_a_region(threads, monkeypatch):
    module = sys.modules["fucina.runtime.threads"]
    threads(3)
    assert module.enter(99, 100) == 1
    module.leave(1)
    for _ in range(2):  # given back, and to be had again
        assert module.enter(100, 100) == 3
        module.leave(3)
    monkeypatch.setattr(module, "in_parallel", lambda: True)
    assert module.enter(100, 100) == 1
    monkeypatch.undo()
    threads(1)
    assert module.enter(100, 100) == 1


@needs_openmp
def test_the_team_serves_one_python_thread_at_a_time(threads):
    module = sys.modules["fucina.runtime.threads"]
    threads(2)
    seen = []

    def other():
        with module.team(10, 1) as nth:
            seen.append(nth)

    def run_other():
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(timeout=20)

    with pytest.raises(RuntimeError), module.team(10, 1) as nth:
        assert nth == 2
        run_other()
        raise RuntimeError
    run_other()
    assert seen == [1, 2]


def test_openmp_region_is_seen_by_the_helper_module():
    assert _openmp.in_parallel() is False
    assert _openmp.max_threads() >= 1


@needs_openmp
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_is_serial(run_isolated):
    code = """
import os, threading, warnings
from fucina.runtime import threads
threads.set_num_threads(2)
assert threads.enter(10, 1) == 2        # forked while the team is taken
warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if child == 0:
    fine = threads.enter(10, 1) == 1 and threads.get_num_threads() == 1
    threads.leave(1)
    threads.set_num_threads(4)
    fine = fine and threads.get_num_threads() == 1 and threads.explain_threads().startswith("1: forked child")
    os._exit(0 if fine else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
threads.leave(2)
print(threads.get_num_threads())
"""
    done = run_isolated(code)
    assert done.stdout == "0\n2\n", done.stderr


# What real kernels do with their threads. Each process computes a large softmax, alone and in every odd situation.
KERNELS = """
import os, sys, threading, warnings
import numpy as np
import fucina
from fucina import ops
x = np.random.default_rng(0).standard_normal((256, 1024), dtype=np.float32)
expected = ops.softmax(x).tobytes()
"""


@needs_openmp
def test_concurrent_python_threads_get_the_same_bits(run_isolated):
    code = KERNELS + """
results = []
def work():
    for _ in range(20):
        results.append(ops.softmax(x).tobytes() == expected)
team = [threading.Thread(target=work) for _ in range(4)]
for t in team: t.start()
for t in team: t.join()
print(all(results), len(results))
"""
    done = run_isolated(code, {"FUCINA_MAX_THREADS": "2"})
    assert done.stdout == "True 80\n", done.stderr


@needs_openmp
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_kernels_run_in_a_forked_child(run_isolated):
    code = KERNELS + """
warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if child == 0:
    os._exit(0 if ops.softmax(x).tobytes() == expected else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = run_isolated(code, {"FUCINA_MAX_THREADS": "2"}, timeout=60)
    assert done.stdout == "0\n", done.stderr


@needs_openmp
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads in /proc")
def test_repeated_calls_start_no_more_threads(run_isolated):
    code = KERNELS + """
count = lambda: len(os.listdir("/proc/self/task"))
before = count()
for _ in range(200):
    ops.softmax(x)
print(count() - before)
"""
    done = run_isolated(code, {"FUCINA_MAX_THREADS": "3"})
    assert done.stdout == "0\n", done.stderr


@needs_openmp
@pytest.mark.parametrize(
    ("env", "spins"), [({}, "3000"), ({"GOMP_SPINCOUNT": "77"}, "77"), ({"OMP_WAIT_POLICY": "passive"}, "0")]
)
def test_waiting_threads_spin_briefly_unless_told_otherwise(run_isolated, env, spins):
    code = "import os, fucina; print(os.environ.get('GOMP_SPINCOUNT'))"
    done = run_isolated(code, env | {"OMP_DISPLAY_ENV": "verbose"})
    shown = re.search(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)
    if shown is None:
        pytest.skip("not GNU OpenMP")
    assert shown[1] == spins
    assert done.stdout.strip() == env.get("GOMP_SPINCOUNT", "None")  # what children inherit is unchanged


# ---- knobs ----------------------------------------------------------------------------------------------------


def test_every_variable_in_the_sources_is_listed():
    """Every FUCINA_ name anywhere in the project is a knob, a C macro of the build, or the start of knob names."""
    used: dict[str, set[str]] = {}
    for path in source_files():
        for name in re.findall(r"FUCINA_[A-Z0-9_]*[A-Z0-9]", path.read_text(encoding="utf-8")):
            used.setdefault(name, set()).add(str(path.relative_to(ROOT)))
    macros = {name for name, files in used.items() if all(f.startswith("fucina/_kernels/") for f in files)}
    unlisted = {n: f for n, f in used.items() if n not in tuning.KNOBS and n not in macros and n != "FUCINA_GATE"}
    assert unlisted == {}
    assert set(tuning.KNOBS) <= set(used)


def source_files():
    for folder in ("fucina", "tools", ".ci", "docs"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".pyx", ".pxd", ".pxi", ".h", ".md", "") and path.is_file():
                yield path
    for name in ("setup.py", "Makefile", "README.md"):
        yield ROOT / name


def test_environment_is_read_through_the_table_only():
    """In the package itself, nobody but tuning takes a FUCINA_ variable from the environment."""
    for path in (ROOT / "fucina").rglob("*.[phx]*"):
        if path.suffix in (".py", ".pyx", ".pxd", ".h") and path.name != "tuning.py":
            assert not re.search(r"(environ|getenv)\b.*FUCINA_", path.read_text(encoding="utf-8")), path


def test_values_have_their_kind_and_default(monkeypatch):
    for name, knob in tuning.KNOBS.items():
        monkeypatch.delenv(name, raising=False)
        assert knob.name == name and knob.meaning.endswith(".") and tuning.value(name) == knob.default
    assert tuning.changed() == {}
    monkeypatch.setenv("FUCINA_GATE_ROWS", " 123 ")
    monkeypatch.setenv("FUCINA_CACHE_DIR", "~/x")
    assert tuning.value("FUCINA_GATE_ROWS") == 123
    assert tuning.value("FUCINA_CACHE_DIR") == Path.home() / "x"
    assert set(tuning.changed()) == {"FUCINA_GATE_ROWS", "FUCINA_CACHE_DIR"}
    monkeypatch.setenv("FUCINA_GATE_ROWS", "  ")
    assert tuning.value("FUCINA_GATE_ROWS") == tuning.KNOBS["FUCINA_GATE_ROWS"].default


@pytest.mark.parametrize(
    ("name", "text"), [("FUCINA_GATE_ROWS", "-1"), ("FUCINA_GATE_ROWS", "1e3"), ("FUCINA_BACKEND", "NATIVE")]
)
def test_wrong_values_name_the_variable(monkeypatch, name, text):
    monkeypatch.setenv(name, text)
    with pytest.raises(ValueError, match=f"^{name} must be .* got '{text}'"):
        tuning.value(name)


def test_an_unlisted_knob_is_a_mistake():
    with pytest.raises(KeyError):
        tuning.value("FUCINA_" + "NOTHING")


def test_generated_docs_are_current(run_isolated):
    done = run_isolated([str(ROOT / "tools" / "make_docs.py"), "--check"])
    assert done.returncode == 0, done.stderr


# ---- scratch memory -------------------------------------------------------------------------------------------


def address(array):
    return array.__array_interface__["data"][0]


@pytest.mark.parametrize(
    ("shape", "dtype"), [(0, "u1"), (1, "u1"), ((3, 5), "f4"), ((2, 0, 7), "f8"), ((), "i8"), ((1, 333, 3), np.float16)]
)
def test_aligned_empty(shape, dtype):
    for _ in range(20):
        array = workspace.aligned_empty(shape, dtype)
        assert array.size == 0 or address(array) % 64 == 0
        assert array.shape == np.empty(shape).shape and array.dtype == np.dtype(dtype)
        assert array.flags.c_contiguous and array.flags.writeable


def test_scratch_is_reused_and_grows():
    workspace.release()
    first = workspace.scratch(1000)
    assert first.shape == (1000,) and first.dtype == np.uint8 and address(first) % 64 == 0
    first[:] = 7
    again = workspace.scratch(10)
    assert address(again) == address(first) and again.shape == (10,)
    large = workspace.scratch(1_000_000)
    assert large.shape == (1_000_000,) and address(large) % 64 == 0
    assert address(workspace.scratch(999_999)) == address(large)
    assert workspace.scratch(0).shape == (0,)
    workspace.release()
    with pytest.raises(ValueError, match="at least 0 bytes, got -1"):
        workspace.scratch(-1)


def test_scratch_belongs_to_one_python_thread():
    mine = workspace.scratch(64)
    theirs = []
    thread = threading.Thread(target=lambda: theirs.append(workspace.scratch(64)))
    thread.start()
    thread.join()
    assert not np.shares_memory(mine, theirs[0])


# ---- front door and information -------------------------------------------------------------------------------


def test_import_is_cheap(run_isolated):
    """No optional or heavy package is loaded and no thread is started by `import fucina`."""
    code = """
import os, sys, numpy
count = lambda: len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
before = count()
import fucina
heavy = ["tokenizers", "jinja2", "threadpoolctl", "scipy", "ml_dtypes", "tqdm", "gguf", "argparse", "subprocess",
         "fucina.llm", "fucina.cli"]
print([name for name in heavy if name in sys.modules], count() - before)
"""
    done = run_isolated(code)
    assert done.stdout == "[] 0\n", done.stderr


def test_front_door():
    assert re.fullmatch(r"\d+\.\d+\.\d+", fucina.__version__)
    assert {"ops", "llm", "open_gguf", "QTensor", "set_num_threads", "show_runtime"} <= set(dir(fucina))
    assert all(hasattr(fucina, name) for name in fucina.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        fucina.nothing  # noqa: B018


def test_missing_kernels_are_explained(run_isolated):
    code = """
import sys
sys.modules["fucina._kernels._openmp"] = None
import fucina
"""
    done = run_isolated(code)
    assert "the compiled kernels of fucina are missing (fucina._kernels._openmp); build them" in done.stderr


def test_runtime_info_is_plain_data():
    data = info.runtime_info()
    assert json.loads(json.dumps(data)) == data
    assert data["variant"] in data["built_variants"] and data["machine"] == platform.machine()
    assert data["threads"] == fucina.get_num_threads() and data["threads_reason"].startswith(f"{data['threads']}: ")
    assert set(data["knobs"]) == set(tuning.KNOBS)
    assert bool(data["openmp"]) == bool(_openmp.runtime_version())


def test_show_runtime_prints_the_knobs_and_who_set_them(capsys, monkeypatch):
    monkeypatch.setenv("FUCINA_GATE_ROWS", "77")
    fucina.show_runtime()
    text = capsys.readouterr().out
    assert f"fucina        {fucina.__version__} on " in text
    assert re.search(r"FUCINA_GATE_ROWS = 77  \(set\)", text)
    assert re.search(r"FUCINA_GATE_MATMUL = \d+  \(default\)", text)
    assert "variant       " + isa.variant() in text
