"""`compilepool.autotune`: a drop-in for `triton.autotune` whose configs are compiled side by side, by the pool.

    first call --> what is known of this kernel, key and device (`timings`)?
                      |  all configs: the best one is launched
                      '- some are not: ask the pool for all of those at once (`warmups`), measure each on copies of what
                         it writes (`measuring`, `guard`) as soon as it is there, keep the times
    later calls --> one look-up, and the launch (`binding`)

It is one of Triton's own autotuners, with the same arguments, hooks and results: torch.compile takes it for one, and
does with it what it does. What is added:

    first="ready"   the first call launches the first config that is there; all are measured when they are there
    precompile      configs are compiled before the first call, for this device or others, without any GPU
    descend         better configs are looked for beside the best one of those that were given (`descent`)
    recheck         what is best is asked once more: others may have measured since
    pickle          it travels with its compiled kernels and without any function (`travel`)
"""

import contextlib
import functools
import math
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Literal, get_args

import triton
from triton import knobs
from triton.compiler.compiler import make_backend
from triton.runtime.autotuner import Autotuner as Tritons, Config
from triton.runtime.jit import JITFunction

from compilepool.protocol.messages import Priority
from compilepool.triton import launching, precompiling, travel
from compilepool.triton.binding import Binding
from compilepool.triton.choosing import tune
from compilepool.triton.compiler import default_compiler
from compilepool.triton.descending import Report
from compilepool.triton.launching import Parameter
from compilepool.triton.measuring import Call
from compilepool.triton.resetting import Resetting
from compilepool.triton.traffic import open_reports
from compilepool.triton.warmups import Warmups

First = Literal["best", "ready"]


class NotLaunchable(RuntimeError):
    """A kernel that the shortest way can't launch; the message says which can."""


