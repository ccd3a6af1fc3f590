"""One call of `triton.compile`: what decides its result, and whether somebody else can make it."""

import functools
import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars, ir
from triton.backends.compiler import GPUTarget
from triton.compiler import compile as triton_compile
from triton.compiler.compiler import ASTSource, make_backend
from triton.runtime.cache import get_cache_key, get_cache_manager

from compilepool.daemon.worker.accesses import argument_names
from compilepool.daemon.worker.lowering import options_of
from compilepool.daemon.worker.parcel import NotPortable, Specialization, pack, seal
from compilepool.protocol.environment import compile_environment
from compilepool.protocol.messages import Jit
from compilepool.protocol.terms import Frontend

_SHOWN_CHARACTERS = 200


@dataclass(frozen=True)
class Compilation:
    """One kernel with one config for one target.

    options: the backend's, by name
    variables: of the environment, those that Triton's own keys have
    environment: all that decide what is compiled; torch.compile's own have no part in it
    """

    source: ASTSource
    target: GPUTarget
    options: Mapping[str, Any]
    variables: Mapping[str, str] = field(default_factory=get_cache_invalidating_env_vars)
    environment: Mapping[str, str] = field(
        default_factory=lambda: {
            name: value
            for name, value in compile_environment(os.environ).items()
            if not name.startswith("TORCHINDUCTOR_")
        }
    )

    @property
    def name(self) -> str:
        """The kernel's."""
        return str(self.source.name)

    @functools.cached_property
    def hash(self) -> str:
        """Triton's own key, which names its directory in the cache."""
        key = get_cache_key(self.source, self._backend, self._parsed, env_vars=self.variables)
        return hashlib.sha256(key.encode()).hexdigest()

    @functools.cached_property
    def config(self) -> str:
        """What distinguishes it, as a person reads it."""
        names = list(self.source.signature)
        constants = {
            names[path[0]]: value
            for path, value in self.source.constants.items()
            if isinstance(value, bool | int | float | str) and len(path) == 1
        }
        plain = {name: self.options.get(name) for name in ("num_warps", "num_stages", "num_ctas", "maxnreg")}
        told = {**constants, **{name: value for name, value in plain.items() if value is not None}}
        return ", ".join(f"{name}={value}" for name, value in told.items())[:_SHOWN_CHARACTERS]

    @property
    def is_cached(self) -> bool:
        """Whether this process's Triton cache has it."""
        name = f"{self.name[:150]}.json"
        return bool((get_cache_manager(self.hash).get_group(name) or {}).get(name))

    @property
    def is_for_here(self) -> bool:
        """Whether only this process can make it, or should: it watches how, changes how, or wants it made anew."""
        return (
            type(self.source) is not ASTSource
            or knobs.compilation.always_compile
            or knobs.compilation.override
            or knobs.compilation.dump_ir
            or knobs.runtime.add_stages_inspection_hook is not None
            or bool(self.options.get("ir_override"))
        )

    def make(self) -> Any:
        """The compiled kernel, made by Triton in this process, or found in its cache."""
        return triton_compile(
            self.source, target=self.target, options=dict(self.options), _env_vars=dict(self.variables)
        )

    def request(self) -> tuple[Jit, bytes]:
        """What to ask the pool, and the body; raises NotPortable."""
        target = f"{self.target.backend}:{self.target.arch}:{self.target.warp_size}"
        asked = Jit(self.name, dict(self.environment), target, self.hash, self.config)
        try:
            return asked, self._sealed()
        except NotPortable:
            return msgspec.structs.replace(asked, ttir=True), msgspec.msgpack.encode(self._frontend())

    def _sealed(self) -> bytes:
        source = self.source
        told = Specialization(source.signature, source.constants, source.attrs, dict(self.options))
        return seal(_packed(source.fn), told)

    def _frontend(self) -> Frontend:
        """TTIR, made here; compiling goes on from it to the same binary."""
        options = options_of(self._parsed)
        if options is None:
            raise NotPortable("its options name files")
        context = ir.context()
        ir.load_dialects(context)
        self._backend.load_dialects(context)
        functions = self._backend.get_codegen_implementation(self._parsed)
        modules = self._backend.get_module_map()
        module = self.source.make_ir(self.target, self._parsed, functions, modules, context)
        stages: dict[str, Any] = {}
        self._backend.add_stages(stages, self._parsed, self.source.language)
        return Frontend(options, str(stages["ttir"](module, {})), argument_names(self.source.signature))

    @functools.cached_property
    def _backend(self) -> Any:
        return make_backend(self.target)

    @functools.cached_property
    def _parsed(self) -> Any:
        return self._backend.parse_options(dict(self.options))


def _packed(function: Any) -> bytes:
    """The function as bytes; made once for all its configs, as long as it is the same."""
    kept: tuple[str, bytes] | None = vars(function).get("_compilepool_packed")
    if kept is None or kept[0] != function.cache_key:
        kept = (function.cache_key, pack(function))
        function._compilepool_packed = kept
    return kept[1]
