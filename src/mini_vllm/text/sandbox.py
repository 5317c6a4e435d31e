"""A Jinja environment for templates that came with a model: nobody has read them.

Immutable sandbox (no attribute of Python's insides, no mutation), with what transformers offers templates: trimmed
blocks, loop controls, the generation tag, `tojson` without escaping, `raise_exception`, `strftime_now`. Beyond that,
work is bounded: loop iterations and macro calls, time, the size of any text or list, the size of the output. It must
not know what messages are.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import wraps
from typing import Any, NoReturn

from jinja2 import Environment, TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.ext import loopcontrols as LoopControls
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

MAX_STEPS = 500_000  # loop iterations and macro calls of one rendering
MAX_SECONDS = 5.0
MAX_SIZE = 2**24  # characters of a text, entries of a list, characters of the output
MAX_WIDTH = 4096  # of anything padded or indented
MAX_BITS = 4096  # of an integer

_WIDE = re.compile(r"\d{5,}|\*|\{[^{}]*\{")  # widths in format strings that are large or computed
_SPEND, _CONCAT = "mini_vllm spend", "mini_vllm concat"  # filters that no template can name
_PADDING = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs", "indent", "batch", "slice"})


class _Budget:
    """Work left for one rendering."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._deadline = clock() + MAX_SECONDS
        self._steps = 0

    def spend(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise SecurityError(f"more than {MAX_STEPS} loop iterations")
        if self._clock() > self._deadline:
            raise SecurityError(f"more than {MAX_SECONDS:g} seconds of work")


_budget: ContextVar[_Budget | None] = ContextVar("mini_vllm_template_budget", default=None)


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """The only environment in which this package renders templates."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *, now: Callable[[], datetime] = datetime.now) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, LoopControls])
        self.filters["tojson"] = _to_json
        self.filters = {name: _guarded_filter(name, function) for name, function in self.filters.items()}
        self.filters |= {_SPEND: _spend, _CONCAT: _concat}
        self.globals.pop("lipsum", None)
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda pattern: now().strftime(pattern)
        self.globals["namespace"] = _PlainNamespace

    def render(self, source: Any, variables: Mapping[str, Any], *, clock: Callable[[], float] = time.monotonic) -> str:
        """Render a compiled template within the bounds; errors are Jinja's, Python's or `SecurityError`."""
        token = _budget.set(_Budget(clock))
        try:
            parts, size = [], 0
            for part in source.generate(**variables):
                size += len(part)
                if size > MAX_SIZE:
                    raise SecurityError(f"more than {MAX_SIZE} characters of output")
                parts.append(part)
            return "".join(parts)
        finally:
            _budget.reset(token)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Every call in a template passes here."""
        _check_method(__obj, args, kwargs)
        return _checked(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Operators that can make something large of something small."""
        _CHECKS[operator](left, right)
        return super().call_binop(context, operator, left, right)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` and `str.format_map`, whose patterns may ask for any width."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None:
            _check_format(value.__self__)
        return wrapped

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _Meter().visit(super()._parse(source, name, filename))
        return template


class _Meter(NodeTransformer):
    """Puts a call of `_spend` into every loop body and macro, and routes `~` through `_concat`."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        return self._metered(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:
        return self._metered(node)

    def visit_CallBlock(self, node: nodes.CallBlock) -> nodes.Node:
        return self._metered(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _filter(_CONCAT, nodes.List(node.nodes, lineno=node.lineno))

    def _metered(self, node: Any) -> nodes.Node:
        self.generic_visit(node)
        step = _filter(_SPEND, nodes.Const("", lineno=node.lineno))
        node.body.insert(0, nodes.ExprStmt(step, lineno=node.lineno))
        return node  # type: ignore[no-any-return]


def _filter(name: str, value: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


@pass_context  # keeps the optimiser from calling it at compile time
def _spend(context: Context, value: str) -> str:
    """Called by every loop body and macro, see `_Meter`."""
    if (budget := _budget.get()) is not None:
        budget.spend()
    return value


def _concat(values: list[Any]) -> str:
    """The `~` operator."""
    texts = [str(value) for value in values]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


class _GenerationTag(Extension):
    """`{% generation %}` marks what an assistant wrote, for training; here it only passes its body on."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return list(parser.parse_statements(("name:endgeneration",), drop_needle=True))


class _PlainNamespace(Namespace):
    """A namespace whose names do not begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args
        values = dict(*rest, **kwargs)
        for name in values:
            _check_name(name)
        Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"namespace attribute {name!r} begins with an underscore")


def _raise(message: Any) -> NoReturn:
    raise TemplateError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,  # noqa: FBT001
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,  # noqa: FBT001
) -> str:
    if isinstance(indent, int) and indent > 64:
        raise SecurityError(f"tojson indents by {indent}")
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _guarded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Filters are not called through the environment; check what they are given and what they make."""

    @wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        values = [value for value in args if not isinstance(value, Context | nodes.EvalContext | Environment)]
        if name in _PADDING:
            _check_widths(values[1:], kwargs)
        elif name == "format" and values:
            _check_format(values[0])
        elif name == "replace" and len(values) >= 3:
            _check_replace(*map(str, values[:3]))
        elif name == "join" and values and isinstance(values[0], list | tuple):
            _check_join(str(kwargs.get("d", values[1] if len(values) > 1 else "")), values[0])
        return _checked(function(*args, **kwargs))

    return guarded


def _check_method(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Bound the methods of `str` that multiply their input."""
    owner, name = getattr(function, "__self__", None), getattr(function, "__name__", "")
    if not isinstance(owner, str):
        return
    if name in _PADDING:
        _check_widths(args, kwargs)
    elif name == "replace" and len(args) >= 2:
        _check_replace(owner, str(args[0]), str(args[1]))
    elif name == "join" and args and isinstance(args[0], list | tuple):
        _check_join(owner, args[0])


def _check_widths(args: Any, kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int) and value > MAX_WIDTH:
            raise SecurityError(f"a width of {value}")


def _check_format(pattern: Any) -> None:
    if _WIDE.search(str(pattern)):
        raise SecurityError("a format string with a large or computed width")


def _check_replace(text: str, old: str, new: str) -> None:
    _check_size(len(text) + text.count(old) * len(new))


def _check_join(separator: str, items: Any) -> None:
    _check_size(sum(len(str(item)) for item in items) + len(separator) * len(items))


def _check_size(size: int) -> None:
    if size > MAX_SIZE:
        raise SecurityError(f"a value of {size} characters or entries; at most {MAX_SIZE} are allowed")


def _checked(value: Any) -> Any:
    if isinstance(value, str | list | tuple | dict):
        _check_size(len(value))
    return value


def _check_sum(left: Any, right: Any) -> None:
    if hasattr(left, "__len__") and hasattr(right, "__len__"):
        _check_size(len(left) + len(right))


def _check_product(left: Any, right: Any) -> None:
    for some, other in ((left, right), (right, left)):
        if hasattr(some, "__len__") and isinstance(other, int):
            _check_size(len(some) * max(other, 0))
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > MAX_BITS:
        raise SecurityError("a product of too many digits")


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MAX_BITS:
        raise SecurityError("a power of too many digits")


def _check_percent(left: Any, right: Any) -> None:
    if isinstance(left, str):
        _check_format(left.replace("%%", ""))


_CHECKS: dict[str, Callable[[Any, Any], None]] = {
    "+": _check_sum,
    "*": _check_product,
    "**": _check_power,
    "%": _check_percent,
}
