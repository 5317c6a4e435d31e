"""https with files, and clear words about files that cannot be used."""

import shutil
import ssl
import subprocess

import httpx
import pytest
from server.test_process import process, url_of

from mini_vllm.config import ServerConfig
from mini_vllm.errors import ConfigError
from mini_vllm.server.run import serve


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A certificate for localhost and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = folder / "cert.pem", folder / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-days", "2"]
    subprocess.run([*command, *subject, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return str(certificate), str(key)


def test_a_server_with_a_certificate_speaks_https(files: tuple[str, str]) -> None:
    with process(tls=files) as running:
        url = url_of(running)
        assert url.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=files[0])
        with httpx.Client(verify=trusted) as client:
            assert client.get(url + "/health").json() == {"status": "ok"}
            answer = client.post(url + "/v1/completions", json={"prompt": "say:safe"}).json()
            assert answer["choices"][0]["text"] == "safe"


@pytest.mark.parametrize("which", ["missing", "not a certificate", "no key"])
def test_files_that_cannot_be_used_are_refused_before_anything_is_loaded(files, tmp_path, which: str) -> None:
    other = tmp_path / "other.pem"
    if which == "not a certificate":
        other.write_text("hello")
    certificate = files[0] if which == "no key" else str(other)
    with pytest.raises(ConfigError, match=r"TLS files .*pem cannot be used") as caught:
        serve(None, ServerConfig(port=0, ssl_certfile=certificate), model_names=("x",))
    assert caught.value.param == "ssl_certfile"
