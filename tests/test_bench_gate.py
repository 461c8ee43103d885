"""The model gate with played sides: what it concludes, what it leaves behind, how it goes on after an abort."""

from __future__ import annotations

import ast
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import archive  # noqa: E402
import bench_gate  # noqa: E402
import sides  # noqa: E402
import verdicts  # noqa: E402

# What llama-bench -p 16 -n 4 -fa 0,1 -r 2 -o json prints, less the fields that nobody reads.
LLAMA_BENCH = """
warning: one line that is not JSON
[
  {"build_commit": "0c1e570", "build_number": 1, "backends": "CPU", "n_threads": 2, "flash_attn": 0, "n_prompt": 16,
   "n_gen": 0, "n_depth": 0, "avg_ns": 570021664, "avg_ts": 29.020407, "samples_ns": [ 673226023, 466817306 ],
   "samples_ts": [ 23.7662, 34.2747 ]},
  {"build_commit": "0c1e570", "build_number": 1, "backends": "CPU", "n_threads": 1, "flash_attn": 1, "n_prompt": 16,
   "n_gen": 0, "n_depth": 0, "samples_ts": [ 35.0, 34.0 ]},
  {"build_commit": "0c1e570", "build_number": 1, "backends": "CPU", "n_threads": 2, "flash_attn": -1, "n_prompt": 0,
   "n_gen": 4, "n_depth": 0, "samples_ts": [ 8.85374, 11.8094 ]}
]
"""

# A program that answers like llama-bench (or, as "ours", like fucina bench) with given speeds, and logs its calls.
PLAYED = '''
import itertools, json, sys
log, kind, speed, spread, *argv = sys.argv[1:]
open(log, "a").write(kind + " " + " ".join(argv) + "\\n")
if kind == "broken":
    sys.exit("the model is not to my taste")
option = lambda name, default: argv[argv.index(name) + 1] if name in argv else default
p, n, d, r = (int(option(name, 0)) for name in ("-p", "-n", "-d", "-r"))
speed, spread = float(speed), float(spread)
samples = lambda factor: [factor * speed * (1 + spread * (i % 2)) for i in range(r)]
if kind == "ours":
    test = (f"pp{p}" if p else f"tg{n}") + (f"@d{d}" if d else "")
    print(json.dumps({"fucina": "9.9", "backend": "native", "variant": "v", "results": [
        {"test": test, "samples": samples(1)}]}))
else:
    combinations = itertools.product(option("-t", "1").split(","), option("-fa", "-1").split(","))
    print(json.dumps([{"build_commit": "abc", "n_threads": int(t), "flash_attn": int(fa), "n_prompt": p, "n_gen": n,
                       "n_depth": d, "samples_ts": samples(1 + 0.1 * int(fa) + 0.01 * int(t))}
                      for t, fa in combinations]))
'''


@pytest.fixture
def play(tmp_path, monkeypatch):
    """``play(*arguments, ours=, peer=) -> exit status``; ``play.folder`` is the archive, ``play.calls()`` the log."""
    script, log, model = tmp_path / "played.py", tmp_path / "log", tmp_path / "model.gguf"
    script.write_text(PLAYED)
    log.touch()
    model.write_bytes(bytes(100))
    monkeypatch.setattr(sides.shutil, "which", lambda name: name if Path(name).is_file() else None)
    monkeypatch.setattr(sides.importlib.util, "find_spec", lambda name: None)

    class Play:
        out = tmp_path / "compare"

        @staticmethod
        def command(kind, speed, spread=0.0):
            return shlex.join([sys.executable, str(script), str(log), kind, str(speed), str(spread)])

        def __call__(self, *arguments, ours=200.0, peer=100.0, spread=0.0, peer_kind="peer"):
            argv = [str(model), "-t", "2", "-r", "2", "--cooldown", "0", "--out", str(self.out)]
            argv += ["--ours", self.command("ours", ours, spread)]
            argv += ["--llama-bench", self.command(peer_kind, peer)] if peer else []
            return bench_gate.main([*argv, *arguments])

        @property
        def folder(self):
            (found,) = self.out.iterdir()
            return found

        def document(self):
            return json.loads((self.folder / "results.json").read_text())

        def calls(self):
            return [line.split()[0] for line in log.read_text().splitlines()]

        def call_lines(self):
            return log.read_text().splitlines()

    play = Play()
    play.model, play.log = model, log
    return play


