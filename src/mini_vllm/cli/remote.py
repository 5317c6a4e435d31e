"""Asking a running server, with the standard library. Must not know what the answers mean."""

import urllib.error
import urllib.request

from mini_vllm.errors import ConfigError


def get(url: str, path: str, *, api_key: str | None = None, seconds: float = 10.0) -> str:
    """The text at a server's path (`ConfigError` when nobody answers there). Of several keys the first is sent."""
    address = url.rstrip("/") + path
    if not address.startswith(("http://", "https://")):
        raise ConfigError(f"url is {url!r}; it must begin with http:// or https://", param="url")
    key = (api_key or "").split(",")[0].strip()
    request = urllib.request.Request(address, headers={"authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            text: str = response.read().decode("utf-8")
            return text
    except urllib.error.HTTPError as error:
        remedy = {
            401: "; give its key in MINI_VLLM_API_KEY",
            404: "; give the address of a mini-vLLM server without a path, such as http://127.0.0.1:8000",
        }.get(error.code, "")
        raise ConfigError(f"{address} answers {error.code} {error.reason}{remedy}") from None
    except (OSError, ValueError, urllib.error.URLError) as error:
        raise ConfigError(
            f"no mini-vLLM server answers at {address} ({error}); start one with `mini-vllm serve`"
        ) from None
