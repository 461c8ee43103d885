"""Chat templates: what they render, and that a hostile one can neither escape, nor hang, nor eat the memory."""

from __future__ import annotations

import re
import tracemalloc

import pytest

from fucina import open_gguf
from fucina.llm import sandbox
from fucina.llm.chat import ChatTemplate, template_of

CHATML = (
    "{% for message in messages %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HELLO = [{"role": "user", "content": "hello"}]


def test_chatml():
    template = ChatTemplate(CHATML)
    messages = [{"role": "system", "content": "Be brief."}, *HELLO]
    system, user = "<|im_start|>system\nBe brief.<|im_end|>\n", "<|im_start|>user\nhello<|im_end|>\n"
    assert template.render(messages) == system + user + "<|im_start|>assistant\n"
    assert template.render(messages, add_generation_prompt=False) == system + user
    assert template.render([], add_generation_prompt=False) == ""


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>hello</s>"),
        # Lines that hold only a tag leave nothing behind.
        ("  {% if true %}\n  a\n  {% endif %}\nb", "  a\nb"),
        ("{{ {'a': 'é<', 'b': [1, none]} | tojson }}", '{"a": "é<", "b": [1, null]}'),
        ("{{ [1] | tojson(indent=2) }}", "[\n  1\n]"),
        ("{{ {'a': [1, 2]} | tojson(separators=(',', ':')) }}", '{"a":[1,2]}'),
        ("{{ '{}-{:>3}'.format(1, 2) }} {{ '%s-%d' | format('a', 1) }} {{ 'a-b' | replace(old='-', new='+') }}",
         "1-  2 a-1 a+b"),
        ("{{ {'a': 1, 'b': 2}.keys() | join('/') }} {{ [3, 0, 4] | select | join('/') }} {{ ','.join(['a', 'b']) }}",
         "a/b 3/4 a,b"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{% for i in range(9) %}{% if i == 2 %}{% continue %}{% endif %}{% if i > 3 %}{% break %}{% endif %}"
         "{{ i }}{% endfor %}", "013"),
        ("{% generation %}said{% endgeneration %}", "said"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "1"),
        ("{% macro twice(x) %}{{ x }}{{ x }}{% endmacro %}{{ twice('ab') }}", "abab"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{{ loop.last }}{% endfor %}", "a=1True"),
        ("{{ messages | map(attribute='role') | join(',') }} {{ messages[0:1] | length }}", "user 1"),
        ("{{ 'a' ~ 1 ~ none }} {{ 7 % 4 }} {{ 2 ** 10 }} {{ 3 * 4 }} {{ 'ab' * 2 }} {{ [1] + [2] }}",
         "a1None 3 1024 12 abab [1, 2]"),
        ("{{ '%s-%02d' % ('a', 3) }} {{ '{}'.format('b') }} {{ 'x,y'.split(',')[1] }} {{ ' z ' | trim }}",
         "a-03 b y z"),
        ("{{ 'he' in messages[0].content and 'x' not in ['y'] and 1 < 2 < 3 }}", "True"),
        ("{{ tools is defined }} {{ missing }}|", "True |"),
        ("{% set a, b = 1, 2 %}{{ b }}{% if 2 in (1, 2) %}!{% endif %}", "2!"),
    ],
)  # fmt: skip
def test_what_templates_use(source, text):
    assert ChatTemplate(source, "<s>", "</s>").render(HELLO, tools=[]) == text


def test_messages_are_not_changed():
    messages = [{"role": "user", "content": "a", "parts": [1]}]
    for source in ("{{ messages.append(1) }}", "{{ messages[0].update(role='x') }}", "{{ messages[0].parts.clear() }}"):
        with pytest.raises(ValueError, match="unsafe"):
            ChatTemplate(source).render(messages)
    assert messages == [{"role": "user", "content": "a", "parts": [1]}]


# ---- errors ---------------------------------------------------------------------------------------------------


