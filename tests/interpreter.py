"""Makes Triton's interpreter numerically honest, so that kernels can be tested where there is no GPU.

The interpreter (TRITON_INTERPRET=1, set before the first import of triton) runs kernels in numpy. Unpatched it
truncates where a GPU rounds to bf16, computes bf16 arithmetic on bit patterns, neither rounds nor saturates e4m3,
rounds an FMA twice in some versions, and warns where a GPU is silent. `install` puts that right with torch's
conversions; `why_not` casts a few values and says what is wrong, should a Triton version no longer match the patches.

It knows Triton's private names: the constraints pin the version. Races, barriers and the limits of the compiler never
show here; they need a GPU.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import torch

VARIABLE = "TRITON_INTERPRET"
TORCH_TYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
}
LARGEST = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
SIGNED_TORCH = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
SIGNED = {1: np.uint8, 2: np.int16, 4: np.int32, 8: np.int64}


def switch_on_without_gpu() -> None:
    """Choose the interpreter where there is no GPU; a value that the user set stays. Call before triton is imported."""
    if VARIABLE not in os.environ and not torch.cuda.is_available():
        os.environ[VARIABLE] = "1"


def switched_on() -> bool:
    """Return whether kernels of this process run in the interpreter."""
    return os.environ.get(VARIABLE) == "1"


def compiler_environment() -> dict[str, str]:
    """Return the environment of a child process that compiles kernels instead of interpreting them."""
    return {name: value for name, value in os.environ.items() if name != VARIABLE}


def convert(data: np.ndarray, source: torch.dtype, target: torch.dtype) -> np.ndarray:
    """Convert the bits of a numpy array as a GPU does: to nearest even; to fp8 saturating, NaN kept."""
    size = data.dtype.itemsize
    copy = np.array(data, copy=True, order="C")
    values = torch.from_numpy(copy.view(SIGNED[size]).reshape(copy.shape)).view(source)
    values = values if source is torch.float64 else values.float()
    if target in LARGEST:
        values = torch.where(values.isnan(), values, values.clamp(-LARGEST[target], LARGEST[target]))
    converted = values.to(target)
    size = converted.element_size()
    return converted.contiguous().view(SIGNED_TORCH[size]).numpy().view(UNSIGNED[size]).reshape(data.shape)


@np.errstate(all="ignore")
def fma(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Return x * y + z of f32 arrays, rounded once.

    The product is exact in f64. The sum is rounded to odd there (its error, known exactly, sets the last bit), after
    which the rounding to f32 is the only one that shows.
    """
    product, addend = np.broadcast_arrays(x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64))
    total = product + addend
    shadow = total - product
    error = (product - (total - shadow)) + (addend - shadow)
    inexact = np.isfinite(total) & (error != 0) & (total.view(np.int64) & 1 == 0)
    toward = np.where(error > 0, np.inf, -np.inf)
    return np.where(inexact, np.nextafter(total, toward), total).astype(np.float32)


@cache
def install() -> None:
    """Patch the interpreter, once."""
    from triton.runtime import interpreter

    patch_conversions(interpreter)
    patch_arithmetic(interpreter)
    patch_reductions(interpreter)
    patch_range(interpreter)
    patch_libdevice(interpreter)
    patch_warnings(interpreter)
    patch_speed(interpreter)
    patch_types(interpreter)


def torch_type(dtype: Any) -> torch.dtype | None:
    scalar = getattr(dtype, "scalar", dtype)
    return TORCH_TYPES.get(scalar.name)


def patch_conversions(interpreter: Any) -> None:
    original = interpreter._convert_float
    toward_zero = interpreter._ir.ROUNDING_MODE.RTZ

    def convert_float(data: np.ndarray, source: Any, target: Any, rounding_mode: Any) -> np.ndarray:
        known = torch_type(source), torch_type(target)
        if None in known or rounding_mode == toward_zero:
            return original(data, source, target, rounding_mode)
        return convert(data, *known)

    interpreter._convert_float = convert_float


