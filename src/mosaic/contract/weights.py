"""Files of weights: their tensors' names, types and shapes, read before any content; no code is executed.

A torch.save file is a zip with a pickle that names tensors, and their raw bytes beside it. A restricted unpickler reads
it, with a table of the few classes that weights need.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from mosaic.contract.errors import shown
from mosaic.contract.fields import HEADER_BYTES, parse_object
from mosaic.contract.kinds import MOST_INT

MOST_TENSORS, MOST_DIMENSIONS = 10_000, 32
RUNS_CODE = "it holds more than tensors and plain values, and loading it could run code"
FORMATS = "it is neither a torch nor a safetensors file, nor one of flax"
# torch's storages: the type of their numbers and its size in bytes.
_STORAGES = {
    **{"FloatStorage": ("float32", 4), "DoubleStorage": ("float64", 8), "HalfStorage": ("float16", 2)},
    **{"BFloat16Storage": ("bfloat16", 2), "LongStorage": ("int64", 8), "IntStorage": ("int32", 4)},
    **{"ShortStorage": ("int16", 2), "CharStorage": ("int8", 1), "ByteStorage": ("uint8", 1)},
    **{"BoolStorage": ("bool", 1), "ComplexFloatStorage": ("complex64", 8), "ComplexDoubleStorage": ("complex128", 16)},
}
_SAFETENSORS = {
    **{"F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16", "BOOL": "bool", "C64": "complex64"},
    **{f"I{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"U{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
}


class Stored(NamedTuple):
    """A tensor of a torch file: a view of a storage, offset and strides counted in numbers."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    content: bytes


class _Storage(NamedTuple):
    dtype: str
    itemsize: int
    content: bytes


def is_torch(data: bytes) -> bool:
    """Return True for a file of torch.save; also for a bare pickle, which `read_torch` refuses."""
    return data[:2] == b"PK" or data[:1] == b"\x80"


def is_safetensors(data: bytes) -> bool:
    return data[8:9] == b"{" and int.from_bytes(data[:8], "little") < len(data)


def check_safetensors(data: bytes) -> None:
    """Refuse a header that is too large or nested, or has a type that numpy lacks; its reader checks the rest."""
    length = int.from_bytes(data[:8], "little")
    header = parse_object(data[8 : 8 + length], "header", HEADER_BYTES)
    for name, tensor in header.items():
        dtype = tensor.get("dtype") if isinstance(tensor, dict) else None
        if name != "__metadata__" and (kind := _SAFETENSORS.get(str(dtype), str(dtype))) not in _NUMPY:
            raise ValueError(f"{name} is {kind}, which cannot be read; save it as float32")


