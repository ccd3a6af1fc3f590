"""A `@triton.jit` function as bytes: with everything that it uses, and without what does not pickle.

By value, all of it that is neither Python's nor Triton's own: a worker can't import the program's modules (a notebook,
a script's directory, packages that import torch for seconds), and must compile what the program has, not what a file
holds by now. So a function takes with it the functions that it calls, its globals and closure as far as it names them,
and of modules that it reaches into (`helpers.rotate`) those attributes and nothing else.

Of a function object the locks, caches, hooks and compiled kernels stay behind. What arrives has the content of what was
sent (`content`), or it is not opened, and goes by Triton's key that it had there.
"""

import ast
import dis
import importlib
import inspect
import io
import pickle
import sys
import threading
import types
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, cast

import cloudpickle
from cloudpickle.cloudpickle import _dynamic_class_reduce
from triton.compiler.compiler import ASTSource
from triton.runtime.jit import JITCallable, JITFunction, KernelParam

from compilepool.daemon.worker.content import KEPT, content_key

# Imported where it is opened, and the same there: they are the toolchain's.
_BY_REFERENCE = frozenset({*sys.stdlib_module_names, "triton", "cloudpickle", "compilepool"}) - {"__main__"}
# Of a function object: what its program has made of it, and what is made anew from the function itself.
_LEFT_BEHIND = frozenset(
    {
        "CompiledKernel", "compile", "ASTSource", "device_caches", "kernel", "pre_run_hooks", "launch_metadata",
        "_hash_lock", "hash", "used_global_vals", "__globals__", "signature", "params", "__doc__", "create_binder",
        "_compilepool_packed", KEPT,
    }
)  # fmt: skip
# Their classes are in annotations only: to import what makes them takes seconds.
_EXTENSIONS = ("torch", "numpy")
# The largest of several hundred public kernels has 70,000.
_MOST_BYTES = 4 << 20
_LOADS = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF", "LOAD_CLASSDEREF")
_REACHES = ("LOAD_ATTR", "LOAD_METHOD")


class NotPortable(Exception):
    """A function uses what can't be sent; the message names it."""


class Specialization(NamedTuple):
    """What a function is compiled with: fields of `ASTSource`, and the backend's options."""

    signature: dict[str, Any]
    constants: dict[Any, Any]
    attrs: dict[Any, Any]
    options: dict[str, Any]


def pack(function: JITFunction[Any]) -> bytes:
    """The function with what it uses; raises NotPortable."""
    return _dump((function, content_key(function), function.cache_key), _Reached(function))


def unpack(packed: bytes) -> JITFunction[Any]:
    """The function; raises NotPortable when it is not what was packed. Runs code of whoever packed it."""
    function, content, key = pickle.loads(packed)  # noqa: S301 - in a worker of the user who sent it
    if content_key(function) != content:
        raise NotPortable("the function that arrived is not the one that was sent: part of what it uses is missing")
    function.hash = key
    return cast("JITFunction[Any]", function)


def seal(packed: bytes, specialization: Specialization) -> bytes:
    """A packed function and how it is to be compiled; the function may be sealed many times. Raises NotPortable."""
    callables = [value for value in _inside(list(specialization.constants.values())) if callable(value)]
    return pickle.dumps((packed, _dump(specialization, _Reached(*callables))))


def unseal(body: bytes) -> tuple[ASTSource, dict[str, Any]]:
    """What is to be compiled, and its options. Runs code of whoever sealed it."""
    packed, specialized = pickle.loads(body)  # noqa: S301 - in a worker of the user who sent it
    signature, constants, attrs, options = pickle.loads(specialized)  # noqa: S301 - as above
    return ASTSource(unpack(packed), signature, constants, attrs), options


def _inside(values: Iterable[Any]) -> Iterator[Any]:
    """The values in tuples of tuples, and in constants of Triton's."""
    for value in values:
        if isinstance(value, tuple | list):
            yield from _inside(value)
        else:
            yield getattr(value, "value", value)