def is_bf16(handle: Any) -> bool:
    return torch_type(handle.dtype) is torch.bfloat16


def widen(interpreter: Any, handle: Any) -> Any:
    """Return a bf16 handle as f32, any other as it is."""
    if not is_bf16(handle):
        return handle
    return interpreter.TensorHandle((handle.data.astype(np.uint32) << 16).view(np.float32), interpreter.tl.float32)


def narrow(interpreter: Any, handle: Any) -> Any:
    data = convert(handle.data.astype(np.float32), torch.float32, torch.bfloat16)
    return interpreter.TensorHandle(data, interpreter.tl.bfloat16)


def patch_arithmetic(interpreter: Any) -> None:
    """Compute bf16 operations in f32 and round each result; round an f32 FMA once."""
    builder = interpreter.InterpreterBuilder
    binary, unary, dot, clamp = builder.binary_op, builder.unary_op, builder.create_dot, builder.create_clampf
    compare = {np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal}
    bitwise = {np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.left_shift, np.right_shift}

    def binary_op(self: Any, left: Any, right: Any, op: Any) -> Any:
        if not (is_bf16(left) and is_bf16(right)) or op in bitwise:
            return binary(self, left, right, op)
        result = binary(self, widen(interpreter, left), widen(interpreter, right), op)
        return result if op in compare else narrow(interpreter, result)

    def unary_op(self: Any, value: Any, op: Any) -> Any:
        if not is_bf16(value):
            return unary(self, value, op)
        return narrow(interpreter, unary(self, widen(interpreter, value), op))

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, widen(interpreter, a), widen(interpreter, b), *rest)

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        wide = [widen(interpreter, value) for value in (x, y, z)]
        if wide[2].data.dtype != np.float32:
            return interpreter.TensorHandle(x.data * y.data + z.data, z.dtype.scalar)
        result = interpreter.TensorHandle(fma(*(value.data for value in wide)), interpreter.tl.float32)
        return narrow(interpreter, result) if is_bf16(z) else result

    def create_clampf(self: Any, value: Any, low: Any, high: Any, propagate_nans: Any) -> Any:
        wide = [widen(interpreter, handle) for handle in (value, low, high)]
        result = clamp(self, *wide, propagate_nans)
        return narrow(interpreter, result) if is_bf16(value) else result

    builder.binary_op, builder.unary_op, builder.create_dot = binary_op, unary_op, create_dot
    builder.create_fma, builder.create_clampf = create_fma, create_clampf


def patch_reductions(interpreter: Any) -> None:
    """Reduce bf16 blocks in f32 and round the result."""
    operations, tl = interpreter.ReduceOps, interpreter.tl
    original = operations.apply_impl

    def widened(value: Any) -> Any:
        if not is_bf16(value):
            return value
        handle = widen(interpreter, value.handle)
        return tl.tensor(handle, tl.block_type(tl.float32, list(handle.data.shape)))

    def apply_impl(self: Any, values: Any) -> Any:
        if not any(is_bf16(value) for value in values):
            return original(self, values)

        def narrowed(value: Any) -> Any:
            if value.dtype.scalar != tl.float32:
                return value
            return self.to_tensor(narrow(interpreter, value.handle).data, tl.bfloat16)

        result = original(self, tuple(widened(value) for value in values))
        return tuple(narrowed(value) for value in result) if isinstance(result, tuple | list) else narrowed(result)

    operations.apply_impl = apply_impl