def test_raise_exception_is_a_value_error():
    with pytest.raises(ValueError, match="roles must alternate"):
        ChatTemplate("{{ raise_exception('roles must alternate') }}").render(HELLO)


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% nonsense %}", "{{ 1 | nofilter }}", "{% endfor %}"])
def test_invalid_templates(source):
    with pytest.raises(ValueError, match="not valid"):
        ChatTemplate(source)


@pytest.mark.parametrize(
    "source", ["{{ 1 / 0 }}", "{{ missing.x.y }}", "{{ 'a' + 1 }}", "{% include 'x' %}", "{{ messages[0]() }}"]
)
def test_failures_while_rendering(source):
    with pytest.raises(ValueError, match="the chat template failed: .+"):
        ChatTemplate(source).render(HELLO)


@pytest.mark.parametrize("messages", [None, "hello", HELLO[0], ["hello"], [{"content": "x"}], [{"role": 1}]])
def test_messages_are_checked(messages):
    with pytest.raises(TypeError, match="message"):
        ChatTemplate(CHATML).render(messages)


def test_template_must_be_text():
    with pytest.raises(TypeError, match="bytes"):
        ChatTemplate(b"x")
    with pytest.raises(ValueError, match="no chat template"):
        template_of({})
    with pytest.raises(ValueError, match="must be a string"):
        template_of({"tokenizer.chat_template": 5})


# ---- hostile templates ----------------------------------------------------------------------------------------

NESTED = "{% for a in range(9999) %}{% for b in range(9999) %}"
ENDS = "{% endfor %}{% endfor %}"
DOUBLE = "{% set ns = namespace(l=['x'], m=['x']) %}{% for i in range(60) %}"
BIG = "{% set big = 'y' * 4000000 %}"
LONG = "{% set long = 'y' * 200000 %}"


@pytest.mark.parametrize(
    "source",
    [
        NESTED + ENDS,
        NESTED + "{% set x = a + b %}" + ENDS,
        NESTED + "{{ 'x' * 999 }}" + ENDS,
        "{% for a in range(9999) %}{{ range(9999) | sum }}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) if n }}{{ f(n - 1) if n }}{% endmacro %}{{ f(60) }}",
        "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
        "{% macro f() %}{{ f(varargs, varargs, varargs) }}{% endmacro %}{{ f(0) }}",
        "{% for i in range(9) recursive %}{{ loop(range(99)) }}{% endfor %}",
        "{{ 'x' * 10 ** 10 }}", "{{ [1] * 10 ** 9 }}", "{{ 10 ** 9 * 'x' }}", "{{ (9 ** 999) ** 999 }}",
        "{{ 'x' | center(10 ** 9) }}", "{{ 'x'.zfill(10 ** 9) }}", "{{ '\t'.expandtabs(10 ** 9) }}",
        "{{ '%1000000000d' % 1 }}", "{{ '%*d' % (1000000000, 1) }}", "{{ '%1000000000d' | format(1) }}",
        "{{ '{:1000000000}'.format(1) }}", "{{ '{:{}}'.format(1, 10 ** 9) }}", "{{ strftime_now('%1000000000d') }}",
        "{{ [1, 2] | tojson(indent=10 ** 9) }}", "{{ lipsum(9999) }}",
        BIG + "{{ big.replace('y', big) }}", BIG + "{{ big | replace('y', big) }}", BIG + "{{ big | indent(9999) }}",
        BIG + "{{ big.join(['a'] * 99999) }}", BIG + "{{ (['a'] * 99999) | join(big) }}",
        BIG + "{{ [big] * 99999 }}", BIG + "{{ ([big] * 99) | tojson }}", BIG + "{{ big ~ big ~ big }}",
        BIG + "{% for i in range(9999) %}{{ 'x' if big[::-1] == 'z' }}{% endfor %}",
        "{{ 'a'.encode() * 10 ** 9 }}", "{{ (9).to_bytes(9) * 10 ** 9 }}", "{{ ('a' | attr('encode'))() * 10 ** 9 }}",
        "{{ '{:{}}'.format('a', '300000000') }}", "{{ '{0:{1[0]}}'.format('a', [300000000]) }}",
        "{{ '{a:{b}}'.format_map({'a': 1, 'b': '300000000'}) }}",
        LONG + "{{ ('{0}' * 9999).format(long) }}", LONG + "{{ ('%(a)s' * 9999) % {'a': long} }}",
        LONG + "{{ ('%(a)s' * 9999) | format(a=long) }}", LONG + "{{ range(9999) | select | join(long) }}",
        LONG + "{{ long.join(range(9999) | map('string')) }}", LONG + "{{ dict(range(9998) | batch(2)).keys() | join(long) }}",
        "{{ ('a\n' * 80000) | indent('x' * 3000) }}", "{{ ([0] * 80000) | tojson(indent='x' * 3000) }}",
        "{{ ([0] * 80000) | tojson(separators=['x' * 3000, ':']) }}",
        "{{ ('a' * 80000) | replace(new='x' * 3000, old='a') }}",
        "{{ ('a' * 80000).translate({97: 'x' * 3000}) }}",
        "{% set ns = namespace(l=[]) %}{% for i in range(500) %}{% set ns.l = [ns.l] %}{% endfor %}"
        "{{ ns.l | tojson(indent=9999) }}",
        DOUBLE + "{% set ns.l = ns.l ~ ns.l %}{% endfor %}{{ ns.l }}",
        DOUBLE + "{% set ns.l = ns.l + ns.l %}{% endfor %}{{ ns.l }}",
        DOUBLE + "{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}",
        DOUBLE + "{% set ns.l = {'a': ns.l, 'b': ns.l} %}{% endfor %}{{ ns.l | upper }}",
        DOUBLE + "{% set ns.l = (ns.l, ns.l) %}{% set ns.m = (ns.m, ns.m) %}{% endfor %}{{ ns.l == ns.m }}",
    ],
)  # fmt: skip
def test_hostile_templates_are_stopped(source, monkeypatch):
    monkeypatch.setattr(sandbox, "MAX_STEPS", 100_000)  # a tenth of the patience, for the sake of the test's time
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="template|No filter"):
            ChatTemplate(source).render(HELLO)
        assert tracemalloc.get_traced_memory()[1] < 150_000_000
    finally:
        tracemalloc.stop()


