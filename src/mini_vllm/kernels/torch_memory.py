"""What a torch device has free. Must not know what it will be used for."""

import torch


def free_bytes(device: str) -> int | None:
    """Bytes free on a cuda device, or below the recommended limit on mps; None for the CPU (ask the system)."""
    kind = device.split(":")[0]
    if kind == "cuda":
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    if kind == "mps":
        return int(torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    return None
