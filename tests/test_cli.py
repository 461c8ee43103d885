"""The command line as its users see it: streams, exit statuses, JSON, interruptions."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import fucina
from fucina.inspection import size

ROOT = Path(__file__).resolve().parent.parent
TINY = str(ROOT / "tests" / "golden" / "tiny" / "llama-f16.gguf")

# A model that is played: runs the command line with an llm whose pieces and delays are given. The prompt takes
# `PROMPT` seconds, each piece `PIECE`.
PLAYED = """
import sys, time, types, fucina
from fucina.llm.generate import GenerationStats
calls = []

class Generation:
    def __init__(self, pieces):
        self.pieces, self.tokens, self.finish_reason = iter(pieces), [], None
        self.stats = GenerationStats(prompt_tokens=8)
        self.cache = types.SimpleNamespace(length=4)
    def __iter__(self):
        return self
    def __next__(self):
        time.sleep(PIECE if self.tokens else PROMPT)
        try:
            piece = next(self.pieces)
        except StopIteration:
            self.finish_reason = "stop"
            raise
        if isinstance(piece, Exception):
            raise piece
        self.tokens.append(len(self.tokens))
        self.stats.generated_tokens += 1
        self.stats.first_token_seconds = 0.5
        return piece

class Model:
    load_seconds = 0.25
    def generate(self, prompt, **options):
        calls.append(("generate", prompt, options))
        return Generation(PIECES)
    def chat(self, messages, **options):
        calls.append(("chat", messages, options))
        return Generation(PIECES)