def test_a_single_value_is_bounded():
    assert ChatTemplate("{{ ('x' * 8000000) | length }}").render(HELLO) == "8000000"
    for source in ("{{ ('x' * 9000000) | length }}", "{{ 'x' * 5000000 }}{{ 'x' * 5000000 }}"):
        with pytest.raises(ValueError, match="more than 8388608 characters"):
            ChatTemplate(source).render(HELLO)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}", "{{ cycler.__init__.__globals__ }}", "{{ messages.__class__ }}",
        "{{ self._TemplateReference__context }}", "{{ raise_exception.__globals__ }}",
        "{{ '{0.__class__}'.format(1) }}", "{{ namespace.__init__ }}", "{{ ('x' | attr('__class__')) }}",
    ],
)  # fmt: skip
def test_templates_do_not_reach_the_interpreter(source):
    try:
        text = ChatTemplate(source).render(HELLO)
    except ValueError:
        return
    assert not re.search(r"class|built-in|globals|<", text)


def test_long_conversations_fit_the_budget():
    messages = [{"role": ("user", "assistant")[i % 2], "content": "word " * 2000} for i in range(400)]
    text = ChatTemplate(CHATML).render(messages)
    assert len(text) > 4_000_000 and text.count("<|im_end|>") == 400
    gathered = ChatTemplate("{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ m.content %}"
                            "{% endfor %}{{ ns.t | trim }}").render(messages[:100])  # fmt: skip
    assert len(gathered) == 100 * 10_000 - 1


def test_template_of_a_real_model(real_model):
    with open_gguf(real_model("smollm2")) as file:
        template = template_of(file.metadata)
    assert template.render([{"role": "system", "content": "S"}, *HELLO]) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "named SmolLM" in template.render(HELLO)