class Autotuner(Tritons):  # type: ignore[misc]
    """See the module's docstring; made by `autotune`."""

    def __init__(
        self,
        fn: Any,
        arg_names: Sequence[str],
        *arguments: Any,
        first: First = "best",
        descend: bool = False,
        most_spills: float = math.inf,
        **named: Any,
    ) -> None:
        if first not in get_args(First):
            raise ValueError(f"first is 'best' or 'ready', not {first!r}")
        super().__init__(fn, arg_names, *arguments, **named)
        if not (self.user_defined_pre_hook or self.user_defined_post_hook):
            hooks = Resetting(self.reset_to_zero, self.restore_value)
            self.pre_hook, self.post_hook = hooks.before, hooks.after
        self.first: First = first
        self.descend = descend
        self.most_spills = most_spills
        self.report: Report | None = None
        self.nargs: dict[str, Any] | None = None
        self.best_config: Config | None = None
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.RLock()
        _alive.add(self)
        # What can be launched the short way, by key: a compiled kernel, its launcher, its config.
        self._known: dict[Any, tuple[Any, Callable[..., Any], Config]] = {}
        # Keys whose first call is over: what hooks were to reset for it.
        self._begun: set[Any] = set()
        self.pending: dict[Any, Warmups] = {}
        self._travelled: dict[Any, travel.Launchable] = {}
        self._launch: Callable[..., Any] | None = None
        self._given = threading.local()

    def __repr__(self) -> str:
        return f"<Autotuner [{self.__name__} | configs: {len(self.configs)}, chosen: {len(self.cache)}]>"

    # ---- the function

    @property
    def fn(self) -> Any:
        """What is tuned; of an autotuner that has travelled, it is imported when it is first needed."""
        if isinstance(self._fn, travel.Reference):
            travel.take_over(self, self._fn.load())
        return self._fn

    @fn.setter
    def fn(self, value: Any) -> None:
        self._fn = value

    @property
    def __name__(self) -> str:
        return str(self._fn.name if isinstance(self._fn, travel.Reference) else self.base_fn.__name__)

    @property
    def jit(self) -> JITFunction[Any]:
        """Triton's own function, below heuristics."""
        fn = self.fn
        while not isinstance(fn, JITFunction):
            fn = fn.fn
        return fn

    # ---- launching

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        """A function that launches: `kernel[grid](*arguments)`."""
        launch = self._launch or self._bind()
        if self.early_config_prune is None and self.perf_model is None:
            return functools.partial(launch, grid)
        return lambda *args, **kwargs: self._launch_exactly(launch, grid, args, kwargs)

    def run(self, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        """Launch with the best config, which is found first if need be; with `warmup`, only compile it."""
        return self._run(Call(self.arg_names, args, kwargs, grid), warmup=warmup)[1]

    def _run(self, call: Call, *, warmup: bool = False) -> tuple[Config, Any]:
        """The config that was chosen, and the compiled kernel."""
        # First: where it has to be imported, it brings its hooks along.
        fn = self.fn
        with self._lock:
            config = self._choose(call)
        if config.pre_hook is not None:
            config.pre_hook(call.hook_values(config))
        return config, call.run(fn, config, warmup=warmup)

    def launcher(self, *args: Any, grid: Any, **kwargs: Any) -> Callable[..., Any]:
        """`launch(*arguments)` with the config that is best for these arguments, and as little in between as can be.

        Nothing is checked: later arguments must be like these in type, alignment to 16 bytes, divisibility by 16 and
        being 1. No hook is called. grid: a tuple, or a function of the arguments by name.
        """
        config, kernel = self._run(Call(self.arg_names, args, kwargs, grid), warmup=True)
        parameters = self._parameters()
        fixed = None if callable(grid) else grid
        made = None
        if parameters is not None and config.pre_hook is None:
            made = launching.launcher(kernel, parameters, config.kwargs, fixed)
        if not made:
            told = f"{self.__name__} has heuristics, hooks, scratch memory or descriptors"
            raise NotLaunchable(f"{told}: launch it by [grid]")
        return functools.partial(made, grid) if callable(grid) else made

    def _binding(self) -> Binding | None:
        parameters = self._parameters()
        chosen = frozenset(name for config in self.configs for name in config.kwargs)
        keys = [key for key in self.keys if key in self.arg_names]
        return None if parameters is None else Binding(parameters, keys, chosen)

    def _bind(self) -> Callable[..., Any]:
        """The short way to launch, where there is one."""
        # A class made of this one may have a way of its own.
        if type(self).run is not Autotuner.run or (binding := self._binding()) is None:
            return lambda grid, *args, **kwargs: self.run(*args, grid=grid, warmup=False, **kwargs)
        backend = make_backend(triton.runtime.driver.active.get_current_target())
        the_long_way = functools.partial(self._launch_long, binding)
        kernel = None if isinstance(self._fn, travel.Reference) else self._fn
        self._launch = binding.function(self, self._known, the_long_way, kernel, backend)
        return self._launch

    def _launch_exactly(
        self, launch: Callable[..., Any], grid: Any, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        """Who prunes is told which arguments were given by position, and which by name."""
        self._given.call = (args, kwargs)
        try:
            return launch(grid, *args, **kwargs)
        finally:
            self._given.call = None

    def _parameters(self) -> Sequence[Parameter] | None:
        if isinstance(self._fn, travel.Reference):
            return self._fn.parameters
        return [Parameter.of(p) for p in self._fn.params] if isinstance(self._fn, JITFunction) else None

    def _launch_long(
        self,
        binding: Binding,
        key: Any,
        grid: Any,
        positional: Sequence[Any],
        named: dict[str, Any],
        more: dict[str, Any],
    ) -> Any:
        """What is not known yet, or is listened to: through Triton's own launch, and the short way from here on."""
        arrived = None if more else self._travelled.get(key[1:])
        if arrived is not None and key not in self._known and arrived.result.is_loadable:
            self._register(binding, key, arrived.config, arrived.result.load())
            if key in self._known and self._launch is not None:
                return self._launch(grid, *positional, **named)
            del self._travelled[key[1:]]
        args, kwargs = getattr(self._given, "call", None) or (positional, {**named, **more})
        call = Call(self.arg_names, args, kwargs, grid)
        config, kernel = self._run(call)
        if kernel is not None:
            for report in list(open_reports):
                report.launched(self, call, config, kernel)
            if not more and config.pre_hook is None and not self.pending:
                self._register(binding, key, config, kernel)
        return kernel

    def _register(self, binding: Binding, key: Any, config: Config, kernel: Any) -> None:
        launch = launching.launcher(kernel, binding.parameters, config.kwargs)
        if launch is not None:
            self._known[key] = (kernel, launch, config)

    # ---- choosing

    def _choose(self, call: Call) -> Config:
        if conflicts := call.kwargs.keys() & {name for config in self.configs for name in config.all_kwargs()}:
            raise ValueError(f"Conflicting meta-parameters: {', '.join(sorted(conflicts))}: its configs set them")
        self.best_config = self._chosen(call) if len(self.configs) > 1 or self.descend else self.configs[0]
        return self.best_config

    def _chosen(self, call: Call) -> Config:
        key = call.key(self.keys)
        if (config := self.cache.get(key)) is not None:
            return config
        if (pending := self.pending.get(key)) is not None and not pending.done:
            return pending.first_ready()
        config = tune(self, key, call)
        if key not in self._begun:
            # As Triton does: the first call's own launch finds what hooks would have left to it.
            self._begun.add(key)
            self.pre_hook(call.hook_values(config), reset_only=True)
        return config

    def pruned(self, call: Call) -> list[Config]:
        """The configs that the program's own pruning leaves for a call; raises AutotunerError when there is none."""
        with self._lock:
            self.nargs = call.positional
            try:
                return list(self.prune_configs({**call.kwargs, "grid": call.grid, "warmup": False}))
            finally:
                self.nargs = None

    def warm(
        self,
        configs: Sequence[Config],
        call: Call,
        priority: Priority = "foreground",
        *,
        hooks_must_work: bool = True,
    ) -> Warmups:
        """Have configs compiled for a call; they are where its launch looks for them, once they are taken.

        hooks_must_work: its arguments are real; of types alone, a hook may make nothing
        """
        warmups = Warmups(default_compiler(), priority)
        for config in configs:
            if config.pre_hook is not None:
                # It may decide what is compiled: descriptors' blocks are set by hooks.
                with contextlib.suppress(*(() if hooks_must_work else (Exception,))):
                    config.pre_hook(call.hook_values(config))
            warmups.add(config, functools.partial(call.run, self.fn, config, warmup=True))
        return warmups

    # ---- before the first call, and after others

    def precompile(
        self, *args: Any, targets: Sequence[str] | None = None, grid: Any = (1,), **kwargs: Any
    ) -> "Future[list[Any]]":
        """Have every config compiled, in the background; arguments are values, tensors, or types of torch's.

        targets: 'cuda:90', 'hip:gfx942', ...; default: this process's device. Those that are named need no GPU.
        The future's result: the compiled kernels, target by target; configs that can't be compiled are left out.
        """
        if targets is not None:
            return precompiling.for_targets(self, default_compiler(), targets, args, kwargs)
        return precompiling.for_here(self, default_compiler(), Call(self.arg_names, args, kwargs, grid))

    def warmup(self, *args: Any, **kwargs: Any) -> list[Any]:
        """Compile every config and wait, as Triton's own does."""
        return self.precompile(*args, **kwargs).result()

    def recheck(self) -> None:
        """Forget what was chosen: the next call takes what is best by now, and measures what nobody has."""
        with self._lock:
            self.cache.clear()
            self._known.clear()
            self._travelled.clear()

    # ---- travelling

    def __getstate__(self) -> dict[str, Any]:
        """Plain values, without any function; see `travel`."""
        return travel.state_of(self)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._begin()
        travel.restore(self, state)

    def prepare_for_pickle(self) -> Any:
        """Let go of the function and all hooks; what `restore_after_unpickle` takes to put them back."""
        return travel.let_go(self)

    def restore_after_unpickle(self, old: Any = None) -> None:
        """Put back what `prepare_for_pickle` gave; None: the function is imported when it is needed."""
        if old is not None:
            self.__dict__.update(old)


_alive: "weakref.WeakSet[Autotuner]" = weakref.WeakSet()


def _unlock_all() -> None:
    """In a fork, whoever held a lock is not there to give it back."""
    for tuner in list(_alive):
        tuner._lock = threading.RLock()


os.register_at_fork(after_in_child=_unlock_all)


def autotune(
    configs: Sequence[Config],
    key: Sequence[str],
    prune_configs_by: Mapping[str, Any] | None = None,
    reset_to_zero: Sequence[str] | None = None,
    restore_value: Sequence[str] | None = None,
    pre_hook: Callable[..., Any] | None = None,
    post_hook: Callable[..., Any] | None = None,
    warmup: int | None = None,
    rep: int | None = None,
    use_cuda_graph: bool = False,
    do_bench: Callable[..., Any] | None = None,
    cache_results: bool = False,
    *,
    first: First = "best",
    descend: bool = False,
    most_spills: float = math.inf,
) -> Callable[[Any], Any]:
    """Tune a `@triton.jit` function over configs; arguments as of `triton.autotune` (triton/runtime/autotuner.py).

    cache_results: taken, and nothing is added: times are always kept
    first: 'best', or 'ready': the first call launches the first config that is there
    descend: look for a better config beside the best one, by coordinate descent: block lengths, warps and stages. Every
        block length that is a power of two may be changed; what must not be is for `prune_configs_by` to say
    most_spills: configs that keep more registers of a thread in memory are not measured. Inductor has a bound of 16 for
        its own kernels and none for those of others, since some are fastest so
    """

    def decorate(fn: Any) -> Any:
        # Triton's interpreter compiles nothing.
        kind = (
            Tritons
            if knobs.runtime.interpret
            else functools.partial(Autotuner, first=first, descend=descend, most_spills=most_spills)
        )
        return kind(
            fn,
            fn.arg_names,
            list(configs),
            list(key),
            reset_to_zero,
            restore_value,
            pre_hook=pre_hook,
            post_hook=post_hook,
            prune_configs_by=prune_configs_by,
            warmup=warmup,
            rep=rep,
            use_cuda_graph=use_cuda_graph,
            do_bench=do_bench,
            cache_results=cache_results,
        )

    return decorate