import fucina.llm
fucina.llm.load = lambda path: calls.append(("load", path)) or Model()
from fucina.cli import main
status = main(ARGV)
print(calls, file=sys.stderr) if SHOW else None
sys.exit(status)
"""


def played(argv, pieces=("a", "b"), prompt=0.0, piece=0.0, show=False):
    names = {"ARGV": list(argv), "PIECES": list(pieces), "PROMPT": prompt, "PIECE": piece, "SHOW": show}
    return "\n".join(f"{name} = {value!r}" for name, value in names.items()) + PLAYED


@pytest.fixture
def command(run_isolated):
    """``command("inspect", path, env={}) -> CompletedProcess`` of ``python -m fucina``."""

    def run(*arguments, env=None, **options):
        return run_isolated(["-m", "fucina", *map(str, arguments)], env, **options)

    return run


# ---- usage and errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [(), ("fly",), ("run", "--no-such"), ("inspect",), ("quantize", TINY)])
def test_wrong_usage_is_status_2(command, arguments):
    done = command(*arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert "usage: fucina" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("inspect", "no-such-file.gguf"), "no-such-file.gguf: No such file or directory"),
        (("run", "no-such-file.gguf"), "no-such-file.gguf: No such file or directory"),
        (("inspect", ROOT / "LICENSE"), "not a GGUF file"),
        (("inspect", ROOT), "directory"),
        (("run", TINY, "-t", "0"), "from 1 to 512, got 0"),
        (("run", TINY, "-p", "x"), "tokenizer"),
        (("quantize", "no-such-file.gguf", "x.gguf", "q8_0"), "no-such-file.gguf: No such file or directory"),
        (("quantize", TINY, TINY, "q8_0"), "the new file must not be the old one"),
        (("quantize", TINY, "x.gguf", "q9"), "unknown type 'q9'; known: f32, f16"),
        (("quantize", TINY, "x.gguf", "iq2_xs"), "needs an importance matrix"),
        (("quantize", TINY, "no/such/x.gguf", "q8_0"), "no such folder"),
        (("quantize", TINY, "x.gguf", "q8_0", "--imatrix", "none.gguf"), "none.gguf: No such file or directory"),
        (("quantize", TINY, "x.gguf", "q8_0", "--output-tensor-type", "q9"), "unknown format 'q9'"),
        (("quantize", TINY, "x.gguf", "q8_0", "--token-embedding-type", "i2_s"), "tensors cannot be made i2_s"),
        (("quantize", TINY, "", "q8_0"), "the new file has an empty name"),
        (("quantize", TINY, ROOT, "q8_0"), "Is a directory"),
        (("quantize", TINY, "x.gguf", "q8_0", "-t", "0"), "from 1 to 512, got 0"),
    ],
)
def test_bad_input_is_one_line_and_status_2(command, arguments, complaint):
    check_error(command(*arguments), complaint)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--temp", "-1"], "temperature"), (["--temp", "nan"], "temperature"), (["--top-p", "2"], "top_p"),
        (["--min-p", "-0.5"], "min_p"), (["--top-k", "-3"], "top_k"), (["--repeat-penalty", "0"], "penalty"),
        (["--seed", "-1"], "seed"), (["-n", "-1"], "max_tokens"), (["-p", ""], "prompt is empty"),
    ],
)  # fmt: skip
def test_bad_options_are_one_line_and_status_2(text_model, capsys, options, complaint):
    from fucina.cli import main

    assert main(["run", str(text_model), "-p", "x", "-n", "1", *options]) == 2
    captured = capsys.readouterr()
    assert re.fullmatch(rf"fucina: error: .*{complaint}.*\n", captured.err), captured.err


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        ({"FUCINA_ISA": "z80"}, "FUCINA_ISA=z80: no such variant"),
        ({"FUCINA_BACKEND": "gpu"}, "FUCINA_BACKEND must be one of native, scalar, got 'gpu'"),
        ({"FUCINA_MAX_THREADS": "lots"}, "FUCINA_MAX_THREADS must be a whole number of at least 1, got 'lots'"),
    ],
)
def test_bad_environment_is_one_line_and_status_2(command, env, complaint):
    check_error(command("info", env=env), complaint)


def check_error(done, complaint):
    assert done.returncode == 2 and done.stdout == ""
    assert re.fullmatch(r"fucina: error: [^\n]*\n", done.stderr), done.stderr
    assert complaint in done.stderr


def test_help_and_version(command):
    assert command("--version").stdout == f"fucina {fucina.__version__}\n"
    assert {"run", "bench", "quantize", "inspect", "info"} <= set(command("--help").stdout.split())
    for verb in ("run", "bench", "quantize", "inspect", "info"):
        assert command(verb, "--help").returncode == 0


# ---- quantize -------------------------------------------------------------------------------------------------


def test_quantize(command, tmp_path):
    expected = json.loads((ROOT / "tests" / "golden" / "quantize.json").read_text())["sha256"]["qwen3-f16"]
    source = TINY.replace("llama", "qwen3")
    done = command("quantize", source, tmp_path / "a.gguf", "Q4_K_M", "--threads", "2")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert re.fullmatch(r".*a\.gguf: \d+ of \d+ tensors changed, \d+\.\d kB in \d+\.\d s\n", done.stdout), done.stdout
    assert hashlib.sha256((tmp_path / "a.gguf").read_bytes()).hexdigest() == expected["q4_k_m"]
    again = command("quantize", tmp_path / "a.gguf", tmp_path / "b.gguf", "q8_0")
    check_error(again, "is quantized already (q")
    assert [path.name for path in tmp_path.iterdir()] == ["a.gguf"]


def test_quantize_options_and_json(command, tmp_path):
    out = tmp_path / "a.gguf"
    options = ["--pure", "--token-embedding-type", "q5_1", "--output-tensor-type", "Q8_0", "--json"]
    done = command("quantize", TINY, out, "q4_k", *options)
    data = json.loads(done.stdout)
    kinds = {t["name"]: t["after"] for t in data["tensors"] if len(t["shape"]) > 1}
    assert kinds.pop("token_embd.weight") == "q5_1" and kinds.pop("output.weight") == "q8_0"
    assert set(kinds.values()) == {"q4_k"} and data["tensor_bytes"] == sum(t["nbytes"] for t in data["tensors"])
    assert {t["name"]: t["type"] for t in json.loads(command("inspect", out, "--json").stdout)["tensors"]} == {
        t["name"]: t["after"] for t in data["tensors"]
    }
    twice = command("quantize", out, tmp_path / "b.gguf", "q8_0", "--allow-requantize", "--leave-output-tensor", "--json")
    kinds = {t["name"]: (t["before"], t["after"]) for t in json.loads(twice.stdout)["tensors"]}
    assert kinds["token_embd.weight"] == ("q5_1", "q8_0") and kinds["output.weight"] == ("q8_0", "q8_0")


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals")
def test_quantize_shows_its_progress_on_a_terminal(start_isolated, tmp_path):
    import fcntl
    import pty
    import struct
    import termios

    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    command = ["-m", "fucina", "quantize", TINY, str(tmp_path / "a.gguf"), "q8_0"]
    process = start_isolated(command, stdout=subprocess.PIPE, stderr=side, text=True)
    os.close(side)
    out = process.communicate(timeout=60)[0]
    shown = os.read(terminal, 65536).decode()
    os.close(terminal)
    assert process.returncode == 0 and "tensors changed" in out
    assert re.search(r"0%.* 0/21 ", shown), shown


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_quantize_that_is_terminated_leaves_nothing(start_isolated, tmp_path):
    code = f"""