# ---- verdicts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "options", "verdict", "ratio"),
    [
        ([2, 2], [1, 1], {}, "PASS", 2),
        ([1, 1], [1, 1], {}, "PASS", 1),
        ([0.99, 0.99], [1, 1], {}, "FAIL", 0.99),
        ([2, 2], [1, 1], {"min_ratio": 2.1}, "FAIL", 2),
        ([2, 3], [1, 1], {}, "NOISY", 2.5),
        ([2, 2], [1, 1.2], {}, "NOISY", 2 / 1.1),
        ([2, 3], [1, 1], {"allow_noisy": True}, "PASS", 2.5),
        ([2, 3], [1, 1], {"max_cv": 0.5}, "PASS", 2.5),
        ([1, 1, 100], [1, 1, 1], {"allow_noisy": True}, "PASS", 1),
        ([2, 2], [1], {}, "NOISY", 2),  # nobody knows how much one sample varies
        ([2], [1, 1], {}, "NOISY", 2),
        ([2], [1], {"allow_noisy": True}, "PASS", 2),
        ([], [1], {}, "MISSING", None),
        ([1], [], {}, "MISSING", None),
    ],
)
def test_verdict(ours, theirs, options, verdict, ratio):
    found = verdicts.judge(ours, theirs, **options)
    assert found[0] == verdict and found[1] == (ratio if ratio is None else pytest.approx(ratio))


def test_the_worst_verdict_counts_and_each_has_its_status():
    assert verdicts.overall(["PASS", "NOISY", "MISSING", "FAIL"]) == "FAIL"
    assert verdicts.overall(["PASS", "NOISY", "MISSING"]) == "MISSING"
    assert verdicts.overall(["PASS", "NOISY"]) == "NOISY"
    assert verdicts.overall(["PASS", "PASS"]) == "PASS"
    assert verdicts.overall([]) == "MISSING"
    assert verdicts.EXIT["PASS"] == 0
    assert len({*verdicts.EXIT.values(), verdicts.ABORTED}) == 5


def test_coefficient_of_variation():
    assert verdicts.cv([5]) is None and verdicts.cv([]) is None and verdicts.cv([3, 3, 3]) == 0
    assert verdicts.cv([1, 3]) == pytest.approx(2**0.5 / 2)  # the standard deviation of a sample


# ---- what the sides are asked, and what they answer -----------------------------------------------------------


def test_llama_bench_output():
    side = sides.LlamaBench("llama.cpp", ["llama-bench"])
    prompt, generation = (sides.Row(Path("m.gguf"), *test) for test in ((16, 0), (0, 4)))
    assert side.read(LLAMA_BENCH, prompt) == [23.7662, 34.2747]
    assert side.read(LLAMA_BENCH, generation) == [8.85374, 11.8094]
    assert side.best(LLAMA_BENCH, prompt) == sides.Settings(1, True)
    assert side.best(LLAMA_BENCH, generation) == sides.Settings(2, None)
    assert side.version(LLAMA_BENCH) == "0c1e570 1 CPU"
    with pytest.raises(ValueError, match="no result for pp17"):
        side.read(LLAMA_BENCH, sides.Row(Path("m.gguf"), 17, 0))
    with pytest.raises(ValueError, match="no result for pp16@d8"):
        side.read(LLAMA_BENCH, sides.Row(Path("m.gguf"), 16, 0, 8))
    for text in ("", "no JSON", "[{]", LLAMA_BENCH.replace("[ 23.7662, 34.2747 ]", "[]"),
                 LLAMA_BENCH.replace("23.7662", "0")):  # fmt: skip
        with pytest.raises(ValueError):
            side.read(text, prompt)


