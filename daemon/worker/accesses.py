"""Which arguments a kernel reads and writes through, found from its TTIR.

What it writes is copied before it runs only to be measured; what it reads and writes is what it moves. Each value has
origins: what its address is made of. From the address of every write the origins are followed back, over loops,
branches and calls, to arguments of the kernel. Where that can't be said, an argument counts as written: better a
copy too many than a result overwritten. PyTorch does the same for the same reason (`identify_mutated_tensors` in
torch/_higher_order_ops/triton_kernel_wrap.py); here offsets are told from addresses, so what an index was read from
is not taken for written.

    %p = tt.addptr %out, %offsets      origins of %p: %out
    scf.for ... iter_args(%q = %p)     origins of %q: %p, and what the loop yields for it
    tt.store %q, ...                   written: %q <- %p <- %out
"""

import re
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from triton._C.libtriton import ir

# Of an operand's position, for operations that write; all operands of what is unknown.
_WRITES = {
    "tt.store": 0,
    "tt.atomic_rmw": 0,
    "tt.atomic_cas": 0,
    "tt.descriptor_store": 0,
    "tt.descriptor_reduce": 0,
    "tt.descriptor_scatter": 0,
    "tt.experimental_descriptor_store": 0,
    "tt.experimental_descriptor_scatter": 0,
    "tt.experimental_tensormap_create": 0,
}
# The address is made of the first operand alone; the others are offsets, shapes and strides.
_ADDRESS_FIRST = ("tt.addptr", "tt.advance", "tt.make_tensor_ptr", "tt.make_tensor_descriptor")
_READS = ("tt.load", "tt.descriptor_load", "tt.descriptor_gather", "tt.atomic_rmw", "tt.atomic_cas")
_PURE_DIALECTS = ("arith", "math", "scf", "cf", "ub", "builtin")
_PURE = frozenset(
    {
        "tt.addptr", "tt.advance", "tt.assert", "tt.bitcast", "tt.broadcast", "tt.call", "tt.cat", "tt.clampf",
        "tt.dot", "tt.dot_scaled", "tt.expand_dims", "tt.fp_to_fp", "tt.func", "tt.gather", "tt.get_num_programs",
        "tt.get_program_id", "tt.histogram", "tt.int_to_ptr", "tt.join", "tt.make_range",
        "tt.make_tensor_descriptor", "tt.make_tensor_ptr",
        "tt.map_elementwise", "tt.map_elementwise.return", "tt.mulhiui", "tt.precise_divf", "tt.precise_sqrt",
        "tt.print", "tt.ptr_to_int", "tt.reduce", "tt.reduce.return", "tt.reshape", "tt.return", "tt.scan",
        "tt.scan.return", "tt.splat", "tt.split", "tt.trans", "tt.unsplat",
    }
)  # fmt: skip
_MAY_BE_PURE = ("tt.elementwise_inline_asm", "tt.extern_elementwise")
_DESCRIPTOR = re.compile(r"tensordesc<[^\[]*\[([^\]]*)\]")


class Operation(NamedTuple):
    """One operation: its name, its operands and results by id, and its blocks' ids."""

    name: str
    operands: list[int]
    results: list[int]
    blocks: list[int]


class Accessed(NamedTuple):
    """Names of arguments; `writes_elsewhere`: it writes through addresses too that it has read from memory."""

    reads: list[str]
    writes: list[str]
    writes_elsewhere: bool


def accessed(ttir: str, names: Sequence[str]) -> Accessed | None:
    """What a kernel reads and writes; None if that can't be told.

    names: of its arguments, one for each that its TTIR has (`argument_names`). Names in the TTIR itself are no guide:
    where branches meet, Triton gives an argument the name of a variable.
    """
    if "tt.func" not in ttir:
        return None
    with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
        file.write(ttir)
        file.flush()
        try:
            context = ir.context()
            ir.load_dialects(context)
            module = ir.parse_mlir_module(file.name, context)
        except RuntimeError:
            return None
        flow = _Flow(module)
    if len(flow.parameters) != len(names):
        return None
    reads, writes = flow.behind(flow.read_from), flow.behind(flow.written_to)

    def named(origins: set[int]) -> list[str]:
        return sorted({name for name, value in zip(names, flow.parameters, strict=True) if value in origins})

    return Accessed(named(reads), named(writes), not flow.read.isdisjoint(writes))


def argument_names(signature: Mapping[str, Any]) -> list[str]:
    """The names of a kernel's arguments, once for each that its TTIR has: constants are none, tuples several."""
    return [name for name, kind in signature.items() for _ in range(_arguments_of(kind))]


def _arguments_of(kind: Any) -> int:
    if isinstance(kind, tuple | list):
        return sum(map(_arguments_of, kind))
    if kind == "constexpr":
        return 0
    if shape := _DESCRIPTOR.match(str(kind)):
        # The descriptor, and its shape and strides.
        return 1 + 2 * len(shape[1].split(","))
    return 1