import os, signal, sys
from fucina import quantizer
from fucina.cli import main
quantizer._convert = lambda *arguments: (print(os.listdir()), os.kill(os.getpid(), signal.SIGTERM))
sys.exit(main(["quantize", {TINY!r}, "a.gguf", "q8_0"]))
"""
    process = start_isolated(["-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM and err == ""
    assert ".part" in out and list(tmp_path.iterdir()) == []


# ---- info and inspect -----------------------------------------------------------------------------------------


def test_info(command):
    text = command("info").stdout
    assert f"fucina        {fucina.__version__} on " in text and "FUCINA_CACHE_DIR" in text
    data = json.loads(command("info", "--json", env={"FUCINA_MAX_THREADS": "2"}).stdout)
    assert data["fucina"] == fucina.__version__
    assert data["knobs"]["FUCINA_MAX_THREADS"]["value"] == 2 and data["knobs"]["FUCINA_MAX_THREADS"]["set"] is True


def test_inspect(command):
    data = json.loads(command("inspect", TINY, "--json").stdout)
    assert data["metadata"]["general.architecture"] == {"type": "string", "value": "llama"}
    tensors = {t["name"]: t for t in data["tensors"]}
    embedding = tensors["token_embd.weight"]
    assert embedding["type"] == "f16" and embedding["shape"] == [256, 256] and embedding["nbytes"] == 256 * 256 * 2
    assert data["tensor_bytes"] == sum(t["nbytes"] for t in tensors.values())
    assert data["types"] == {"f16": 16, "f32": 5} and data["parameters"] == 918_784
    text = command("inspect", TINY).stdout
    assert "918,784 parameters in 21 tensors, 1.8 MB (16 f16, 5 f32)" in text
    assert re.search(r"token_embd\.weight +f16 +256x256 +131\.1 kB", text)


def test_inspect_shortens_arrays_and_keeps_the_terminal_safe(command, tmp_path):
    import gguf

    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("many", list(range(1000)))
    writer.add_array("words", [f"w{i}" for i in range(100)])
    writer.add_array("texts", ["x" * 10_000, "y"])
    writer.add_string("long", "x" * 10_000)
    writer.add_string("escape", "\x1b[31mred\nline")
    writer.add_float32("infinite", float("inf"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    metadata = json.loads(command("inspect", path, "--json").stdout)["metadata"]
    assert metadata["many"] == {"type": "array[int32]", "length": 1000, "first": list(range(8))}
    assert metadata["words"]["first"] == [f"w{i}" for i in range(8)] and metadata["words"]["length"] == 100
    assert metadata["long"]["length"] == 10_000 and metadata["long"]["value"] == "x" * 4096
    assert metadata["texts"]["first"] == ["x" * 4096, "y"] and metadata["texts"]["lengths"] == [10_000, 1]
    assert metadata["infinite"]["value"] == "inf"
    text = command("inspect", path).stdout
    assert "\x1b" not in text and "'\\x1b[31mred\\nline' (string)" in text
    assert "[0, 1, 2, 3, 4, 5, 6, 7, …] (1000 items, array[int32])" in text
    assert max(map(len, text.splitlines())) < 250


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (98_362_432, "98.4 MB"), (2.5e9, "2.5 GB"), (None, "?")],
)
def test_sizes_for_people(nbytes, text):
    assert size(nbytes) == text


# ---- run ------------------------------------------------------------------------------------------------------


def test_options_reach_the_model(run_isolated):
    argv = ["run", "m.gguf", "-p", "hi", "-n", "3", "--temp", "0.5", "--top-k", "4", "--top-p", "0.9", "--min-p", "0.1"]
    argv += ["--repeat-penalty", "1.1", "--seed", "7", "-t", "3"]
    done = run_isolated(played(argv, show=True))
    sampling = {"max_tokens": 3, "temperature": 0.5, "top_k": 4, "top_p": 0.9, "min_p": 0.1}
    sampling |= {"repetition_penalty": 1.1, "seed": 7}
    assert done.stdout == "ab\n" and done.returncode == 0
    assert done.stderr.splitlines()[-1] == str([("load", "m.gguf"), ("generate", "hi", sampling)])
    assert "threads 3)" in done.stderr


@pytest.mark.parametrize(
    ("flags", "system"), [(["--chat"], []), (["--system", "be kind"], [{"role": "system", "content": "be kind"}])]
)
def test_chat_and_system_make_messages(run_isolated, flags, system):
    done = run_isolated(played(["run", "m.gguf", "-p", "hi", *flags], show=True))
    messages = [*system, {"role": "user", "content": "hi"}]
    assert str(("chat", messages, {"max_tokens": 128})) in done.stderr


def test_speed_goes_to_stderr(run_isolated):
    done = run_isolated(played(["run", "m.gguf", "-p", "hi"]))
    speed = r"[\d.]+ tokens/s"
    parts = ["loading: 0.25 s", f"prompt: 8 tokens, {speed}", "first token: 0.50 s", f"generation: 2 tokens, {speed}"]
    assert re.fullmatch(rf"{'; '.join(parts)} \(.*\)\n", done.stderr)
    done = run_isolated(played(["run", "m.gguf", "-p", "hi"], pieces=[]))
    assert re.fullmatch(rf"loading: .* s; prompt: .*; generation: 0 tokens, {speed} \(.*\)\n", done.stderr)


def test_json_is_one_object(run_isolated):
    done = run_isolated(played(["run", "m.gguf", "-p", "hi", "--json"], pieces=["ä", "\n"]))
    data = json.loads(done.stdout)
    assert data["text"] == "ä\n" and data["prompt"] == "hi" and data["model"] == "m.gguf"
    assert data["tokens"] == [0, 1] and data["generated_tokens"] == 2 and data["finish_reason"] == "stop"
    assert data["load_seconds"] == 0.25 and data["first_token_seconds"] == 0.5
    assert {"prompt_tokens_per_second", "tokens_per_second", "variant", "backend", "threads"} <= set(data)


def test_an_error_on_the_way_ends_the_line_and_is_explained(run_isolated):
    code = played(["run", "m.gguf"], pieces=["a"]).replace("PIECES = ['a']", "PIECES = ['a', ValueError('no\\nroom')]")
    done = run_isolated(code)
    assert done.returncode == 2 and done.stdout == "a\n" and done.stderr == "fucina: error: no room\n"


def test_text_that_the_encoding_lacks_is_replaced(run_isolated):
    code = played(["run", "m.gguf"], pieces=["né ", "☃"])
    done = run_isolated(code, {"PYTHONIOENCODING": "latin-1"}, encoding="latin-1")
    assert done.returncode == 0 and done.stdout == "né ?\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_ctrl_c_ends_cleanly(start_isolated, json_flag):
    code = played(["run", "m.gguf", *json_flag], pieces=["word "] * 500, piece=0.05)
    process = start_isolated(["-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if json_flag:
        time.sleep(3)
        seen = ""
    else:
        seen = process.stdout.read(5)  # it streams: the first word is here long before the end
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "Traceback" not in err and err.startswith("loading: 0.25 s; prompt: 8 tokens")
    if json_flag:
        assert json.loads(out)["finish_reason"] == "interrupted"
    else:
        assert re.fullmatch(r"(word )+\n", seen + out)


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX pipes")
@pytest.mark.parametrize("verb", ["run", "inspect"])
def test_a_reader_that_goes_away_is_no_error(start_isolated, verb):
    code = played(["run", "m.gguf"], pieces=["word "] * 500, piece=0.01)
    if verb == "inspect":
        code = f"import sys; from fucina.cli import main; sys.exit(main(['inspect', {TINY!r}]))"
    reader, writer = os.pipe()
    if verb == "inspect":
        os.close(reader)
    process = start_isolated(["-c", code], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    if verb == "run":
        os.read(reader, 5)
        os.close(reader)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 141 and err == ""


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX descriptors")
def test_closed_streams_are_no_error(start_isolated):
    code = f"import sys; from fucina.cli import main; sys.exit(main(['inspect', {TINY!r}]))"
    process = start_isolated(["-c", code], preexec_fn=lambda: os.close(1), stderr=subprocess.PIPE, text=True)
    assert process.communicate(timeout=20)[1] == "" and process.returncode == 0
    code = played(["run", "m.gguf", "--json"])
    process = start_isolated(["-c", code], preexec_fn=lambda: os.close(2), stdout=subprocess.PIPE, text=True)
    assert json.loads(process.communicate(timeout=20)[0])["text"] == "ab" and process.returncode == 0


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_a_full_disk(start_isolated):
    code = f"import sys; from fucina.cli import main; sys.exit(main(['inspect', {TINY!r}]))"
    with open("/dev/full", "w") as full:
        process = start_isolated(["-c", code], stdout=full, stderr=subprocess.PIPE, text=True)
        err = process.communicate(timeout=20)[1]
    assert process.returncode == 2 and re.fullmatch(r"fucina: error: .*No space left.*\n", err), err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
@pytest.mark.parametrize(("seconds", "bar"), [(1.6, True), (0.0, False)])
def test_progress_of_a_long_prompt_on_a_terminal(start_isolated, seconds, bar):
    import fcntl
    import pty
    import struct
    import termios

    terminal, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))
    code = played(["run", "m.gguf"], prompt=seconds)
    process = start_isolated(["-c", code], stdout=subprocess.PIPE, stderr=side, text=True)
    os.close(side)
    out = process.communicate(timeout=30)[0]
    shown = os.read(terminal, 65536).decode()
    os.close(terminal)
    assert out == "ab\n" and process.returncode == 0
    assert bool(re.search(r"prompt: +50%.* 4/8 ", shown)) == bar
    assert "prompt: 8 tokens" in shown


def test_no_progress_without_a_terminal(run_isolated):
    done = run_isolated(played(["run", "m.gguf"], prompt=1.3))
    assert "%" not in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_whole_run_is_the_same_on_every_path(command, text_model):
    """File, tokenizer, model, kernels, text: variants, backends and thread counts agree on a real little file."""
    settings = [{}, {"FUCINA_ISA": "generic"}, {"FUCINA_BACKEND": "scalar"}, {"FUCINA_MAX_THREADS": "3"}]
    results = [command("run", text_model, "-p", "the", "-n", "5", "--json", env=env, timeout=120) for env in settings]
    assert [done.returncode for done in results] == [0] * len(settings), results[-1].stderr
    data = [json.loads(done.stdout) for done in results]
    assert all(d["tokens"] == data[0]["tokens"] and d["text"] == data[0]["text"] for d in data)
    assert data[0]["generated_tokens"] == 5 and data[0]["prompt_tokens"] == 2  # "t" and "he"
    assert [d["backend"] for d in data] == ["native", "native", "scalar", "native"]
    assert data[1]["variant"] == "generic" and data[3]["threads"] in (1, 3)


def test_an_empty_name_is_no_model(command):
    done = command("run", "", "-p", "x")
    assert done.returncode == 2 and "No such file" in done.stderr


def test_without_a_model_the_demo_model_is_fetched(run_isolated):
    fetching = "import fucina.models, pathlib; fucina.models.fetch = lambda: pathlib.Path('demo.gguf')\n"
    done = run_isolated(fetching + played(["run"], show=True))
    assert done.returncode == 0 and "('load', 'demo.gguf'), ('generate', 'Once upon a time'" in done.stderr


def test_the_demo_model_speaks_sense(command, real_model):
    done = command("run", real_model("smollm2"), "-p", "The capital of France is", "-n", "8", timeout=300)
    assert done.returncode == 0 and "Paris" in done.stdout, done.stderr