def test_command_lines():
    row = sides.Row(Path("m.gguf"), 256, 0)
    deep = sides.Row(Path("m.gguf"), 0, 32, 4096)
    side = sides.LlamaBench("llama.cpp", ["llama-bench"], ["-ub", "256"])
    assert shlex.join(side.call(row, sides.Settings(2, True), 5, "f16")) == (
        "llama-bench -m m.gguf -p 256 -n 0 -t 2 -fa 1 -r 5 -ngl 0 -o json -ub 256"
    )
    assert shlex.join(side.trial(deep, [2, 1], [True], "q8_0")) == (
        "llama-bench -m m.gguf -p 0 -n 32 -d 4096 -t 2,1 -fa 1 -r 2 -ngl 0 -ctk q8_0 -ctv q8_0 -o json -ub 256"
    )
    ours = sides.Fucina("fucina", ["fucina", "bench"])
    assert shlex.join(ours.call(deep, sides.Settings(2), 5, "q8_0")) == (
        "fucina bench m.gguf -p 0 -n 32 -d 4096 -t 2 -r 5 --cache-type q8_0 --json"
    )


def test_our_side_is_the_command_line_that_exists(run_isolated):
    """The gate's own command for our side, run for real on a tiny model."""
    ours = sides.Fucina("fucina", ["-m", "fucina", "bench"])
    for row in (sides.Row(ROOT / "tests/golden/tiny/qwen3-f16.gguf", 4, 0),
                sides.Row(ROOT / "tests/golden/tiny/qwen3-f16.gguf", 0, 2, 3)):  # fmt: skip
        done = run_isolated(ours.call(row, sides.Settings(1), 2, "f16"))
        assert done.returncode == 0, done.stderr
        assert len(ours.read(done.stdout, row)) == 2 and "native" in ours.version(done.stdout)


# ---- whole runs -----------------------------------------------------------------------------------------------


def test_pass_and_what_is_archived(play, capsys):
    assert play("-p", "8", "-n", "4") == 0
    assert "PASS: " in capsys.readouterr().out
    # Two trials, then both orders for each test.
    assert play.calls() == ["peer"] * 2 + ["ours", "peer", "peer", "ours"] * 2
    trial, call = play.call_lines()[0], play.call_lines()[3]
    assert "-t 2,1 -fa 0,1" in trial and "-p 8 -n 0" in trial
    assert "-t 2 -fa 1" in call  # the played peer is fastest with two threads and flash attention
    document = play.document()
    assert document["meta"]["verdict"] == "PASS" and document["meta"]["versions"]["llama.cpp"] == "abc"
    assert [(r["test"], r["verdict"]) for r in document["results"]] == [("pp8", "PASS"), ("tg4", "PASS")]
    assert document["results"][0]["ratio"] == pytest.approx(200 / 112)
    assert document["results"][0]["ours"]["samples"] == [200.0] * 4
    table = [line.split("\t") for line in (play.folder / "results.tsv").read_text().splitlines()]
    assert table[0][0] == "model" and table[1][:3] == ["model", "pp8", "llama.cpp"] and table[1][-1] == "PASS"
    summary = (play.folder / "SUMMARY.md").read_text()
    assert "peers tried 2 and 1 threads, flash attention on and off" in summary
    assert "# Model gate: PASS" in summary and "2 threads, flash attention on" in summary
    assert "| pp8 | 200.0 | 112.0 | 1.786 | 1 | 0.0% / 0.0% | PASS |" in summary
    raw = play.folder / "raw"
    labels = {f"model.{test}.{side}.1{order}" for test in ("pp8", "tg4") for side in ("fucina", "llama.cpp")
              for order in ("ab", "ba")} | {"model.pp8.llama.cpp.trial", "model.tg4.llama.cpp.trial"}  # fmt: skip
    assert {path.name for path in raw.iterdir()} == {label + end for label in labels
                                                     for end in (".cmd", ".stdout", ".stderr")}  # fmt: skip
    command = shlex.split((raw / "model.pp8.llama.cpp.1ab.cmd").read_text())
    assert command[-len(call.split()) + 1 :] == call.split()[1:]