def _dump(value: object, reached: "_Reached") -> bytes:
    file = io.BytesIO()
    try:
        _Pickler(file, reached).dump(value)
    except Exception as exc:
        raise NotPortable(f"it uses what can't be sent: {type(exc).__name__}: {exc}") from exc
    if file.tell() > _MOST_BYTES:
        raise NotPortable(f"with all that it uses it has {file.tell()} bytes")
    return file.getvalue()


def _is_known(module: str | None) -> bool:
    return module is not None and module.partition(".")[0] in _BY_REFERENCE


def _is_of_extension(value: Any) -> bool:
    """A class, a function or a value of torch's; not a tensor, which no kernel can use."""
    module = getattr(value, "__module__", None) or type(value).__module__
    return module.partition(".")[0] in _EXTENSIONS and not hasattr(value, "data_ptr")


class _Reached:
    """What functions name: attributes of modules, by the module's id; globals, by the function's."""

    def __init__(self, *roots: Any) -> None:
        self.attributes: dict[int, dict[str, Any]] = {}
        self.globals: dict[int, dict[str, Any]] = {}
        self._seen: set[int] = set()
        waiting = list(roots)
        while waiting:
            value = waiting.pop()
            if id(value) not in self._seen:
                self._seen.add(id(value))
                waiting.extend(self._used_by(value))

    def _used_by(self, value: Any) -> Iterator[Any]:
        function = value.fn if isinstance(value, JITCallable) else value
        if not isinstance(function, types.FunctionType) or _is_known(function.__module__):
            return
        scope, named = _scope(function), self.globals.setdefault(id(function), {})
        for name, path, is_run in _chains(value):
            if name in scope:
                yield from _inside([self._follow(scope[name], path, is_run=is_run)])
            # No kernel can use a tensor that its module happens to have.
            if name in function.__globals__ and not hasattr(scope[name], "data_ptr"):
                named[name] = function.__globals__[name]
        yield from function.__defaults__ or ()
        if isinstance(value, JITFunction) and value._repr is not None:
            yield value._repr

    def _follow(self, value: Any, path: list[str], *, is_run: bool) -> Any:
        for name in path:
            if not isinstance(value, types.ModuleType) or _is_known(value.__name__) or not hasattr(value, name):
                break
            taken = self.attributes.setdefault(id(value), {})
            value = taken[name] = getattr(value, name)
        if is_run and _is_of_extension(value):
            raise NotPortable(f"it uses {value}, and is compiled where only Python and Triton are imported")
        return value


def _scope(function: types.FunctionType) -> dict[str, Any]:
    scope = dict(function.__globals__)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            scope[name] = cell.cell_contents
        except ValueError:
            continue
    return scope


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)


def _chains(value: Any) -> Iterator[tuple[str, list[str], bool]]:
    """Each name that a function loads, with the attributes that are asked of it, and whether it is used when it runs.

    ('helpers', ['math', 'rotate'], True) is `helpers.math.rotate` in its body; annotations are not used.
    Triton compiles the text of its own, annotations and all; others run, as they are.
    """
    if isinstance(value, JITCallable):
        (function,) = value.parse().body
        own = _own_names(function)
        yield from ((*chain, True) for part in function.body for chain in _chains_of_text(part) if chain[0] not in own)
        # Defaults are values by now, and annotations only have to be there.
        yield from ((*chain, False) for chain in _chains_of_text(function.args))
    else:
        for code in _codes(value.__code__):
            yield from ((*chain, True) for chain in _chains_of_code(code))


def _own_names(function: ast.FunctionDef) -> set[str]:
    """Parameters, and what is assigned: whatever has these names outside is not meant."""
    arguments = function.args
    parameters = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    names = {parameter.arg for parameter in parameters if parameter is not None}
    return names | {
        node.id for node in ast.walk(function) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    }