def patch_range(interpreter: Any) -> None:
    """Let `range` take a scalar argument: up to 3.7, triton calls int() on an array, which numpy 2.4 refuses."""
    original = interpreter._patch_lang_tensor

    def patch_lang_tensor(tensor: Any, scope: Any) -> None:
        original(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patch_lang_tensor


def patch_libdevice(interpreter: Any) -> None:
    """Let libdevice's exponential be torch's, as it is on a GPU: the interpreter knows no external functions."""
    from triton.language.extra import libdevice

    def exp(value: Any) -> Any:
        data = torch.from_numpy(np.array(value.handle.data, order="C")).exp().numpy()
        return interpreter.tl.tensor(interpreter.TensorHandle(data, value.dtype.scalar), value.type)

    libdevice.exp = exp


def patch_warnings(interpreter: Any) -> None:
    """Keep numpy from warning of an overflow, a NaN or a division by zero: a GPU computes on in silence."""
    executor = interpreter.GridExecutor
    original = executor.__call__

    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        with np.errstate(all="ignore"):
            original(self, *args, **kwargs)

    executor.__call__ = call


def patch_speed(interpreter: Any) -> None:
    """Patch triton.language once a launch instead of at every call of a device function (0.2 ms each)."""
    original, tl = interpreter._patch_lang, interpreter.tl
    active: list[frozenset[int]] = []
    known: dict[int, frozenset[int]] = {}

    class Nothing:
        def restore(self) -> None:
            pass

    class Scope:
        def __init__(self, scope: Any, depth: int) -> None:
            self.scope, self.depth = scope, depth

        def restore(self) -> None:
            self.scope.restore()
            del active[self.depth :]

    def patch_lang(function: Any) -> Any:
        space = function.__globals__
        if id(space) not in known:
            known[id(space)] = frozenset(id(value) for value in space.values() if value is tl or value is tl.core)
        languages = known[id(space)]
        if languages and any(languages <= patched for patched in active):
            return Nothing()
        scope = Scope(original(function), len(active))
        active.append(languages)
        return scope

    interpreter._patch_lang = patch_lang


def patch_types(interpreter: Any) -> None:
    """Work out a type once: its shape, its numel, a tensor's view of both, its type in numpy (a third of the time)."""
    tl, semantic = interpreter.tl, type(interpreter.interpreter_semantic)
    make_block, make_tensor, equal = tl.block_type.__init__, tl.tensor.__init__, tl.dtype.__eq__
    broadcast, numpy_type = semantic.broadcast_impl_value, interpreter._get_np_dtype
    blocks: dict[Any, dict[str, Any]] = {}
    shapes: dict[Any, Any] = {}
    numpy_types: dict[str, np.dtype] = {}

    def init_block(self: Any, element: Any, shape: Any) -> None:
        sizes = tuple([size.value if isinstance(size, tl.constexpr) else size for size in shape])
        key = element.name, getattr(element, "address_space", None), sizes
        if key not in blocks:
            make_block(self, element, shape)
            self.shape = shapes.setdefault(sizes, self.shape)
            blocks[key] = vars(self)
        self.__dict__ = blocks[key]

    def init_tensor(self: Any, handle: Any, type: Any) -> None:
        if "of_tensors" not in vars(type):
            make_tensor(self, handle, type)
            type.of_tensors = {name: value for name, value in vars(self).items() if name not in ("handle", "type")}
        self.__dict__.update(type.of_tensors, handle=handle, type=type)

    def broadcast_impl_value(self: Any, left: Any, right: Any) -> Any:
        shape = getattr(left.type, "shape", None)
        if shape is not None and shape is getattr(right.type, "shape", None):
            return left, right
        return broadcast(self, left, right)

    def np_dtype(of: Any) -> np.dtype:
        if of.name not in numpy_types:
            numpy_types[of.name] = numpy_type(of)
        return numpy_types[of.name]

    tl.block_type.__init__, tl.tensor.__init__, interpreter._get_np_dtype = init_block, init_tensor, np_dtype
    tl.dtype.__eq__ = lambda self, other: self is other or equal(self, other)
    semantic.broadcast_impl_value = broadcast_impl_value


@cache
def why_not() -> str | None:
    """Return None if the patched interpreter computes a few telling values right, else a sentence for a skip."""
    import triton  # noqa: F401

    from tests import interpreter_check

    wrong = interpreter_check.wrong_answers()
    return f"the patched interpreter of Triton is wrong here: {', '.join(wrong)}" if wrong else None