def test_one_choice_of_settings_needs_no_trial(play):
    assert play("-p", "8", "-n", "4", "--peer-threads", "1", "--cache-type", "q8_0") == 0
    assert play.calls() == ["ours", "peer", "peer", "ours"] * 2
    assert "-t 1 -fa 1" in play.call_lines()[1]
    assert play.document()["results"][1]["settings"] == "1 threads, flash attention on"
    assert "peers tried 1 threads, flash attention on;" in (play.folder / "SUMMARY.md").read_text()


def test_fail(play):
    assert play("-p", "8", "-n", "0", ours=50.0) == 1
    assert play.document()["results"][0]["verdict"] == "FAIL"


def test_noisy_is_no_result_whichever_way_it_points(play):
    assert play("-p", "8", "-n", "0", ours=1000.0, spread=0.5) == 3
    assert "Geometric mean" not in (play.folder / "SUMMARY.md").read_text()


def test_one_sample_is_no_result(play):
    assert play("-p", "8", "-n", "0", "-r", "1", "--single-order", ours=1000.0) == 3
    assert "| one sample / one sample | NOISY |" in (play.folder / "SUMMARY.md").read_text()
    assert play("-p", "8", "-n", "0", "-r", "1", ours=1000.0) == 0  # two orders are two samples


def test_noise_can_be_allowed(play):
    assert play("-p", "8", "-n", "0", "--allow-noisy", ours=1000.0, spread=0.5) == 0


def test_missing_without_a_peer(play, capsys):
    assert play("-p", "8", "-n", "0", peer=None) == 4
    assert "every cell will be MISSING" in capsys.readouterr().err
    (result,) = play.document()["results"]
    assert result["verdict"] == "MISSING" and result["ratio"] is None and result["ours"]["median"] == 200
    summary = (play.folder / "SUMMARY.md").read_text()
    assert "| pp8 | 200.0 |  |  | 1 | 0.0% /  | MISSING |" in summary  # what was not measured does not vary by 0 %
    assert result["theirs"]["cv"] is None
    assert "failed: llama.cpp: no llama-bench on PATH and no llama_cpp package" in summary and "peers tried" not in summary


def test_missing_when_a_side_fails(play):
    assert play("-p", "8", "-n", "0", peer_kind="broken") == 4
    assert "exit status 1: the model is not to my taste" in (play.folder / "SUMMARY.md").read_text()
    assert "not to my taste" in (play.folder / "raw" / "model.pp8.llama.cpp.trial.stderr").read_text()


def test_settings_that_nobody_tried_are_not_judged(play, monkeypatch):
    process = archive.Runner._process
    monkeypatch.setattr(
        archive.Runner, "_process", lambda self, command: process(self, command) if self._at != 1 else ("died", "", "")
    )
    assert play("-p", "8", "-n", "0") == 4
    assert play.calls() == ["ours", "ours"]
    assert "llama.cpp.1ab: its best settings are not known" in (play.folder / "SUMMARY.md").read_text()


def test_an_unexpected_error_is_no_verdict(play, monkeypatch, capsys):
    monkeypatch.setattr(archive, "_read_through", lambda path: open("no such file", "rb"))
    assert play("-p", "8", "-n", "0", "--prewarm") == 2
    assert "No such file" in (said := capsys.readouterr().err) and "continue with --resume" in said
    assert play.document()["meta"]["verdict"] == "ABORTED"


def test_short_names_are_different():
    paths = [Path(p) for p in ("d/x-2.gguf", "a/x.gguf", "b/x.gguf", "c/x.gguf")]
    assert list(archive.short_names(paths).values()) == ["x-2", "x", "x-3", "x-4"]