def _chains_of_text(tree: ast.AST) -> Iterator[tuple[str, list[str]]]:
    for node in ast.walk(tree):
        path: list[str] = []
        inner: ast.AST = node
        while isinstance(inner, ast.Attribute):
            path.insert(0, inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name):
            yield inner.id, path


def _chains_of_code(code: types.CodeType) -> Iterator[tuple[str, list[str]]]:
    chain: tuple[str, list[str]] | None = None
    for instruction in dis.get_instructions(code):
        if chain is not None and instruction.opname in _REACHES:
            chain[1].append(instruction.argval)
            continue
        if chain is not None and instruction.opname not in ("CACHE", "PRECALL"):
            yield chain
            chain = None
        if instruction.opname in _LOADS:
            chain = (instruction.argval, [])
    if chain is not None:
        yield chain


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """By value, whatever is not Python's or Triton's own."""

    def __init__(self, file: io.BytesIO, reached: _Reached) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self._reached = reached

    def reducer_override(self, value: Any) -> Any:
        """How to take a value apart; see `pickle.Pickler`."""
        if isinstance(value, JITCallable) and not _is_known(value.__module__):
            return _blank, (type(value),), _state_of(value), None, None, _fill
        if isinstance(value, JITCallable):
            return _find, (value.__module__, value.__qualname__)
        if isinstance(value, types.ModuleType) and not _is_known(value.__name__):
            return _blank_module, (value.__name__,), self._reached.attributes.get(id(value), {})
        if isinstance(value, types.FunctionType) and not _is_known(value.__module__):
            return _plain(self._dynamic_function_reduce(value), self._reached.globals.get(id(value), {}))
        if isinstance(value, type) and value.__module__.startswith(_EXTENSIONS):
            return _placeholder, (value.__name__,)
        if isinstance(value, type) and not _is_known(value.__module__):
            return _dynamic_class_reduce(value)
        return super().reducer_override(value)


def _state_of(value: Any) -> dict[str, Any]:
    state = {name: field for name, field in vars(value).items() if name not in _LEFT_BEHIND}
    state["_own"] = [
        (param.do_not_specialize, param.do_not_specialize_on_alignment) for param in getattr(value, "params", ())
    ]
    return state


def _plain(reduced: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
    """A function's parts, with all that its text names, and annotations that need no import."""
    make, arguments, (attributes, slots), *rest = reduced
    annotations = {name: _annotation(value) for name, value in slots["__annotations__"].items()}
    kept = {name: value for name, value in attributes.items() if name != "__wrapped__"}
    slots = {
        **slots,
        "__annotations__": annotations,
        "__doc__": None,
        "__globals__": {**named, **slots["__globals__"]},
    }
    return make, arguments, (kept, slots), *rest


def _annotation(value: Any) -> Any:
    if isinstance(value, str) or _is_known(getattr(value, "__module__", None)):
        return value
    return value.__name__ if isinstance(value, type) else str(value)


# ---- how it is put together again


def _find(module: str, qualname: str) -> Any:
    found: Any = importlib.import_module(module)
    for name in qualname.split("."):
        found = getattr(found, name)
    return found


def _placeholder(name: str) -> type:
    """For a class that annotations name, and no kernel can use."""
    return type(name, (), {})


def _blank_module(name: str) -> types.ModuleType:
    return types.ModuleType(name)


def _blank(kind: type[JITCallable]) -> Any:
    made = object.__new__(kind)
    # What it is hashed by, should a dictionary ask before it is filled.
    made.hash = None
    made._hash_lock = threading.RLock()
    return made


def _fill(made: Any, state: dict[str, Any]) -> None:
    own = state.pop("_own")
    vars(made).update(state)
    made.signature = inspect.signature(made.fn)
    made.__globals__ = made.fn.__globals__
    made.used_global_vals, made.pre_run_hooks, made.launch_metadata, made.device_caches = {}, [], None, {}
    made.params = [
        KernelParam(number, param, *told)
        for number, (param, told) in enumerate(zip(made.signature.parameters.values(), own, strict=bool(own)))
    ]