def read_torch(data: bytes, make: Callable[[Stored], Any]) -> Any:
    """Return the content of a torch.save file, each tensor as `make` builds it; raise ValueError to refuse it.

    Tensors that need more memory than their file could contain are refused before `make` is called.
    """
    if data[:2] != b"PK":
        raise ValueError(f"a pickle of torch before 1.6: {RUNS_CODE}; save it again with a newer torch")
    if data.count(b"PK\x01\x02") > MOST_TENSORS:  # entries of its index, each of which would cost a kilobyte
        raise ValueError(f"it has more than {MOST_TENSORS:,} members")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if any(one.compress_type != zipfile.ZIP_STORED for one in members):
                raise ValueError("its members are compressed, as torch never writes them; save it again with torch")
            if sum(one.file_size for one in members) > len(data):
                raise ValueError("its members are larger than the file; save it again with torch")
            pickled = [one for one in members if one.filename.endswith("/data.pkl")]
            if len(pickled) != 1 or pickled[0].file_size > HEADER_BYTES:
                raise ValueError(f"it has no data.pkl of at most {HEADER_BYTES:,} bytes")
            folder = pickled[0].filename.removesuffix("data.pkl")
            return _Names(archive, folder, archive.read(pickled[0]), 4 * len(data) + HEADER_BYTES, make).load()
    except (zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
        raise ValueError(f"it is damaged: {error}") from error


def require_floats(state: Mapping[str, Any]) -> None:
    """Refuse weights other than finite float32: a network would round others, or act at random on NaN."""
    for name, value in state.items():
        if (kind := dtype_of(value)) != "float32":
            raise ValueError(f"{name} is {kind}; the weights of policies are float32")
        if not (abs(value) < math.inf).all():
            raise ValueError(f"{name} holds NaN or an infinity; the weights of policies are finite")


def require_like(expected: Mapping[str, Any], given: Mapping[str, Any], *, shapes: bool = True) -> None:
    """Refuse values of `given` whose type differs from that in `expected`; with `shapes`, also their shape."""
    for name, value in given.items():
        want = expected.get(name)
        if want is None or value is None:
            continue
        if isinstance(want, bool | int | str):
            if not isinstance(want, type(value)):
                raise ValueError(f"{name} is {_words(value)}, not a value like {shown(want)}")
        elif _is_float(want) and _is_float(value):
            continue  # a number, or an array of no dimension
        elif not hasattr(value, "dtype") or not hasattr(want, "dtype") or _kind(value) != _kind(want):
            raise ValueError(f"{name} is {_words(value)}, not {_words(want)}")
        elif shapes and tuple(value.shape) != tuple(want.shape):
            raise ValueError(f"size mismatch for {name}: {_words(value)}, not {_words(want)}")


def dtype_of(value: Any) -> str:
    """Return the dtype's name, such as `float32`, for arrays of numpy, JAX and torch alike."""
    return str(value.dtype).removeprefix("torch.")


def _kind(value: Any) -> tuple[str, int]:
    return dtype_of(value), len(value.shape)


def _is_float(value: Any) -> bool:
    return type(value) in (int, float) or (getattr(value, "shape", None) == () and dtype_of(value) == "float64")


def _words(value: Any) -> str:
    return f"{dtype_of(value)} of shape {tuple(value.shape)}" if hasattr(value, "dtype") else shown(value)


# In Python, whose memory for names grows with their number; that of C grows with the largest number in the file.
class _Names(pickle._Unpickler):
    """Reads the pickle of a torch file."""

    stack: list[Any]
    dispatch: ClassVar[dict[int, Any]] = {
        code: load for code, load in pickle._Unpickler.dispatch.items() if code != pickle.BYTEARRAY8[0]
    }

    def __init__(
        self, archive: zipfile.ZipFile, folder: str, pickled: bytes, budget: int, make: Callable[[Stored], Any]
    ) -> None:
        super().__init__(io.BytesIO(pickled))
        self._archive, self._folder, self._make, self._budget = archive, folder, make, budget
        self._read: dict[str, bytes] = {}

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return _state
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self._tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _parameter
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise ValueError(RUNS_CODE)

    def persistent_load(self, pid: Any) -> _Storage:
        word, (dtype, itemsize), key, _, count = pid
        if word != "storage" or type(key) is not str or type(count) is not int:
            raise ValueError(RUNS_CODE)
        if key not in self._read:
            self._read[key] = self._archive.read(f"{self._folder}data/{key}")
        if count * itemsize != len(self._read[key]):
            raise ValueError(f"its storage {key!r} is shorter than its {count:,} numbers of {dtype}")
        return _Storage(dtype, itemsize, self._read[key])

    def load_build(self) -> None:
        """Ignore the module versions that torch adds to a state dict; nothing else has a state."""
        self.stack.pop()
        if type(self.stack[-1]) is not OrderedDict:
            raise ValueError(RUNS_CODE)

    dispatch[pickle.BUILD[0]] = load_build

    def _tensor(self, storage: Any, offset: Any, shape: Any, strides: Any, *_: object) -> Any:
        """Return a tensor whose view lies inside its storage."""
        numbers = (offset, *shape, *strides)
        if type(storage) is not _Storage or len(shape) != len(strides) or len(shape) > MOST_DIMENSIONS:
            raise ValueError(RUNS_CODE)
        if not all(type(one) is int and 0 <= one <= MOST_INT for one in numbers):
            raise ValueError(
                f"a tensor has the shape {shown(shape)}, strides {shown(strides)} and offset {shown(offset)}"
            )
        count, held = math.prod(shape), len(storage.content) // storage.itemsize
        last = offset + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        self._budget -= count * storage.itemsize
        if count > held or self._budget < 0 or (count and last >= held):
            raise ValueError(f"a tensor of shape {tuple(shape)} is larger than what the file holds of it")
        if storage.dtype not in _NUMPY:
            raise ValueError(f"a tensor is {storage.dtype}, which cannot be read; save it as float32")
        return self._make(Stored(storage.dtype, tuple(shape), tuple(strides), offset, storage.content))


_NUMPY = {dtype for dtype, _ in _STORAGES.values()} - {"bfloat16"} | set(_SAFETENSORS.values()) - {"bfloat16"}


def _state(*given: object) -> OrderedDict[Any, Any]:
    if given:  # torch writes empty ones, and fills them
        raise ValueError(RUNS_CODE)
    return OrderedDict()


def _parameter(tensor: object, *_: object) -> object:
    return tensor