def test_half_of_the_processes_is_no_result(play, monkeypatch):
    process = archive.Runner._process
    monkeypatch.setattr(
        archive.Runner, "_process", lambda self, command: process(self, command) if self._at != 5 else ("died", "", "")
    )
    assert play("-p", "8", "-n", "0") == 4
    assert "fucina.1ba: died" in (play.folder / "SUMMARY.md").read_text()


@pytest.mark.parametrize(("options", "status"), [
    (["--min-ratio", "2"], 1), (["--min-ratio", "pp8=2"], 1), (["--min-ratio", "pp9=2"], 2),
    (["--min-ratio", "5", "--min-ratio", "pp8=1.5"], 0),
])  # fmt: skip
def test_minimum_ratio_of_all_or_one_test(play, options, status):
    assert play("-p", "8", "-n", "0", *options) == status


def test_a_second_peer_is_one_more_column_of_verdicts(play):
    assert play("-p", "8", "-n", "0", "--peer", "other=" + play.command("other", 400.0)) == 1
    assert play.calls()[2:] == ["ours", "peer", "other", "other", "peer", "ours"]
    results = {r["peer"]: r["verdict"] for r in play.document()["results"]}
    assert results == {"llama.cpp": "PASS", "other": "FAIL"}
    assert "## model, against other" in (play.folder / "SUMMARY.md").read_text()


def test_rounds_depths_and_one_order(play):
    assert play("-p", "8", "-n", "0", "-d", "0,16", "--rounds", "2", "--single-order", "--prewarm") == 0
    assert play.calls() == ["peer"] * 2 + ["ours", "peer"] * 4
    assert [r["test"] for r in play.document()["results"]] == ["pp8", "pp8@d16"]


def test_quantized_cache_has_flash_attention(play):
    assert play("-p", "8", "-n", "0", "--cache-type", "q8_0") == 0
    assert "-fa 1 " in play.call_lines()[0] and "-ctk q8_0 -ctv q8_0" in play.call_lines()[0]
    assert "--cache-type q8_0" in play.call_lines()[1]


# ---- aborted and resumed --------------------------------------------------------------------------------------


def test_an_aborted_run_keeps_what_it_has_and_goes_on(play, monkeypatch, capsys):
    process = archive.Runner._process

    def interrupted(self, command):
        if self._at == 5:
            raise KeyboardInterrupt
        return process(self, command)

    monkeypatch.setattr(archive.Runner, "_process", interrupted)
    assert play("-p", "8", "-n", "4") == 2
    assert f"--resume {play.folder}" in capsys.readouterr().err
    assert play.document()["meta"]["verdict"] == "ABORTED"
    before = play.calls()
    assert before == ["peer"] * 2 + ["ours", "peer"]
    # An answer that was cut off counts as none.
    (play.folder / "raw" / "model.pp8.llama.cpp.1ab.stdout").write_text("[{")
    monkeypatch.setattr(archive.Runner, "_process", process)
    assert bench_gate.main(["--resume", str(play.folder)]) == 0
    assert play.calls()[len(before) :] == ["peer", "peer", "ours"] + ["ours", "peer", "peer", "ours"]
    assert play.document()["meta"]["verdict"] == "PASS"
    done = len(play.calls())
    assert bench_gate.main(["--resume", str(play.folder)]) == 0 and len(play.calls()) == done


def test_an_answer_to_another_command_is_not_kept(play):
    assert play("-p", "8", "-n", "0") == 0
    (play.folder / "raw" / "model.pp8.fucina.1ab.cmd").write_text("something else\n")
    done = len(play.calls())
    assert bench_gate.main(["--resume", str(play.folder)]) == 0
    assert play.calls()[done:] == ["ours"]


