"""A jinja2 environment for templates from strangers: no access to the interpreter, bounded work and memory.

jinja2's own immutable sandbox keeps a template from reaching Python's internals and from changing its input. What
is added here is a budget. One step of it is about a microsecond: a turn of a loop is one, a call or a filter ten,
and 100 elements touched by them one more. Results are measured before they are made, so that a short template
cannot ask for gigabytes.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, MappingView
from contextvars import ContextVar
from datetime import datetime
from string import Formatter

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.compiler import CodeGenerator
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

MAX_STEPS = 1_000_000
MAX_SIZE = 1 << 23  # characters or elements of one result
MAX_WIDTH = 10_000  # of padding, indentation and other numbers given to a filter or a method
MAX_BITS = 4096  # of an integer

_steps: ContextVar[int] = ContextVar("steps left for the template being rendered")
_LARGE_NUMBER = re.compile(r"\d{5}")

# Filters that look at the elements of their input, but not inside these. The others may turn all of it into text.
_SHALLOW = frozenset(
    "length count list first last map select reject selectattr rejectattr items dictsort sort unique reverse "
    "groupby batch slice default d attr sum min max".split()
)


# Methods that make bytes, which nothing here would measure.
_BYTES_OF = frozenset(("encode", "to_bytes"))


def _size(value) -> int:
    """Characters or elements of a value, not looking inside its elements."""
    return len(value) if isinstance(value, (str, list, tuple, dict, range, MappingView)) else 0


def _text_size(value, limit: int = MAX_SIZE) -> int:
    """About the length of ``value`` as text, elements included; more than ``limit`` is not counted out."""
    if not isinstance(value, (list, tuple, dict, MappingView)):
        return _size(value)
    size = 0
    for item in value.items() if isinstance(value, dict) else value:
        size += 20 + _text_size(item, limit - size)  # walking costs as much as 20 characters
        if size > limit:
            break
    return size


def _charge(size: int = 0, steps: int = 1) -> None:
    """Take ``steps``, and one more for every 100 of ``size``, off the budget."""
    if size > MAX_SIZE:
        raise TemplateError(f"a value of more than {MAX_SIZE} characters or elements")
    left = _steps.get() - steps - size // 100
    if left < 0:
        raise TemplateError("the template does not come to an end")
    _steps.set(left)


def _counted(iterable):
    """The items of ``iterable``, each costing a step."""
    for item in iterable:
        _charge()
        yield item


def _joined(parts) -> str:
    """The operands of ``~`` as one string."""
    return "".join(map(str, _weighed(parts)))


def _weighed(value):
    """``value``, charged for with all that is in it."""
    _charge(_text_size(value))
    return value


def _listed(value):
    """What a generator yields, as a list: nobody knows how much that is before."""
    return list(_counted(value)) if isinstance(value, Iterator) else value


def _check_fields(text: str) -> None:
    """Refuse fields of ``text.format`` whose width is itself a field."""
    for _, _, spec, _ in Formatter().parse(text):
        if spec and "{" in spec:
            raise TemplateError("a field width that is a field itself")


def _check_call(name: str, value, args: tuple, kwargs: dict) -> None:
    """Charge for the method or filter ``name`` of ``value``, and refuse results that cannot be bounded."""
    given = [*args, *kwargs.values()]
    if any(isinstance(a, (int, float)) and abs(a) > MAX_WIDTH for a in given) and name not in ("default", "d"):
        raise TemplateError(f"a number above {MAX_WIDTH} given to {name}")
    if name in ("format", "format_map") and isinstance(value, str) and _LARGE_NUMBER.search(value):
        raise TemplateError("a field width of more than four digits")
    size = _text_size(given) + (_size(value) if name in _SHALLOW else _text_size(value))
    if name == "replace":
        size += (_size(value) + 1) * _size(kwargs.get("new", args[1] if len(args) > 1 else ""))
    elif name == "translate":
        size += (_size(value) + 1) * _text_size(given)
    elif name in ("format", "format_map") and isinstance(value, str):
        size += (value.count("{") + value.count("%")) * _text_size(given)
    elif name == "join":
        size += (_size(value) + 1) * max(map(_size, given), default=0)
    elif name in ("indent", "expandtabs"):
        size *= max((int(a) if isinstance(a, int) else _size(a) for a in given), default=1)
    _charge(size, steps=10)


def _guarded(name: str, function):
    """A filter that is charged for. The value follows what ``pass_context`` and its like put first."""
    at = 1 if hasattr(function, "jinja_pass_arg") else 0

    @functools.wraps(function)
    def guarded(*args, **kwargs):
        args = *args[:at], _listed(args[at]), *args[at + 1 :]
        _check_call(name, args[at], args[at + 1 :], kwargs)
        return function(*args, **kwargs)

    return guarded


def _through(name: str, node):
    return nodes.Filter(node, name, [], [], None, None)


class _Code(CodeGenerator):
    """Compiles loops, comparisons, slices and new lists and dicts so that they are charged for."""

    def visit_Template(self, node, frame=None):
        for loop in node.find_all(nodes.For):
            loop.iter = _through("counted!", loop.iter)
        for operand in node.find_all((nodes.Compare, nodes.Operand)):
            operand.expr = _through("weighed!", operand.expr)
        for item in node.find_all(nodes.Getitem):
            if isinstance(item.arg, nodes.Slice):
                item.node = _through("weighed!", item.node)
        for test in node.find_all(nodes.Test):
            test.node = _through("weighed!", test.node)
        for concat in node.find_all(nodes.Concat):
            concat.nodes = [_through("joined!", nodes.List(concat.nodes))]
        super().visit_Template(node, frame)

    def visit_List(self, node, frame):
        self._weigh(super().visit_List, node, frame)

    def visit_Dict(self, node, frame):
        self._weigh(super().visit_Dict, node, frame)

    def visit_Tuple(self, node, frame):
        if node.ctx == "load":
            self._weigh(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def _weigh(self, visit, node, frame):
        self.write("environment.filters['weighed!'](")
        visit(node, frame)
        self.write(")")


class _Namespace(Namespace):
    """``namespace()``, which prints as its name: namespaces may hold each other."""

    def __repr__(self) -> str:
        return "namespace"


class _Generation(Extension):
    """``{% generation %}…{% endgeneration %}`` marks what the assistant said; here it is just its content."""

    tags = {"generation"}

    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """The environment that chat templates expect, with a budget."""

    code_generator_class = _Code
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    def __init__(self):
        extensions = ["jinja2.ext.loopcontrols", _Generation]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=_weighed)
        self.filters["tojson"] = _tojson
        for name in ("pprint", "urlize", "wordwrap"):  # results that cannot be bounded beforehand
            del self.filters[name]
        self.filters = {name: _guarded(name, function) for name, function in self.filters.items()}
        self.filters |= {"counted!": _counted, "joined!": _joined, "weighed!": _weighed}
        del self.globals["lipsum"]
        self.globals |= {"raise_exception": _raise, "strftime_now": _strftime_now, "namespace": _Namespace}

    def call_binop(self, context, operator, left, right):
        """``+ * ** %``, refused when the result would be too large."""
        size = _text_size(left) + _text_size(right)
        if isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * max(right, 1) if operator == "**" else left.bit_length() + right.bit_length()
            if bits > MAX_BITS:
                raise TemplateError(f"an integer of more than {MAX_BITS} bits")
        elif operator == "*":
            size *= next((max(n, 0) for n in (left, right) if isinstance(n, int)), 1)
        elif operator == "%" and isinstance(left, str):
            if _LARGE_NUMBER.search(left) or "*" in left:
                raise TemplateError("a field width of more than four digits")
            size += left.count("%") * _text_size(right)
        _charge(size)
        return super().call_binop(context, operator, left, right)

    def call(__self, __context, __obj, *args, **kwargs):  # noqa: N805 - arguments may be called self
        """Call from a template: a macro, a method of a value, or one of the globals."""
        method = getattr(__obj, "__wrapped__", __obj)
        name, value = getattr(method, "__name__", "call"), getattr(method, "__self__", None)
        args, kwargs = tuple(map(_listed, args)), {key: _listed(item) for key, item in kwargs.items()}
        if name in ("format", "format_map") and isinstance(value, str):
            _check_fields(value)
        _check_call(name, value, args, kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def is_safe_attribute(self, obj, attr, value) -> bool:
        """What jinja2 allows, but no bytes."""
        return attr not in _BYTES_OF and super().is_safe_attribute(obj, attr, value)

    def run(self, template, variables: dict, steps: int) -> str:
        """Render ``template`` within ``steps`` and ``MAX_SIZE`` characters of output."""
        token = _steps.set(steps)
        try:
            out, size = [], 0
            for piece in template.generate(variables):
                size += len(piece)
                if size > MAX_SIZE:
                    raise TemplateError(f"more than {MAX_SIZE} characters of output")
                out.append(piece)
            return "".join(out)
        finally:
            _steps.reset(token)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    """JSON text, without the HTML escapes of jinja2's own filter. Measured while it is made."""
    encoder = json.JSONEncoder(ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    pieces, size = [], 0
    for piece in encoder.iterencode(value):
        size += len(piece)
        _charge(size if size > MAX_SIZE else len(piece), steps=0)
        pieces.append(piece)
    return "".join(pieces)


def _raise(message="") -> None:
    raise TemplateError(str(message))


def _strftime_now(pattern: str) -> str:
    if _LARGE_NUMBER.search(pattern):
        raise TemplateError("a field width of more than four digits")
    return datetime.now().strftime(pattern)


__all__ = ["MAX_SIZE", "MAX_STEPS", "Sandbox", "TemplateError", "TemplateSyntaxError"]
