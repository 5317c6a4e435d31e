"""Devices by name. Nothing heavy is imported until a device is asked for."""

import importlib

from mini_vllm.errors import INSTALL_TORCH, ConfigError, MissingDependencyError
from mini_vllm.kernels.table import Device

# name → (module, factory)
_DEVICES: dict[str, tuple[str, str]] = {
    "native": ("mini_vllm.kernels.native", "NativeDevice"),
    "torch": ("mini_vllm.kernels.torch_ops", "TorchDevice"),
}


def device_names() -> tuple[str, ...]:
    """The names `get_device` knows."""
    return tuple(_DEVICES)


def get_device(name: str, *, threads: int | None = None, torch_device: str = "cpu", isa: str | None = None) -> Device:
    """The op table `name`: "native" on `threads` threads (None: `default_threads()`) with the instruction set `isa`
    (None: the best), or "torch" on `torch_device`.

    Raises ConfigError for another name, MissingDependencyError where the device is not installed.
    """
    if name not in _DEVICES:
        raise ConfigError(f"unknown device {name!r}; choose one of {', '.join(_DEVICES)}", param="executor")
    module_name, factory_name = _DEVICES[name]
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("torch"):
            raise
        raise MissingDependencyError(f"device torch needs PyTorch: {INSTALL_TORCH}") from error
    factory = getattr(module, factory_name)
    options = {"device": torch_device} if name == "torch" else {"isa": isa}
    device: Device = factory(threads=threads, **options)
    return device