def test_an_answer_to_another_command_does_not_come_back(play, monkeypatch):
    assert play("-p", "8", "-n", "0") == 0
    (play.folder / "raw" / "model.pp8.fucina.1ab.cmd").write_text("something else\n")
    with monkeypatch.context() as patch:
        patch.setattr(archive.Runner, "_process", lambda self, command: ("died", "", ""))
        assert bench_gate.main(["--resume", str(play.folder)]) == 4
    done = len(play.calls())
    assert bench_gate.main(["--resume", str(play.folder)]) == 0
    assert play.calls()[done:] == ["ours"]


def test_a_run_of_another_commit_is_not_resumed(play, monkeypatch, capsys):
    assert play("-p", "8", "-n", "0") == 0
    monkeypatch.setattr(archive, "commit", lambda root: "another")
    assert bench_gate.main(["--resume", str(play.folder)]) == 2
    assert "this is another" in capsys.readouterr().err


def test_time_left(play, capsys):
    assert play("-p", "8", "-n", "0") == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5 and lines[-1].strip().startswith("5/5") and lines[-1].endswith("[0 s left]")
    assert "200.00 tokens/s" in lines[-1]


def test_a_process_may_take_too_long(tmp_path):
    runner = archive.Runner(tmp_path / "raw", tmp_path, timeout=0.2, cooldown=0, prewarm=False)
    runner.expect(1)
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    assert runner.run("slow", command, lambda text: [1.0], None) is None
    assert "no answer within" in runner.failed["slow"]


# ---- wrong usage ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("arguments", "complaint"), [
    (["no-such.gguf"], "no model file"),
    (["MODEL", "--llama-bench", "no-such-program"], "not a program"),
    (["MODEL", "--peer", "nameless"], "NAME=PATH"),
    (["MODEL", "--peer", "x=no-such-program"], "not a program"),
    (["MODEL", "--peer", f"../x={sys.executable}"], "NAME=PATH"),
    (["MODEL", "--peer", f"fucina={sys.executable}"], "different names"),
    (["MODEL", "-p", "0", "-n", "0"], "nothing to measure"),
    (["MODEL", "-p", "8", "--min-ratio", "pp9=2"], "--min-ratio of pp9: the tests are pp8, tg32"),
    (["--resume", "nowhere"], "cannot be read|can be resumed"),
])  # fmt: skip
def test_bad_input_is_status_2(play, capsys, arguments, complaint):
    arguments = [str(play.model) if item == "MODEL" else item for item in arguments]
    assert bench_gate.main([*arguments, "--out", str(play.out)]) == 2
    assert re.search(complaint, capsys.readouterr().err)
    assert not play.out.exists()  # no empty archives


@pytest.mark.parametrize("arguments", [[], ["m", "-p", "x"], ["m", "-p", "-1"], ["m", "-r", "0"], ["m", "-t", "0"],
                                       ["m", "--min-ratio", "high"], ["m", "--min-ratio", "nan"],
                                       ["m", "--cache-type", "f8"]])  # fmt: skip
def test_wrong_usage_is_status_2(capsys, arguments):
    with pytest.raises(SystemExit) as exit:
        bench_gate.main(arguments)
    assert exit.value.code == 2 and "usage:" in capsys.readouterr().err


# ---- llama.cpp through its Python package ---------------------------------------------------------------------

PACKAGE = '''
import ctypes, sys
__version__ = "9.9"
llama_token = ctypes.c_int32
calls = []

class Params(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in (
        "n_gpu_layers", "n_ctx", "n_batch", "n_ubatch", "n_threads", "n_threads_batch", "FLASH", "type_k", "type_v",
        "swa_full")]

def llama_backend_init(): pass
def llama_model_default_params(): return Params(n_gpu_layers=99)
def llama_context_default_params(): return Params()
def llama_model_load_from_file(path, params): return 1 if path != b"bad.gguf" and params.n_gpu_layers == 0 else None
def llama_init_from_model(model, params):
    calls.append(("context", params.n_ctx, params.n_threads, params.n_threads_batch, params.FLASH,
                  params.type_k, params.type_v))
    return 1
def llama_model_get_vocab(model): return 1
def llama_vocab_n_tokens(vocab): return 100
def llama_vocab_get_add_bos(vocab): return True
def llama_vocab_bos(vocab): return 7
def llama_get_memory(context): return 1
def llama_memory_clear(memory, data): calls.append("clear")
def llama_batch_get_one(tokens, n): return list(tokens), n
def llama_decode(context, batch):
    assert len(batch[0]) == batch[1] and all(0 <= t < 100 for t in batch[0])
    calls.append((batch[1], batch[0][0] == 7))
    return 0
def llama_synchronize(context): pass
def llama_free(context): pass
def llama_model_free(model): print(calls, file=sys.stderr)
def llama_print_system_info(): return b"AVX2 = 1"
'''


