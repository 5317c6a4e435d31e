"""Finds and loads libmini_vllm.so. The only place that knows where the native library lies.

Must not know any op, model or number format; the structs and signatures are in `native_abi`.
"""

import ctypes
import functools
import os
import sys
from pathlib import Path

from mini_vllm.errors import INSTALL_TORCH, MissingDependencyError

LIBRARY_NAME = "libmini_vllm.so"
ABI_VERSION = 11

_REMEDY = (
    "install a C++ compiler (Debian: apt install g++) and reinstall mini-vllm, "
    f"or run on torch: {INSTALL_TORCH} and --executor torch"
)


def library_path() -> Path | None:
    """Where the library is, or None.

    $MINI_VLLM_LIBRARY, else beside this file (a normal install), else in `mini_vllm/kernels` of any folder on
    sys.path (an editable install leaves built files in site-packages while sources stay where they are).
    """
    if explicit := os.environ.get("MINI_VLLM_LIBRARY"):
        return Path(explicit)
    beside = Path(__file__).with_name(LIBRARY_NAME)
    installed = (Path(folder or ".") / "mini_vllm" / "kernels" / LIBRARY_NAME for folder in sys.path)
    return next((path for path in (beside, *installed) if path.is_file()), None)


@functools.cache
def load_library() -> ctypes.CDLL:
    """The loaded library. Calls through it release the GIL, and leave errno to `ctypes.get_errno`.

    Raises MissingDependencyError where it was not built, cannot be loaded, or belongs to another version.
    """
    path = library_path()
    if path is None:
        raise MissingDependencyError(f"the native library {LIBRARY_NAME} is not built; {_REMEDY}")
    try:
        library = ctypes.CDLL(str(path), use_errno=True)
    except OSError as error:
        raise MissingDependencyError(f"cannot load {path}: {error}; {_REMEDY}") from error
    library.mv_version.restype = ctypes.c_int32
    version = library.mv_version()
    if version != ABI_VERSION:
        raise MissingDependencyError(
            f"{path} has interface {version}, this package needs {ABI_VERSION}; reinstall mini-vllm to rebuild it"
        )
    return library