class _Flow:
    """The origins of a module's values.

    read_from, written_to: addresses of reads and writes; `read`: what was read
    """

    def __init__(self, module: Any) -> None:
        self.read_from: list[int] = []
        self.written_to: list[int] = []
        self.read: set[int] = set()
        self._numbers: set[int] = set()
        self._origins: dict[int, set[int]] = defaultdict(set)
        self._arguments: dict[int, list[int]] = {}
        self._blocks_of_region: dict[int, list[int]] = defaultdict(list)
        self._last: dict[int, Operation] = {}
        self._functions: dict[str, list[int]] = {}
        self._calls: list[tuple[str, Operation]] = []
        self._returns: dict[str, Operation] = {}
        self._entry = module.get_entry_func_name()
        module.walk(self._visit)
        for callee, call in self._calls:
            self._join(self._functions.get(callee, []), call.operands)
            if callee in self._returns:
                self._join(call.results, self._returns[callee].operands)

    @property
    def parameters(self) -> list[int]:
        """The kernel's."""
        return self._functions.get(self._entry, [])

    def behind(self, addresses: Sequence[int]) -> set[int]:
        """All that these are made of."""
        seen: set[int] = set()
        waiting = list(addresses)
        while waiting:
            value = waiting.pop()
            if value not in seen:
                seen.add(value)
                waiting.extend(self._origins[value])
        return seen

    def _visit(self, operation: Any) -> None:
        """One operation; the walk comes to what is inside before what it is inside of."""
        block = operation.get_block()
        if block is not None and block.id() not in self._arguments:
            self._arguments[block.id()] = [block.get_argument(i).id() for i in range(block.get_num_arguments())]
            region = block.get_parent()
            if region is not None:
                self._blocks_of_region[region.id()].append(block.id())
        regions = [operation.get_region(i).id() for i in range(operation.get_num_regions())]
        this = Operation(
            operation.get_name(),
            [operation.get_operand(i).id() for i in range(operation.get_num_operands())],
            [operation.get_result(i).id() for i in range(operation.get_num_results())],
            [number for region in regions for number in self._blocks_of_region[region]],
        )
        if block is not None:
            self._last[block.id()] = this
        self._note(this, operation)

    def _note(self, this: Operation, operation: Any) -> None:
        self.written_to.extend(_addresses(this, operation))
        if this.name in _READS:
            self.read_from.extend(this.operands[:1])
        if this.name == "tt.func":
            self._function(operation.get_str_attr("sym_name"), this)
        elif this.name == "tt.call":
            self._calls.append((operation.get_flat_symbol_ref_attr("callee"), this))
        elif this.blocks:
            self._blocks(this)
        elif this.name in _READS:
            self.read.update(this.results)
        else:
            origins = _origins(this)
            if this.name == "tt.ptr_to_int" or not self._numbers.isdisjoint(this.operands):
                # An address as a number: what is computed with it may become one again, as an offset too.
                self._numbers.update(this.results)
                origins = this.operands
            for result in this.results:
                self._origins[result].update(origins)

    def _function(self, name: str, this: Operation) -> None:
        self._functions[name] = self._arguments[this.blocks[0]] if this.blocks else []
        passed = [operand for block in this.blocks for operand in self._operands_of_branch(block)]
        for block in this.blocks[1:]:
            self._mix(self._arguments[block], passed)
        for block in this.blocks:
            if (last := self._last.get(block)) is not None and last.name == "tt.return":
                self._returns[name] = last

    def _operands_of_branch(self, block: int) -> list[int]:
        last = self._last.get(block)
        return last.operands if last is not None and last.name.startswith("cf.") else []

    def _blocks(self, this: Operation) -> None:
        """What goes into blocks and comes out of them."""
        lasts = [self._last[block] for block in this.blocks if block in self._last]
        inside = [self._arguments.get(block, []) for block in this.blocks]
        match this.name:
            case "scf.for":
                # Operands: from, to, step, and what the loop carries; its block has the counter first.
                for carried in (this.operands[3:], *(last.operands for last in lasts)):
                    self._join(inside[0][1:], carried)
                    self._join(this.results, carried)
            case "scf.while" if len(lasts) == 2:
                condition, body = lasts
                for carried in (this.operands, body.operands):
                    self._join(inside[0], carried)
                self._join(inside[1], condition.operands[1:])
                self._join(this.results, condition.operands[1:])
            case "scf.if":
                for last in lasts:
                    self._join(this.results, last.operands)
            case _:
                out = [operand for last in lasts for operand in last.operands]
                for arguments in inside:
                    self._mix(arguments, [*this.operands, *out])
                self._mix(this.results, [*this.operands, *out])

    def _join(self, values: Sequence[int], origins: Sequence[int]) -> None:
        for value, origin in zip(values, origins, strict=False):
            self._origins[value].add(origin)

    def _mix(self, values: Sequence[int], origins: Sequence[int]) -> None:
        for value in values:
            self._origins[value].update(origins)


def _addresses(this: Operation, operation: Any) -> list[int]:
    """The operands through which an operation writes."""
    if this.name in _WRITES:
        return [this.operands[_WRITES[this.name]]]
    if this.name in _MAY_BE_PURE:
        return [] if operation.get_bool_attr("pure") else this.operands
    known = this.name.partition(".")[0] in _PURE_DIALECTS or this.name in _PURE or this.name in _READS
    return [] if known else this.operands


def _origins(this: Operation) -> list[int]:
    """The operands that a result's address may be made of."""
    if this.name in _ADDRESS_FIRST:
        return this.operands[:1]
    return this.operands[1:] if this.name == "arith.select" else this.operands