def bindings(tmp_path, run_isolated, *arguments, flash="flash_attn_type"):
    package = tmp_path / "llama_cpp"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text("from .llama_cpp import __version__\n")
    (package / "llama_cpp.py").write_text(PACKAGE.replace("FLASH", flash))
    return run_isolated([str(ROOT / "tools" / "llama_cpp_bench.py"), *arguments], {"PYTHONPATH": str(tmp_path)})


def test_the_package_stands_in_for_the_binary(tmp_path, run_isolated):
    side = sides.LlamaBench("llama.cpp", [])
    prompt, generation = (sides.Row(Path("m.gguf"), *test) for test in ((2100, 0), (0, 3, 5)))
    done = bindings(tmp_path, run_isolated, *side.call(prompt, sides.Settings(2, True), 2, "q8_0"))
    assert done.returncode == 0, done.stderr
    assert len(side.read(done.stdout, prompt)) == 2 and "llama_cpp 9.9" in side.version(done.stdout)
    calls = ast.literal_eval(done.stderr)
    assert calls[:4] == [("context", 2100, 2, 2, 1, 8, 8), "clear", (2048, True), (52, calls[3][1])]
    assert [call if call == "clear" else call[0] for call in calls[1:]] == ["clear", 2048, 52] * 3
    done = bindings(tmp_path, run_isolated, *side.trial(generation, [2, 1], [False, True], "f16"))
    assert side.best(done.stdout, generation).threads in (1, 2)
    calls = ast.literal_eval(done.stderr)
    contexts = [call for call in calls if call[0] == "context"]
    assert [context[1:5] for context in contexts] == [(8, 2, 2, 0), (8, 2, 2, 1), (8, 1, 1, 0), (8, 1, 1, 1)]
    done = bindings(tmp_path, run_isolated, *side.trial(generation, [2], [False, True], "f16"), flash="flash_attn")
    assert [call[4] for call in ast.literal_eval(done.stderr) if call[0] == "context"] == [0, 1]  # older packages
    # The warm-up is one token; each of the two repetitions fills five, then evaluates three one by one.
    first = [call if call == "clear" else call[0] for call in calls[1 : calls.index(contexts[1])]]
    assert first == ["clear", 1] + ["clear", 5, 1, 1, 1] * 2


def test_the_package_says_when_a_model_cannot_be_loaded(tmp_path, run_isolated):
    done = bindings(tmp_path, run_isolated, "-m", "bad.gguf", "-p", "4", "-n", "0")
    assert done.returncode == 1 and done.stdout == "" and "cannot load bad.gguf" in done.stderr


def test_which_llama_cpp(monkeypatch):
    monkeypatch.setattr(sides.shutil, "which", lambda name: "/bin/x-" + name)
    assert sides.find_llama_cpp(None).command == ["/bin/x-llama-bench"]
    monkeypatch.setattr(sides.shutil, "which", lambda name: None)
    monkeypatch.setattr(sides.importlib.util, "find_spec", lambda name: object())
    assert sides.find_llama_cpp(None).command[1].endswith("llama_cpp_bench.py")
    monkeypatch.setattr(sides.importlib.util, "find_spec", lambda name: None)
    assert sides.find_llama_cpp(None) is None
